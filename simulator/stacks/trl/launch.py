"""What TRL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs are a batch's rollouts over those of a GPU's passes; without vLLM each GPU generates."""
    engine, batch = settings.get("run.engine"), settings.get("run.batch_rollouts")
    alone = engine is not None and engine.value is False
    if engine is not None and alone:
        yield engine.implies("run.mode", "transformers")
    elif value(settings, "run.mode") in ("server", "colocate"):
        mode = settings["run.mode"]
        yield mode.implies("run.colocated", mode.value == "colocate")
    counts = [
        whole(settings, f"run.{name}")
        for name in ("batch_rollouts", "micro_batch_rollouts", "generation_every")
    ]
    if batch is None or not all(counts):
        return
    rollouts, rows, passes = (count or 1 for count in counts)
    gpus = rollouts // (rows * passes)
    if gpus < 1 or gpus * rows * passes != rollouts:
        return
    yield batch.implies("cluster.trainer_gpus", gpus)
    if alone or value(settings, "run.mode") == "colocate":
        tensor = 1 if alone else whole(settings, "cluster.tensor_parallel") or 1
        yield batch.implies("cluster.replicas", max(gpus // tensor, 1))
