"""Laws for anybody's control plane: functions that raise AssertionError with a sentence.

They read a `simulator.virtual.journal.Journal`, in which each unit of work (a rollout, or a group)
is ``dispatched`` and then ``trained``, ``evicted`` or ``failed``. A law holds a control plane to
what it promises: give the bounds that it states.

PYTEST_DONT_REWRITE: the sentences are whole as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from rollcast.simulator.core.spans import Run
from rollcast.simulator.virtual.journal import Entry, Journal

ENDS = ("trained", "evicted", "failed")
PATIENCE_STEPS = 20
_LISTED = 5
__tracebackhide__ = True  # what pytest shows is the line that asks for the law


def _list(units: Iterable[Any]) -> str:
    units = list(units)
    shown = ", ".join(str(unit) for unit in units[:_LISTED])
    return shown + (f" and {len(units) - _LISTED} more" if len(units) > _LISTED else "")


def conserved(
    journal: Journal, held: Collection[Any] | None = None, patience_steps: int = PATIENCE_STEPS
) -> None:
    """Each unit that was dispatched is trained, evicted, failed, or in flight: once, and nothing
    else is.

    held: the units that the control plane has at the end, where it can say so: then every other one
        must have ended. None: a unit that has not ended is lost once nobody has its answer any
        more, or more than ``patience_steps`` steps have been trained since it was answered (since
        its dispatch, in a journal without answers).
    """
    dispatched, ended = Counter[Any](), dict[Any, Entry]()
    begun: dict[Any, int] = {}
    begins = "answered" if next(journal.of("answered"), None) else "dispatched"
    step = last_trained = 0
    for place, entry in enumerate(journal.entries):
        if entry.what == begins:
            begun[entry.about] = step
        if entry.what == "dispatched":
            dispatched[entry.about] += 1
            assert dispatched[entry.about] == 1 or entry.about in ended, (
                f"{entry.about} was dispatched again at {entry.at_s:g} s, before it had ended"
            )
            ended.pop(entry.about, None)
        elif entry.what in ENDS:
            unit = entry.about
            assert unit in dispatched, (
                f"{unit} was {entry.what} at {entry.at_s:g} s, but never dispatched"
            )
            before = ended.get(unit)
            assert before is None, (
                f"{unit} was {before and before.what} at {before and before.at_s:g} s and again "
                f"{entry.what} at {entry.at_s:g} s"
            )
            ended[unit] = entry
            if entry.what == "trained":
                step, last_trained = max(step, int(entry.get("step", step))), place
    open_units = [unit for unit in dispatched if unit not in ended]
    let_go = journal.let_go
    gone = [unit for unit in open_units if unit in let_go and let_go[unit][0] <= last_trained]
    assert not gone, (
        f"{len(gone)} of {len(dispatched)} units are lost: neither trained, evicted nor failed, "
        f"and nobody has them any more: {_list(gone)}; {gone[0]} was let go of at "
        f"{let_go[gone[0]][1]:g} s, at {let_go[gone[0]][2]}"
    )
    if held is not None:
        lost = [unit for unit in open_units if unit not in held]
        why = "and the control plane does not have them any more"
    else:
        lost = [unit for unit in open_units if step - begun.get(unit, step) > patience_steps]
        why = f"within {patience_steps} steps after they were {begins}"
    assert not lost, (
        f"{len(lost)} of {len(dispatched)} units are lost: neither trained, evicted nor failed, "
        f"{why}: {_list(lost)}"
    )


def admission_bounded(journal: Journal, staleness: int, batch: int, slack: int = 0) -> None:
    """Never more than (``staleness`` + 1) x ``batch`` units are dispatched and not yet ended, plus
    ``slack``: the contract of control planes that bound how many, and not how old."""
    most = (staleness + 1) * batch + slack
    for entry, outstanding in _outstanding(journal):
        assert outstanding <= most, (
            f"{outstanding} units were dispatched and not ended at {entry.at_s:g} s; the bound is "
            f"({staleness} + 1) x {batch}{f' + {slack}' if slack else ''} = {most}"
        )


def waiting_bounded(journal: Journal, most: int) -> None:
    """Never more than ``most`` units are dispatched and not ended: what waits costs memory."""
    for entry, outstanding in _outstanding(journal):
        assert outstanding <= most, (
            f"{outstanding} units waited at {entry.at_s:g} s; the bound is {most}"
        )


def _outstanding(journal: Journal) -> Iterator[tuple[Entry, int]]:
    now: set[Any] = set()
    for entry in journal.entries:
        if entry.what == "dispatched":
            now.add(entry.about)
            yield entry, len(now)
        elif entry.what in ENDS:
            now.discard(entry.about)


def age_bounded(journal: Journal, versions: int) -> None:
    """No unit is trained on more than ``versions`` versions after the one that it was dispatched
    (or its oldest token made) under: the contract of windows and of policies that drop."""
    began: dict[Any, int] = {}
    too_old: list[tuple[Any, int]] = []
    for entry in journal.of("dispatched", "trained"):
        if entry.what == "dispatched":
            began[entry.about] = entry.get("version", 0)
        else:
            age = entry.get("step", 0) - entry.get("version", began.get(entry.about, 0))
            if age > versions:
                too_old.append((entry.about, age))
    assert not too_old, (
        f"{len(too_old)} units were older than {versions} versions when they were trained on: "
        f"{_list(f'{unit} ({age})' for unit, age in too_old)}"
    )


def in_order(journal: Journal) -> None:
    """Units are trained on in the order of their dispatch, those that ended otherwise left out."""
    place: dict[Any, int] = {}
    last, latest = -1, None
    for entry in journal.of("dispatched", "trained"):
        if entry.what == "dispatched":
            place[entry.about] = len(place)
        else:
            assert place[entry.about] > last, (
                f"{entry.about} was trained on at {entry.at_s:g} s after {latest}, which was "
                "dispatched later"
            )
            last, latest = place[entry.about], entry.about


def fair(journal: Journal, most_steps: int) -> None:
    """No unit waits for more than ``most_steps`` steps from its dispatch to its end."""
    began: dict[Any, int] = {}
    step = 0
    for entry in journal.entries:
        if entry.what == "trained":
            step = max(step, int(entry.get("step", step)))
        if entry.what == "dispatched":
            began[entry.about] = step
        elif entry.what in ENDS and entry.about in began:
            waited = step - began.pop(entry.about)
            assert waited <= most_steps, (
                f"{entry.about} waited {waited} steps from its dispatch until it was {entry.what} "
                f"at {entry.at_s:g} s; the bound is {most_steps}"
            )
    for unit, at in began.items():
        assert step - at <= most_steps, (
            f"{unit} has waited {step - at} steps since its dispatch; the bound is {most_steps}"
        )


def trains(journal: Journal, within_s: float, steps: int = 1, until_s: float | None = None) -> None:
    """Something is trained on in every ``within_s`` virtual seconds, from the start to the end of
    the journal (or ``until_s``), and in at least ``steps`` steps."""
    trained = list(journal.of("trained", "train"))
    done = len({entry.get("step", entry.about) for entry in trained})
    times = [0.0, *(entry.at_s for entry in trained)]
    end = until_s if until_s is not None else max((e.at_s for e in journal.entries), default=0.0)
    times.append(end)
    for one, other in pairwise(times):
        assert other - one <= within_s, (
            f"nothing was trained on from {one:g} to {other:g} s; the bound is {within_s:g} s"
        )
    assert done >= steps, f"{done} steps were trained, and not {steps}"


def recovers(journal: Journal, within_s: float, end_s: float) -> None:
    """After each fault something is trained on within ``within_s`` seconds. end_s: of the run."""
    trained = [entry.at_s for entry in journal.of("trained", "train")]
    for fault in journal.entries:
        if fault.what.startswith("replica ") and fault.at_s + within_s <= end_s:
            assert any(fault.at_s < at <= fault.at_s + within_s for at in trained), (
                f"nothing was trained on within {within_s:g} s of the fault at {fault.at_s:g} s "
                f"({fault.what} {fault.about})"
            )


def idle_s(run: Run) -> Mapping[int, float]:
    """The longest time without a request of each replica, seconds, from the run's first request to
    its last answer."""
    segments = run.segments
    replicas, starts, ends = segments["replica"], segments["submitted_s"], segments["end_s"]
    found: dict[int, float] = {}
    if not len(starts):
        return found
    first, last = float(starts.min()), float(ends.max())
    for replica in range(run.shape.replicas):
        mine = np.flatnonzero(replicas == replica)
        order = mine[np.argsort(starts[mine], kind="stable")]
        busy_until, longest = first, 0.0
        for row in order:
            longest = max(longest, float(starts[row]) - busy_until)
            busy_until = max(busy_until, float(ends[row]))
        found[replica] = max(longest, last - busy_until)
    return found


def never_starved(run: Run, most_idle_s: float) -> None:
    """No replica is without a request for more than ``most_idle_s`` seconds, from the first request
    of the run to the last answer."""
    assert len(run.segments), "no request was ever answered"
    for replica, seconds in idle_s(run).items():
        assert seconds <= most_idle_s, (
            f"replica {replica} had no request for {seconds:g} s; the bound is {most_idle_s:g} s"
        )


def throughput(run: Run, reference: Run, share: float) -> None:
    """Tokens per second reach at least ``share`` of another run's of the same scenario."""
    mine, theirs = (_tokens_per_s(one) for one in (run, reference))
    assert mine >= share * theirs, (
        f"{mine:.0f} tokens/s are {mine / theirs:.0%} of the {theirs:.0f} tokens/s of the "
        f"reference; the bound is {share:.0%}"
    )


def _tokens_per_s(run: Run) -> float:
    ends = run.segments["end_s"]
    last = float(ends.max()) if len(ends) else 0.0
    return run.ledger.generated_tokens / last if last else 0.0
