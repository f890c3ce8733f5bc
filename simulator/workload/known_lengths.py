"""``workload.lengths`` as logs and papers state them: mean after the cut, cut share, percentiles.

`KnownLengths.solved` gives the lognormal that has them (`simulator.workload.solving`). What the
figures leave open takes the central case in a forecast, and is drawn anew for its intervals
(`KnownLengths.drawn`): the spread of the log, how much of it is between prompts, and the runaway
share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import SHARE, Above, Between, Doc, Options
from rollcast.simulator.workload.length_specs import (
    CORRELATION,
    DRIFT,
    DRIFT_DOC,
    FIELD,
    LARGEST_SD,
    RUNAWAY_CORRELATION_DOC,
    DrawnLengths,
)
from rollcast.simulator.workload.lengths import LARGEST_CAP, RUNAWAY_CORRELATION
from rollcast.simulator.workload.solving import (
    MOST_SD,
    NONE_CUT,
    CutShare,
    Family,
    Figure,
    Longest,
    Mean,
    Percentile,
    Point,
    first_and_rest,
    most_mean,
    solve_both,
    solve_runaway,
    solve_sd,
    span,
    spreads,
)

if TYPE_CHECKING:
    from rollcast.simulator.values.chance import Chance

ASSUMED_SD, LEAST_ASSUMED_SD, MOST_ASSUMED_SD = 0.6, 0.3, 0.9
"""Spread of the log of all responses where only a mean is known, and the range of an interval.
Assumed: the batches of two RL runs (APRIL, arXiv 2509.18521) spread 0.57 and 0.62; models on mixed
prompts, 0.57 to 1.2 (`rollcast presets lengths`)."""
LOGIT_BETWEEN, LOGIT_BETWEEN_SD = 1.5, 0.8
"""Logit of the share of the variance of log lengths that is between prompts, and how far it may be
off: 0.82 (0.55 to 0.94), about that of four runs with all their lengths (0.75 to 0.88)."""
ASSUMED_RUNAWAY = 2e-3
"""Share of responses that run to the cap where no cut share is known; 0 to twice as many in an
interval. Assumed: the length presets have 0 to 0.003."""
RUNAWAY_TOKENS = 0.1  # of all tokens, which assumed runaways have at most
_PERCENTILES = ("p10", "p25", "p50", "p75", "p90", "p95", "p99")
_TOKENS = Between(2, LARGEST_CAP)


def _percentile(percent: int) -> Doc:
    return Doc(
        f"length that {percent} % of the responses, as they are after the cut, do not exceed",
        unit="tokens",
    )


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a scenario samples a step. cap: tokens, of a turn if there are several. groups,
    group_size: of a step. turn_sd: spread of the log length from turn to turn."""

    cap: int
    groups: int
    group_size: int
    turn_sd: float = 0.0


@dataclass(frozen=True, slots=True)
class SolvedLengths:
    """Lengths that have the known figures. lengths: the family. sd, between_share: of them.
    ranges: of what stays open, (least, central, most) by key. mean_tokens, cut_share: at ``cap``,
    where they were known."""

    lengths: DrawnLengths
    sd: float
    between_share: float
    ranges: Mapping[str, tuple[float, float, float]]
    mean_tokens: float
    cut_share: float
    cap: int

    def to_mapping(self, known: KnownLengths) -> dict[str, Any]:
        """As ``summary.json`` has it."""
        keys = ("family", "median_tokens", "between_sd", "within_sd", "runaway")
        return {
            "known": known.figures,
            "solved": {key: getattr(self.lengths, key) for key in keys},
            "mean_tokens": self.mean_tokens,
            "cut_share": self.cut_share,
            "cap_tokens": self.cap,
            "open": {key: list(ends) for key, ends in self.ranges.items()},
            "note": self.note(known),
        }

    def note(self, known: KnownLengths) -> str:
        """The family and what of it is assumed, in a sentence."""
        family = self.lengths
        given = ", ".join(f"{key} {value:g}" for key, value in known.figures.items())
        text = (
            f"median {family.median_tokens:,.0f} tokens, spread of the log {family.between_sd:.2f} "
            f"between prompts and {family.within_sd:.2f} within, {100 * family.runaway:.2g} % run "
            f"to the cap; solved for {given}"
        )
        if self.ranges:
            assumed = ", ".join(
                f"{key} {central:.3g} ({low:.3g} to {high:.3g} in intervals)"
                for key, (low, central, high) in self.ranges.items()
            )
            text += f"; assumed: {assumed}"
        return text


