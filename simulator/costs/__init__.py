"""Cost models: what an iteration, an update, a weight sync and a switch take.

Three sources behind one protocol (:class:`CostModel`): :class:`LinearCost` (coefficients),
:class:`RooflineCost` (a model on a GPU) and :class:`TablesCost` (measured kernels).
"""

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
