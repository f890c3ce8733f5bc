"""The simulator's loop inside another stack's process: the stack asks for one batch after another,
and the loop runs until it hands one over.

A world between the two (`HandedOver`) stands for the trainer: an update is done when the stack asks
for the next batch. The loop is made here and not by `simulator.runs.drive`, which lies above the
stacks, needs a scenario, and runs a loop to its end: a stack's process has neither scenarios nor
costs, and pauses the loop after each batch.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rollcast.simulator.core.plan import Layout, StepPlan
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.core.world import Event, Synced, TrainBatch, Trained, World
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.policy_state import load_state, save_state
from rollcast.simulator.loop.saved import load_work, save_work
from rollcast.simulator.stacks.exported import Exported

FORMAT = 1


class HandedOver:
    """The trainer's half of a world. Batches go to the stack, which trains and syncs the weights.

    handed: the batch that the stack has not taken yet. version: of the replicas' weights.
    """

    read_s = -math.inf  # the driver reads responses as they end

    def __init__(self) -> None:
        self.handed: TrainBatch | None = None
        self.version = 0
        self._zero = time.perf_counter()
        self._updates = 0
        self._training: TrainBatch | None = None
        self._syncing = False

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since it was made."""
        return time.perf_counter() - self._zero

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Hands a batch over. Raises RunError for a layout that is the stack's to choose."""
        if layout != "dense":
            raise RunError(f"the layout {layout} is not this stack's")
        self.handed = self._training = batch

    def sync_weights(self) -> None:
        """Notes that the stack syncs the weights."""
        self._syncing = True

    def oracle_tokens(self, rollout: Rollout) -> None:
        """None: lengths are not known in a real run."""
        return None

    def take(self) -> TrainBatch:
        """The batch handed over. Raises RunError where there is none."""
        if self.handed is None:
            raise RunError("no batch was handed over")
        batch, self.handed = self.handed, None
        return batch

    def begin_at(self, version: int) -> None:
        """Continues from a checkpoint, whose weights the replicas have."""
        self.version = self._updates = version

    def _trained(self) -> list[Event]:
        """The end of a sync or an update. Raises RunError where nothing is under way."""
        if self._syncing:
            self._syncing, self.version = False, self._updates
            return [Synced(())]
        if self._training is None or self.handed is not None:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        batch, self._training = self._training, None
        self._updates += 1
        return [Trained(batch.step, ())]


class StackWorld(World, Protocol):
    """A world whose trainer is another stack's; its methods are those of `HandedOver`."""

    handed: TrainBatch | None

    def take(self) -> TrainBatch: ...  # noqa: D102

    def begin_at(self, version: int) -> None: ...  # noqa: D102

    def keep_only(self, groups: Collection[int]) -> None:
        """Drops the data of every other group."""
        ...


class Driver:
    """Runs a loop on a stack's world, a batch at a time.

    check: raises for a plan that the stack cannot carry out; a policy that learns may make one in
    the middle of a run. decision: of the latest step, as in a simulated run.
    """

    def __init__(
        self, exported: Exported, world: StackWorld, check: Callable[[StepPlan], None]
    ) -> None:
        self.exported = exported
        self.world = world
        self.loop = Loop(world, exported.chain(), exported.base)
        self.decision: dict[str, Any] = {}
        self._check = check
        self.loop.begin(sys.maxsize)

    def next_batch(self, step: int) -> TrainBatch:
        """The batch of ``step``, once its rollouts are done.

        A later first step than the loop's continues a run without its state: the policies begin
        anew. Raises RunError for steps out of turn, and as the loop does.
        """
        loop = self.loop
        if step != loop.next_step:
            if loop.step is not None:
                raise RunError(f"step {step} is asked for, and it is step {loop.next_step}'s turn")
            loop.next_step = step
            loop.trainer.updates = loop.trainer.version = loop.rollouts.version = step
            self.world.begin_at(step)
        base = replace(loop.base, step=step)
        self._check(loop.policy.plan(base, loop.policy_state))
        while self.world.handed is None:
            loop.advance()
        batch = self.world.take()
        self.decision = loop.result.decisions.pop()  # a long run would keep all of them
        kept = [group.group for group in (*loop.rollouts.buffer, *loop.rollouts.ready)]
        self.world.keep_only({*kept, *loop.rollouts.groups, *(g.group for g in batch.groups)})
        return batch

    @property
    def record(self) -> StepRecord:
        """The record of the step whose batch was handed over last."""
        if self.loop.step is None:
            raise RunError("no step has been opened")
        return self.loop.step.record

    @property
    def figures(self) -> dict[str, float]:
        """Figures of that step for a log: counts, staleness, the policies' own."""
        record = self.record
        tokens = sum(record.staleness.values())
        aged = sum(age * count for age, count in record.staleness.items())
        counted = (
            *("launched_groups", "resumed_groups", "rejected_groups", "buffered_groups"),
            *("stragglers", "generated_tokens", "trained_tokens", "dropped_tokens"),
            *("masked_tokens", "resumed_tokens"),
        )
        figures = {name: float(getattr(record, name)) for name in counted}
        figures["mean_staleness"] = aged / tokens if tokens else 0.0
        figures["max_staleness"] = float(max(record.staleness, default=0))
        return figures | {
            name: float(value)
            for name, value in record.policy.items()
            if isinstance(value, int | float)
        }

    def state(self) -> dict[str, Any]:
        """The loop's state after a batch was handed over, as plain data; its update counts as done.
        Raises RunError for a policy whose state is no plain data."""
        loop = save_work(self.loop)
        return {"format": FORMAT, "policy_text": self.exported.policy, "loop": loop}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`. Raises RunError for that of another policy, or for none."""
        if state.get("format") != FORMAT or state.get("policy_text") != self.exported.policy:
            raise RunError(
                f"the saved state is of the policy {state.get('policy_text')!r}, and this is "
                f"{self.exported.policy!r}; go on with the same export, or leave the state out"
            )
        run = Run(self.world.name, self.world.shape)
        try:
            loaded = load_work(state.get("loop"), self.loop.policy)
        except ValueError as error:
            raise RunError(f"the saved state cannot be read: {error}") from None
        version = loaded["next_step"]
        self.loop.load_state_dict({**loaded, "version": version, "result": run})
        self.loop.result.start_s = self.loop.result.end_s = self.world.now_s
        self.world.begin_at(version)


def write_state(path: Path, state: Any) -> None:
    """Writes a state beside a stack's own checkpoint, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(state), encoding="utf-8")
    os.replace(partial, path)


def read_state(path: Path | None) -> Any:
    """A state of `write_state`; None without a file. Raises RunError for an unreadable file."""
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None


def policy_memory(driver: Driver) -> Any:
    """The policies' states alone, as plain data: for a stack that keeps the rollouts itself."""
    return save_state(driver.loop.policy, driver.loop.policy_state)


def recall(driver: Driver, memory: Any) -> None:
    """Restores a `policy_memory`. Raises RunError for that of other policies."""
    try:
        driver.loop.policy_state = load_state(driver.loop.policy, memory)
    except ValueError as error:
        raise RunError(f"the saved state cannot be read: {error}") from None
