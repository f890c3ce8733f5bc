"""The real world: vLLM samples, torch trains, and the loop cannot tell it from the simulated one.

One replica and the trainer share this process, so nothing overlaps: the verbs note what is asked,
and `EngineWorld.wait` does it, one engine iteration, update or sync at a time.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.replica import EngineIteration, Response
from engine.tasks.base import Prompt, Task
from engine.trainer.batch import SampledGroup, SampledRollout
from simulator.errors import RunError
from simulator.plan import Layout
from simulator.rollout import Rollout
from simulator.world import (
    ClusterShape,
    Event,
    Finished,
    Phase,
    Synced,
    TrainBatch,
    Trained,
    TrainGroup,
)

if TYPE_CHECKING:
    from engine.trainer.config import TrainMetrics
    from engine.trainer.trainer import Trainer
    from engine.vllm_engine import VllmReplica

SYNC_SAMPLE = 4  # sequences that each weight sync is checked on
_PHASES = ("log_prob", "forward", "backward", "gradient", "optimizer")


@dataclass(slots=True)
class Tokens:
    """What a rollout is made of, kept by the world: the loop only ever sees counts."""

    attempt: int = 0
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration of the engine: when it began, and what it did."""

    step_version: int
    start_s: float
    measured: EngineIteration


@dataclass(slots=True)
class EngineLog:
    """What a real run measures beyond the loop's spans."""

    iterations: list[IterationRecord] = field(default_factory=list)
    updates: list[tuple[int, TrainMetrics]] = field(default_factory=list)
    sync_differences: list[float] = field(default_factory=list)


