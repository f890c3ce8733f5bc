"""What NeMo-RL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """The cluster's nodes are those of both roles (setup in algorithms/grpo.py): engines apart take
    theirs from one node's GPUs, or from the nodes."""
    apart = settings.get("run.colocated")
    nodes, gpus = (whole(settings, f"run.{name}") for name in ("nodes", "gpus_per_node"))
    if apart is None or apart.value is not False or not nodes or not gpus:
        return
    taken = whole(settings, "run.rollout_nodes") or 1
    per = whole(settings, "run.rollout_gpus_per_node") or gpus
    engines = taken * per
    left = gpus - engines if nodes == 1 else (nodes - taken) * gpus
    if left > 0:
        yield apart.implies("run.rollout_gpus", engines)
        yield apart.implies("cluster.trainer_gpus", left)
