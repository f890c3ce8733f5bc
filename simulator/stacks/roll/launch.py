"""What ROLL's launch settings imply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_RANGE = re.compile(
    r"list\(range\((?:(\d{1,6}),)?(\d{1,6})(?:,([1-9]\d{0,5}))?\)\)|\[([\d,]{1,5000})\]|\[\]"
)


def _devices(setting: Setting | None) -> frozenset[int]:
    """Of a ``device_mapping``, which is Python that is not run: ``list(range(0,8))``, a list of
    numbers, or a sum of these; none for any other."""
    devices: set[int] = set()
    text = str(None if setting is None else setting.value).replace(" ", "")
    for part in text.replace("])", "]").replace("([", "[").split("+"):
        one = _RANGE.fullmatch(part)
        if one is None:
            return frozenset()
        if one[2] is not None:
            devices.update(range(int(one[1] or 0), int(one[2]), int(one[3] or 1)))
        else:
            devices.update(int(number) for number in (one[4] or "").split(",") if number)
    return frozenset(devices)


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of the roles, the batch of environments, and models that other settings ask for."""
    batch = [*_batch(settings)]
    yield from _placed(settings)
    yield from batch
    yield from _models(settings)
    yield from _log_probs({**settings, **{one.key: one for one in batch}})
    packing, own = settings.get("run.packing"), settings.get("workload.group_size")
    alone = own is not None and not own.theirs.startswith("train_env_manager.")
    dynamic = value(settings, "run.dynamic_batches")
    if alone and packing is not None and packing.value is False and dynamic is not True:
        # postprocess_generate, functionals.py
        yield packing.implies("run.padding", "padded_to_cap")


def _placed(settings: Settings) -> Iterable[Setting]:
    """The device mappings name the GPUs of either role; nothing says how many nodes there are.
    Each role's states are offloaded after its work (roll/pipeline/base_worker.py)."""
    trainer, engines = (settings.get(f"run.{name}_devices") for name in ("trainer", "rollout"))
    trains, rolls = _devices(trainer), _devices(engines)
    if trainer is None or engines is None or not trains or not rolls:
        return
    tensor = whole(settings, "cluster.tensor_parallel") or 1
    shared = not trains.isdisjoint(rolls)
    yield engines.implies("cluster.replicas", max(len(rolls) // tensor, 1))
    yield engines.implies("run.rollout_gpus", len(rolls))
    yield trainer.implies("cluster.trainer_gpus", len(trains))
    yield engines.implies("run.colocated", shared)
    yield engines.implies("run.free_engine", shared)
    if shared and value(settings, "run.max_staleness"):  # partial_gpu_mode of agentic_pipeline.py
        yield engines.implies("policy", ["colocate_async"])
    for name in ("parameters", "optimizer"):
        yield trainer.implies(f"run.offload_{name}", True)
    for role, name in (("reference",) * 2, ("critic",) * 2, ("reward", "reward_model")):
        own = settings.get(f"run.{role}_devices")
        devices = _devices(own)
        if own is not None and devices and devices.isdisjoint(trains):
            yield own.implies(f"run.{name}_gpus", len(devices))


def _batch(settings: Settings) -> Iterable[Setting]:
    """A batch of environments counts rollouts, of prompts prompts; an optimiser step is rows x
    data-parallel GPUs x passes."""
    batch, size = whole(settings, "workload.batch_groups"), whole(settings, "workload.group_size")
    group = settings.get("workload.group_size")
    if group is not None and group.theirs.startswith("train_env_manager.") and batch and size:
        yield settings["workload.batch_groups"].implies("run.batch_rollouts", batch)
        yield settings["workload.batch_groups"].implies("workload.batch_groups", batch // size)
    rows = whole(settings, "run.micro_batch_rollouts")
    passes, trainer = (
        whole(settings, "run.gradient_accumulation"),
        settings.get("run.trainer_devices"),
    )
    if rows and passes and (gpus := len(_devices(trainer))):
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            gpus //= whole(settings, f"cost.roofline.trainer.{name}") or 1
        step = rows * passes * max(gpus, 1)
        yield settings["run.gradient_accumulation"].implies("run.mini_batch_rollouts", step)


def _models(settings: Settings) -> Iterable[Setting]:
    """A reference for a divergence that weighs anything, whatever ``enable_reference`` says
    (roll/configs/base_config.py)."""
    in_loss, weight = settings.get("run.kl_in_loss"), settings.get("run.kl_reward_coefficient")
    own = settings.get("run.reference")
    asks = next((term for term in (in_loss, weight) if term is not None and term.value), None)
    if asks is None and weight is None:  # which is 0.2 where it is not said
        asks = own
    if asks is not None:
        yield asks.implies("run.reference", True)
    elif in_loss is not None and own is None:
        yield in_loss.implies("run.reference", False)


def _log_probs(settings: Settings) -> Iterable[Setting]:
    """Computed anew for a divergence in the reward, or where a later optimiser step needs those
    before the first (set_old_logprobs_status of roll/configs/base_config.py)."""
    own, weight = settings.get("run.log_probs"), settings.get("run.kl_reward_coefficient")
    if own is None or own.value is not False or own.theirs.startswith("force"):
        return
    groups, size = whole(settings, "workload.batch_groups"), whole(settings, "workload.group_size")
    rollouts = whole(settings, "run.batch_rollouts") or (groups or 0) * (size or 0)
    step = whole(settings, "run.mini_batch_rollouts")
    if weight is not None and weight.value:
        yield weight.implies("run.log_probs", True)
    elif step is not None and rollouts >= 2 * step:
        yield settings["run.mini_batch_rollouts"].implies("run.log_probs", True)
