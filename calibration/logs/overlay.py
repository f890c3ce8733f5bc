"""Merges the rows of several sinks, writers and parts of a run into one row a step.

Within a file, a step that is logged again with other numbers is a resumption: the later counts.
Files of one run agree where they overlap, or the one that begins later resumed the other; two that
begin with the same step and disagree are two runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollcast.calibration.logs.errors import LogError
from rollcast.simulator.stacks.log_format import Metrics, StackLog
from rollcast.simulator.stacks.settings import Place

CLOSE = 0.01
"""Relative: old consoles print three decimals, TRL's four digits."""
_TINY = 0.002
_SAME = 2
"""Further rows of the only step, without a new key, from which they count as other steps."""


@dataclass(slots=True)
class Step:
    """A step's numbers by the stack's keys, and their place. first: of a start or a resumption."""

    values: dict[str, float]
    place: Place
    first: bool = False
    logged_s: float | None = None


@dataclass(slots=True)
class Series:
    """Steps of one file or several. again: steps logged again with other numbers."""

    kind: int
    file: str
    steps: dict[int, Step] = field(default_factory=dict)
    again: frozenset[int] = frozenset()

    @property
    def begins(self) -> int:
        """With which step."""
        return min(self.steps)


def series(stack: StackLog, rows: Sequence[Metrics], kind: int, file: str) -> Series | None:
    """A file's steps or None. Raises LogError where a run begins anew or all rows are one step."""
    result = Series(kind, file)
    same = 0
    first: int | None = None
    again: set[int] = set()
    gone: set[int] = set()
    twice: set[int] = set()  # in a row
    last: int | None = None
    for row in rows:
        values = stack.known(row.values)
        if not values:
            continue
        place = Place(file, row.line)
        known, before, last = result.steps.get(row.step), last, row.step
        if first is None:
            first = row.step
        if known is None:
            result.steps[row.step] = Step(values, place, row.step == first, row.logged_s)
            continue
        same += values.keys() <= known.values.keys()
        if all(
            key not in known.values or known.values[key] == item or item != item
            for key, item in values.items()
        ):
            known.values.update(values)
            continue
        if row.step == before:
            twice.add(row.step)
        if row.step == first and len(result.steps) > 1 and row.step not in again:
            raise LogError(
                f"{place}: step {row.step} begins anew after step "
                f"{max(result.steps)} ({result.steps[row.step].place}): two runs are "
                "mixed; import one at a time"
            )
        resumed = row.step - 1 not in again and row.step not in again
        again.add(row.step)
        result.steps[row.step] = Step(values, place, resumed, row.logged_s)
        if resumed:  # what a run had done beyond the point where it went on from is gone
            for later in [s for s in result.steps if s > row.step and s not in again]:
                del result.steps[later]
                gone.add(later)
    if len(result.steps) == 1 and same >= _SAME:
        [step] = result.steps
        raise LogError(
            f"{result.steps[step].place}: {same + 1} rows are all of step {step}; "
            "each step needs a number of its own"
        )
    if len(twice) > _SAME and 2 * len(twice) > len(result.steps):
        at = min(twice)
        raise LogError(
            f"{result.steps[at].place}: step {at} and most others are logged twice in a row with "
            "other numbers: two runs are mixed; import one at a time"
        )
    if result.steps and first in result.steps and not again and first != result.begins:
        result.steps[first].first = False  # the newest step stands first in some exports
        result.steps[result.begins].first = True
    result.again = frozenset(again | (gone & result.steps.keys()))
    return result if result.steps else None


def merged(stack: StackLog, parts: Sequence[Series]) -> Series:
    """All parts of one run. Raises LogError where two of them are of two runs."""
    parts = sorted(parts, key=lambda part: part.kind)
    whole = parts[0]
    for part in parts[1:]:
        whole = _two(stack, whole, part)
    return whole


def _two(stack: StackLog, a: Series, b: Series) -> Series:
    common = sorted(a.steps.keys() & b.steps.keys())
    apart = [step for step in common if _disagree(stack, a.steps[step], b.steps[step])]
    if apart and 2 * len(apart) > len(common):
        if a.begins == b.begins:
            at = apart[0]
            one, other = a.steps[at].place, b.steps[at].place
            raise LogError(
                f"{one} and {other} disagree about step {at}: two runs are mixed; "
                "import one at a time"
            )
        early, late = (a, b) if a.begins < b.begins else (b, a)
        kept = {s: step for s, step in early.steps.items() if s < late.begins}
        return Series(
            a.kind,
            a.file,
            {**kept, **late.steps},
            a.again | b.again | (early.steps.keys() - kept.keys()),
        )
    steps = dict(a.steps)
    resumed = not common and a.kind == b.kind
    for number, step in b.steps.items():
        if number not in steps:
            steps[number] = Step(step.values, step.place, step.first and resumed, step.logged_s)
            if number == min(b.begins, a.begins):
                steps[number].first = True
            continue
        had = steps[number]
        steps[number] = Step(
            {**step.values, **had.values},
            had.place,
            had.first or step.first,
            had.logged_s if had.logged_s is not None else step.logged_s,
        )
    if b.begins < a.begins and not resumed:
        steps[a.begins].first = a.begins in b.steps and b.steps[a.begins].first
    return Series(a.kind, a.file, steps, a.again | b.again)


_TOLD_BY = ("mean_new_tokens", "step_s", "generation_s", "update_s", "orchestrator_step_s")


def _disagree(stack: StackLog, a: Step, b: Step) -> bool:
    one, other = stack.row(a.values), stack.row(b.values)
    both = [column for column in _TOLD_BY if column in one and column in other]
    return any(
        abs(one[c] - other[c]) > CLOSE * max(abs(one[c]), abs(other[c])) + _TINY for c in both
    )
