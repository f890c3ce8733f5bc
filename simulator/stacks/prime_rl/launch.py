"""What prime-rl's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_GPUS = 8  # of a node, where deployment.gpus_per_node does not say


def implied(settings: Settings) -> Iterable[Setting]:
    """Engines and FSDP's trainer have GPUs of their own, and overlap unless no version may pass;
    with a bound of one version, batches are made in turn, one ahead of the trainer."""
    bound = settings.get("run.max_staleness")
    if bound is not None:
        if bound.value == 1:
            yield bound.implies("policy", ["one_step_off"])
        yield bound.implies("run.asynchronous", bound.value != 0)
    yield from _placed(settings)
    yield from _batch(settings)
    yield from _trained(settings)


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


def _batch(settings: Settings) -> Iterable[Setting]:
    """A batch is counted in rollouts, an answer's end by the sequence's where nothing else says."""
    batch, size = whole(settings, "run.batch_rollouts"), whole(settings, "workload.group_size")
    if batch and size and batch % size == 0:
        yield settings["run.batch_rollouts"].implies("workload.batch_groups", batch // size)
    total = settings.get("run.max_total_tokens")
    if total is None:
        return
    if "workload.max_new_tokens" not in settings:
        yield total.implies("workload.max_new_tokens", total.value)
    yield total.implies("run.max_pass_tokens", total.value)
    yield total.implies("run.dynamic_batches", True)
    yield total.implies("run.packing", True)


def _trained(settings: Settings) -> Iterable[Setting]:
    """FSDP2 is the only split; tables that are there turn on what they are of."""
    split = settings.get("run.reshard_after_forward")
    if split is not None:
        yield split.implies("run.strategy", "fsdp2")
    often, inflight = settings.get("run.recompute_frequency"), settings.get("run.offload_inflight")
    recompute = settings.get("run.recompute")
    if often is not None and (recompute is None or recompute.unsaid):
        yield often.implies("run.recompute", "full")
    if inflight is not None and inflight.value:
        yield inflight.implies("run.offload_activations", True)
    chunk = settings.get("run.logits_chunk_tokens")
    if chunk is not None and whole(settings, "run.logits_chunk_tokens"):
        yield chunk.implies("run.fused_head", True)
    if value(settings, "run.reference_model") is not None:
        yield settings["run.reference_model"].implies("run.reference", True)
