"""APRIL (arXiv 2509.18521): the gain of rollout throughput, and what is carried over."""

import statistics
from functools import cache
from typing import Any

from benchmarks.claims.common import Row, Table, against, lognormal, percent, span
from benchmarks.published_lengths import lognormal_for_moments
from benchmarks.runner import simulated
from rollcast.simulator.studies.simulate import Result
from rollcast.simulator.workload.halving import halved
from rollcast.simulator.workload.length_specs import length_presets
from rollcast.simulator.workload.lengths import LengthModel

CAP = 16_384
MEANS = (8_000, 9_500, 11_000)
PUBLISHED = {"qwen3-4b": (0.24, 0.35), "qwen3-8b": (0.26, 0.44)}
WARM_UP_STEPS = 5  # the buffer fills in the first step; rates are of the steps after these

APRIL: list[Any] = [{"april": {"over_sampling": 2.0}}]
DAPO: list[Any] = ["dynamic_sampling"]

FLAT: dict[str, Any] = {
    "cost": {
        "linear": {
            "iteration_s": 0.01,
            "per_rollout_s": 0.0,
            "per_context_token_s": 0.0,
            "per_prefill_token_s": 4.0e-6,
            "train_per_token_s": 1.0e-5,
        }
    },
    "engine": {"kv_tokens": 420_000},
}
"""Iterations that cost the same however many rollouts run."""


@cache
def lengths(mean: int, group_sd: float) -> LengthModel:
    """The capped lognormal with the published moments."""
    return lognormal_for_moments(mean, 4_250, group_sd, CAP)


def run(model: str, spec: dict[str, Any], policy: list[Any], **keys: Any) -> Result:
    """APRIL's setting, 30 steps."""
    workload = {
        "batch_groups": 32,
        "group_size": 8,
        "prompt_tokens": 256,
        "max_new_tokens": CAP,
        "lengths": spec,
    }
    cluster = {"replicas": 8, "trainer_gpus": 8}
    shared = {"model": model, "gpu": "h100-sxm", "cluster": cluster, "steps": 30}
    return simulated(workload=workload, policy=policy, **shared, **keys)


def rate(result: Result, tokens: str = "generated_tokens") -> float:
    """Tokens a second of rollout time, once the buffer is full."""
    steps = result.run.steps[WARM_UP_STEPS:]
    return float(sum(getattr(s, tokens) for s in steps) / sum(s.rollout_s for s in steps))


def gain(
    model: str, spec: dict[str, Any], base: list[Any], tokens: str = "generated_tokens", **keys: Any
) -> float:
    """What APRIL before ``base`` adds to the throughput of ``base``."""
    with_april = run(model, spec, [*APRIL, *base], **keys)
    return rate(with_april, tokens) / rate(run(model, spec, base, **keys), tokens) - 1


def buffered_share(result: Result) -> float:
    """Of the tokens that a step holds when it ends, those that go on to the next in the buffer."""
    segments, shares = result.run.segments, []
    ended, trained, made = segments["step"], segments["trained_step"], segments["new_tokens"]
    for step in range(WARM_UP_STEPS, len(result.run.steps) - WARM_UP_STEPS):
        later = made[(ended <= step) & (trained > step)].sum()
        now = made[(ended <= step) & (trained == step)].sum()
        shares.append(float(later / (later + now)))
    return statistics.fmean(shares)


def gain_by_mean() -> list[list[str]]:
    """Throughput with APRIL over without, by mean/cap, tail and shape of the iteration's cost."""
    table = [["mean / cap", "APRIL's spreads", "a reasoning model's", "the same, flat iterations"]]
    fitted = length_presets()["qwen3-30b-a3b-thinking"].model
    for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        mean = round(share * CAP)
        wide = lognormal(scaled_to(fitted, mean))
        row = [f"{share:.1f} ({mean:,} tokens)", ""]
        if share >= 0.4:  # below, a sd of 4,250 is no lognormal's with a like spread
            row[1] = f"{1 + gain('qwen3-8b', lognormal(lengths(mean, 1_500)), []):.2f}x"
        row.append(f"{1 + gain('qwen3-8b', wide, []):.2f}x")
        row.append(f"{1 + gain('qwen3-8b', wide, [], **FLAT):.2f}x")
        table.append(row)
    return table


def scaled_to(model: LengthModel, mean: int) -> LengthModel:
    """The model with its medians scaled so that capped lengths have that mean."""

    def shorter(factor: float) -> bool:
        return bool(model.scaled(factor).marginal(CAP).mean() < mean)

    return model.scaled(halved(shorter, 1e-3, 1e3, 40, logs=True)[0])


@cache
def with_april(model: str, mean: int) -> Result:
    """APRIL on lengths of that mean."""
    return run(model, lognormal(lengths(mean, 1_500)), APRIL)


def throughput_row(model: str) -> Row:
    """The gain of GRPO on data sets of all means."""
    gains = []
    for mean in MEANS:
        base = run(model, lognormal(lengths(mean, 1_500)), [])
        gains.append(rate(with_april(model, mean)) / rate(base) - 1)
    low, high = PUBLISHED[model]
    claim = f"rollout throughput, {model}, GRPO, mean 11,000 to 8,000 tokens"
    published = f"{percent(low)} to {percent(high)} on three data sets"
    assumed = "which data set has which mean; prompt 256; sd 4,250, within a group 1,500"
    return Row(claim, published, span(gains, percent), against(gains, low, high), assumed)


def carried_rows() -> list[Row]:
    """What is carried over, and for how many versions."""
    results = [with_april(model, mean) for model in PUBLISHED for mean in MEANS]
    readings = {
        "tokens carried over, of those that a step holds at its end": (
            [buffered_share(result) for result in results],
            "this reading of the claim",
        ),
        "tokens carried over, of those that a step trains on": (
            [result.summary["carried_token_share"] for result in results],
            "the other reading",
        ),
    }
    rows = []
    for claim, (shares, assumed) in readings.items():
        text = span(shares, lambda share: f"{100 * share:.0f} %")
        rows.append(Row(claim, "about 40 %", text, against(shares, 0.4, 0.4), assumed))
    most = max(result.summary["versions_per_rollout_max"] for result in results)
    agrees = "agrees" if most <= 5 else "beyond"
    return [*rows, Row("versions per rollout", "5 at most", str(most), agrees, "30 steps")]


def dapo_rows() -> list[Row]:
    spec = lognormal(lengths(9_500, 2_400))
    assumed = (
        "mean 9,500, group sd 2,400; rewards Beta-Bernoulli(0.5, sd 0.3); the baseline refills a "
        "wave of 32 groups as soon as one is rejected, and drops the surplus"
    )
    rows = []
    for name, tokens in (("generated", "generated_tokens"), ("trained on", "trained_tokens")):
        gains = [gain(model, spec, DAPO, tokens) for model in PUBLISHED]
        claim = f"rollout throughput with DAPO, both models, tokens {name}"
        error = against(gains, 0.08, 0.11)
        rows.append(Row(claim, "+8 % to +11 %", span(gains, percent), error, assumed))
    return rows


def rows() -> list[Row]:
    return [*map(throughput_row, PUBLISHED), *carried_rows(), *dapo_rows()]


def tables() -> list[Table]:
    """What a paper's spreads, a reasoning model's and flat iterations do."""
    return [("Forecast of rollout throughput with APRIL over without, Qwen3-8B", gain_by_mean())]
