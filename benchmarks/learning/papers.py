"""What papers measured of learning under their policies, and what the prior law says of it.

Figures are from the papers' own tables, figures and text, or from the authors' files. Nothing is
tuned to a row. Where a paper gives a synchronous run, the law has that run's speed, and nothing
else of the paper (`benchmarks.learning.matched`); where it does not, the prior's own speed. Where
the law was not fitted near a set-up it abstains, and what it would say all the same is in brackets.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.learning.matched import Matched, alike, match
from rollcast.calibration.judge.learning import time_to
from rollcast.simulator.learning.data import prior
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.signals import Signals

START, TARGET, UPDATES, DRAWS = 0.3, 0.6, 1500, 100

Row = tuple[str, str, str, str]
HEAD = ("paper", "what it measured", "the law", "verdict")
NOT = "cannot be derived"


def sooner(law: Law, run: Signals, base: Signals) -> tuple[float, float, float]:
    """Updates of ``base`` over those of ``run`` from `START` to `TARGET` at the prior's speed: at
    the fit, and the ends of the 90 % interval over draws that both share."""
    updates = np.arange(UPDATES + 1)

    def times(curves: Any) -> Any:
        return np.array([time_to(updates, curve, TARGET) for curve in curves])

    drawn = [times(law.curves(s, START, draws=DRAWS, seed=0)) for s in (base, run)]
    reached = np.isfinite(drawn[0]) & np.isfinite(drawn[1])
    low, high = np.quantile(drawn[0][reached] / drawn[1][reached], [0.05, 0.95])
    best = [times([law.best(s, START)])[0] for s in (base, run)]
    return float(best[0] / best[1]), float(low), float(high)


def told(law: Law, run: Signals, base: Signals) -> str:
    """The ratio in words, in brackets where the law abstains from either."""
    best, low, high = sooner(law, run, base)
    return _bracketed(f"{best:.2f}x ({low:.2f} to {high:.2f})", law, (run, base))


def _bracketed(text: str, law: Law, runs: Sequence[Signals]) -> str:
    away = any(law.domain_reason(one, START) for one in runs)
    return f"abstains [{text}]" if away else text


def ended(found: Matched, update: Callable[..., Signals], ages: Sequence[float]) -> str:
    """Accuracies after as many updates, by age."""
    texts = []
    for age in ages:
        best, low, high = found.after(partial(update, age=age))
        texts.append(f"{100 * best:.1f} ({100 * low:.1f} to {100 * high:.1f})")
    runs = [update(1, age=age) for age in ages]
    return _bracketed(", ".join(texts), found.law, runs)


def slowed(found: Matched, updates: Sequence[Callable[[int], Signals]]) -> str:
    """Updates over the synchronous run's."""
    texts = []
    for update in updates:
        best, low, high = found.slower(update)
        texts.append(f"{best:.2f}x ({low:.2f} to {high:.2f})")
    return _bracketed(", ".join(texts), found.law, [update(1) for update in updates])


def rows() -> Sequence[Row]:
    """The table. Batches are the papers'; where they give none, 256 rollouts in groups of 8."""
    law = prior()
    return [*_stale(law), *_carried(law), *_selected(law)]


