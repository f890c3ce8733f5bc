"""Cost models: what an iteration, an update, a weight sync and a switch take.

Three sources behind one protocol (:class:`CostModel`): :class:`LinearCost` (coefficients),
:class:`RooflineCost` (a model on a GPU) and :class:`TablesCost` (measured kernels). A name is
imported from its module when it is first asked for: who simulates with coefficients does not
wait for the roofline.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.costs.base import (
        CostModel,
        Curve,
        Extremes,
        Iteration,
        ScenarioCost,
        TrainCost,
        TrainLoad,
    )
    from simulator.costs.capacity import kv_pool_tokens
    from simulator.costs.linear import LinearCost
    from simulator.costs.memory import Frontier, PhaseB, capacity_frontier, phase_b_memory
    from simulator.costs.roofline import RooflineCost
    from simulator.costs.roofline_options import ROOFLINE_SOURCES
    from simulator.costs.tables import LatencyProvider, TablesCost, aiconfigurator_provider
    from simulator.costs.trainer import RooflineTrainer
    from simulator.costs.trainer_options import TRAINER_SOURCES

_HOMES = {
    "base": (
        "CostModel",
        "Curve",
        "Extremes",
        "Iteration",
        "ScenarioCost",
        "TrainCost",
        "TrainLoad",
    ),
    "capacity": ("kv_pool_tokens",),
    "linear": ("LinearCost",),
    "memory": ("Frontier", "PhaseB", "capacity_frontier", "phase_b_memory"),
    "roofline": ("RooflineCost",),
    "roofline_options": ("ROOFLINE_SOURCES",),
    "tables": ("LatencyProvider", "TablesCost", "aiconfigurator_provider"),
    "trainer": ("RooflineTrainer",),
    "trainer_options": ("TRAINER_SOURCES",),
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
    "ScenarioCost",
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
