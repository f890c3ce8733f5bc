"""What OpenRLHF's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """Engines without ``--colocate_all_models`` have GPUs of their own."""
    engines = settings.get("cluster.replicas")
    count = whole(settings, "cluster.replicas")
    if engines is None or count is None or "run.colocated" in settings:
        return
    yield engines.implies("run.colocated", False)
    yield engines.implies(
        "run.rollout_gpus", count * (whole(settings, "cluster.tensor_parallel") or 1)
    )
