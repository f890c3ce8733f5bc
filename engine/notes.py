"""Sentences on what was unusual in a real run."""

from __future__ import annotations

from collections import Counter

from rollcast.engine.log import EngineLog
from rollcast.engine.tasks.rewards import REWARD_FUNCTION
from rollcast.simulator.results import schema


def notes_on(log: EngineLog) -> list[str]:
    """All of them."""
    return [*_losses(log), *_failures(log), *_training_notes(log)]


def _losses(log: EngineLog) -> list[str]:
    """A sentence on the actors that were lost, if any were."""
    if not log.faults:
        return []
    lost = Counter(fault.actor for fault in log.faults)
    losses = ", ".join(f"{actor} {count}x" for actor, count in sorted(lost.items()))
    return [f"actors were lost and replaced: {losses}; {schema.FAULTS.name} says when and why"]


def _training_notes(log: EngineLog) -> list[str]:
    """Sentences on syncs whose check was far off, and steps without anything to learn."""
    notes = []
    if apart := sum(log.syncs_apart):
        notes.append(
            f"after {apart} of {len(log.syncs_apart)} weight syncs that were checked, one token in "
            "a hundred differed by more than usual between the engine's and the trainer's "
            f"log-probabilities (mean {max(log.sync_means):.2g} at most): see mismatch in "
            f"{schema.UPDATES.name}"
        )
    if equal := sum(metrics.equal_rewards for _, metrics in log.updates):
        notes.append(
            f"in {equal} of {len(log.updates)} steps the rewards of every group were equal, so "
            "there was nothing to learn"
        )
    return notes


def _failures(log: EngineLog) -> list[str]:
    """Sentences on rewards, and on calls of environments, that brought no answer."""
    failed: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for failure in log.failures:
        failed[failure.reason.startswith(REWARD_FUNCTION)][failure.reason] += 1
    sentences = []
    for ours, what in (
        (False, "rollouts were ended by their environments"),
        (True, "rewards failed and count as engine.task.reward_failed"),
    ):
        if reasons := failed[ours]:
            (commonest, count), others = reasons.most_common(1)[0], len(reasons) - 1
            more = f", and {others} other reasons" if others else ""
            sentences.append(
                f"{reasons.total()} {what}: {commonest} ({count}x){more}; "
                f"{schema.FAILURES.name} says which and why"
            )
    return sentences
