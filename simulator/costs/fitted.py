"""Costs fitted from measured runs, as ``rollcast calibrate`` writes them.

A fitted file is JSON of schema ``rollcast-fitted/1``; its mapping ``cost`` is read here, `range`
says what the measurements covered, and the rest (errors, lengths, provenance) belongs to
`calibration`, which the simulator does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.checks import flag, number, whole
from simulator.costs.base import (
    LARGEST_COST_S,
    Curve,
    Extremes,
    Iteration,
    TrainCost,
    TrainLoad,
)
from simulator.errors import ScenarioError
from simulator.fields import Fields
from simulator.results.fitted_file import check_schema, read_fitted

FIELD = "cost.file"
MOST_MINIBATCHES = 10_000
LEAST_ITERATION_S = 1e-9


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Seconds of an engine iteration, in the counts of `simulator.costs.base.Iteration`.

    rollout_pieces: ``(from_rollouts, seconds_per_rollout)`` in rising order, the first from 0: each
        slope holds up to the next piece, the last one for ever.
    prefilling_s: of an iteration that prefills at all.
    per_admission_s: of each rollout that prefills in the iteration, beside its tokens: queueing it,
        and settling it once it ends.
    """

    fixed_s: float
    rollout_pieces: tuple[tuple[int, float], ...]
    per_context_token_s: float
    per_prefill_token_s: float
    per_prefill_pair_s: float = 0.0
    per_admission_s: float = 0.0
    prefilling_s: float = 0.0

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

    fixed_s: float
    per_token_s: float
    per_rollout_s: float = 0.0
    per_microbatch_s: float = 0.0
    log_prob_per_token_s: float = 0.0
    per_pair_s: float = 0.0


