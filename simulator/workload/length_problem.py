"""The lengths that have the figures of `KnownLengths`, and what contradicts what.

A lognormal (`simulator.workload.solving`), or, where none has the figures, lengths through the
quantiles that are known (`simulator.workload.length_quantiles`). What the figures leave open takes
the central case in a forecast, and is drawn anew for its intervals: the spread of the log, how much
of it is between prompts, and the runaway share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.known_lengths import (
    ASSUMED_RUNAWAY,
    LOGIT_BETWEEN,
    LOGIT_BETWEEN_SD,
    PERCENTILES,
    RUNAWAY_TOKENS,
    KnownLengths,
    Sampled,
    SolvedLengths,
    assumed_sd,
)
from rollcast.simulator.workload.length_quantiles import QuantileLengths, bent_to, curve, means
from rollcast.simulator.workload.length_specs import LARGEST_SD, DrawnLengths
from rollcast.simulator.workload.solving import (
    NONE_CUT,
    CutShare,
    Family,
    Figure,
    Longest,
    Mean,
    Percentile,
    Point,
    first_and_rest,
    has_spread,
    most_mean,
    solve_both,
    solve_runaway,
    solve_sd,
    span,
    spreads,
)

if TYPE_CHECKING:
    from rollcast.simulator.values.chance import Chance


_MIDDLE_90 = 1.645  # of a normal, in standard deviations


def solved(known: KnownLengths, sampled: Sampled) -> SolvedLengths:
    """The lengths that have the figures. Raises ScenarioError for figures that contradict one
    another or the cap, saying what is possible."""
    return _solved(known, replace(sampled, cap=known.cap_tokens or sampled.cap))


@lru_cache(maxsize=256)
def _solved(known: KnownLengths, sampled: Sampled) -> SolvedLengths:
    problem = _Problem(known, sampled)
    solution = None if problem.too_many else problem.solution()
    if solution is None:
        return problem.along_quantiles()
    if problem.hardly_spreads(solution):
        return problem.along_quantiles(solution.sd)
    return problem.lognormal(solution)


def drawn(known: KnownLengths, chance: Chance, sampled: Sampled) -> KnownLengths:
    """The lengths with what the figures leave open drawn, each evenly over its range on either
    side of the central case (the share between prompts: its logit normal; the mean: its log)."""
    changed: dict[str, Any] = {}
    for key, (low, central, high) in solved(known, sampled).ranges.items():
        z = chance.normal(f"lengths/{key}")
        if key == "between_share":
            logit = LOGIT_BETWEEN + LOGIT_BETWEEN_SD * z
            changed[key] = 1.0 / (1.0 + math.exp(-logit))
            continue
        if key == "mean_tokens":  # its log normal, of which nine of ten lie between the ends
            end, part = high if z > 0 else low, min(abs(z) / _MIDDLE_90, 1.0)
            changed[key] = central * (end / central) ** part
            continue
        place = math.erf(z / math.sqrt(2.0))  # -1 to 1
        changed[key] = central + place * (high - central if place > 0 else central - low)
    return replace(known, **changed)


class _Solution(NamedTuple):
    """A lognormal that has the figures. runaway: None where it follows from the cut share. assumes:
    whether ``sd`` is assumed, though two figures are known, and ``runaway`` solved for in its
    place."""

    sd: float
    runaway: float | None
    assumes: bool = False


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
        for key in PERCENTILES:
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
        self.least_assumed, self.assumed, self.most_assumed = assumed_sd(self.first.wanted)
        unknown = (known.sd is None) + (self.runaway is None and self.cut is None)
        self.too_many = len(self.rest) > unknown

    def family(self, runaway: float | None) -> Family:
        """With a runaway share; None where it follows from the cut share."""
        return Family(self.cap, runaway, self.cut, self._most_cut)

    def lognormal(self, solution: _Solution) -> SolvedLengths:
        """The lengths of a solution."""
        sd, runaway, _ = solution
        known, cap, least, between = self.known, self.cap, self.least, self.between
        at = self.family(runaway).at(self.first, np.array([sd]), None)
        runaways = max(float(at.runaways.flat[0]), 0.0)
        spread = math.sqrt(max(sd * sd - least * least, 0.0))  # the rest is from turn to turn
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
        mean, cut = (float(figure[0]) for figure in (exact.mean(), CutShare(0.0).of(exact)))
        return SolvedLengths(lengths, sd, between, self.ranges(solution), mean, cut, cap)

    def hardly_spreads(self, solution: _Solution) -> bool:
        """Whether a lognormal that has a mean and a percentile of the shorter half spreads less
        than responses do: the two are nearer to each other than it has them."""
        known = self.known
        single = known.mean_tokens is not None and len(self._quantiles(self._rare_runaways())) == 1
        open_top = single and not self._fixed_top and self.least == 0 and known.sd is None
        return open_top and self._of_shorter_half() and solution.sd < self.least_assumed

    def _of_shorter_half(self) -> bool:
        return any(isinstance(one, Percentile) and one.q <= 0.5 for one in (self.first, *self.rest))

    def _slope(self, points: Sequence[tuple[float, float]], lognormal_sd: float) -> float | None:
        """Spread of the log beside a single percentile at the mean or above it, as of lengths
        skewed to the left: the usual one; the least usual where a lognormal would have that. None
        where there are more figures, or the percentile is another."""
        mean = self.known.mean_tokens
        if mean is None or len(points) != 1 or self._fixed_top:
            return None
        if points[0][1] <= math.log(mean) and not self._of_shorter_half():
            return None
        share = min(lognormal_sd / self.least_assumed, 1.0)
        return self.assumed - (self.assumed - self.least_assumed) * share

    @property
    def _fixed_top(self) -> bool:
        return bool(self.known.cut_share) or self.known.max_tokens is not None

    def _rare_runaways(self) -> float:
        """The share that runs away beside lengths through quantiles."""
        if self.runaway is None and not self._fixed_top:
            return self._assumed_runaway()
        return self.runaway or 0.0

    def along_quantiles(self, lognormal_sd: float = 0.0) -> SolvedLengths:
        """Lengths through the percentiles, the cut share and the longest response that are known.
        lognormal_sd: of the lognormal that has the figures, if one does, but for its spread.
        Raises ScenarioError where these are fewer than two and no percentile with a mean, a spread
        is known too, or the mean is one that they cannot have."""
        known, cap, fixed_top = self.known, self.cap, self._fixed_top
        ranges = self._given_ranges()
        runaway = self._rare_runaways()
        if self.runaway is None and not fixed_top:
            ranges["runaway"] = (0.0, runaway, 2 * runaway)
        points = self._quantiles(runaway)
        if (slope := self._slope(points, lognormal_sd)) is not None:
            (score, log), nearby = points[0], 1e-6
            points.append((score + nearby, log + nearby * slope))
        rises = all(low < high for (_, low), (_, high) in pairwise(points))
        if len(points) < 2 or not rises or known.sd is not None or self.least > 0:
            raise self._too_many() if self.too_many else self._impossible()
        if known.cut_share == 0.0:
            top = (_score(1.0 - NONE_CUT), math.log(cap - 1))
            (z0, low), (z1, high) = points[-2:]
            if top[0] > z1 and high + (high - low) / (z1 - z0) * (top[0] - z1) > top[1]:
                points, fixed_top = [*points, top], True
        corners = curve(points, fixed_top)
        if known.mean_tokens is not None:
            least, most = means(points, fixed_top, cap)
            wanted = (known.mean_tokens - runaway * cap) / (1.0 - runaway)
            if not least <= wanted <= most:
                least, most = (runaway * cap + (1.0 - runaway) * end for end in (least, most))
                raise self._mean_lies(known.mean_tokens, least, most)
            corners = bent_to(points, fixed_top, wanted, cap)
        lengths = QuantileLengths(
            corners, self.between, runaway, known.runaway_correlation, known.drift_per_step
        )
        table = lengths.model().marginal(cap)
        cut = float(table.sf(cap - 1))
        return SolvedLengths(lengths, lengths.sd, self.between, ranges, table.mean(), cut, cap)

    def _quantiles(self, runaway: float) -> list[tuple[float, float]]:
        """(score, log of a length) of the responses that do not run away, ascending."""
        points = []
        for figure in (self.first, *self.rest):
            if isinstance(figure, Percentile) and figure.q < 1.0 - runaway:
                points.append((_score(figure.q / (1.0 - runaway)), math.log(figure.wanted)))
            elif isinstance(figure, Longest):
                points.append((figure.z, math.log(figure.wanted)))
        if self.known.cut_share:
            beyond = (self.known.cut_share - runaway) / (1.0 - runaway)
            if beyond > 0.0:
                points.append((_score(1.0 - beyond), math.log(self.cap - 1)))
        return sorted(points)

    def solution(self) -> _Solution | None:
        """Spread and runaway share: solved for where figures are left for it, else given or
        assumed. None where no lognormal has the figures."""
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
        if sd is None and runaway_open and self.rest and self.known.sd is None:
            runaway = self._runaway_at(self.assumed)
            return None if runaway is None else _Solution(self.assumed, runaway, assumes=True)
        return None if sd is None else _Solution(sd, runaway)

    def _runaway_at(self, sd: float) -> float | None:
        """The runaway share at which both figures are met; None where there is none. A mean is
        looked at second: with many runaways nothing else is short enough for it."""
        first, second = sorted((self.first, self.rest[0]), key=lambda it: isinstance(it, Mean))
        return solve_runaway(self.family(0.0), first, second, sd)

    def ranges(self, solution: _Solution) -> dict[str, tuple[float, float, float]]:
        """Of what stays open: (least, central, most) by key."""
        sd, runaway, assumes = solution
        ranges: dict[str, tuple[float, float, float]] = {}
        if assumes:
            ends = (self.least_assumed, self.most_assumed)
            low, high = (sd if self._runaway_at(end) is None else end for end in ends)
            ranges["sd"] = (low, sd, high)
        elif self.known.sd is None and not self.rest:
            can = spreads(self.family(runaway), self.first, self.least)
            low, high = float(can[0]), float(can[-1])
            ranges["sd"] = (
                min(max(self.least_assumed, low), max(sd / 2, low)),
                sd,
                max(min(self.most_assumed, high), min(sd, high)),
            )
        ranges |= self._given_ranges()
        solved = assumes or len(self.rest) > (self.known.sd is None)
        if self.cut is None and self.runaway is None and not solved and runaway:
            most = 2 * runaway if self._has_sd(2 * runaway, sd) else runaway
            ranges["runaway"] = (0.0, runaway, most)
        return ranges

    def _given_ranges(self) -> dict[str, tuple[float, float, float]]:
        """Of the share between prompts, and of a mean that is a guess."""
        known, ranges = self.known, {}
        if known.between_share is None:
            ends = (LOGIT_BETWEEN + side * _MIDDLE_90 * LOGIT_BETWEEN_SD for side in (-1, 1))
            low, high = (1.0 / (1.0 + math.exp(-end)) for end in ends)
            ranges["between_share"] = (low, self.between, high)
        if known.mean_low and known.mean_tokens and known.mean_high:
            ranges["mean_tokens"] = (known.mean_low, known.mean_tokens, known.mean_high)
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
            return solve_sd(family, self.first, self.rest[0], self.least, self.assumed)
        can = spreads(family, self.first, self.least)
        return float(np.clip(self.assumed, can[0], can[-1])) if len(can) else None

    def _has_sd(self, runaway: float, near: float) -> bool:
        """Whether there is a spread for a runaway share."""
        if self.known.sd is None and not self.rest:
            return has_spread(self.family(runaway), self.first, self.least, near)
        return self._sd(runaway) is not None

    def _with_runaway(self) -> _Solution | None:
        """Both solved for, or the runaway share alone; None where none is met."""
        if self.known.sd is not None:
            runaway = self._runaway_at(self.known.sd)
            return None if runaway is None else _Solution(self.known.sd, runaway)
        second, third = self.rest
        both = solve_both(self.family(0.0), (self.first, second, third), self.least)
        return None if both is None else _Solution(*both)

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
                below = f"is left of them lies below {self.cap}"
                all_cut = f"; where all of them are cut, give {self.cap - 0.5:.1f}"
                raise self._refuse(key, means + below + (all_cut if value == self.cap else ""))
            if value > self.cap:
                raise self._refuse(
                    key, f"is {value:g}, and responses are cut at {self._cut_at}: none is longer"
                )
            raise self._refuse(
                key,
                f"is the cap of {self._cut_at}, which only says that responses are cut; give "
                "cut_share, the share of them that reach it, in its place, or leave it out",
            )
        if cut and known.max_tokens is not None:
            raise self._refuse(
                "max_tokens",
                f"is {known.max_tokens:g}, below the cap of {self._cut_at}, but by cut_share "
                f"{100 * cut:g} % of the responses reach the cap; leave one of the two out",
            )
        for key in PERCENTILES:
            share = int(key[1:]) / 100
            if getattr(known, key) is not None and cut and share > 1.0 - cut:
                raise self._refuse(
                    key,
                    f"is {getattr(known, key):g}, but by cut_share {100 * cut:g} % of the "
                    f"responses reach the cap, so that {key} is the cap of {self._cut_at}; leave "
                    "one of the two out",
                )

    def _too_many(self) -> ScenarioError:
        named = [*self.known.figures, *(key for key in ("sd", "runaway") if self._given(key))]
        return self._refuse(
            self.rest[-1].key,
            f"is one figure too many: {', '.join(named)} are more than median, spread and runaway "
            "share of the lengths can meet; leave one out",
        )

    def _mean_lies(self, mean: float, low: float, high: float) -> ScenarioError:
        others = self._others("mean_tokens")
        return self._refuse(
            "mean_tokens",
            f"is {mean:g}, and with {others} and a cap of {self._cut_at} the mean lies between "
            f"{_text(low)} and {_text(high)} tokens; change one of them",
        )

    def _impossible(self) -> ScenarioError:
        """What is possible in place of figures that no lengths have."""
        is_open = self.cut is None and self.runaway is None
        family = self.family(0.0 if is_open else self.runaway)
        both = is_open and len(self.rest) > (self.known.sd is None)
        if self.known.sd is None and self.rest:
            last = self.rest[-1]
            low, high = span(family, (self.first, *self.rest), self.least, both)
            if low <= high:
                return self._refuse(
                    last.key,
                    f"is {last.wanted:g}, and with {self._others(last.key)} and a cap of "
                    f"{self._cut_at} it lies between {_text(low)} and {_text(high)}, if below the "
                    "cap; leave one of the figures out, or change it",
                )
        first, cut = self.first, self.known.cut_share
        if isinstance(first, Mean) and cut is not None:
            low, high = cut * self.cap + 1.0 - cut, most_mean(family, self.known.sd or self.least)
            return self._mean_lies(first.wanted, low, high)
        others = self._others(first.key)
        with_others = f"with {others} " if others else ""
        return self._refuse(
            first.key,
            f"is {first.wanted:g}, which no lengths have {with_others}under a cap of "
            f"{self._cut_at}; leave one of the figures out",
        )

    def _others(self, but: str) -> str:
        named = {**self.known.figures}
        named |= {key: getattr(self.known, key) for key in ("sd", "runaway") if self._given(key)}
        return ", ".join(f"{key} {value:g}" for key, value in named.items() if key != but)


def _score(share: float) -> float:
    """The standard normal that a share lies below."""
    from scipy.special import ndtri

    return float(ndtri(share))


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
