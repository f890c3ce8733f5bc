"""What Megatron-SWIFT's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """The batch of a generation (``resolve_generation_batch_size`` of megatron_args.py), and GPUs:
    each is of the trainer, and colocated engines have the same."""
    mini, every = (
        whole(settings, "run.mini_batch_rollouts"),
        whole(settings, "run.generation_every"),
    )
    batch = whole(settings, "run.batch_rollouts") or (mini * every if mini and every else None)
    group = whole(settings, "workload.group_size")
    if batch and group and batch % group == 0:
        first = next(
            settings[key]
            for key in ("run.batch_rollouts", "run.mini_batch_rollouts")
            if key in settings
        )
        yield first.implies("run.batch_rollouts", batch)
        yield first.implies("workload.batch_groups", batch // group)
    gpus = (whole(settings, "run.nodes") or 1) * (whole(settings, "run.gpus_per_node") or 0)
    if gpus and value(settings, "run.mode") == "colocate":
        tensor = whole(settings, "cluster.tensor_parallel") or 1
        yield settings["run.gpus_per_node"].implies("cluster.replicas", max(gpus // tensor, 1))
    if gpus:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", gpus)