class EngineWorld:
    """A `simulator.world.World` of one vLLM replica and one torch trainer.

    task: prompts and rewards. seed: of prompts and of every rollout's random stream, which hangs on
    (seed, group, index, attempt) alone. clock_s: what the clock starts from (a resumed run's time).
    Raises EngineError where the engine or a reward function fails.
    """

    name = "engine"

    def __init__(
        self, replica: VllmReplica, trainer: Trainer, task: Task, seed: int, clock_s: float = 0.0
    ) -> None:
        self.shape = ClusterShape(1, 1, 1, colocated=True)
        self.log = EngineLog()
        self._replica = replica
        self._trainer = trainer
        self._task = task
        self._seed = seed
        self._zero = time.perf_counter() - clock_s
        self._prompts: dict[int, Prompt] = {}
        self._tokens: dict[tuple[int, int], Tokens] = {}
        self._flying: dict[str, Rollout] = {}
        self._todo: list[tuple[TrainBatch, Layout] | None] = []  # updates, and None for a sync
        self._sample: list[list[int]] = []

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began, interruptions left out."""
        return time.perf_counter() - self._zero

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        """Queues rollouts in the engine; the next iteration sees them."""
        for rollout in rollouts:
            prompt = self._prompt(rollout.group)
            tokens = self._tokens.get(rollout.key)
            if tokens is None or tokens.attempt != rollout.attempt:
                tokens = self._tokens[rollout.key] = Tokens(rollout.attempt)
            if len(tokens.ids) != rollout.new_tokens:
                raise RunError(f"{rollout} has {len(tokens.ids)} tokens in the engine's world")
            rollout.prompt_tokens = len(prompt.token_ids)
            rollout.replica = 0
            rollout.start_s = -1.0
            rollout.prefill_tokens = rollout.recomputed_tokens = rollout.preemptions = 0
            name = _name(rollout)
            self._replica.submit(
                name,
                prompt.token_ids,
                tokens.ids,
                tokens.log_probs,
                max_new_tokens=self._task.max_new_tokens,
                seed=zlib.crc32(f"{self._seed} {name} {rollout.attempt}".encode()),
            )
            self._flying[name] = rollout

    def abort(self, rollouts: Sequence[Rollout] | None = None) -> list[Rollout]:
        """Stops rollouts where they are: this world always stands between two iterations."""
        chosen = list(self._flying.values()) if rollouts is None else list(rollouts)
        responses = self._replica.abort([_name(rollout) for rollout in chosen])
        now_s = self.now_s
        for response in responses:
            self._take(response, now_s)
        return sorted(chosen, key=lambda rollout: rollout.key)

    def _prompt(self, group: int) -> Prompt:
        if group not in self._prompts:
            self._prompts[group] = self._task.prompt(group, self._seed)
        return self._prompts[group]

    def _take(self, response: Response, now_s: float) -> Rollout:
        """Moves what the engine made of a rollout into this world's books and its counts."""
        rollout = self._flying.pop(response.request_id)
        tokens = self._tokens[rollout.key]
        made = [version for version, count in response.segments for _ in range(count)]
        tokens.versions += tuple(made)
        tokens.ids, tokens.log_probs = response.token_ids, response.log_probs
        if len(tokens.versions) != len(tokens.ids):
            raise RunError(f"{rollout}: the engine lost or invented tokens")
        rollout.new_tokens = len(tokens.ids)
        rollout.finished = response.finish_reason is not None
        rollout.truncated = response.finish_reason == "length"
        rollout.end_s = now_s
        if rollout.start_s < 0:
            rollout.start_s = now_s
        return rollout

    def _iterate(self) -> list[Event]:
        """One engine iteration, and the rewards of what it finished."""
        start_s = self.now_s
        responses = self._replica.step()
        measured = self._replica.last_iteration
        if measured is not None:
            self.log.iterations.append(IterationRecord(self._replica.version, start_s, measured))
            for name in measured.admitted:
                if name in self._flying and self._flying[name].start_s < 0:
                    self._flying[name].start_s = start_s
        now_s = self.now_s
        finished = [self._take(response, now_s) for response in responses]
        for rollout in finished:
            text = self._task.decode(self._tokens[rollout.key].ids)
            rollout.reward = self._task.reward(self._prompt(rollout.group), text)
        return [Finished(rollout) for rollout in sorted(finished, key=lambda r: r.key)]

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Notes an update; the next wait does it."""
        self._todo.append((batch, layout))

    def sync_weights(self) -> None:
        """Notes a weight sync; the next wait does it."""
        self._todo.append(None)

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Does what was asked, or runs the engine until a rollout finishes or ``until_s`` passes."""
        if self._todo:
            work = self._todo.pop(0)
            return [self._sync() if work is None else self._update(*work)]
        if not self._flying:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while until_s is None or self.now_s < until_s:
            events = self._iterate()
            if events:
                return events
        return []

    def _update(self, batch: TrainBatch, layout: Layout) -> Event:
        start_s = self.now_s
        metrics = self._trainer.step(
            [self._sampled(group) for group in batch.groups],
            shared_prefix=layout == "shared_prefix",
            version=batch.step,
            mask_before_version=batch.mask_before_version,
        )
        self.log.updates.append((batch.step, metrics))
        self._sample = [
            [*self._prompt(g.group).token_ids, *self._tokens[r.key].ids]
            for g in batch.groups[:SYNC_SAMPLE]
            for r in g.rollouts[:1]
        ]
        for group in batch.groups:
            self._forget(group)
        phases, at_s = [], start_s
        for name in _PHASES:
            seconds = getattr(metrics, f"{name}_s")
            phases.append(Phase(name, at_s, at_s + seconds, metrics.computed_tokens))
            at_s += seconds
        phases.append(Phase("train", at_s, max(self.now_s, at_s), 0))  # batching, bookkeeping
        return Trained(batch.step, tuple(phase for phase in phases if phase.end_s > phase.start_s))

    def _sampled(self, group: TrainGroup) -> SampledGroup:
        rollouts = []
        for rollout in group.rollouts:
            tokens = self._tokens[rollout.key]
            if rollout.reward is None:
                raise RunError(f"{rollout} has no reward")
            rollouts.append(
                SampledRollout(tokens.ids, tokens.log_probs, tokens.versions, rollout.reward)
            )
        prompt = self._prompt(group.group).token_ids
        return SampledGroup(prompt, tuple(rollouts), group.baseline_rewards)

    def _forget(self, group: TrainGroup) -> None:
        """Drops the tokens of a trained group; its other rollouts were dropped by selection."""
        for key in [key for key in self._tokens if key[0] == group.group]:
            del self._tokens[key]
        self._prompts.pop(group.group, None)

    def _sync(self) -> Event:
        start_s = self.now_s
        self._replica.load_weights(self._trainer.model.state_dict())
        loaded_s = self.now_s
        if self._sample:
            difference = self._replica.check_sync(self._trainer.model, self._sample)
            self.log.sync_differences.append(difference)
        checked = Phase("sync_check", loaded_s, self.now_s)
        return Synced((Phase("sync", start_s, loaded_s), checked))

    def close(self) -> None:
        """Ends the engine."""
        self._replica.shutdown()

    # Interruption

    def state_dict(self) -> Mapping[str, Any]:
        """Everything of this world that a resumed run needs, between two steps."""
        if self._flying or self._todo:
            raise RunError("a run can only be saved between two steps")
        return {
            "clock_s": self.now_s,
            "tokens": self._tokens,
            "prompts": self._prompts,
            "trainer": self._trainer.state_dict(),
            "version": self._replica.version,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`, weights in the engine included."""
        self._trainer.load_state_dict(state["trainer"])
        self._tokens, self._prompts = state["tokens"], state["prompts"]
        self._replica.load_weights(self._trainer.model.state_dict())
        self._replica.version = state["version"]
        self._zero = time.perf_counter() - state["clock_s"]


def _name(rollout: Rollout) -> str:
    return f"{rollout.group}/{rollout.index}"
