"""What a node's host memory holds: states and weights that wait there, and the processes."""

from __future__ import annotations

import math

from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.trainer.buckets import keeps_buckets
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES
from rollcast.simulator.costs.trainer.states import frozen_parts, master_bytes, moment_bytes


def host_bytes(cost: RooflineCost) -> dict[str, float]:
    """Bytes of host memory on a node, by part; those at 0 are left out.

    optimizer: weights, gradients and moments of an optimiser, or of all states, that works there.
    offloaded_states: what a colocated trainer's GPUs hold between steps, there while rollouts run;
    pinned copies are rounded up.
    reference: weights that wait there, and with those that are swapped with them the policy's.
    engine_weights: of an engine that sleeps with them.
    processes: of trainer and engines. Checkpoints while they are read, data and Ray's object store
    are left out.
    """
    trainer, known = cost.trainer_of, figures("memory")
    layout, colocated = trainer.layout, cost.placement == "colocated"
    ranks = min(trainer.gpus, trainer.gpus_per_node)
    states = away = judged = engine = 0.0
    if trainer.weights == "full" and (trainer.states_on_host or trainer.optimizer_on_host):
        each = master_bytes(trainer) + moment_bytes(trainer) + GRADIENT_BYTES
        trained = [trainer, *(t for role, t in trainer.others if role.trained and not role.gpus)]
        owned = math.fsum(one.layout.owned_parameters for one in trained)
        if trainer.critic and len(trained) == 1 and not trainer.critic_gpus:  # as the policy
            owned *= 2
        states = each * owned * ranks
    pinned = known.pinned_rounding if trainer.state_copies == "pinned" else 1.0
    if colocated and cost.offload_optimizer:
        held = trainer.resting()["trainer"]
        held_bytes = math.fsum(size for name, size in held.items() if name != "context")
        held_bytes -= trainer.bucket_bytes if keeps_buckets(trainer) else 0.0
        away = pinned * ranks * held_bytes
    if trainer.reference_on_host and trainer.log_prob_passes > 1 and trainer.weights == "full":
        copies = 2 if trainer.working_copy else 1
        judged = copies * ranks * frozen_parts(layout, trainer, COMPUTE_BYTES)
    if colocated and cost.engine_sleep == "offload":
        engine = known.pinned_rounding * cost.model.weight_bytes / cost.engine_gpus * ranks
    processes = ranks * (2 if colocated else 1) * known.process_bytes
    parts = {
        "optimizer": states,
        "offloaded_states": away,
        "reference": judged,
        "engine_weights": engine,
        "processes": processes,
    }
    return {name: size for name, size in parts.items() if size > 0}
