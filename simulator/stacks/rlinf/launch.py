"""What RLinf's launch settings imply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, whole

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of the roles (``cluster.component_placement``), models and layers that other settings
    decide."""
    yield from _placed(settings)
    yield from _logits(settings)
    parked = settings.get("run.offload_optimizer")
    if parked is not None and parked.theirs == "actor.enable_offload":
        for name in ("parameters", "gradients"):
            yield parked.implies(f"run.offload_{name}", parked.value)
    method, count = settings.get("run.recompute_method"), whole(settings, "run.recompute_count")
    if method is not None and method.value == "block" and count:
        stages = whole(settings, "cost.roofline.trainer.pipeline_parallel") or 1
        yield method.implies("run.recompute_layers", count * stages)


def _placed(settings: Settings) -> Iterable[Setting]:
    """``all`` is every GPU of the cluster, whose number its nodes alone do not give."""
    shared = settings.get("run.shared_devices")
    if shared is not None:
        yield shared.implies("run.colocated", True)
        yield shared.implies("run.asynchronous", False)
        if gpus := _gpus(shared, settings):
            yield shared.implies("cluster.trainer_gpus", gpus)
            yield shared.implies("cluster.replicas", max(gpus // _engine(settings), 1))
        return
    trainer, engines = (settings.get(f"run.{name}_devices") for name in ("trainer", "rollout"))
    if trainer is None or engines is None:
        return
    apart = _apart(trainer, engines)
    yield engines.implies("run.colocated", not apart)
    yield engines.implies("run.asynchronous", apart)
    if gpus := _gpus(trainer, settings):
        yield trainer.implies("cluster.trainer_gpus", gpus)
    if gpus := _gpus(engines, settings):
        yield engines.implies("run.rollout_gpus", gpus)
        yield engines.implies("cluster.replicas", max(gpus // _engine(settings), 1))
    reference = settings.get("run.reference_devices")
    if (
        reference is not None
        and _apart(reference, trainer)
        and (gpus := _gpus(reference, settings))
    ):
        yield reference.implies("run.reference_gpus", gpus)


def _engine(settings: Settings) -> int:
    return (whole(settings, "cluster.tensor_parallel") or 1) * (
        whole(settings, "run.engine_pipeline_parallel") or 1
    )


def _gpus(devices: Setting, settings: Settings) -> int:
    """Of ``0-7``, ``0``, ``0-3,8-11`` or ``all``; 0 where they are not known."""
    if devices.value == "all":
        nodes, per = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
        return nodes * per if per else 0
    return sum(len(part) for part in _ranges(devices))


def _apart(one: Setting, other: Setting) -> bool:
    """Whether two roles share no GPU."""
    if one.value == other.value or "all" in (one.value, other.value):
        return False
    pairs = [(a, b) for a in _ranges(one) for b in _ranges(other)]
    return not any(a.start < b.stop and b.start < a.stop for a, b in pairs)


def _ranges(devices: Setting) -> list[range]:
    """Empty where they are not of numbers alone."""
    parts = str(devices.value).replace(" ", "").split(",")
    found = [match for part in parts if (match := _RANGE.fullmatch(part))]
    if len(found) < len(parts):
        return []
    return [range(int(match[1]), int(match[2] or match[1]) + 1) for match in found]


def _logits(settings: Settings) -> Iterable[Setting]:
    """Bytes of a logit. Under FSDP (rlinf/workers/actor/fsdp_actor_worker.py) as in SkyRL: 16 bit
    logits and the gradient of their division. Megatron's cross-entropy writes where its 32 bit
    logits are, which are made of 16 bit ones; with an entropy (rlinf/utils/distributed.py) there
    are these, less their largest, a softmax, and the product of both."""
    strategy, entropy = settings.get("run.strategy"), settings.get("run.entropy")
    if strategy is None:
        return
    wide, measured = strategy.value == "megatron", entropy is not None and entropy.value is True
    if measured and not wide:
        return
    graded, scored = (16, 16) if measured else (6, 6) if wide else (4, 2)
    yield strategy.implies("run.logit_bytes", graded)
    yield strategy.implies("run.scored_logit_bytes", scored)
