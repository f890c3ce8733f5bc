"""What cannot be dealt out to the GPUs of a launch: engines, batches and passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import trainer_gpus
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.stacks.deals import DATA_PARALLEL, TRAINER_GPUS, Deal
from rollcast.simulator.stacks.settings import Setting, Settings, whole
from rollcast.simulator.stacks.stack import all_stacks

_SPLITS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "sequence_parallel")
_TRAINER = "cost.roofline.trainer"
_GPUS = ("cluster.trainer_gpus", "run.gpus_per_node", "run.nodes")


class _Number(NamedTuple):
    """A number of a launch. setting: that gives it. words: what it counts."""

    amount: int
    setting: Setting
    words: str = ""

    @property
    def said(self) -> str:
        return f"{self.amount:,}{self.words} by {self.setting.source}"


def check_engines(known: Settings, parts: Mapping[str, Part]) -> None:
    """Raises ScenarioError where engines of so many GPUs do not make up those of the rollouts."""
    tensor, trainer = parts["cluster.tensor_parallel"], parts.get("cluster.trainer_gpus")
    colocated = parts["cluster.placement"].value == "colocated"
    gpus = trainer.value if colocated and trainer else whole(known, "run.rollout_gpus")
    if gpus and gpus % tensor.value and "cluster.replicas" not in known:
        whose = trainer.source if colocated and trainer else known["run.rollout_gpus"].source
        raise ScenarioError(
            tensor.source, f"engines of {tensor.value} GPUs do not divide {gpus} GPUs ({whose})"
        )


def check_batches(launch: Launched, known: Settings) -> None:
    """Raises ScenarioError, with file and line, for a batch that the launch's release of its stack,
    or the newest where none is told, refuses to deal out (``deals`` of its ``launch.yaml``). known:
    all that holds in the run."""
    table, values = (
        all_stacks()[launch.stack].launch,
        {key: one.value for key, one in known.items()},
    )
    asked = {table.ours[item.key][0] for item in launch.unresolved if item.key in table.ours}
    unknown = {key for key in asked if key not in known or known[key].unsaid}
    told = launch.release is not None or launch.in_python
    for deal in table.deals:
        ours = (deal.anywhere or told) and table.refuses(deal, launch.release, known)
        if ours and deal.holds(values) and not unknown & _read(deal):
            _check(deal, launch.stack, known)


def _read(deal: Deal) -> set[str]:
    """The settings that a rule reads, by our key."""
    names = {*deal.of, *deal.among, *([DATA_PARALLEL] if deal.share else [])}
    if not names & {DATA_PARALLEL, TRAINER_GPUS}:
        return names
    return names | {*_GPUS, *(f"{_TRAINER}.{split}" for split in _SPLITS)}


def _check(deal: Deal, stack: str, known: Settings) -> None:
    dealt = [_number(known, key) for key in deal.of]
    among = [_number(known, key) for key in deal.among]
    gpus = _number(known, DATA_PARALLEL)
    numbers = [one for one in (*dealt, *among) if one is not None]
    if len(numbers) < len(dealt) + len(among) or (deal.share and gpus is None):
        return
    ours, theirs = numbers[: len(dealt)], numbers[len(dealt) :]
    total = math.prod(one.amount for one in ours)
    by = math.prod(one.amount for one in theirs)
    each = total // gpus.amount if deal.share and gpus else total
    if each and each % by == 0:
        return
    product = f" ({' x '.join(f'{one.amount:,}' for one in ours)})" if len(ours) > 1 else ""
    what = f"{total:,} {deal.parts}{product}"
    if deal.share and gpus:
        what = f"{each:,} of {what} for each of {gpus.said}"
    factors = " and ".join(one.said for one in theirs)
    multiple = f"a multiple of {by:,}, " if len(theirs) > 1 else "a multiple of "
    first = next((one.setting for one in ours if not one.setting.unsaid), ours[0].setting)
    raise ScenarioError(
        first.source, f"{what} cannot be dealt out; {stack} wants {multiple}{factors}"
    )


def _number(known: Settings, key: str) -> _Number | None:
    """None where it is not known."""
    if key not in (DATA_PARALLEL, TRAINER_GPUS):
        number = whole(known, key)
        return None if number is None else _Number(number, known[key])
    gpus = trainer_gpus(known)
    setting = next((known[one] for one in _GPUS if one in known), None)
    if gpus is None or setting is None:
        return None
    if key == TRAINER_GPUS:
        return _Number(gpus, setting, " GPUs")
    split = math.prod(whole(known, f"{_TRAINER}.{one}") or 1 for one in _SPLITS)
    return None if gpus % split else _Number(gpus // split, setting, " data-parallel GPUs")
