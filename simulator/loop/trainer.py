"""The trainer as the loop sees it: waiting batches, the update under way, unsynced weights."""

from __future__ import annotations

from collections import deque

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.world import Synced, TrainBatch, Trained, World
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.accounting import TokenAccounting
from rollcast.simulator.loop.step import Step


class Trainer:
    """queue: closed steps whose batches wait. updates: of the weights. version: of the replicas'
    weights. latest: the step of the last update until its weights are synced or known to stay."""

    def __init__(self, world: World, accounting: TokenAccounting) -> None:
        self.queue: deque[tuple[Step, TrainBatch]] = deque()
        self.updates = 0
        self.version = 0
        self.latest: Step | None = None
        self.syncing = False
        self._training: tuple[Step, TrainBatch] | None = None
        self._world = world
        self._accounting = accounting

    @property
    def idle(self) -> bool:
        """Whether it could begin an update."""
        return self._training is None and self.latest is None

    @property
    def unsynced(self) -> bool:
        """Whether weights wait to be brought to the replicas."""
        return self.latest is not None and not self.syncing

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way or waits."""
        return self.idle and not self.queue

    @property
    def batches(self) -> list[TrainBatch]:
        """Those that wait, and the one under way."""
        waiting = [batch for _, batch in self.queue]
        return waiting if self._training is None else [*waiting, self._training[1]]

    def in_step(self, plan: StepPlan) -> bool:
        """Whether the replicas' weights are recent enough for ``plan`` to begin and for its samples
        to be trained on."""
        waiting = self.latest is not None
        behind = self.version if waiting else self.updates
        if plan.step - self.version > plan.most_versions:
            return False
        return plan.step - behind <= plan.launch.run_ahead

    def begin(self, step: Step, batch: TrainBatch) -> None:
        """Starts an update, or a part of one."""
        self._training = step, batch
        self._world.train(batch, step.plan.layout)

    def trained(self, event: Trained) -> Step | None:
        """Takes in the end of an update; returns its step, None where it was a part of one."""
        if self._training is None or self._training[0].plan.step != event.step:
            raise RunError(f"an update of step {event.step} ended that was not under way")
        (step, batch), self._training = self._training, None
        self._accounting.phases(step.record, event.phases, "trainer")
        if not batch.final:
            return None
        self.updates += 1
        if self.updates - self.version >= step.plan.sync_every:
            self.latest = step
        return step

    def sync(self) -> None:
        """Starts to bring the weights to the replicas."""
        self.syncing = True
        self._world.sync_weights()

    def synced(self, event: Synced) -> Step:
        """Takes in the end of a sync; returns the step whose weights are in place now."""
        step = self.latest
        if step is None or not self.syncing:
            raise RunError("a weight sync ended that was not under way")
        self.latest, self.syncing = None, False
        self.version = self.updates
        self._accounting.phases(step.record, event.phases, "sync")
        return step
