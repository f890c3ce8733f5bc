"""What papers say of learning under their policies, and what the prior law says of the same set-up.

Nothing is tuned to a row. Where the law was not fitted near a set-up it abstains; what it would say
all the same is shown in brackets. A paper's final accuracy after training is never derived: the law
knows the way up, and not where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollcast.calibration.judge.learning import time_to
from rollcast.simulator.learning.data import prior
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.signals import Signals

START, TARGET, UPDATES, DRAWS = 0.3, 0.6, 1500, 100

Row = tuple[str, str, str, str]
"""Claim, published, what the law says, verdict."""

HEAD = ("claim", "published", "the law", "verdict")
NOT = "cannot be derived"


def signals(
    rollouts: int,
    size: int,
    *,
    kept: float = 1.0,
    age: float = 0.0,
    selection: str = "none",
    filtered: bool = False,
) -> Signals:
    """A run whose updates are all alike. rollouts: trained on in an update."""
    ones = np.ones(UPDATES)
    return Signals(
        rollouts=np.full(UPDATES, rollouts),
        groups=np.full(UPDATES, max(round(rollouts / (size * kept)), 1)),
        group_size=size * ones,
        kept=kept * ones,
        age=age * ones,
        age_spread=0 * ones,
        minibatches=ones,
        seconds=np.arange(1.0, UPDATES + 1),
        selection=selection,
        filtered=filtered,
    )


def sooner(
    law: Law, run: Signals, base: Signals, factor: float = 1.0
) -> tuple[float, float, float]:
    """Updates of ``base`` over those of ``run`` up to the target, times ``factor`` (seconds of an
    update of the base over one of the run): at the fit, and the ends of the 90 % interval over
    draws that both share."""
    updates = np.arange(UPDATES + 1)

    def times(curves: Any) -> Any:
        return np.array([time_to(updates, curve, TARGET) for curve in curves])

    drawn = [times(law.curves(s, START, draws=DRAWS, seed=0)) for s in (base, run)]
    reached = np.isfinite(drawn[0]) & np.isfinite(drawn[1])
    low, high = np.quantile(drawn[0][reached] / drawn[1][reached], [0.05, 0.95])
    best = [times([law.best(s, START)])[0] for s in (base, run)]
    return factor * float(best[0] / best[1]), factor * float(low), factor * float(high)


def told(law: Law, run: Signals, base: Signals, factor: float = 1.0) -> str:
    """The ratio in words, in brackets where the law abstains from either."""
    best, low, high = sooner(law, run, base, factor)
    text = f"{best:.2f}x ({low:.2f} to {high:.2f})"
    away = any(law.domain_reason(one, START) for one in (run, base))
    return f"abstains [{text}]" if away else text


def rows() -> Sequence[Row]:
    """The table. Batches are the papers'; where they give none, 256 rollouts in groups of 8."""
    law = prior()
    base = signals(256, 8)
    one_prompt = {m: signals(m, m) for m in (16,)}
    pods_step = 7.56 / 10.12  # seconds of a step, n = 16 over n = 64, of the authors' checkpoints
    sagc = {size: signals(64, size) for size in (4, 8, 16)}
    return [
        (
            "PODS: GRPO's peak accuracy sooner, n = 64, m = 16 against n = m = 16, one prompt an "
            "update (2504.13818)",
            "2.0x in time",
            told(
                law, signals(16, 64, kept=0.25, selection="MaxVariance"), one_prompt[16], pods_step
            ),
            "not confirmed: in updates the law gives PODS a gain, but a step of n = 64 takes 1.34 "
            "times as long; an update on one prompt is far from our runs",
        ),
        (
            "PODS: larger n at m = 16 helps up to n = 64 or 128, then no more",
            "rises, then falls in time",
            "n = 32, 64, 128 against 16, in updates: "
            + ", ".join(
                told(
                    law,
                    signals(16, n, kept=16 / n, selection="MaxVariance"),
                    one_prompt[16],
                )
                for n in (32, 64, 128)
            ),
            "direction: each doubling of n adds less, while a step takes longer",
        ),
        (
            "PODS: the rule of greatest variance is the best",
            "above random, percentile, greatest reward",
            "of 4 of 16: "
            + ", ".join(
                f"{name} {told(law, signals(48, 16, kept=0.25, selection=rule), signals(192, 16))}"
                for name, rule in (
                    ("variance", "MaxVariance"),
                    ("percentile", "Percentile"),
                    ("random", "RandomSubset"),
                )
            ),
            "order confirmed; in our runs, too, greatest reward learns least by far",
        ),
        (
            "APRIL: as accurate or better in less time, 40 % of tokens carried over (2509.18521)",
            "final accuracy up to 8 % higher",
            f"an age of 0.4 updates: {told(law, signals(256, 8, age=0.4), base)}; of 1: "
            f"{told(law, signals(256, 8, age=1.0), base)}",
            f"no loss an update: consistent; a higher final accuracy {NOT}",
        ),
        (
            "SAGC: more reward after the same steps, B x G = 64 (2606.02218)",
            "above every static group size",
            "G = 4, 16 against 8: " + ", ".join(told(law, sagc[size], sagc[8]) for size in (4, 16)),
            "not confirmed: sizes learn nearly alike an update, so nothing is gained by choosing; "
            f"shorter outputs {NOT}",
        ),
        (
            "PipelineRL: in-flight weights learn sooner (2509.19128)",
            "about 2x in time",
            f"an age of 2 updates: {told(law, signals(256, 8, age=2.0), base)}",
            "the law gives the price, not the gain in seconds, which the simulator forecasts",
        ),
        (
            "AReaL: matched or better final accuracy with bounded staleness (2505.24298)",
            "up to 2.77x in time",
            f"an age of 4: {told(law, signals(8192, 16, age=4.0), signals(8192, 16))}; of 8: "
            f"{told(law, signals(8192, 16, age=8.0), signals(8192, 16))}",
            "abstains at 8,192 rollouts an update; all the same, a price in updates that 2.77x in "
            f"seconds outweighs at 4; final accuracy {NOT}",
        ),
        (
            "M2PO: GRPO degrades at a staleness of 256 updates (2510.01161)",
            "degrades",
            told(law, signals(256, 8, age=256.0), base),
            "abstains, as it should: our runs go to 8",
        ),
        (
            "Asynchronous RLHF: one step off matches synchronous training (2410.18252)",
            "same final performance, 40 % sooner",
            told(law, signals(256, 8, age=1.0), base),
            f"nothing visible is lost an update: consistent; final performance {NOT}",
        ),
        (
            "DAPO's filter: the same accuracy in fewer steps (2503.14476)",
            "fewer steps",
            told(law, signals(256, 8, filtered=True), base),
            "direction confirmed where many groups are all right or all wrong; in our runs, whose "
            "prompts are alike, the filter changes nothing visible at G = 8",
        ),
        (
            "Kimi k1.5's and Seer's partial rollouts (2501.12599, 2511.14617)",
            "no accuracy given",
            f"an age of 0.4 updates: {told(law, signals(256, 8, age=0.4), base)}",
            NOT,
        ),
    ]
