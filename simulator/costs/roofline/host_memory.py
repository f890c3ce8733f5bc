"""What a node's host memory holds: states and weights that wait there, and the processes."""

from __future__ import annotations

from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES
from rollcast.simulator.costs.trainer.states import master_bytes, moment_bytes


def host_bytes(cost: RooflineCost) -> dict[str, float]:
    """Bytes of host memory on a node, by part: at 0 left out."""
    trainer, known = cost.trainer_of, figures("memory")
    ranks = min(trainer.gpus, trainer.gpus_per_node)
    owned = trainer.layout.owned_parameters * ranks
    states = 0.0
    if trainer.weights == "full":
        each = master_bytes(trainer) + moment_bytes(trainer) + GRADIENT_BYTES
        if trainer.states_on_host or trainer.optimizer_on_host:
            states = each * owned
    colocated = cost.placement == "colocated"
    away = trainer.trained_bytes_per_gpu * ranks if colocated and cost.offload_optimizer else 0.0
    engine = 0.0
    if colocated and cost.engine_sleep == "offload":
        engine = cost.model.weight_bytes / cost.engine_gpus * min(ranks, cost.engine_gpus)
    processes = ranks * (2 if colocated else 1) * known.process_bytes
    parts = {
        "optimizer": states,
        "offloaded_states": away,
        "engine_weights": engine,
        "processes": processes,
    }
    return {name: size for name, size in parts.items() if size > 0}
