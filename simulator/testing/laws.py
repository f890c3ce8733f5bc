"""Laws of every run under any policy: functions that raise AssertionError with a sentence.

PYTEST_DONT_REWRITE: the sentences are whole as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import DROPPED, PENDING, TRAINED, Run
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.testing.trial import Trial, as_policy, try_policy

NEARLY_S = 1e-9
_OUTCOMES = ((TRAINED, "trained or masked"), (DROPPED, "dropped"), (PENDING, "carried"))


def conserves(trial: Trial) -> None:
    """Every token ends as exactly one of trained, masked, dropped, carried; every submitted rollout
    ends; the run's token accounting equals what the world and the trainer saw."""
    _every_rollout_ends(trial)
    _table_is_what_the_world_said(trial)
    _segments_follow_on_one_another(trial)
    ledger = trial.run.ledger
    outcomes, tokens = trial.rollouts["outcome"], trial.rollouts["new_tokens"]
    made = sum(segment.new_tokens for segment in trial.seen.segments)
    assert made == ledger.generated_tokens, (
        f"the world made {made} tokens, but the ledger has {ledger.generated_tokens}"
    )
    assert ledger.balance == 0, (
        f"{ledger.balance} of {made} tokens ended neither trained, nor masked, dropped or carried"
    )
    booked = {
        TRAINED: ledger.trained_tokens + ledger.masked_tokens,
        DROPPED: ledger.dropped_tokens,
        PENDING: ledger.carried_tokens,
    }
    for outcome, word in _OUTCOMES:
        total = int(tokens[outcomes == outcome].sum())
        assert total == booked[outcome], (
            f"the ledger has {booked[outcome]} tokens {word}, but the rollouts' table has {total}"
        )
    got = sum(rollout.new_tokens for rollout in trial.seen.trained)
    assert got == booked[TRAINED], (
        f"the trainer got {got} tokens, but the ledger has {booked[TRAINED]} trained or masked"
    )
    for name, times in Counter(rollout.name for rollout in trial.seen.trained).items():
        assert times == 1, f"rollout {_called(name)} was trained on {times} times"


def _every_rollout_ends(trial: Trial) -> None:
    ended = Counter(
        (*segment.key, segment.attempt)
        for segment in trial.seen.segments
        if segment.ending != "turn"
    )
    for name, times in trial.seen.submitted.items():
        assert ended[name] == times, (
            f"rollout {_called(name)} was submitted {times} times and ended {ended[name]} times"
        )
    strange = ended.keys() - trial.seen.submitted.keys()
    assert not strange, f"rollout {_called(min(strange))} ended, but was never submitted"


def _table_is_what_the_world_said(trial: Trial) -> None:
    columns = ("group", "index", "attempt", "replica", "new_tokens", "end_s")
    table = Counter(trial.rollouts.each(*columns))
    reported = Counter(
        (*segment.key, segment.attempt, segment.replica, segment.new_tokens, segment.end_s)
        for segment in trial.seen.segments
    )
    for row in (table - reported) + (reported - table):
        where = "the table" if row in table else "the world"
        raise AssertionError(
            f"only {where} has a segment of rollout {_called(row[:3])} on replica {row[3]} with "
            f"{row[4]} tokens that ends at {row[5]:g} s"
        )


def _segments_follow_on_one_another(trial: Trial) -> None:
    """Only the last segment of an attempt finishes it; each starts where the one before ended."""
    columns = (
        *("group", "index", "attempt", "version", "new_tokens", "total_tokens", "resumed"),
        *("finished", "reward", "outcome", "step", "trained_step"),
    )
    reached: dict[tuple[int, int, int], tuple[int, int]] = {}
    done = set()
    for row in trial.rollouts.each(*columns):
        group, index, attempt, version, new, total, resumed, finished, reward, *of = row
        name = group, index, attempt
        assert name not in done, f"rollout {_called(name)} ran on after it had finished"
        before, last = reached.get(name, (0, 0))
        assert before + new == total, (
            f"rollout {_called(name)} sampled {before + new} tokens, but the table says {total}"
        )
        assert version >= last, f"rollout {_called(name)} went back to weights of version {version}"
        assert resumed == (before > 0), f"rollout {_called(name)} resumed from {before} tokens"
        reached[name] = total, version
        if finished:
            done.add(name)
        assert finished == (not math.isnan(reward)), (
            f"rollout {_called(name)} has a reward of {reward} though it finished: {bool(finished)}"
        )
        outcome, step, trained_step = of
        assert (outcome == TRAINED) == (trained_step >= step), (
            f"rollout {_called(name)} ran in step {step} and was trained on in {trained_step}"
        )


