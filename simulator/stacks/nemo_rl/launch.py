"""What NeMo-RL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of either role, and the models and layers that other settings decide."""
    yield from _placed(settings)
    weight, algorithm = settings.get("run.kl_coefficient"), settings.get("run.algorithm")
    skipped = settings.get("run.skip_reference")
    if skipped is not None and skipped.value is True:
        yield skipped.implies("run.reference", False)
    elif weight is not None and isinstance(weight.value, int | float):
        yield weight.implies("run.reference", weight.value > 0)
    if algorithm is not None:
        yield algorithm.implies("run.critic", algorithm.value == "gae")
    adapters, kind = settings.get("run.lora"), settings.get("run.recompute_kind")
    if adapters is not None and adapters.value is False:
        yield adapters.implies("run.lora_rank", 0)
    if kind is not None and value(settings, "run.recompute") == "full" and kind.value:
        yield kind.implies("run.recompute", kind.value)
    packed = settings.get("run.packing")
    if packed is not None and packed.value is True:
        yield packed.implies("run.dynamic_batches", True)
    answer, total = settings.get("workload.max_new_tokens"), whole(settings, "run.max_total_tokens")
    if answer is None and total:
        yield settings["run.max_total_tokens"].implies("workload.max_new_tokens", total)


def _placed(settings: Settings) -> Iterable[Setting]:
    """The cluster's nodes are those of both roles (setup in algorithms/grpo.py): engines apart take
    theirs from one node's GPUs, or from the nodes."""
    apart = settings.get("run.colocated")
    nodes, gpus = (whole(settings, f"run.{name}") for name in ("nodes", "gpus_per_node"))
    if apart is None or not nodes or not gpus:
        return
    if apart.value is not False:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", nodes * gpus)
        return
    taken = whole(settings, "run.rollout_nodes") or 1
    per = whole(settings, "run.rollout_gpus_per_node") or gpus
    engines = taken * per
    left = gpus - engines if nodes == 1 else (nodes - taken) * gpus
    if left > 0:
        yield apart.implies("run.rollout_gpus", engines)
        yield apart.implies("cluster.trainer_gpus", left)
