"""What slime's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """As slime_validate_args (slime/utils/arguments.py) does: steps of a rollout and rollouts of a
    step give one another."""
    nodes, gpus = whole(settings, "run.nodes"), whole(settings, "run.gpus_per_node")
    if nodes and gpus:
        yield settings["run.nodes"].implies("cluster.trainer_gpus", nodes * gpus)
    yield from _staged(settings)
    yield from _ahead(settings)
    yield from _batch(settings)
    yield from _recomputed(settings)
    yield from _logits(settings)
    divergence = settings.get("run.kl_in_loss")
    weight = settings.get("run.kl_coefficient")
    if divergence is not None and divergence.value is True:
        yield divergence.implies("run.reference", True)
    elif weight is not None and weight.theirs == "kl-coef":
        yield weight.implies("run.reference", bool(weight.value))
    elif divergence is not None:
        yield divergence.implies("run.reference", False)


_QUEUE = 1000  # groups


def _ahead(settings: Settings) -> Iterable[Setting]:
    """Of examples/fully_async: a batch of groups is always in flight, and whole ones wait in a
    queue; they are trained on however old they are."""
    own, batch = settings.get("run.rollout_function"), whole(settings, "workload.batch_groups")
    if own is None or "fully_async" not in str(own.value) or not batch:
        return
    bound = {"max_staleness": max(_QUEUE // batch, 1), "exceeded": "capacity", "refill": "group"}
    yield own.implies("policy", [{"fully_async": bound}])


def _staged(settings: Settings) -> Iterable[Setting]:
    """The GPUs of an engine are shared by its stages (backends/sglang_utils/arguments.py)."""
    gpus, stages = whole(settings, "run.engine_gpus"), "run.engine_pipeline_parallel"
    each = whole(settings, stages) or 1
    if gpus:
        yield settings["run.engine_gpus"].implies("cluster.tensor_parallel", max(gpus // each, 1))


def _batch(settings: Settings) -> Iterable[Setting]:
    groups, size = whole(settings, "workload.batch_groups"), whole(settings, "workload.group_size")
    steps, rollouts = (
        whole(settings, "run.minibatches"),
        whole(settings, "run.mini_batch_rollouts"),
    )
    if not groups or not size:
        return
    if steps and not rollouts:
        yield settings["run.minibatches"].implies("run.mini_batch_rollouts", groups * size // steps)
    elif rollouts and not steps:
        step = settings["run.mini_batch_rollouts"]
        yield step.implies("run.minibatches", max(groups * size // rollouts, 1))


def _recomputed(settings: Settings) -> Iterable[Setting]:
    """The method block computes that many layers of each pipeline stage anew, uniform all."""
    method, count = settings.get("run.recompute_method"), whole(settings, "run.recompute_count")
    if method is not None and method.value == "block" and count:
        stages = whole(settings, "cost.roofline.trainer.pipeline_parallel") or 1
        yield method.implies("run.recompute_layers", count * stages)


def _logits(settings: Settings) -> Iterable[Setting]:
    """Bytes of a logit (slime/utils/ppo_utils.py, backends/megatron_utils/loss.py): in 32 bit,
    again where the temperature divides them, and a softmax whose gradient is written in its place;
    beside it that of an entropy with a weight. Until 0.3.1 the entropy has a gradient whatever its
    weight, and a copy of the logits and a softmax of its own."""
    graded = settings.get("run.graded_entropy")
    if graded is None:
        return
    divided = 4 * (value(settings, "run.temperature") not in (None, 1))
    weighed = value(settings, "run.entropy_coefficient") not in (None, 0)
    each = 16 if graded.value is True else 12 if weighed else 8
    yield graded.implies("run.logit_bytes", each + divided)
    yield graded.implies("run.scored_logit_bytes", 8 + divided)