def _stale(law: Law) -> list[Row]:
    """Papers on the age of what is trained on."""
    areal = partial(alike, rollouts=8192, size=16, minibatches=4)
    areal_sync = match(law, areal, 0.293, 0.420, 250)
    pipeline = partial(alike, rollouts=1024, size=8)
    pipeline_sync = match(law, pipeline, 0.316, 0.81, 1000)
    scale = partial(alike, rollouts=768)
    scale_sync = match(law, partial(scale, size=16), START, TARGET, 1000)
    plain = partial(alike, UPDATES, 256, 8)
    return [
        (
            "AReaL (2505.24298), Table 2: staleness, 1.5B on maths, 250 steps; start and "
            "synchronous end from Table 1 (29.3, 42.0)",
            "AIME24 at a staleness of 1, 2, 4, 8, 16: with the decoupled loss 42.1, 41.8, 42.2, "
            "41.0, 38.7; without it 41.8, 40.0, 23.3, 35.7, 35.8",
            ended(areal_sync, areal, (1, 2, 4, 8, 16)),
            "agrees up to 4 with the decoupled loss; too mild at 8 and 16, and wrong for the plain "
            "clipped loss, which collapses: the law has no collapse",
        ),
        (
            "M2PO (2510.01161), Table 1: GRPO on data 256 updates old, best average of 8 "
            "benchmarks, 6 models",
            "22.5, 45.7, 30.4, 40.1, 46.7, 47.0 instead of 25.2, 49.3, 33.0, 50.7, 53.6, 51.6",
            told(law, plain(age=256.0), plain()),
            f"abstains, as it should: our runs go to 8. Final accuracy {NOT}; the order of Figure "
            "2 (the older, the slower) is the law's",
        ),
        (
            "PipelineRL (2509.19128), Figure 5: in-flight weights, and 8, 16, 32 optimiser steps "
            "on each batch; 7B, 1,000 updates of 1,024, MATH-500 31.6 to 81 (Table 1)",
            "reward by samples: no difference to 8 and 16 steps; 32 is slower and unstable. "
            "About 2x in time, all of it throughput",
            "after 1,000 updates at a mean age of 3.5, 7.5, 15.5: "
            + ended(pipeline_sync, pipeline, (3.5, 7.5, 15.5)),
            "agrees at 8 and 16; the harm at 32 is missed; the gain in time is throughput, which "
            "the simulator forecasts",
        ),
        (
            "Asynchronous RLHF (2410.18252), Figure 3 and Table 1: PPO on N = 1 to 64 minibatches "
            "from one policy; one step off, 8B",
            "win rate falls as N grows, hardly at 2; one step off ends at 57.2 %, as synchronous "
            "does, 38 % sooner",
            "in updates at a mean age of 0.5, 1.5, 3.5, 7.5: "
            + ", ".join(told(law, plain(age=age), plain()) for age in (0.5, 1.5, 3.5, 7.5)),
            "order agrees, and so does one step off; a win rate is no accuracy, so the size " + NOT,
        ),
        (
            "verl's fully_async recipe, stale ablation on 128 GPUs: Qwen2.5-Math-7B, DAPO, 400 "
            "steps, thresholds 0, 0.1, 0.3, 0.5 (its documentation)",
            "AIME24, best 0.284, 0.354, 0.347, 0.352; last 0.260, 0.298, 0.287, 0.309; synchronous "
            "0.357 and 0.296",
            "in updates at an age of 0.1, 0.5: "
            + ", ".join(told(law, plain(age=age), plain()) for age in (0.1, 0.5)),
            "agrees: no price is visible, where equal runs differ by 0.03",
        ),
        (
            "INTELLECT-2 (2505.07291), at second hand: asynchrony of up to 4 steps",
            "rewards as in the synchronous run",
            "in updates at an age of 1, 2, 4: "
            + ", ".join(told(law, plain(age=age), plain()) for age in (1.0, 2.0, 4.0)),
            "agrees; the wide interval is that of speeds: at that of small models an age of 4 "
            "costs a fifth",
        ),
        (
            "ScaleRL (2510.13786), Figure 4b: pipeline with at most k = 1, 4, 8, 16 steps of age; "
            "8B, 768 rollouts; 8 chosen",
            "end alike, efficiency best near 8",
            "updates over synchronous, at 1,000 updates from .3 to .6: "
            + slowed(scale_sync, [partial(scale, size=16, age=age) for age in (4.0, 8.0)]),
            "agrees: no price is visible at such a speed",
        ),
        (
            "ScaleRL, scaling axes, generations per prompt: 8, 16, 24, 32 at one batch",
            "curves hardly differ",
            "8, 24, 32 against 16: "
            + slowed(scale_sync, [partial(scale, size=size) for size in (8, 24, 32)]),
            "agrees",
        ),
    ]


def _carried(law: Law) -> list[Row]:
    """Papers on rollouts that are carried over."""
    plain = partial(alike, UPDATES, 256, 8)
    return [
        (
            "APRIL (2509.18521): 40 % of tokens carried over, none older than five versions (text "
            "and FAQ of its repository)",
            "as accurate or better after the same updates (up to 8 % in the end)",
            f"an age of 0.4: {told(law, plain(age=0.4), plain())}; of 1: "
            f"{told(law, plain(age=1.0), plain())}",
            f"no loss an update: agrees; a higher end {NOT}",
        ),
        (
            "Kimi k1.5 (2501.12599) and Seer (2511.14617): partial rollouts, divided rollouts",
            "seconds only; Seer keeps the synchronous semantics",
            f"an age of 0.4: {told(law, plain(age=0.4), plain())}; Seer: 1x, as nothing is older",
            NOT,
        ),
    ]


def _selected(law: Law) -> list[Row]:
    """Papers on what is trained on, but PODS, which has a table of its own."""
    sagc = {size: alike(UPDATES, 64, size) for size in (4, 8, 16)}
    dapo = partial(alike, rollouts=8192, size=16, minibatches=16)
    dapo_sync = match(law, dapo, 0.01, 0.42, 375)
    return [
        (
            "DAPO (2503.14476), Figure 6 (read off) and Table 1: groups of equal rewards replaced; "
            "32B",
            "AIME24 of 42 after about 2,300 instead of 6,000 updates; end 50 instead of 42",
            "updates over those without: " + slowed(dapo_sync, [partial(dapo, filtered=True)]),
            "direction agrees, size does not: the law counts less noise, and 8,192 rollouts have "
            f"little; the end {NOT}",
        ),
        (
            "SAGC (2606.02218): group size chosen among 4, 8, 16 at 64 rollouts a step",
            "more reward after the same steps than any static size; shorter outputs",
            "4, 16 against 8, sooner: "
            + ", ".join(told(law, sagc[size], sagc[8]) for size in (4, 16)),
            "disagrees: sizes learn nearly alike, so choosing gains nothing; shorter outputs "
            + NOT,
        ),
    ]