@dataclass(frozen=True, slots=True)
class KnownLengths(Options):
    """Lengths that have known figures, lognormal between prompts and within them."""

    FIELD = FIELD
    CHOSEN_BY: ClassVar[tuple[str, ...]] = (
        "mean_tokens",
        "cut_share",
        "max_tokens",
        *_PERCENTILES,
    )

    mean_tokens: Annotated[
        float | None,
        _TOKENS,
        Doc("mean of the responses as they are after the cut at the cap, cut ones included"),
    ] = None
    cut_share: Annotated[
        float | None,
        Between(0, 1, below=True),
        Doc("share of the responses that reach the cap and are cut", unit="share"),
    ] = None
    max_tokens: Annotated[
        float | None,
        _TOKENS,
        Doc("longest response of a step of batch_groups x group_size, if below the cap"),
    ] = None
    p10: Annotated[float | None, _TOKENS, _percentile(10)] = None
    p25: Annotated[float | None, _TOKENS, _percentile(25)] = None
    p50: Annotated[float | None, _TOKENS, _percentile(50)] = None
    p75: Annotated[float | None, _TOKENS, _percentile(75)] = None
    p90: Annotated[float | None, _TOKENS, _percentile(90)] = None
    p95: Annotated[float | None, _TOKENS, _percentile(95)] = None
    p99: Annotated[float | None, _TOKENS, _percentile(99)] = None
    cap_tokens: Annotated[
        int | None,
        Between(1, LARGEST_CAP),
        Doc("cap at which these figures were measured; null: workload.max_new_tokens"),
    ] = None
    sd: Annotated[
        float | None,
        Above(0, MOST_SD),
        Doc(
            "spread of the log length over all responses; null: solved for, or where the figures "
            f"leave it open {ASSUMED_SD}, in intervals {LEAST_ASSUMED_SD} to {MOST_ASSUMED_SD}",
            unit="standard deviation of the log",
        ),
    ] = None
    between_share: Annotated[
        float | None,
        SHARE,
        Doc(
            "share of the variance of the log length that is between prompts; null: 0.82, in "
            "intervals 0.55 to 0.94",
            unit="share",
        ),
    ] = None
    runaway: Annotated[
        float | None,
        Between(0, 1, below=True),
        Doc(
            "share of rollouts that do not stop by themselves and run to the cap; null: solved "
            f"for, or where the figures leave it open {ASSUMED_RUNAWAY}, in intervals 0 to twice "
            "that",
            unit="share",
        ),
    ] = None
    runaway_correlation: Annotated[float, CORRELATION, RUNAWAY_CORRELATION_DOC] = (
        RUNAWAY_CORRELATION
    )
    drift_per_step: Annotated[float, DRIFT, DRIFT_DOC] = 0.0
    family: Annotated[
        Literal["lognormal"], Doc("distribution of lengths between prompts and within a prompt")
    ] = "lognormal"

    def agree(self) -> None:
        """Some figure says how long responses are, and percentiles rise."""
        figures = self.figures
        if not set(figures) - {"cut_share", "max_tokens"}:
            raise self.refuse(
                "mean_tokens", f"missing; {' and '.join(figures)} alone fixes no length; add it"
            )
        known = [(key, figures[key]) for key in _PERCENTILES if key in figures]
        for (lower, few), (upper, many) in pairwise(known):
            if few >= many:
                raise self.refuse(
                    upper, f"is {many:g}, and {lower} is {few:g}; it must be larger than {lower}"
                )
        longest = self.max_tokens
        for key, value in figures.items():
            if longest is not None and key not in ("cut_share", "max_tokens") and value >= longest:
                raise self.refuse(
                    key, f"is {value:g}, and the longest response (max_tokens) has {longest:g}"
                )

    @property
    def figures(self) -> dict[str, float]:
        """What is known of the responses, by key."""
        return {key: getattr(self, key) for key in self.CHOSEN_BY if getattr(self, key) is not None}

    def solved(self, sampled: Sampled) -> SolvedLengths:
        """The lengths that have these figures. Raises ScenarioError for figures that contradict one
        another or the cap, saying what is possible."""
        cap = self.cap_tokens or sampled.cap
        return _solved(self, replace(sampled, cap=cap))

    def drawn(self, chance: Chance, sampled: Sampled) -> KnownLengths:
        """The lengths with what the figures leave open drawn, each evenly over its range on either
        side of the central case (the share between prompts: its logit normal)."""
        changed: dict[str, Any] = {}
        for key, (low, central, high) in self.solved(sampled).ranges.items():
            z = chance.normal(f"lengths/{key}")
            if key == "between_share":
                logit = LOGIT_BETWEEN + LOGIT_BETWEEN_SD * z
                changed[key] = 1.0 / (1.0 + math.exp(-logit))
                continue
            place = math.erf(z / math.sqrt(2.0))  # -1 to 1
            changed[key] = central + place * (high - central if place > 0 else central - low)
        return replace(self, **changed)


