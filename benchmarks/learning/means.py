"""Judgements of several runs as one row of a table."""

from collections.abc import Sequence
from typing import Any

from rollcast.calibration.judge.learning import Judged


def means(judged: Sequence[Judged], what: str, target: float | None = None) -> dict[str, Any]:
    """One figure over runs: what was measured and forecast (means; of times, to ``target``), and
    how many intervals hold (of times, to all targets), of how many."""
    some = [one for one in judged if one.what == what]
    shown = [one for one in some if target in (None, one.target)]
    return {
        "measured": sum(one.measured for one in shown) / len(shown),
        "predicted": sum(one.predicted for one in shown) / len(shown),
        "inside": sum(one.inside for one in some),
        "of": len(some),
    }


def by_policy(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The judgements of each policy, in their order."""
    found: dict[str, list[Judged]] = {}
    for one in judged:
        found.setdefault(one.run.policy, []).append(one)
    return found
