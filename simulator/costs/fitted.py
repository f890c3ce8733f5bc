"""Costs fitted from measured runs, as ``rollcast calibrate`` writes them.

A fitted file is JSON of schema ``rollcast-fitted/1``; its mapping ``cost`` is read here, `range`
says what the measurements covered, and the rest (errors, lengths, provenance) belongs to
`calibration`, which the simulator does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rollcast.simulator.costs.actors import RETIRED, ActorCosts
from rollcast.simulator.costs.base import (
    CostModel,
    Curve,
    Extremes,
    Iteration,
    TrainCost,
    TrainLoad,
)
from rollcast.simulator.costs.ranges import Seconds
from rollcast.simulator.costs.trainer.packing import padded_rows
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.fitted_file import check_schema, read_fitted
from rollcast.simulator.values import NOT_NEGATIVE, AtLeast, Between, given, read
from rollcast.simulator.values.chance import Chance

FIELD = "cost.file"
MOST_MINIBATCHES = 10_000

Ends = Annotated[tuple[int, int], NOT_NEGATIVE]


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Seconds of an engine iteration, in the counts of `simulator.costs.base.Iteration`.

    rollout_pieces: ``(from_rollouts, seconds_per_rollout)`` in rising order, the first from 0: each
        slope holds up to the next piece, the last one for ever.
    prefilling_s: of an iteration that prefills at all.
    per_admission_s: of each rollout that prefills in the iteration, beside its tokens: queueing it,
        and settling it once it ends.
    """

    fixed_s: Seconds
    rollout_pieces: Annotated[tuple[tuple[int, float], ...], Between(0, 1e6)]
    per_context_token_s: Seconds
    per_prefill_token_s: Seconds
    per_prefill_pair_s: Seconds
    per_admission_s: Seconds
    prefilling_s: Seconds = 0.0

    def rollouts_s(self, rollouts: int) -> float:
        """Seconds of an iteration without its context and prefill."""
        total = self.fixed_s
        ends = [start for start, _ in self.rollout_pieces[1:]]
        for (start, slope), end in zip(self.rollout_pieces, [*ends, rollouts], strict=True):
            total += slope * max(min(rollouts, end) - start, 0)
        return total


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Seconds of an update in one layout: per token that a pass is fed (padding included, where the
    packing is known), per pair of tokens that attention compares, per microbatch and per
    rollout."""

    fixed_s: Seconds
    per_token_s: Seconds
    per_rollout_s: Seconds
    per_microbatch_s: Seconds
    log_prob_per_token_s: Seconds
    per_pair_s: Seconds


class Fed(NamedTuple):
    """What one pass over a batch is fed: tokens, padding included; microbatches; and pairs of a
    token and one that it attends to, in whole squares, as a padded row computes them."""

    tokens: int
    microbatches: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Packing:
    """How the trainer makes microbatches: groups dealt to ``minibatches``, and in each the longest
    rows first, into microbatches of at most ``microbatch_tokens`` with padding. Shared prefixes are
    computed together, up to ``prefix_microbatch_tokens`` with padding; 1: each by itself, as
    earlier versions did."""

    microbatch_tokens: Annotated[int, AtLeast(1)]
    minibatches: Annotated[int, Between(1, MOST_MINIBATCHES)] = 1
    suffix_microbatch_tokens: Annotated[int | None, AtLeast(1)] = None
    prefix_microbatch_tokens: Annotated[int, AtLeast(1)] = 1

    @classmethod
    def from_mapping(
        cls, spec: object, field: str, microbatch_tokens: int | None = None
    ) -> Packing:
        """From a mapping of these keys. microbatch_tokens: where it has none. Raises ScenarioError
        that names the key."""
        defaults = {} if microbatch_tokens is None else {"microbatch_tokens": microbatch_tokens}
        return read(cls, spec, field, defaults=defaults)

    def to_mapping(self) -> dict[str, int]:
        """What `from_mapping` reads."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def fed(self, load: TrainLoad) -> Fed:
        """What one pass over the batch is fed."""
        total = [0, 0, 0]

        def add(rows: Sequence[_Row], budget_tokens: int) -> None:
            for batch in padded_rows(rows, itemgetter(0), budget_tokens):
                width = max(batch[0][0], 1)
                total[0] += width * len(batch)
                total[1] += 1
                total[2] += sum(width * (width + before) for _, before in batch)

        for share in range(self.minibatches):
            dense: list[_Row] = []
            sharing: list[tuple[int, list[int]]] = []
            for prompt, responses in load.groups[share :: self.minibatches]:
                if load.shared_prefix and len(responses) > 1 and prompt > 1:
                    sharing.append((prompt - 1, [*responses]))
                else:  # the last token of a response is fed to nothing
                    dense.extend((prompt + response - 1, 0) for response in responses)
            for groups in padded_rows(sharing, itemgetter(0), self.prefix_microbatch_tokens):
                width = groups[0][0]
                total[0] += width * len(groups)
                total[2] += width * width * len(groups)
                suffixes = [(n, prefix) for prefix, responses in groups for n in responses]
                add(suffixes, self.suffix_microbatch_tokens or self.microbatch_tokens)
            add(dense, self.microbatch_tokens)
        return Fed(*total)


