"""A scenario's ``cost``: where the durations come from; and the costs and the model built from it.
A kind of costs is imported where one is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.linear import LinearCost
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Doc, Options, choice, mapping, read, short
from rollcast.simulator.values.later import Later

if TYPE_CHECKING:
    from rollcast.simulator.costs.presets.gpus import Gpu
    from rollcast.simulator.costs.presets.models import Model
    from rollcast.simulator.costs.roofline.options import RooflineSection
    from rollcast.simulator.costs.scaled import Scale
else:
    Scale = Later("rollcast.simulator.costs.scaled", "Scale")
    RooflineSection = Later("rollcast.simulator.costs.roofline.options", "RooflineSection")


@dataclass(frozen=True, slots=True)
class TablesSection(Options):
    """Costs interpolated from tables of measured kernels."""

    FIELD = "cost.tables"

    backend: Annotated[str, Doc("engine whose tables are used")] = "vllm"
    roofline: Annotated[
        RooflineSection, Doc("roofline that prices updates, syncs and switches")
    ] = dataclasses.field(default_factory=RooflineSection)


@dataclass(frozen=True, slots=True)
class CostSection(Options):
    """One source of costs, and factors on it.

    Every field but ``scale`` is a source. One whose options are a `CostModel` themselves, such as
    ``linear``, prices the run as it is: another one is one more field.
    """

    FIELD = "cost"

    roofline: Annotated[
        RooflineSection | None, Doc("costs computed from model and gpu by a roofline; may be empty")
    ] = None
    tables: Annotated[
        TablesSection | None,
        Doc("costs interpolated from tables of measured kernels (needs rollcast[tables])"),
    ] = None
    file: Annotated[Path | None, Doc("file written by rollcast calibrate")] = None
    linear: Annotated[LinearCost | None, Doc("coefficients of a linear cost model")] = None
    scale: Annotated[
        Scale | None, Doc("factors on the durations of each phase, such as measured over forecast")
    ] = None

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], field: str) -> CostSection:
        """A source set to null has no options of its own; factors alone are on the roofline. Raises
        ScenarioError."""
        spelt = {
            key: {} if item is None and key not in ("file", "scale") else item
            for key, item in mapping(value, field).items()
        }
        if "scale" in spelt and not spelt.keys() & set(cls.sources()):
            spelt["roofline"] = {}
        return read(cls, spelt, field)

    @classmethod
    def from_text(cls, kind: str, field: str = FIELD) -> CostSection:
        """The source of that name, with nothing else said of it. Raises ScenarioError."""
        return cls.from_mapping({choice(kind, field, cls.sources()): None}, field)

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """The keys of the sources, in order."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.name != "scale")

    @property
    def cost_model(self) -> CostModel | None:
        """The source, where its options are a cost model themselves."""
        values = (getattr(self, name) for name in self.sources())
        return next((value for value in values if isinstance(value, CostModel)), None)

    @property
    def of_the_roofline(self) -> RooflineSection | None:
        """What prices updates, syncs and switches; None where coefficients or a file do."""
        return self.roofline if self.tables is None else self.tables.roofline

    def agree(self) -> None:
        """It is one of them."""
        sources = self.sources()
        if sum(getattr(self, name) is not None for name in sources) != 1:
            raise self.refuse("", f"must be exactly one of {', '.join(sources)}")


def build_model(spec: str | Model, folder: Path) -> Model:
    """A model whose path, if it is one, starts from the scenario's folder. Raises ScenarioError."""
    from rollcast.simulator.costs.presets.models import load_model, model_presets

    if isinstance(spec, str) and spec.lower() not in model_presets():
        with suppress(OSError, ValueError, RuntimeError):  # no path at all
            path = folder / Path(spec).expanduser()
            if path.exists() or spec.endswith(".json"):
                return load_model(path)
    try:
        return load_model(spec)
    except OSError:
        raise ScenarioError("model", f"{short(spec)} is no preset, and no path") from None


def build_cost(
    section: CostSection,
    network: Model | None,
    gpu: Gpu | None,
    shape: ClusterShape,
    folder: Path,
    *,
    stages: int = 1,
    trainer_gpu: Gpu | None = None,
    padded_tokens: int = 0,
) -> CostModel:
    """The costs of a section. folder: start of relative paths. stages: of a replica's pipeline.
    trainer_gpu: None where it is ``gpu``. padded_tokens: of a rollout padded to its caps. Raises
    ScenarioError."""
    if trainer_gpu is not None and section.of_the_roofline is None:
        source = next(name for name in section.sources() if getattr(section, name) is not None)
        raise ScenarioError(
            "cluster.trainer_gpu",
            f"cost: {source} has its durations whatever the GPUs are; leave trainer_gpu out, or "
            "take cost: roofline",
        )
    cost = section.cost_model
    if cost is None and section.file is not None:
        cost = _from_file(section.file, folder)
    elif cost is None:
        cost = _from_model(section, network, gpu, shape, stages, trainer_gpu, padded_tokens)
    if section.scale is not None:
        from rollcast.simulator.costs.scaled import ScaledCost

        scale = section.scale
        cost = ScaledCost(cost, scale.factors(), scale.spreads(), scale.opening)
    return cost


def _from_model(
    section: CostSection,
    network: Model | None,
    gpu: Gpu | None,
    shape: ClusterShape,
    stages: int,
    trainer_gpu: Gpu | None,
    padded_tokens: int,
) -> CostModel:
    from rollcast.simulator.costs.roofline.cost import RooflineCost

    kind = "roofline" if section.tables is None else "tables"
    if network is None or gpu is None:
        key = "gpu" if network else "model"
        raise ScenarioError(key, f"missing; cost: {kind} needs it (or give cost: linear)")
    roofline = RooflineCost.from_options(
        network,
        gpu,
        section.of_the_roofline,
        tensor_parallel=shape.gpus_per_replica // stages,
        pipeline_parallel=stages,
        replicas=shape.replicas,
        trainer_gpus=shape.trainer_gpus,
        trainer_gpu=trainer_gpu,
        placement="colocated" if shape.colocated else "disaggregated",
        padded_tokens=padded_tokens,
    )
    if section.tables is None:
        return roofline
    from rollcast.simulator.costs.tables import TablesCost, aiconfigurator_provider

    backend = section.tables.backend
    provider = aiconfigurator_provider(network, gpu, shape.gpus_per_replica, backend)
    return TablesCost(roofline, provider)


def _from_file(path: Path, folder: Path) -> CostModel:
    """The costs in a file that ``rollcast calibrate`` wrote, or JSON with a mapping ``linear``."""
    from rollcast.simulator.results.read import NotJsonError, parse_json

    try:
        place = folder / path
        if place.exists() and not place.is_file():
            raise ScenarioError("cost.file", f"{path} is not a file")
        content = parse_json(place.read_bytes())
    except OSError as error:
        raise ScenarioError("cost.file", f"cannot read {path}: {error.strerror}") from None
    except NotJsonError:
        raise ScenarioError(
            "cost.file",
            f"{short(str(path))} is not a file of JSON, such as rollcast calibrate writes",
        ) from None
    if isinstance(content, dict) and isinstance(content.get("linear"), dict):
        return read(LinearCost, content["linear"], LinearCost.FIELD)
    from rollcast.simulator.costs.fitted import FittedCost

    return FittedCost.from_mapping(content, str(path))