def never_on_two_replicas(trial: Trial) -> None:
    """The computed segments of one rollout do not overlap in time. A segment without an iteration
    may end while the one before it reaches its boundary."""
    computed = (
        segment for segment in trial.seen.segments if segment.new_tokens or segment.prefill_tokens
    )
    segments = sorted(computed, key=lambda segment: (segment.key, segment.end_s, segment.start_s))
    for one, next_ in pairwise(segments):
        if one.key == next_.key:
            assert one.end_s <= next_.start_s + NEARLY_S, (
                f"rollout {_called(one.key)} ran twice at {next_.start_s:g} s: on replica "
                f"{one.replica} until {one.end_s:g} s and on replica {next_.replica}"
            )


def bound_holds(trial: Trial, max_versions: float | None = None) -> None:
    """No trained token is older than ``max_versions`` versions, by default than the bound in each
    step's plan (`promises`). Masked tokens are not trained on; a fraction is rounded up. Raises
    ScenarioError where none is given and no plan promises one."""
    bounds = {decision["step"]: promises(decision["plan"]) for decision in trial.decisions}
    if max_versions is None and all(bound == math.inf for bound in bounds.values()):
        raise ScenarioError("max_versions", "the policy promises no bound; say which should hold")
    for rollout in trial.seen.trained:
        bound = bounds[rollout.step] if max_versions is None else math.ceil(max_versions)
        oldest = rollout.oldest_version
        if oldest is not None:
            age = rollout.step - oldest
            assert age <= bound, (
                f"step {rollout.step} trained on tokens of rollout {_called(rollout.name)} that "
                f"were {age} versions old; the bound is {bound:g}"
            )


def promises(plan: Mapping[str, Any]) -> float:
    """The bound on staleness in a logged plan, versions; infinite without one."""
    bound, exceeded = plan["staleness"]["max_versions"], plan["staleness"]["exceeded"]
    return math.inf if bound is None or exceeded == "capacity" else math.ceil(bound)


def same_decisions(a: Trial | Run, b: Trial | Run) -> None:
    """Two runs took the same decisions: plans, launches, stops, suspensions, selections."""
    for one, other in zip(a.decisions, b.decisions, strict=False):
        for key in [*one, *(other.keys() - one.keys())]:
            first, second, step = one.get(key), other.get(key), one["step"]
            assert first == second, (
                f"step {step} decided differently, first in {_difference(key, first, second)}"
            )
    assert len(a.decisions) == len(b.decisions), (
        f"one run has {len(a.decisions)} steps, the other {len(b.decisions)}"
    )


def _difference(path: str, one: Any, other: Any) -> str:
    """Where two pieces of plain data first differ, and how."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        key = next(key for key in one if one[key] != other[key])
        return _difference(f"{path}.{key}", one[key], other[key])
    return f"{path}: {one!r} and {other!r}"


def same_again(
    policy: str | Policy | type[Policy],
    lengths: Sequence[Sequence[int]] | Mapping[str, Any],
    **options: Any,
) -> Trial:
    """The same policy object, run twice, takes the same decisions: it has no memory outside its
    state and no draw without a seed. Takes `try_policy`'s arguments; returns the first run."""
    tried = as_policy(policy, options.get("seed", 0))
    first = try_policy(tried, lengths, **options)
    try:
        same_decisions(first, try_policy(tried, lengths, **options))
    except AssertionError as error:
        raise AssertionError(
            f"the policy does not do the same again: {error}; keep all memory in the state that "
            "init makes and observe returns"
        ) from None
    return first


def _called(name: Sequence[int]) -> str:
    group, index, *attempt = name
    again = f", attempt {attempt[0]}" if attempt and attempt[0] else ""
    return f"{group}.{index}{again}"