_Row = tuple[int, int]
"""Tokens of a row, and of the prefix before it."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The least and the most of each quantity that the measurements hold."""

    rollouts: Ends
    context_tokens: Ends
    prefill_tokens: Ends
    train_tokens: Ends
    rollout_tokens: Ends


@dataclass(frozen=True, slots=True)
class FittedCost(CostModel):
    """Costs with coefficients fitted from runs of a real engine.

    shared_prefix: the update in that layout; None where it was never measured, and then it is
        priced as dense microbatches of the tokens that it feeds.
    skips_equal_rewards: whether the trainer left out groups whose rewards are all equal.
    actors: of runs of several processes, what that cost; None for others.
    policies: those of the measured runs, as a command line spells them.
    content: the whole file, which tells how sure each coefficient is.
    """

    iteration: IterationCost
    dense: UpdateCost
    shared_prefix: UpdateCost | None
    packing: Packing | None
    skips_equal_rewards: bool
    covered: Covered
    sync_s: float = 0.0
    switch_to_train_s: float = 0.0
    switch_to_rollout_s: float = 0.0
    actors: ActorCosts | None = None
    policies: tuple[str, ...] = ()
    name: str = field(default="fitted file", compare=False)
    content: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_mapping(cls, content: object, name: str = "fitted file") -> FittedCost:
        """The costs in a fitted file's content. Raises ScenarioError (``cost.file``) for another
        schema, and for what is missing or out of range, by its name."""
        try:
            return _read(check_schema(content, name, FIELD), name)
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{name}: {error}") from None

    @classmethod
    def load(cls, path: Path) -> FittedCost:
        """Reads a fitted file; raises ScenarioError (``cost.file``)."""
        return cls.from_mapping(read_fitted(path, FIELD), path.name)

    def drawn(self, chance: Chance) -> FittedCost:
        """The costs with every coefficient drawn from what the measurements leave open; the same
        ones where the file does not say how sure they are."""
        from rollcast.simulator.costs.fitted_draws import drawn_cost

        if not {"fits", "covariance"} <= self.content.keys():
            return self
        content = {**self.content, "cost": drawn_cost(self.content, chance)}
        return FittedCost.from_mapping(content, self.name)

    def slowed(self, rollout: float, update: float, rest: float) -> FittedCost:
        """The costs of a machine on which iterations, updates and all the rest take so many times
        as long."""
        from rollcast.simulator.costs.fitted_draws import slowed_cost

        cost = slowed_cost(self.content["cost"], rollout, update, rest)
        return FittedCost.from_mapping({**self.content, "cost": cost}, self.name)

    def decode_curve(self, rollouts: int) -> Curve:
        """Affine in the context."""
        iteration = self.iteration
        return Curve.affine(iteration.rollouts_s(rollouts), iteration.per_context_token_s)

    def mixed_iteration_s(self, work: Iteration) -> float:
        """The decode curve at the same rollouts and context, and what the prefill adds."""
        iteration = self.iteration
        return (
            iteration.rollouts_s(work.rollouts)
            + iteration.per_context_token_s * work.context_tokens
            + iteration.prefilling_s
            + iteration.per_prefill_token_s * work.prefill_tokens
            + iteration.per_prefill_pair_s * work.prefill_pairs
            + iteration.per_admission_s * work.prefill_rollouts
        )

    def train(self, load: TrainLoad) -> TrainCost:
        """One ``train`` phase, after a ``log_prob`` phase where that was measured."""
        if self.skips_equal_rewards:
            load = load.that_teaches()
        update = (self.shared_prefix if load.shared_prefix else None) or self.dense
        fed = Fed(load.tokens, 0, 0) if self.packing is None else self.packing.fed(load)
        train_s = (
            update.fixed_s
            + update.per_token_s * fed.tokens
            + update.per_rollout_s * load.rollouts
            + update.per_microbatch_s * fed.microbatches
            + update.per_pair_s * fed.pairs
        )
        phases: tuple[tuple[str, float], ...] = (("train", train_s),)
        if update.log_prob_per_token_s > 0:
            phases = (("log_prob", update.log_prob_per_token_s * load.tokens), *phases)
        return TrainCost(phases, microbatches=fed.microbatches)

    def warnings(self, extremes: Extremes) -> list[str]:
        """One sentence for each quantity that went beyond the most that was measured, and one for a
        layout that never was."""
        sentences = []
        if extremes.shared_prefix and self.shared_prefix is None:
            sentences.append(
                f"{self.name} has no update with a shared prefix; it is priced as dense "
                "microbatches of the tokens that it feeds"
            )
        for quantity, where in _WHERE.items():
            asked, most = getattr(extremes, quantity), getattr(self.covered, quantity)[1]
            if asked > most:
                sentences.append(
                    f"{self.name} covers up to {most} {quantity} ({where}); the run reached "
                    f"{asked}, for which costs are extrapolated"
                )
        return sentences


