"""The loop's accounts: what became of every token, and where the time of each step went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.rollout import Rollout, Segment
from rollcast.simulator.core.spans import DROPPED, TRAINED, PhaseSpan, Run, StepRecord
from rollcast.simulator.core.world import Phase, TrainBatch
from rollcast.simulator.errors import RunError


def reward_of(rollout: Rollout) -> float:
    """The reward of a finished rollout, waited for where it is late. Raises RunError where its
    world gave none."""
    if rollout.reward is None:
        raise RunError(f"{rollout} has no reward")
    return float(rollout.reward)  # a late one is a float, too


class TokenAccounting:
    """Writes into a run: the ledger, the tables of segments and phases, and the step under way."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._record = StepRecord(0, 0.0)

    def begin_step(self, plan: StepPlan, now_s: float) -> StepRecord:
        """Opens the record of a step."""
        record = StepRecord(plan.step, now_s, rollout_start_s=now_s, rollout_end_s=now_s)
        record.group_size = plan.batch.group_size
        self._record = record
        return record

    def segment(self, rollout: Rollout, segment: Segment, version: int) -> None:
        """Adds an ended segment to its rollout. version: of the replicas' weights now."""
        sampled = rollout.add(segment)
        record, ledger = self._record, self.run.ledger
        record.generated_tokens += sampled
        record.rollout_end_s = max(record.rollout_end_s, segment.end_s)
        ledger.generated_tokens += sampled
        ledger.prefill_tokens += segment.prefill_tokens
        if rollout.prefilled_before:  # an earlier segment of this attempt computed some of it
            again = max(segment.prefill_tokens - rollout.uncomputed_tokens, 0)
        else:
            again = segment.recomputed_tokens
        ledger.reprefilled_tokens += again
        ledger.preemptions += segment.preemptions
        if segment.prefill_tokens:
            rollout.prefilled_before, rollout.uncomputed_tokens = True, 0
        for call in segment.calls:
            self.run.calls.add(record.step, rollout, call)
        first = segment.tokens_by_version[0].version if segment.tokens_by_version else version
        self.run.segments.add(record.step, first, rollout, segment, sampled)

    def drop(self, rollouts: Iterable[Rollout]) -> None:
        """Counts rollouts' tokens as dropped."""
        for rollout in rollouts:
            self._record.dropped_tokens += rollout.new_tokens
            self.run.ledger.dropped_tokens += rollout.new_tokens
            self.run.segments.settle(rollout, DROPPED)

    def training(self, record: StepRecord, batch: TrainBatch) -> None:
        """Counts the tokens of a batch, or of a part of it, as trained on, or masked."""
        ledger = self.run.ledger
        total = 0.0 if math.isnan(record.mean_reward) else record.mean_reward
        total *= record.trained_rollouts
        for group in batch.groups:
            for rollout in group.rollouts:
                masked = 0
                if batch.mask_before_version is not None:
                    masked = rollout.tokens_before(batch.mask_before_version)
                trained = rollout.new_tokens - masked
                record.masked_tokens += masked
                record.trained_tokens += trained
                ledger.masked_tokens += masked
                ledger.trained_tokens += trained
                for part in rollout.tokens_by_version:
                    age = batch.step - part.version
                    record.staleness[age] = record.staleness.get(age, 0) + part.tokens
                total += reward_of(rollout)
                self.run.segments.settle(rollout, TRAINED, batch.step)
            record.trained_rollouts += len(group.rollouts)
        record.trained_groups += len(batch.groups)
        if record.trained_rollouts:
            record.mean_reward = total / record.trained_rollouts

    def rollout_phase(self, record: StepRecord) -> None:
        """Counts the rollout phase of a step, which is over."""
        span = (record.rollout_start_s, record.rollout_end_s, record.generated_tokens)
        self.run.phases.append(PhaseSpan(record.step, "rollout", "rollout", *span))

    def phases(self, record: StepRecord, phases: Sequence[Phase], track: str) -> None:
        """Counts what an update (``trainer``) or a ``sync`` was made of."""
        for phase in phases:
            seconds = phase.end_s - phase.start_s
            if phase.kind == "switch":
                record.switch_s += seconds
            elif track == "trainer":
                record.train_s += seconds
            else:
                record.sync_s += seconds
            where = "sync" if phase.kind == "switch" else track
            span = (phase.start_s, phase.end_s, phase.tokens)
            self.run.phases.append(PhaseSpan(record.step, phase.kind, where, *span))

    def end_step(self, record: StepRecord, now_s: float) -> None:
        """Closes a step, whose weights are in place."""
        record.end_s = now_s
        record.step_s = now_s - self.run.end_s
        self.run.end_s = now_s
        self.run.steps.append(record)

    def close(self, kept: Iterable[Rollout]) -> None:
        """Closes the run. kept: rollouts neither trained on nor dropped. Raises RunError where a
        token is lost or counted twice."""
        self.run.ledger.carried_tokens = sum(rollout.new_tokens for rollout in kept)
        if self.run.ledger.balance:
            raise RunError(
                "Internal error: generated tokens do not equal trained + masked + dropped + "
                f"carried ({self.run.ledger})."
            )
