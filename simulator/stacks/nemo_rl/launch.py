"""What NeMo-RL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of either role, what a pass holds, and which activations are computed again."""
    yield from _placed(settings)
    yield from _passes(settings)
    yield from _engine(settings)
    yield from _logits(settings)
    mlps = settings.get("run.recomputes_mlps")
    if mlps is not None and mlps.value is True and value(settings, "run.recompute") == "full":
        yield mlps.implies("run.recompute", "mlp")
    kind = settings.get("run.recompute_kind")
    if kind is not None and value(settings, "run.recompute") == "full" and kind.value:
        yield kind.implies("run.recompute", kind.value)


def _logits(settings: Settings) -> Iterable[Setting]:
    """Bytes of a logit where words are split (nemo_rl/distributed/model_utils.py): before 0.3.1 a
    softmax in 32 bit and two one-hot vectors of 64, beside DTensor's 16 bit logits; by chunks 32
    bit logits, and their gradient once in parts and once in whole, and before an update 16 bit
    ones alone."""
    one_hot, chunk = settings.get("run.one_hot_loss"), settings.get("run.logits_chunk_tokens")
    wide = value(settings, "run.strategy") == "megatron"
    split = (whole(settings, "cost.roofline.trainer.tensor_parallel") or 1) > 1
    split &= "gemma" not in str(value(settings, "model")).lower()  # whose head was whole then
    if one_hot is not None and one_hot.value is True:
        if split or wide:
            yield one_hot.implies("run.logit_bytes", 20 if wide else 22)
            yield one_hot.implies("run.scored_logit_bytes", 12 if wide else 14)
    elif chunk is not None and whole(settings, "run.logits_chunk_tokens"):
        yield chunk.implies("run.logit_bytes", 12)


def _engine(settings: Settings) -> Iterable[Setting]:
    """An engine of Megatron is split as the trainer is, unless it has settings of its own."""
    own = settings.get("cluster.tensor_parallel")
    split = settings.get("cost.roofline.trainer.tensor_parallel")
    if value(settings, "run.engine") != "megatron" or split is None:
        return
    if own is None or "mcore" not in own.theirs:
        yield split.implies("cluster.tensor_parallel", split.value)


def _passes(settings: Settings) -> Iterable[Setting]:
    """Passes that are filled by tokens have room for their rows at the longest
    (``train_mb_tokens`` and ``logprob_mb_tokens`` in examples/configs/grpo_math_1B.yaml)."""
    longest = whole(settings, "run.max_total_tokens")
    rows = settings.get("run.micro_batch_rollouts")
    own = settings.get("run.log_prob_micro_rollouts")
    if own is not None and own.value is None and rows is not None:
        own = rows.implies("run.log_prob_micro_rollouts", rows.value)
        yield own
    filled = any(value(settings, f"run.{name}") is True for name in ("packing", "dynamic_batches"))
    for tokens, of in (("run.max_pass_tokens", rows), ("run.log_prob_pass_tokens", own)):
        if filled and longest and of and isinstance(of.value, int) and tokens not in settings:
            yield of.implies(tokens, longest * of.value)


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
