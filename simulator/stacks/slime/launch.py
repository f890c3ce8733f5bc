"""What slime's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """As slime_validate_args (slime/utils/arguments.py) does: steps of a rollout and rollouts of a
    step give one another."""
    nodes, gpus = whole(settings, "run.nodes"), whole(settings, "run.gpus_per_node")
    if nodes and gpus:
        yield settings["run.nodes"].implies("cluster.trainer_gpus", nodes * gpus)
    yield from _batch(settings)
    yield from _recomputed(settings)
    divergence = settings.get("run.kl_in_loss")
    weight = settings.get("run.kl_coefficient")
    if divergence is not None and divergence.value is True:
        yield divergence.implies("run.reference", True)
    elif weight is not None and weight.theirs == "kl-coef":
        yield weight.implies("run.reference", bool(weight.value))
    elif divergence is not None:
        yield divergence.implies("run.reference", False)


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
