"""A scenario's ``cost``: where the durations come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simulator.costs.linear import LinearCost
from simulator.later import Later
from simulator.options import Doc, Options, choice, mapping, read

if TYPE_CHECKING:
    from simulator.costs.roofline_options import RooflineSection
    from simulator.costs.scaled import Scale
else:
    Scale = Later("simulator.costs.scaled", "Scale")
    RooflineSection = Later("simulator.costs.roofline_options", "RooflineSection")


@dataclass(frozen=True, slots=True)
class TablesSection(Options):
    """Costs interpolated from tables of measured kernels."""

    FIELD = "cost.tables"

    backend: Annotated[str, Doc("the engine whose tables are read")] = "vllm"
    roofline: Annotated[RooflineSection, Doc("what prices the updates, syncs and switches")] = (
        dataclasses.field(default_factory=RooflineSection)
    )


SOURCES = ("roofline", "tables", "file", "linear")


@dataclass(frozen=True, slots=True)
class CostSection(Options):
    """One of four sources of costs, and factors on it."""

    FIELD = "cost"

    roofline: Annotated[
        RooflineSection | None, Doc("from model and gpu, by the roofline; may be empty")
    ] = None
    tables: Annotated[
        TablesSection | None,
        Doc("from tables of measured kernels (the optional package of rollcast[tables])"),
    ] = None
    file: Annotated[Path | None, Doc("a file that rollcast calibrate wrote")] = None
    linear: Annotated[LinearCost | None, Doc("coefficients, given here")] = None
    scale: Annotated[
        Scale | None, Doc("factors by phase, such as a run of one's own gave over its forecast")
    ] = None

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], field: str) -> CostSection:
        """A source set to null has no options of its own; factors alone are on the roofline. Raises
        ScenarioError."""
        spelt = {
            key: {} if item is None and key not in ("file", "scale") else item
            for key, item in mapping(value, field).items()
        }
        if "scale" in spelt and not spelt.keys() & set(SOURCES):
            spelt["roofline"] = {}
        return read(cls, spelt, field)

    @classmethod
    def from_text(cls, kind: str, field: str = FIELD) -> CostSection:
        """The source of that name, with nothing else said of it. Raises ScenarioError."""
        return cls.from_mapping({choice(kind, field, SOURCES): None}, field)

    @property
    def of_the_roofline(self) -> RooflineSection | None:
        """What prices updates, syncs and switches; None where coefficients or a file do."""
        return self.roofline if self.tables is None else self.tables.roofline

    def agree(self) -> None:
        """It is one of them."""
        if sum(getattr(self, kind) is not None for kind in SOURCES) != 1:
            raise self.refuse("", f"must be exactly one of {', '.join(SOURCES)}")
