"""Cost models: what an iteration, an update, a weight sync and a switch take.

Three sources with one base class (:class:`CostModel`): :class:`LinearCost` (coefficients),
:class:`RooflineCost` (a model on a GPU) and :class:`TablesCost` (measured kernels). A module is
imported when one of its names is first asked for: coefficients do not wait for the roofline.
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
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.costs.tables import TablesCost
    from rollcast.simulator.costs.trainer.trainer import RooflineTrainer

__all__ = [
    "CostModel",
    "Curve",
    "Extremes",
    "Iteration",
    "LinearCost",
    "RooflineCost",
    "RooflineTrainer",
    "TablesCost",
    "TrainCost",
    "TrainLoad",
    "kv_pool_tokens",
]


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, from the first module that has it."""
    modules = ("base", "linear", "memory.kv_pool", "trainer.trainer", "roofline.cost", "tables")
    for home in modules if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
