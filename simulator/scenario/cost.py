"""A scenario's ``cost`` and ``model`` built; a kind of costs is imported where one is asked for."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.costs.base import ScenarioCost
from simulator.costs.linear import LinearCost
from simulator.costs.section import CostSection
from simulator.errors import ScenarioError
from simulator.options import read, short
from simulator.world import ClusterShape

if TYPE_CHECKING:
    from simulator.costs.hardware import Gpu
    from simulator.costs.models import Model


def build_model(spec: str | Model, folder: Path) -> Model:
    """A model whose path, if it is one, starts from the scenario's folder. Raises ScenarioError."""
    from simulator.costs.models import load_model, model_presets

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
) -> ScenarioCost:
    """The costs that the section asks for. folder: the scenario's, where a path starts from.
    stages: of a replica, a divisor of its GPUs. Raises ScenarioError."""
    if section.linear is not None:
        cost: ScenarioCost = section.linear
    elif section.file is not None:
        cost = _from_file(section.file, folder)
    else:
        cost = _from_model(section, network, gpu, shape, stages)
    if section.scale is not None:
        from simulator.costs.scaled import ScaledCost

        cost = ScaledCost(cost, section.scale.factors(), section.scale.spreads())
    if cost.decode_curve(1).ticks(1) == 0:
        raise ScenarioError("cost", "an iteration takes no time; give it a cost")
    return cost


def _from_model(
    section: CostSection, network: Model | None, gpu: Gpu | None, shape: ClusterShape, stages: int
) -> ScenarioCost:
    from simulator.costs.roofline import RooflineCost

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
        placement="colocated" if shape.colocated else "disaggregated",
    )
    if section.tables is None:
        return roofline
    from simulator.costs.tables import TablesCost, aiconfigurator_provider

    backend = section.tables.backend
    provider = aiconfigurator_provider(network, gpu, shape.gpus_per_replica, backend)
    return TablesCost(provider, roofline)


def _from_file(path: Path, folder: Path) -> ScenarioCost:
    """The costs in a file that ``rollcast calibrate`` wrote, or JSON with a mapping ``linear``."""
    try:
        place = folder / path
        if place.exists() and not place.is_file():
            raise ScenarioError("cost.file", f"{path} is not a file")
        content = json.loads(place.read_text("utf-8"))
    except OSError as error:
        raise ScenarioError("cost.file", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):  # not UTF-8, not JSON, nested too deeply
        raise ScenarioError(
            "cost.file",
            f"{short(str(path))} is not a file of JSON, such as rollcast calibrate writes",
        ) from None
    if isinstance(content, dict) and isinstance(content.get("linear"), dict):
        return read(LinearCost, content["linear"], LinearCost.FIELD)
    from simulator.costs.fitted import FittedCost

    return FittedCost.from_mapping(content, str(path))
