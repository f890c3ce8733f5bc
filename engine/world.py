"""The real world: an engine samples, a trainer trains, and the loop cannot tell it from the
simulated one.

One replica and the trainer share this process, so nothing overlaps: the verbs note what is asked,
and `EngineWorld.wait` does it, one engine iteration, update or sync at a time.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine.common import CommonTokens
from engine.edges import (
    Engine,
    EngineIteration,
    Response,
    SampledGroup,
    SampledRollout,
    Trainer,
    TrainerState,
    TrainMetrics,
)
from engine.errors import sentence
from engine.log import EngineLog
from engine.sync_check import check_sync
from engine.tasks.base import Prompt, Task
from simulator.errors import RunError
from simulator.plan import Layout, Placement
from simulator.rollout import Ending, Key, Rollout, Segment, Stay
from simulator.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
    TrainGroup,
)

SYNC_SAMPLE = 4
"""Sequences that each weight sync is checked on."""

SHAPE = ClusterShape(1, 1, 1, colocated=True)
"""One replica and the trainer, which take turns."""

_PHASES = ("log_prob", "forward", "backward", "gradient", "optimizer")


@dataclass(slots=True)
class Tokens:
    """What a rollout is made of, kept by the world: the loop only ever sees counts.

    ids, log_probs and versions have one entry a response token: the token, the log-probability
    that it was sampled with, and the version of the weights that did.
    """

    attempt: int = 0
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()


@dataclass(slots=True)
class Flight:
    """A rollout in flight, as the engine's iterations book it: the clock when one first ran it, and
    the prefilled, recomputed and preempted of `simulator.rollout.Stay`."""

    rollout: Rollout
    start_s: float | None = None
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class WorldState:
    """All that another world needs to go on from here, but for the log.

    clock_s: of this world's clock. version: of the weights, the engine's and the trainer's alike.
    asked: the prompt's number by group. tokens: by (group, index).
    """

    clock_s: float
    version: int
    asked: Mapping[int, int]
    tokens: Mapping[Key, Tokens]
    trainer: TrainerState


class EngineWorld:
    """A `simulator.world.World` of one engine and one trainer.

    task: prompts and rewards. seed: of prompts and of every rollout's random stream, which hangs on
    (seed, group, index, attempt) and the tokens it has alone. clock_s: what the clock starts from.

    Raises EngineError where the engine or a reward function fails, RunError where the trainer does
    or where a verb is called that the state of the world forbids.
    """

    name = "engine"

    def __init__(
        self, replica: Engine, trainer: Trainer, task: Task, seed: int, clock_s: float = 0.0
    ) -> None:
        self.shape = replace(SHAPE, slots=replica.limits.max_seqs)
        self.log = EngineLog()
        self._replica = replica
        self._trainer = trainer
        self._task = task
        self._seed = seed
        self._zero = time.perf_counter() - clock_s
        self._prompts: dict[int, Prompt] = {}
        self._asked: dict[int, int] = {}  # the prompt's number by group
        self._tokens: dict[tuple[int, int], Tokens] = {}
        self._flying: dict[str, Flight] = {}
        self._update: tuple[TrainBatch, Layout] | None = None
        self._sync_asked = False
        self._updates = 0
        self._sample: list[list[int]] = []
        self._common = CommonTokens()

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began; interruptions and saving left out."""
        return time.perf_counter() - self._zero

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """The enclosed code takes no time of the run."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._zero += time.perf_counter() - began

    def tokens(self, rollout: Rollout) -> Tokens:
        """What a rollout that is neither in flight nor trained is made of. Raises KeyError."""
        return self._tokens[rollout.key]

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Queues rollouts in the engine, of which there is one; the next iteration sees them."""
        for rollout in rollouts:
            name = _name(rollout.key)
            if name in self._flying:
                raise RunError(f"{rollout} is already in flight")
            self._asked[rollout.group] = rollout.prompt
            prompt = self._prompt(rollout.group)
            tokens = self._tokens.get(rollout.key)
            if tokens is None or tokens.attempt != rollout.attempt:
                tokens = self._tokens[rollout.key] = Tokens(rollout.attempt)
            if len(tokens.ids) != rollout.new_tokens:
                raise RunError(f"{rollout} has {len(tokens.ids)} tokens in the engine's world")
            self._replica.submit(
                name,
                prompt.token_ids,
                tokens.ids,
                tokens.log_probs,
                max_new_tokens=self._cap(rollout),
                seed=zlib.crc32(f"{self._seed} {name} {rollout.attempt}".encode()),
            )
            self._flying[name] = Flight(rollout)

    def _cap(self, rollout: Rollout) -> int:
        """Response tokens that the rollout may have at the end of its stay."""
        cap = self._task.max_new_tokens
        if rollout.allowance is None:
            return cap
        return min(cap, rollout.new_tokens + rollout.allowance)

    def foresee(self, rollout: Rollout) -> None:
        """Nobody knows here."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Stay]:
        """Stops rollouts where they are: this world always stands between two iterations."""
        names = [*self._flying] if keys is None else [_name(key) for key in keys]
        for name in names:
            if name not in self._flying:
                raise RunError(f"rollout {name} is not in flight and cannot be aborted")
        responses = self._replica.abort(names)
        now_s = self.now_s
        return self._compared([self._take(response, now_s) for response in responses])

    def _prompt(self, group: int) -> Prompt:
        if group not in self._prompts:
            number = self._asked.get(group, group)
            self._prompts[group] = self._task.prompt(number, self._seed)
        return self._prompts[group]

    def _take(self, response: Response, now_s: float) -> Stay:
        """Moves what the engine made of a rollout into this world's books, and says what it was."""
        flight = self._flying.pop(response.request_id)
        rollout = flight.rollout
        tokens = self._tokens[rollout.key]
        made = [version for version, count in response.segments for _ in range(count)]
        tokens.versions += tuple(made)
        tokens.ids, tokens.log_probs = response.token_ids, response.log_probs
        if len(tokens.versions) != len(tokens.ids):
            raise RunError(f"{rollout}: the engine lost or invented tokens")
        ending = self._ending(response)
        prompt = self._prompt(rollout.group)
        reward = None
        if ending in ("stop", "length"):
            reward = self._task.reward(prompt, self._task.decode(tokens.ids))
        return Stay(
            rollout.group,
            rollout.index,
            rollout.attempt,
            0,
            len(prompt.token_ids),
            tuple(Segment(version, count) for version, count in response.segments),
            ending,
            now_s if flight.start_s is None else flight.start_s,
            now_s,
            flight.prefill_tokens,
            flight.recomputed_tokens,
            flight.preemptions,
            reward,
        )

    def _ending(self, response: Response) -> Ending:
        if response.finish_reason is None:
            return "aborted"
        if response.finish_reason != "length":
            return "stop"
        return "length" if len(response.token_ids) >= self._task.max_new_tokens else "budget"

    def _iterate(self) -> list[Event]:
        """One engine iteration, and the rewards of what it finished."""
        start_s = self.now_s
        responses = self._replica.step()
        measured = self._replica.last_iteration
        if measured is not None:
            self.log.iterations.add(self._replica.version, start_s, measured)
            self._book(measured, start_s)
        now_s = self.now_s
        stays = [self._take(response, now_s) for response in responses]
        return [Ended(stay) for stay in self._compared(stays)]

    def _compared(self, stays: Iterable[Stay]) -> list[Stay]:
        """Stays in the order in which the loop hears of them, and what their tokens have in common
        with those before."""
        compared = []
        for stay in sorted(stays, key=lambda stay: stay.key):
            ids = (*self._prompt(stay.group).token_ids, *self._tokens[stay.key].ids)
            shared = self._common.add(stay.key, stay.attempt, ids)
            compared.append(stay._replace(shared=shared))
        return compared

    def _book(self, measured: EngineIteration, start_s: float) -> None:
        """Books what an iteration did to each rollout."""
        for name in measured.admitted:
            self._flying[name].start_s = start_s
        for name in measured.preempted:
            self._flying[name].preemptions += 1
        for name, tokens in measured.prefilled:
            flight = self._flying[name]
            flight.prefill_tokens += tokens
            if flight.preemptions:
                flight.recomputed_tokens += tokens

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Notes an update; the next wait does it."""
        self._require_idle("train")
        self._update = batch, layout

    def sync_weights(self) -> None:
        """Notes a weight sync; the next wait does it."""
        self._require_idle("sync")
        self._sync_asked = True

    def _require_idle(self, what: str) -> None:
        busy = "an update" if self._update else "a sync" if self._sync_asked else None
        if busy is not None:
            raise RunError(f"{what} asked for while {busy} is under way")
        if self._flying:
            raise RunError(f"{what} asked for while rollouts are in flight")

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Does what was asked, or iterates until a rollout finishes or ``until_s`` passes."""
        if self._update is not None:
            (batch, layout), self._update = self._update, None
            return [self._train(batch, layout)]
        if self._sync_asked:
            self._sync_asked = False
            return [self._sync()]
        if not self._flying:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while until_s is None or self.now_s < until_s:
            events = self._iterate()
            if events:
                return events
        return []

    def _train(self, batch: TrainBatch, layout: Layout) -> Event:
        start_s = self.now_s
        try:
            metrics = self._trainer.step(
                [self._sampled(group) for group in batch.groups],
                shared_prefix=layout == "shared_prefix",
                version=batch.step,
                mask_before_version=batch.mask_before_version,
            )
        except (RuntimeError, ValueError) as error:  # out of memory, or a token beyond the model's
            raise RunError(f"the update of step {batch.step} failed: {sentence(error)}") from error
        self._updates = batch.step + 1
        self.log.updates.append((batch.step, metrics))
        longest = self._replica.limits.max_model_len - 1  # the check samples one token more
        self._sample = [
            [*self._prompt(group.group).token_ids, *self._tokens[rollout.key].ids][:longest]
            for group in batch.groups[:SYNC_SAMPLE]
            for rollout in group.rollouts[:1]
        ]
        return Trained(batch.step, self._phases(metrics, start_s))

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

    def _phases(self, metrics: TrainMetrics, start_s: float) -> tuple[Phase, ...]:
        phases, at_s = [], start_s
        for name in _PHASES:
            seconds = getattr(metrics, f"{name}_s")
            phases.append(Phase(name, at_s, at_s + seconds, metrics.computed_tokens))
            at_s += seconds
        phases.append(Phase("train", at_s, max(self.now_s, at_s), 0))  # batching, bookkeeping
        return tuple(phase for phase in phases if phase.end_s > phase.start_s)

    def _sync(self) -> Event:
        start_s = self.now_s
        self._replica.load_weights(self._trainer.weights(), self._updates)
        loaded_s = self.now_s
        self._common = CommonTokens()  # the engine's prefix cache is empty
        if self._sample:
            difference = check_sync(self._replica, self._trainer, self._sample)
            self.log.sync_differences.append(difference)
            self.log.sync_check_s.append(self.now_s - loaded_s)
        return Synced((Phase("sync", start_s, self.now_s),))

    def close(self) -> None:
        """Ends the engine."""
        self._replica.shutdown()

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Logs the machine's pulse after ``step`` steps; the clock should be stopped."""
        self.log.pulses.append((step, self._trainer.pulse()))

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        kept = set(groups)
        self._prompts = {group: p for group, p in self._prompts.items() if group in kept}
        self._asked = {group: number for group, number in self._asked.items() if group in kept}
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key[0] in kept}

    def state(self) -> WorldState:
        """Where it stands, between two steps and with the trainer's weights in the engine. Prompts
        are left out: the task makes them again."""
        if self._flying or self._update or self._sync_asked:
            raise RunError("a run can only be saved between two steps")
        if self._updates != self._replica.version:
            raise RunError("a run can only be saved once its newest weights are in the engine")
        return WorldState(
            self.now_s, self._updates, self._asked, self._tokens, self._trainer.state()
        )

    def load_state(self, state: WorldState, log: EngineLog) -> None:
        """Goes on from a `state`, weights in the engine included, and from its log. Raises
        ValueError for the state of another trainer."""
        self._trainer.load_state(state.trainer)
        self._tokens, self._asked, self._prompts = dict(state.tokens), dict(state.asked), {}
        self._updates = state.version
        self._replica.load_weights(self._trainer.weights(), state.version)
        self.log = log
        self._zero = time.perf_counter() - state.clock_s


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"
