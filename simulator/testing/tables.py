"""Workloads and costs written out as tables, so that a case is plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.simulator.core.rollout import Ending
from rollcast.simulator.costs.base import CostModel, Curve, Iteration, TrainCost, TrainLoad
from rollcast.simulator.workload.base import GroupDraw, Path, Trajectory, Turn


@dataclass(frozen=True)
class TableTurns:
    """What a `TableWorkload`'s rollouts have beside the first response, looked up alike: counts
    of turns, observation tokens, seconds of answers, of boots, of judging (None: none), and
    endings."""

    counts: tuple[int, ...]
    observations: tuple[int, ...] = (0,)
    seconds: tuple[float, ...] = (0.0,)
    boots: tuple[float, ...] = (0.0,)
    judging: tuple[float | None, ...] = (None,)
    endings: tuple[Ending, ...] = ("stop",)

    def of(self, place: int, lengths: Sequence[int]) -> Trajectory:
        """The trajectory at a place of the tables; lengths: of responses."""
        count = self.counts[place % len(self.counts)]
        ending = self.endings[place % len(self.endings)]
        turns = [
            Turn(
                self.observations[(place + 5 * k) % len(self.observations)] if k else 0,
                lengths[(place + 3 * k) % len(lengths)],
                self.seconds[(place + 7 * k) % len(self.seconds)],
            )
            for k in range(count)
        ]
        if place % 3:  # most have nothing to do at last
            turns[-1] = turns[-1]._replace(environment_s=0.0)
        boot_s = self.boots[place % len(self.boots)]
        return Trajectory(tuple(turns), ending, boot_s, self.judging[place % len(self.judging)])

    @property
    def most_observed(self) -> int:
        """No answers of one rollout have more tokens together."""
        return (max(self.counts) - 1) * max(self.observations)


@dataclass(frozen=True)
class TableWorkload:
    """Draws looked up in short tables by an address that mixes group, index, attempt and step.
    Rewards of odd groups differ for every index, so that no filter on variance rejects for ever.

    beginnings: of responses, before their tokens become their own. openings: prompts that agree
    modulo it begin alike; 0 for none.
    """

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    rewards: tuple[float, ...]
    max_new_tokens: int
    beginnings: tuple[str, ...] = ()
    openings: int = 0
    turns: TableTurns | None = None

    @property
    def max_context_tokens(self) -> int:
        """No prompt, with what comes after it, is longer."""
        turns = self.turns
        most = 1 if turns is None else max(turns.counts)
        observed = 0 if turns is None else turns.most_observed
        return self.max_prompt_tokens + most * self.max_new_tokens + observed

    @property
    def warnings(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt."""
        return max(self.prompts)

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """See `simulator.workload.base.Workload.draw`."""
        number = group if prompt is None else prompt
        start = 7 * number + 11 * attempt + 2 * version + 5 * visit
        tells = bool(self.beginnings or self.openings)
        lengths = [self.lengths[(start + 3 * i) % len(self.lengths)] for i in range(size)]
        trajectories = None
        if self.turns is not None:
            trajectories = [self.turns.of(start + 3 * i, self.lengths) for i in range(size)]
            lengths = [trajectory.new_tokens for trajectory in trajectories]
        return GroupDraw(
            self.prompts[number % len(self.prompts)],
            lengths,
            [
                self.rewards[(start + i) % len(self.rewards)] + number % 2 * i / 8
                for i in range(size)
            ],
            TableSharing(self, group, attempt, version, number, visit) if tells else None,
            trajectories,
        )

    def tokens(
        self, group: int, index: int, attempt: int, version: int, prompt: int, visit: int
    ) -> tuple[tuple[object, ...], int]:
        """The rollout's tokens (prompt, response, and between its turns what it observed), and how
        many of them it may have in common with others."""
        drawn = self.draw(group, index + 1, attempt, version, prompt, visit)
        kind = prompt % self.openings if self.openings else prompt
        asked = tuple((kind, i) for i in range(drawn.prompt_tokens))
        first = after = drawn.new_tokens[index]
        if drawn.trajectories is not None:
            turns = drawn.trajectories[index].turns
            first = turns[0].new_tokens
            after += sum(turn.observation_tokens for turn in turns)
        prefix = tuple((group, index, attempt, i) for i in range(after))
        begun = tuple(self.beginning(prompt, index, attempt, version))[:first]
        return asked + (begun + prefix)[:after], len(asked) + len(begun)

    def beginning(self, prompt: int, index: int, attempt: int, version: int) -> str:
        """What a rollout's response begins with, if it gets that far."""
        if not self.beginnings:
            return ""
        place = prompt + index + 3 * attempt + 2 * version
        return self.beginnings[place % len(self.beginnings)]


@dataclass(frozen=True)
class TableSharing:
    """What a `TableWorkload`'s rollouts have in common, token by token."""

    workload: TableWorkload
    group: int
    attempt: int
    drawn_at: int
    prompt: int
    visit: int

    def path(self, index: int, version: int) -> Path:
        """See `simulator.workload.base.Sharing.path`: an end for each token in common."""
        name = (self.group, index, self.attempt, self.drawn_at, self.prompt, self.visit)
        tokens, common = self.workload.tokens(*name)
        return [(end, tokens[:end]) for end in range(1, common + 1)]


@dataclass(frozen=True)
class TableCost(CostModel):
    """A price for every count that the scheduler hands over, so that none can be wrong unseen.

    knots: (context tokens, jump in seconds, slope in seconds a token) of the decode curve.
    phases: (kind, fixed seconds, seconds a token) of the update.
    """

    iteration_s: float = 1.0
    per_rollout_s: float = 0.0
    per_context_token_s: float = 0.0
    knots: tuple[tuple[int, float, float], ...] = ()
    per_prefill_token_s: float = 0.0
    per_pair_s: float = 0.0
    per_prefill_rollout_s: float = 0.0
    per_prefill_context_token_s: float = 0.0
    phases: tuple[tuple[str, float, float], ...] = (("train", 1.0, 0.0),)
    sync_s: float = 0.0
    switch_to_train_s: float = 0.0
    switch_to_rollout_s: float = 0.0

    def decode_curve(self, rollouts: int) -> Curve:
        """Seconds of a decode iteration over its context."""
        base = self.iteration_s + self.per_rollout_s * rollouts
        pieces = [(0, base, self.per_context_token_s)]
        pieces += [(at, base + jump, slope) for at, jump, slope in self.knots]
        return Curve(pieces)

    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration that prefills."""
        return (
            self.iteration_s
            + self.per_rollout_s * work.rollouts
            + self.per_context_token_s * work.context_tokens
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_pair_s * work.prefill_pairs
            + self.per_prefill_rollout_s * work.prefill_rollouts
            + self.per_prefill_context_token_s * work.prefill_context_tokens
        )

    def train(self, load: TrainLoad) -> TrainCost:
        """The phases, in order."""
        return TrainCost(
            tuple((kind, fixed + per_token * load.tokens) for kind, fixed, per_token in self.phases)
        )
