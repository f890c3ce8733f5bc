"""What SkyRL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of the roles (placement), which share them with the policy where that is said."""
    colocated = settings.get("run.colocated")
    nodes, gpus = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
    if gpus:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", nodes * gpus)
    if colocated is None or colocated.value is True:
        return
    engines = whole(settings, "cluster.replicas")
    if engines:
        per = (whole(settings, "cluster.tensor_parallel") or 1) * (
            whole(settings, "run.engine_pipeline_parallel") or 1
        )
        total = engines * per * (whole(settings, "run.data_parallel") or 1)
        yield settings["cluster.replicas"].implies("run.rollout_gpus", total)
    if value(settings, "run.share_reference") is False:
        own = whole(settings, "run.reference_gpus_per_node")
        if own:
            machines = whole(settings, "run.reference_nodes") or 1
            yield settings["run.reference_gpus_per_node"].implies(
                "run.reference_gpus", machines * own
            )