class Fed(NamedTuple):
    """What one pass over a batch is fed: tokens, padding included; microbatches; and pairs of a
    token and one that it attends to, in whole squares, as a padded row computes them."""

    tokens: int
    microbatches: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Packing:
    """How the trainer makes microbatches: groups dealt to ``minibatches``, and in each the longest
    rows first, into microbatches of at most ``microbatch_tokens`` with padding."""

    microbatch_tokens: int
    minibatches: int = 1
    suffix_microbatch_tokens: int | None = None

    @classmethod
    def from_mapping(
        cls, spec: object, field: str, microbatch_tokens: int | None = None
    ) -> Packing:
        """From a mapping of these keys. microbatch_tokens: where it has none. Raises ScenarioError
        that names the key."""
        names = ("microbatch_tokens", "minibatches", "suffix_microbatch_tokens")
        fields = Fields(spec, field, names)
        suffix = "suffix_microbatch_tokens"
        found = cls(
            fields.whole("microbatch_tokens", microbatch_tokens),
            fields.whole("minibatches", 1),
            fields.whole(suffix) if suffix in fields else None,
        )
        if found.minibatches > MOST_MINIBATCHES:
            message = f"{found.minibatches} are more than {MOST_MINIBATCHES}"
            raise ScenarioError(fields.name("minibatches"), message)
        return found

    def to_mapping(self) -> dict[str, int]:
        """What `from_mapping` reads."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def fed(self, load: TrainLoad) -> Fed:
        """What one pass over the batch is fed."""
        total = [0, 0, 0]

        def add(widths: Sequence[int], budget_tokens: int, prefix: int = 0) -> None:
            for width, rows in _pack(widths, budget_tokens):
                total[0] += width * rows
                total[1] += 1
                total[2] += rows * width * (width + prefix)

        for share in range(self.minibatches):
            dense: list[int] = []
            for prompt, responses in load.groups[share :: self.minibatches]:
                if load.shared_prefix and len(responses) > 1 and prompt > 1:
                    total[0] += prompt - 1
                    total[2] += (prompt - 1) ** 2
                    budget = self.suffix_microbatch_tokens or self.microbatch_tokens
                    add(responses, budget, prompt - 1)
                else:  # the last token of a response is fed to nothing
                    dense.extend(prompt + response - 1 for response in responses)
            add(dense, self.microbatch_tokens)
        return Fed(*total)


def _pack(widths: Sequence[int], budget_tokens: int) -> Iterator[tuple[int, int]]:
    """Padded width and rows of each microbatch."""
    rows, first = sorted(widths, reverse=True), 0
    while first < len(rows):
        width = max(rows[first], 1)
        count = min(max(1, budget_tokens // width), len(rows) - first)
        yield width, count
        first += count


@dataclass(frozen=True, slots=True)
class Covered:
    """The least and the most of each quantity that the measurements hold."""

    rollouts: tuple[int, int]
    context_tokens: tuple[int, int]
    prefill_tokens: tuple[int, int]
    train_tokens: tuple[int, int]
    rollout_tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class FittedCost:
    """A `simulator.costs.base.CostModel` with coefficients fitted from runs of a real engine.

    shared_prefix: the update in that layout; None where it was never measured, and then it is
        priced as dense microbatches of the tokens that it feeds.
    skips_equal_rewards: whether the trainer left out groups whose rewards are all equal.
    policies: those of the measured runs, as a command line spells them.
    content: the whole file, which tells how sure each coefficient is.
    """

    iteration: IterationCost
    dense: UpdateCost
    shared_prefix: UpdateCost | None
    sync_s: float
    switch_to_train_s: float
    switch_to_rollout_s: float
    packing: Packing | None
    skips_equal_rewards: bool
    covered: Covered
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

    @property
    def kv_pool_tokens(self) -> None:
        """A fit knows of no memory."""

    def drawn(self, rng: np.random.Generator) -> FittedCost:
        """The costs with every coefficient drawn from what the measurements leave open; the same
        ones where the file does not say how sure they are."""
        from simulator.costs.fitted_draws import drawn_cost

        if not {"fits", "covariance"} <= self.content.keys():
            return self
        content = {**self.content, "cost": drawn_cost(self.content, rng)}
        return FittedCost.from_mapping(content, self.name)

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
        said = []
        if extremes.shared_prefix and self.shared_prefix is None:
            said.append(
                f"{self.name} has no update with a shared prefix; it is priced as dense "
                "microbatches of the tokens that it feeds"
            )
        for quantity in ("rollouts", "context_tokens", "prefill_tokens", "train_tokens",
                         "rollout_tokens"):  # fmt: skip
            asked, most = getattr(extremes, quantity), getattr(self.covered, quantity)[1]
            if asked > most:
                said.append(
                    f"{self.name} covers up to {most} {quantity} "
                    f"({_WHERE[quantity]}), and the run went to {asked}: extrapolated"
                )
        return said


_WHERE = {
    "rollouts": "in one iteration",
    "context_tokens": "in one iteration",
    "prefill_tokens": "in one iteration",
    "train_tokens": "in one update",
    "rollout_tokens": "of prompt and response",
}


def _read(content: Mapping[str, Any], name: str) -> FittedCost:
    cost = Fields(
        content.get("cost"),
        "cost",
        ("iteration", "dense", "shared_prefix", "sync_s", "switch_to_train_s",
         "switch_to_rollout_s", "packing", "skips_equal_rewards"),
    )  # fmt: skip
    shared = cost.get("shared_prefix")
    packing = cost.get("packing")
    policies = content.get("policies", ())
    return FittedCost(
        _iteration(cost.get("iteration")),
        _update(cost.get("dense"), "cost.dense"),
        None if shared is None else _update(shared, "cost.shared_prefix"),
        _seconds(cost, "sync_s"),
        _seconds(cost, "switch_to_train_s"),
        _seconds(cost, "switch_to_rollout_s"),
        None if packing is None else Packing.from_mapping(packing, "cost.packing"),
        flag(cost.get("skips_equal_rewards"), "cost.skips_equal_rewards"),
        _covered(content.get("range")),
        tuple(str(policy) for policy in policies) if isinstance(policies, list) else (),
        name,
        content,
    )


def _seconds(fields: Fields, key: str) -> float:
    return fields.number(key, maximum=LARGEST_COST_S)


def _iteration(spec: object) -> IterationCost:
    numbers = ("fixed_s", "per_context_token_s", "per_prefill_token_s", "per_prefill_pair_s",
               "per_admission_s")  # fmt: skip
    optional = "prefilling_s"
    fields = Fields(spec, "cost.iteration", (*numbers, optional, "rollout_pieces"))
    name, listed = fields.name("rollout_pieces"), fields.get("rollout_pieces")
    if not isinstance(listed, list) or not all(isinstance(p, list) and len(p) == 2 for p in listed):
        raise ScenarioError(name, "must be a list of [from_rollouts, seconds_per_rollout]")
    pieces = tuple((whole(start, name), number(slope, name)) for start, slope in listed)
    if any(slope > LARGEST_COST_S for _, slope in pieces):
        raise ScenarioError(name, f"a slope is above {LARGEST_COST_S:g} seconds")
    starts = [start for start, _ in pieces]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise ScenarioError(name, "must start at 0 rollouts and rise strictly")
    values = {key: _seconds(fields, key) for key in numbers}
    values[optional] = fields.number(optional, 0.0, maximum=LARGEST_COST_S)
    if values["fixed_s"] + pieces[0][1] < LEAST_ITERATION_S:
        raise ScenarioError(fields.name("fixed_s"), "an iteration takes no time")
    return IterationCost(rollout_pieces=pieces, **values)


def _update(spec: object, field: str) -> UpdateCost:
    names = ("fixed_s", "per_token_s", "per_rollout_s", "per_microbatch_s", "log_prob_per_token_s",
             "per_pair_s")  # fmt: skip
    fields = Fields(spec, field, names)
    return UpdateCost(*(_seconds(fields, key) for key in names))


def _covered(spec: object) -> Covered:
    names = ("rollouts", "context_tokens", "prefill_tokens", "train_tokens", "rollout_tokens")
    fields = Fields(spec, "range", names)
    ends = []
    for key in names:
        pair = fields.get(key)
        if not isinstance(pair, list) or len(pair) != 2:
            raise ScenarioError(fields.name(key), "must be [least, most]")
        least, most = (whole(end, fields.name(key)) for end in pair)
        ends.append((least, most))
    return Covered(*ends)
