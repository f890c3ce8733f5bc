"""A scenario's ``cost``: where the durations come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.linear import LinearCost
from rollcast.simulator.values import Doc, Options, choice, mapping, read
from rollcast.simulator.values.later import Later

if TYPE_CHECKING:
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
