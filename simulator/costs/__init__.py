"""Cost models: what an iteration, an update, a weight sync and a switch take.

Three sources with one base class (:class:`CostModel`): :class:`LinearCost` (coefficients),
:class:`RooflineCost` (a model on a GPU) and :class:`TablesCost` (measured kernels). A name is
imported from its module when it is first asked for: who simulates with coefficients does not
wait for the roofline.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollcast.simulator.costs.base import (
        CostModel,
        Curve,
        Extremes,
        Iteration,
        TrainCost,
        TrainLoad,
    )
    from rollcast.simulator.costs.linear import LinearCost
    from rollcast.simulator.costs.memory.kv_pool import kv_pool_tokens
    from rollcast.simulator.costs.memory.training import (
        Frontier,
        PhaseB,
        capacity_frontier,
        phase_b_memory,
    )
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.costs.roofline.options import ROOFLINE_SOURCES
    from rollcast.simulator.costs.tables import LatencyProvider, TablesCost, aiconfigurator_provider
    from rollcast.simulator.costs.trainer.options import TRAINER_SOURCES
    from rollcast.simulator.costs.trainer.trainer import RooflineTrainer

_HOMES = {
    "base": (
        "CostModel",
        "Curve",
        "Extremes",
        "Iteration",
        "TrainCost",
        "TrainLoad",
    ),
    "memory.kv_pool": ("kv_pool_tokens",),
    "linear": ("LinearCost",),
    "memory.training": ("Frontier", "PhaseB", "capacity_frontier", "phase_b_memory"),
    "roofline.cost": ("RooflineCost",),
    "roofline.options": ("ROOFLINE_SOURCES",),
    "tables": ("LatencyProvider", "TablesCost", "aiconfigurator_provider"),
    "trainer.trainer": ("RooflineTrainer",),
    "trainer.options": ("TRAINER_SOURCES",),
}

__all__ = [
    "ROOFLINE_SOURCES",
    "TRAINER_SOURCES",
    "CostModel",
    "Curve",
    "Extremes",
    "Frontier",
    "Iteration",
    "LatencyProvider",
    "LinearCost",
    "PhaseB",
    "RooflineCost",
    "RooflineTrainer",
    "TablesCost",
    "TrainCost",
    "TrainLoad",
    "aiconfigurator_provider",
    "capacity_frontier",
    "kv_pool_tokens",
    "phase_b_memory",
]


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, from the module that holds it."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
