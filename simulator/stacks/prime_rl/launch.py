"""What prime-rl's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_GPUS = 8  # of a node, where deployment.gpus_per_node does not say


def implied(settings: Settings) -> Iterable[Setting]:
    """Engines and FSDP's trainer have GPUs of their own, and overlap unless no version may pass;
    with a bound of one version, batches are made in turn, one ahead of the trainer."""
    yield from _placed(settings)
    if value(settings, "run.logits_chunk_tokens") == "disabled":  # the model's own head
        whole_logits = "cost.roofline.trainer.logits_chunk_tokens"
        yield settings["run.logits_chunk_tokens"].implies(whole_logits, None)
    batch, size = whole(settings, "run.batch_rollouts"), whole(settings, "workload.group_size")
    if batch and size and batch % size == 0:
        yield settings["run.batch_rollouts"].implies("workload.batch_groups", batch // size)


def _placed(settings: Settings) -> Iterable[Setting]:
    """By lists of GPUs, by nodes, or by their numbers on one node."""
    lists = settings.get("run.rollout_devices"), settings.get("run.trainer_devices")
    for one, key in zip(lists, ("run.rollout_gpus", "cluster.trainer_gpus"), strict=True):
        if one is not None and isinstance(one.value, list):
            yield one.implies(key, len(one.value))
    per = whole(settings, "run.gpus_per_node") or _GPUS
    copies = whole(settings, "run.rollout_copies") or 1
    for nodes, key, times in (
        ("run.rollout_nodes", "run.rollout_gpus", copies),
        ("run.nodes", "cluster.trainer_gpus", 1),
    ):
        if number := whole(settings, nodes):
            yield settings[nodes].implies(key, number * times * per)
    apart = settings.get("run.rollout_gpus") or settings.get("run.rollout_nodes") or lists[0]
    if apart is not None:
        yield apart.implies("run.colocated", False)
