"""A run under anybody's control plane in any other run's tables: pictures, traces, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.rollout import Rollout, Segment
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.core.world import ClusterShape, Phase, TrainBatch
from rollcast.simulator.loop.accounting import TokenAccounting


class Record:
    """Books requests as rollouts. A step lasts from the end of the one before to the sync of the
    weights of its update, or to the next update if they are not synced before.

    closed: whether the run has ended.
    """

    def __init__(self, shape: ClusterShape, plan: StepPlan) -> None:
        self.run = Run("virtual", shape)
        self._accounting = TokenAccounting(self.run)
        self._plan = plan
        self._step = self._accounting.begin_step(plan, 0.0)
        self._trained: StepRecord | None = None
        self._open: dict[Rollout, None] = {}
        self.closed = False

    @property
    def step(self) -> int:
        """The number of the step under way."""
        return len(self.run.steps) + (self._trained is not None)

    def segment(self, rollout: Rollout, segment: Segment, version: int) -> None:
        """A request, or a part of it, has ended."""
        self._open[rollout] = None
        self._accounting.segment(rollout, segment, version)

    def training(self, batch: TrainBatch, now_s: float) -> None:
        """An update begins."""
        if self._trained is not None:
            self._end(now_s)
        step = self._step
        step.rollout_end_s = now_s
        groups = []
        for group in batch.groups:  # a rollout counts once, however often it is trained on
            first = [rollout for rollout in dict.fromkeys(group.rollouts) if rollout in self._open]
            for rollout in first:
                del self._open[rollout]
            groups.append(replace(group, rollouts=tuple(first)))
        self._accounting.training(step, replace(batch, groups=tuple(groups)))
        if batch.final:
            self._accounting.rollout_phase(step)

    def trained(self, phases: Sequence[Phase], final: bool, now_s: float) -> None:
        """An update is over."""
        self._accounting.phases(self._step, phases, "trainer")
        if final:
            self._trained = self._step
            self._step = self._accounting.begin_step(self._plan, now_s)
            self._step.step = len(self.run.steps) + 1

    def synced(self, phases: Sequence[Phase], now_s: float) -> None:
        """The replicas have the new weights."""
        if self._trained is not None:
            self._accounting.phases(self._trained, phases, "sync")
            self._end(now_s)

    def _end(self, now_s: float) -> None:
        assert self._trained is not None
        self._accounting.end_step(self._trained, now_s)
        self._trained = None
        if self._step.rollout_start_s < now_s and not self._step.generated_tokens:
            self._step.start_s = self._step.rollout_start_s = self._step.rollout_end_s = now_s

    def drop(self, rollout: Rollout) -> None:
        """Nobody will train on it."""
        if rollout in self._open:
            del self._open[rollout]
            self._accounting.drop([rollout])

    def cut(self, now_s: float) -> Run:
        """The run, whose step under way ends now."""
        if self._trained is None:
            self._trained = self._step
        return self.close(now_s)

    def close(self, now_s: float) -> Run:
        """The run, whose last step ends now if its weights were not synced."""
        if self._trained is not None:
            self._end(now_s)
        self._accounting.close(self._open)
        self.closed = True
        return self.run
