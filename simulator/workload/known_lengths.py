"""``workload.lengths`` as logs and papers state them: mean after the cut, cut share, percentiles.

`simulator.workload.length_problem` solves for the lengths that have them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from rollcast.simulator.values import SHARE, Above, Between, Doc, Options
from rollcast.simulator.workload.length_quantiles import QuantileLengths
from rollcast.simulator.workload.length_specs import (
    CORRELATION,
    DRIFT,
    DRIFT_DOC,
    FIELD,
    RUNAWAY_CORRELATION_DOC,
    DrawnLengths,
)
from rollcast.simulator.workload.lengths import LARGEST_CAP, RUNAWAY_CORRELATION
from rollcast.simulator.workload.solving import MOST_SD

ASSUMED_SD, LEAST_ASSUMED_SD, MOST_ASSUMED_SD = 0.6, 0.3, 0.9
"""Spread of the log of all responses where only a mean is known, and the range of an interval.
Assumed: the batches of two RL runs (APRIL, arXiv 2509.18521) spread 0.57 and 0.62; models on mixed
prompts, 0.57 to 1.2 (`rollcast presets lengths`)."""
SHORT_SD = 0.4
"""The same of responses of `SHORT_TOKENS`; from `LONG_TOKENS` on it is `ASSUMED_SD`, and between
them on a line over the log. Middle of the spreads that mean and longest response, or mean and cut
share, give of short answers in RL: 0.38 and 0.42 (verl-data's Qwen2.5-32B and 7B on GSM8K), 0.45
(its gemma-2-2b on GSM8K) and 0.30 (its 7B and 14B on MATH), 0.32 to 0.82 (nine steps of a log of
Logic-RL on A40), 0.31 to 0.37 (text2sql-grpo), 0.33 and 0.45 (play-verl), 0.53 (a 7B coder on
RTX 5090), 0.58 (TRL's study of its stages)."""
SHORT_TOKENS, LONG_TOKENS = 300.0, 1000.0
LOGIT_BETWEEN, LOGIT_BETWEEN_SD = 1.5, 0.8
"""Logit of the share of the variance of log lengths that is between prompts, and how far it may be
off: 0.82 (0.55 to 0.94), about that of four runs with all their lengths (0.75 to 0.88)."""
ASSUMED_RUNAWAY = 2e-3
"""Share of responses that run to the cap where no cut share is known; 0 to twice as many in an
interval. Assumed: the length presets have 0 to 0.003."""
RUNAWAY_TOKENS = 0.1  # of all tokens, which assumed runaways have at most
PERCENTILES = ("p10", "p25", "p50", "p75", "p90", "p95", "p99")
_TOKENS = Between(2, LARGEST_CAP)


def assumed_sd(tokens: float) -> tuple[float, float, float]:
    """Spread of the log of responses of about so many tokens, where it is open: least, central and
    most."""
    long = math.log(tokens / SHORT_TOKENS) / math.log(LONG_TOKENS / SHORT_TOKENS)
    sd = SHORT_SD + (ASSUMED_SD - SHORT_SD) * min(max(long, 0.0), 1.0)
    share = sd / ASSUMED_SD
    return share * LEAST_ASSUMED_SD, sd, share * MOST_ASSUMED_SD


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
    """Lengths that have the known figures. sd: spread of their log, over quantiles half the
    distance of those one score from the median. between_share: of them. ranges: of what stays open,
    (least, central, most) by key. mean_tokens, cut_share: at ``cap``, where they were known.
    """

    lengths: DrawnLengths | QuantileLengths
    sd: float
    between_share: float
    ranges: Mapping[str, tuple[float, float, float]]
    mean_tokens: float
    cut_share: float
    cap: int

    def to_mapping(self, known: KnownLengths) -> dict[str, Any]:
        """As ``summary.json`` has it."""
        return {
            "known": known.figures,
            "solved": self.lengths.figures(),
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
        cut = 100 * self.cut_share
        of = "" if known.cap_tokens is None else f" of {self.cap:,} tokens at which they were known"
        text = (
            f"median {family.median_tokens:,.0f} tokens, {family.text}, "
            f"{cut if cut >= 0.001 else 0:.2g} % reach the cap{of}; solved for {given}"
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
    CHOSEN_BY: ClassVar[tuple[str, ...]] = ("mean_tokens", "cut_share", "max_tokens", *PERCENTILES)

    mean_tokens: Annotated[
        float | None,
        _TOKENS,
        Doc("mean of the responses as they are after the cut at the cap, cut ones included"),
    ] = None
    mean_low: Annotated[
        float | None,
        _TOKENS,
        Doc(
            "least that the mean may be, where mean_tokens is a guess: intervals hold it",
            unit="tokens",
        ),
    ] = None
    mean_high: Annotated[
        float | None,
        _TOKENS,
        Doc("most that the mean may be, where mean_tokens is a guess", unit="tokens"),
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
            f"leave it open {ASSUMED_SD}, in intervals {LEAST_ASSUMED_SD} to {MOST_ASSUMED_SD}; "
            f"less below {LONG_TOKENS:g} tokens, {SHORT_SD} at {SHORT_TOKENS:g}",
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
        ends = self.mean_low, self.mean_tokens, self.mean_high
        if ends.count(None) in (1, 2) and ends != (None, self.mean_tokens, None):
            raise self.refuse("mean_low", "mean_low and mean_high are of a mean_tokens; give all")
        for low, high in pairwise(end for end in ends if end is not None):
            if low > high:
                raise self.refuse(
                    "mean_tokens", f"{low:g} is above {high:g}; it lies from mean_low to mean_high"
                )
        known = [(key, figures[key]) for key in PERCENTILES if key in figures]
        for (lower, few), (upper, many) in pairwise(known):
            if few >= many:
                at_cap = "; where both are the cap, leave them out and give cut_share"
                raise self.refuse(
                    upper,
                    f"is {many:g}, and {lower} is {few:g}; it must be larger than {lower}"
                    + (at_cap if few == many else ""),
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
