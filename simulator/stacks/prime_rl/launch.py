"""What prime-rl's launch settings imply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_GPUS = 8  # of a node, where deployment.gpus_per_node does not say


def implied(settings: Settings) -> Iterable[Setting]:
    """Engines and FSDP's trainer have GPUs of their own, and overlap unless no version may pass;
    with a bound of one version, the default before 0.6, as many rollouts as a batch has, or so many
    times that, are always in flight, get new weights as they come, and wait where a complete batch
    does (orchestrator/scheduler.py)."""
    yield from _placed(settings)
    if value(settings, "run.logits_chunk_tokens") == "disabled":  # the model's own head
        whole_logits = "cost.roofline.trainer.logits_chunk_tokens"
        yield settings["run.logits_chunk_tokens"].implies(whole_logits, None)
    batch, size = whole(settings, "run.batch_rollouts"), whole(settings, "workload.group_size")
    if batch and size and batch % size == 0:
        yield settings["run.batch_rollouts"].implies("workload.batch_groups", batch // size)
    share = value(settings, "run.over_sampling_share")
    ahead = float(share) if isinstance(share, int | float) and share > 0 else 1.0
    if batch and ahead != 1.0:
        in_flight = int(batch * ahead)
        yield settings["run.over_sampling_share"].implies("run.in_flight_rollouts", in_flight)
    if whole(settings, "run.max_staleness") == 1:
        turns = [{"pipeline_rl": {"in_flight": ahead, "queue": 1.0}}]
        yield settings["run.max_staleness"].implies("policy", turns)


def _placed(settings: Settings) -> Iterable[Setting]:
    """By lists of GPUs, by nodes, or by their numbers on one node."""
    lists = settings.get("run.rollout_devices"), settings.get("run.trainer_devices")
    for one, key in zip(lists, ("run.rollout_gpus", "cluster.trainer_gpus"), strict=True):
        if one is not None and (devices := _devices(one.value)):
            yield one.implies(key, devices)
    said, several = settings.get("run.rollout_gpus"), settings.get("run.data_parallel")
    if several is not None and lists[0] is None and (said is None or said.unsaid):
        each = whole(settings, "cluster.tensor_parallel") or 1
        if copies := whole(settings, "run.data_parallel"):
            yield several.implies("run.rollout_gpus", copies * each)
    per = whole(settings, "run.gpus_per_node") or _GPUS
    trainer = settings.get("cluster.trainer_gpus")
    processes = trainer.value if trainer and trainer.theirs.startswith("torchrun") else per
    copies = whole(settings, "run.rollout_copies") or 1
    for nodes, key, times in (
        ("run.rollout_nodes", "run.rollout_gpus", copies * per),
        ("run.nodes", "cluster.trainer_gpus", processes),
    ):
        if number := whole(settings, nodes):
            yield settings[nodes].implies(key, number * times)
    apart = settings.get("run.rollout_gpus") or settings.get("run.rollout_nodes") or lists[0]
    if apart is not None:
        yield apart.implies("run.colocated", False)


def _devices(value: object) -> int:
    """How many numbers of GPUs there are in ``[6, 7]``, ``"6,7"`` or 6."""
    return len(value) if isinstance(value, list) else len(re.findall(r"\d+", str(value)))