@lru_cache(maxsize=256)
def _solved(known: KnownLengths, sampled: Sampled) -> SolvedLengths:
    problem, cap, least = _Problem(known, sampled), sampled.cap, sampled.turn_sd
    sd, runaway = problem.solution()
    at = problem.family(runaway).at(problem.first, np.array([sd]), None)
    runaways = max(float(at.runaways.flat[0]), 0.0)
    spread = math.sqrt(max(sd * sd - least * least, 0.0))  # the rest is from turn to turn
    between = problem.between
    ranges = problem.ranges(sd, runaway)
    exact = Point(at.mu, at.sd, np.array([runaways]), cap)
    lengths = DrawnLengths(
        "lognormal",
        math.exp(float(at.mu[0])),
        min(spread * math.sqrt(between), LARGEST_SD),
        min(spread * math.sqrt(1.0 - between), LARGEST_SD),
        runaways,
        known.runaway_correlation,
        known.drift_per_step,
    )
    cut = CutShare(0.0).of(exact)
    return SolvedLengths(lengths, sd, between, ranges, float(exact.mean()[0]), float(cut[0]), cap)


class _Problem:
    """The figures of known lengths as equations, checked one by one."""

    def __init__(self, known: KnownLengths, sampled: Sampled) -> None:
        self.known, self.cap, self.least = known, sampled.cap, sampled.turn_sd
        share = known.between_share
        self.between = 1.0 / (1.0 + math.exp(-LOGIT_BETWEEN)) if share is None else share
        self._check_cap()
        cut, runaway = known.cut_share, known.runaway
        none_cut = cut == 0.0 or known.max_tokens is not None
        if none_cut and runaway:
            raise self._refuse("runaway", f"is {runaway:g}, and no response reaches the cap")
        self.runaway = 0.0 if none_cut else runaway
        self._most_cut = NONE_CUT if cut == 0.0 else 1.0
        self.cut = cut if cut and runaway is None else None
        if self.cut is not None:
            self._most_cut = self.cut
        figures: list[Figure] = []
        if known.mean_tokens is not None:
            figures.append(Mean(known.mean_tokens))
        for key in _PERCENTILES:
            if (value := getattr(known, key)) is not None:
                figures.append(Percentile(value, int(key[1:]) / 100, key))
        if known.max_tokens is not None:
            figures.append(
                Longest(known.max_tokens, sampled.groups, sampled.group_size, self.between)
            )
        if cut and runaway is not None:
            if runaway > cut:
                raise self._refuse("runaway", f"is {runaway:g}, above cut_share, {cut:g}")
            figures.append(CutShare(cut))
        self.first, self.rest = first_and_rest(figures)
        unknown = (known.sd is None) + (self.runaway is None and self.cut is None)
        if len(self.rest) > unknown:
            named = ", ".join([*known.figures, *(k for k in ("sd", "runaway") if self._given(k))])
            raise self._refuse(
                self.rest[-1].key,
                f"is one figure too many: {named} are more than median, spread and runaway share "
                "of the lengths can meet; leave one out",
            )

    def family(self, runaway: float | None) -> Family:
        """With a runaway share; None where it follows from the cut share."""
        return Family(self.cap, runaway, self.cut, self._most_cut)

    def solution(self) -> tuple[float, float | None]:
        """Spread and runaway share: solved for where figures are left for it, else given or
        assumed."""
        known, rest = self.known, self.rest
        if known.sd is not None and known.sd < self.least:
            raise self._refuse(
                "sd", f"is {known.sd:g}, and lengths of turns alone spread {self.least:g}"
            )
        runaway_open = self.cut is None and self.runaway is None
        if runaway_open and len(rest) > (known.sd is None):
            return self._with_runaway()
        runaway = self._assumed_runaway() if runaway_open else self.runaway
        sd = self._sd(runaway)
        if sd is None and runaway_open and runaway:
            runaway = 0.0
            sd = self._sd(runaway)
        if sd is None:
            raise self._impossible(runaway)
        return sd, runaway

    def ranges(self, sd: float, runaway: float | None) -> dict[str, tuple[float, float, float]]:
        """Of what stays open: (least, central, most) by key."""
        ranges: dict[str, tuple[float, float, float]] = {}
        if self.known.sd is None and not self.rest:
            can = spreads(self.family(runaway), self.first, self.least)
            low, high = float(can[0]), float(can[-1])
            ranges["sd"] = (
                min(max(LEAST_ASSUMED_SD, low), max(sd / 2, low)),
                sd,
                max(min(MOST_ASSUMED_SD, high), min(sd, high)),
            )
        if self.known.between_share is None:
            ends = (LOGIT_BETWEEN + side * 1.645 * LOGIT_BETWEEN_SD for side in (-1, 1))
            low, high = (1.0 / (1.0 + math.exp(-end)) for end in ends)
            ranges["between_share"] = (low, self.between, high)
        solved = len(self.rest) > (self.known.sd is None)
        if self.cut is None and self.runaway is None and not solved and runaway:
            most = 2 * runaway if self._sd(2 * runaway) is not None else runaway
            ranges["runaway"] = (0.0, runaway, most)
        return ranges

    def _given(self, key: str) -> bool:
        return getattr(self.known, key) is not None

    def _sd(self, runaway: float | None) -> float | None:
        """The spread for a runaway share; None where none meets the figures."""
        family = self.family(runaway)
        if self.known.sd is not None:
            at = family.at(self.first, np.array([self.known.sd]))
            return self.known.sd if bool(family.possible(self.first, at)[0]) else None
        if self.rest:
            return solve_sd(family, self.first, self.rest[0], self.least, ASSUMED_SD)
        can = spreads(family, self.first, self.least)
        return float(np.clip(ASSUMED_SD, can[0], can[-1])) if len(can) else None

    def _with_runaway(self) -> tuple[float, float]:
        """Both solved for, or the runaway share alone. Raises ScenarioError where none is met."""
        family = self.family(0.0)
        if self.known.sd is not None:
            [second] = self.rest
            runaway = solve_runaway(family, self.first, second, self.known.sd)
            both = None if runaway is None else (self.known.sd, runaway)
        else:
            second, third = self.rest
            both = solve_both(family, (self.first, second, third), self.least)
        if both is None:
            raise self._impossible(0.0, runaway_open=True)
        return both

    def _assumed_runaway(self) -> float:
        """Few enough that most tokens are others'."""
        most = RUNAWAY_TOKENS * self.first.wanted / self.cap
        return min(ASSUMED_RUNAWAY, most)

    # What is refused

    def _refuse(self, key: str, message: str) -> ScenarioError:
        return self.known.refuse(key, message)

    @property
    def _cut_at(self) -> str:
        named = "cap_tokens" if self.known.cap_tokens is not None else "workload.max_new_tokens"
        return f"{self.cap} tokens ({named})"

    def _check_cap(self) -> None:
        """Raises ScenarioError for figures at the cap or above it."""
        known, cut = self.known, self.known.cut_share
        for key, value in known.figures.items():
            if key == "cut_share" or value < self.cap:
                continue
            if key == "mean_tokens":
                means = f"is {value:g}, and responses are cut at {self._cut_at}: the mean of what "
                raise self._refuse(key, means + f"is left of them lies below {self.cap}")
            if value > self.cap:
                raise self._refuse(
                    key, f"is {value:g}, and responses are cut at {self._cut_at}: none is longer"
                )
            raise self._refuse(
                key,
                f"is the cap of {self._cut_at}, which only says that responses are cut; give "
                "cut_share, the share of them that reach it, in its place",
            )
        if cut and known.max_tokens is not None:
            raise self._refuse(
                "max_tokens",
                f"is {known.max_tokens:g}, below the cap of {self._cut_at}, but by cut_share "
                f"{100 * cut:g} % of the responses reach the cap; leave one of the two out",
            )
        for key in _PERCENTILES:
            share = int(key[1:]) / 100
            if getattr(known, key) is not None and cut and share > 1.0 - cut:
                raise self._refuse(
                    key,
                    f"is {getattr(known, key):g}, but by cut_share {100 * cut:g} % of the "
                    f"responses reach the cap, so that {key} is the cap of {self._cut_at}; leave "
                    "one of the two out",
                )

    def _impossible(self, runaway: float | None, runaway_open: bool = False) -> ScenarioError:
        """What is possible in place of figures that no lengths have."""
        family = self.family(runaway)
        if self.known.sd is None and self.rest:
            last = self.rest[-1]
            low, high = span(family, (self.first, *self.rest), self.least, runaway_open)
            if low <= high:
                return self._refuse(
                    last.key,
                    f"is {last.wanted:g}, and with {self._others(last)} and a cap of "
                    f"{self._cut_at} it lies between {_text(low)} and {_text(high)}, if below the "
                    "cap; leave one of the figures out, or change it",
                )
        first, cut = self.first, self.known.cut_share
        others = self._others(first)
        if isinstance(first, Mean) and cut is not None:
            low, high = cut * self.cap + 1.0 - cut, most_mean(family, self.known.sd or self.least)
            return self._refuse(
                first.key,
                f"is {first.wanted:g}, and with {others} and a cap of {self._cut_at} the mean lies "
                f"between {_text(low)} and {_text(high)} tokens; change one of them",
            )
        with_others = f"with {others} " if others else ""
        return self._refuse(
            first.key,
            f"is {first.wanted:g}, which no lengths have {with_others}under a cap of "
            f"{self._cut_at}; leave one of the figures out",
        )

    def _others(self, but: Figure) -> str:
        named = {**self.known.figures}
        named |= {key: getattr(self.known, key) for key in ("sd", "runaway") if self._given(key)}
        return ", ".join(f"{key} {value:g}" for key, value in named.items() if key != but.key)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
