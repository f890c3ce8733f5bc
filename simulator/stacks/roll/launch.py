"""What ROLL's launch settings imply."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, whole

_RANGE = re.compile(r"list\(range\((?:(\d{1,6}),)?(\d{1,6})\)\)|\[([\d,]{1,5000})\]")


def _devices(text: object) -> frozenset[int]:
    """Of a ``device_mapping``, which is Python that is not run: ``list(range(0,8))``, a list of
    numbers, or a sum of these; none for any other."""
    devices: set[int] = set()
    for part in str(text).replace(" ", "").replace("])", "]").replace("([", "[").split("+"):
        one = _RANGE.fullmatch(part)
        if one is None:
            return frozenset()
        if one[3] is None:
            devices.update(range(int(one[1] or 0), int(one[2])))
        else:
            devices.update(int(number) for number in one[3].split(",") if number)
    return frozenset(devices)


def implied(settings: Settings) -> Iterable[Setting]:
    """The device mappings name the GPUs of either role; nothing says how many nodes there are."""
    trainer, engines = (settings.get(f"run.{name}_devices") for name in ("trainer", "rollout"))
    if trainer is None or engines is None:
        return
    trains, rolls = _devices(trainer.value), _devices(engines.value)
    if not trains or not rolls:
        return
    tensor = whole(settings, "cluster.tensor_parallel") or 1
    yield engines.implies("cluster.replicas", max(len(rolls) // tensor, 1))
    yield engines.implies("run.rollout_gpus", len(rolls))
    yield trainer.implies("cluster.trainer_gpus", len(trains))
    yield engines.implies("run.colocated", not trains.isdisjoint(rolls))