_WHERE = {
    "rollouts": "in one iteration",
    "context_tokens": "in one iteration",
    "prefill_tokens": "in one iteration",
    "train_tokens": "in one update",
    "rollout_tokens": "of prompt and response",
}


@dataclass(frozen=True, slots=True)
class _Costs:
    """The mapping ``cost`` of a fitted file."""

    iteration: IterationCost
    dense: UpdateCost
    sync_s: Seconds
    switch_to_train_s: Seconds
    switch_to_rollout_s: Seconds
    skips_equal_rewards: bool
    shared_prefix: UpdateCost | None = None
    packing: Packing | None = None
    actors: ActorCosts | None = None


def _without_retired(cost: object) -> object:
    """``cost`` without keys that earlier versions wrote."""
    if not isinstance(cost, Mapping) or not isinstance(cost.get("actors"), Mapping):
        return cost
    kept = {key: value for key, value in cost["actors"].items() if key not in RETIRED}
    return {**cost, "actors": kept}


def _read(content: Mapping[str, Any], name: str) -> FittedCost:
    costs = read(_Costs, _without_retired(content.get("cost")), "cost")
    policies = content.get("policies", ())
    starts = [start for start, _ in costs.iteration.rollout_pieces]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise ScenarioError(
            "cost.iteration.rollout_pieces", "must start at 0 rollouts and rise strictly"
        )
    if costs.iteration.fixed_s + costs.iteration.rollout_pieces[0][1] == 0:
        raise ScenarioError("cost.iteration.fixed_s", "an iteration takes no time")
    return FittedCost(
        covered=read(Covered, content.get("range"), "range"),
        policies=tuple(str(policy) for policy in policies) if isinstance(policies, list) else (),
        name=name,
        content=content,
        **given(costs),
    )
