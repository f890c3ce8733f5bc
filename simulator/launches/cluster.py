"""Placement, replicas and GPUs that a launch or a log gives."""

from __future__ import annotations

from rollcast.simulator.launches.parts import Part, setting_part
from rollcast.simulator.stacks.settings import Settings, value, whole


def cluster_parts(known: Settings, overlapped: bool, what: str) -> list[Part]:
    """Placement, replicas, their GPUs, and those of the trainer. overlapped: whether rollouts are
    known to overlap training. what: the log or launch, in words for the sources."""
    sharding = whole(known, "cluster.tensor_parallel")
    tensor = sharding or 1
    parts: list[Part | None] = [setting_part(known, "cluster.tensor_parallel")]
    nodes, per_node = whole(known, "run.nodes"), whole(known, "run.gpus_per_node")
    gpus = nodes * per_node if nodes and per_node else None
    counts = [known[k].source for k in ("run.nodes", "run.gpus_per_node") if k in known]
    where = " and ".join(counts)
    beside = whole(known, "run.rollout_gpus")
    rollout_nodes = whole(known, "run.rollout_nodes")
    if beside is None and rollout_nodes:
        per = whole(known, "run.rollout_gpus_per_node") or per_node
        beside = rollout_nodes * per if per else None
    apart = _apart(known, beside, overlapped)
    if apart and beside:
        replicas, source = max(beside // tensor, 1), f"{beside} GPUs for rollouts"
    elif gpus:
        replicas, source = max(gpus // tensor, 1), f"{gpus} GPUs ({where})"
    else:
        replicas, source = 1, f"assumed: the {what} names no GPUs"
    parts += [
        setting_part(known, "cluster.replicas")
        or Part("cluster.replicas", replicas, source, source.startswith("assumed")),
        Part(
            "cluster.placement",
            "disaggregated" if apart else "colocated",
            *_placed(known, apart, overlapped),
        ),
    ]
    trainer = whole(known, "cluster.trainer_gpus") or gpus
    if trainer:
        parts.append(Part("cluster.trainer_gpus", trainer, where or f"of the {what}"))
    if not sharding:
        parts.append(Part("cluster.tensor_parallel", 1, "assumed", True))
    return [part for part in parts if part is not None]


def _apart(known: Settings, beside: int | None, overlapped: bool) -> bool:
    """Whether rollouts have GPUs of their own."""
    placement = value(known, "cluster.placement")
    if placement in ("colocated", "disaggregated"):
        return bool(placement == "disaggregated")
    colocated = value(known, "run.colocated")
    if isinstance(colocated, bool):
        return not colocated
    return beside is not None or overlapped


def _placed(known: Settings, apart: bool, overlapped: bool) -> tuple[str, bool]:
    for key in ("cluster.placement", "run.mode", "run.colocated", "run.rollout_gpus"):
        if key in known:
            setting = known[key]
            source = setting.theirs if setting.implied else f"{setting.theirs} is {setting.value}"
            return f"{source} in {setting.place}", False
    if overlapped and apart:
        return "assumed: rollouts overlapped training", True
    return "assumed", True
