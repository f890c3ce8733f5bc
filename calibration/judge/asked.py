"""What a step would take with other lengths, batches or settings: ``--what-if`` of an import."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollcast.calibration.fits.log_scenario import setting
from rollcast.calibration.fits.model import Fit, longer
from rollcast.calibration.fits.step_lengths import Spread, lengths_like
from rollcast.calibration.judge.whole import Step, step_s
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.file import read_value
from rollcast.simulator.values import nearest
from rollcast.simulator.workload.halving import halved
from rollcast.simulator.workload.measured import MeasuredGroups

FLAG = "--what-if"
MEAN, LONGEST = "mean_tokens", "longest_tokens"
_SHORT = ("max_new_tokens", "group_size", "batch_groups", "prompt_tokens")
_SAMPLES = 20_000
_ROUNDS = 60


@dataclass(frozen=True)
class Asked:
    """Changes of a scenario. lengths: `MEAN` and `LONGEST`, in tokens. settings: other keys of the
    scenario by value. text: as they were given."""

    lengths: Mapping[str, float]
    settings: Mapping[str, Any]
    text: str


def asked(texts: Sequence[str]) -> Asked | None:
    """Of ``KEY=VALUE`` texts; None for none. Raises ScenarioError (``--what-if``)."""
    if not texts:
        return None
    lengths: dict[str, float] = {}
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, written = (part.strip() for part in text.partition("="))
        if not equals or not key or not written:
            raise ScenarioError(FLAG, f"{text!r} is not of the form key=value, as {MEAN}=622")
        if key in lengths or key in settings or f"workload.{key}" in settings:
            raise ScenarioError(FLAG, f"{key} is given twice")
        if key in (MEAN, LONGEST):
            lengths[key] = _tokens(key, written)
        elif "." in key or key in _SHORT:
            settings[key if "." in key else f"workload.{key}"] = read_value(written, FLAG)
        else:
            known = (MEAN, LONGEST, *_SHORT)
            raise ScenarioError(
                FLAG,
                f"unknown key {key}; {nearest(key, known)} Other keys are a scenario's, dotted",
            )
    return Asked(lengths, settings, " ".join(texts))


def _tokens(key: str, written: str) -> float:
    try:
        tokens = float(written)
    except ValueError:
        tokens = math.nan
    if not 1 <= tokens < 1e9:
        raise ScenarioError(FLAG, f"{key} must be tokens of 1 or more, got {written!r}")
    return tokens


def changed_step(
    known: Fit, parts: Sequence[Part], groups: Mapping[str, Any] | None, now: Step, want: Asked
) -> Step:
    """A step of the drafted scenario with the changes; its interval is as wide as now's. groups:
    those of the fitted file. Raises ScenarioError or RunError."""
    changed = [Part(key, value, "") for key, value in want.settings.items()]
    parts = replaced(parts, changed)
    cap = int(setting(parts, "workload.max_new_tokens"))
    longest = math.ceil(want.lengths.get(LONGEST, 0))
    if longest > cap and any(p.key == "workload.max_new_tokens" and p.assumed for p in parts):
        cap = longest  # the log knows no limit: the longest that it saw was taken
        parts = replaced(parts, [Part("workload.max_new_tokens", cap, "")])
    trace = None
    mean = want.lengths.get(MEAN)
    if mean is not None and mean >= cap:
        raise ScenarioError(
            FLAG, f"{MEAN}={mean:g} is not below the limit of {cap} tokens; give max_new_tokens too"
        )
    if LONGEST in want.lengths:
        trace = _trace(known, parts, want.lengths[LONGEST], mean, cap)
    elif mean is not None and groups is not None:
        groups = _at_mean(MeasuredGroups.from_mapping(groups, FLAG), mean, cap).to_mapping()
    elif mean is not None:
        median = _median(parts, mean, cap)
        key = "workload.lengths"
        lengths = [Part(f"{key}.median_tokens", median, ""), Part(f"{key}.drift_per_step", 0.0, "")]
        parts = replaced(parts, lengths)
    seconds = step_s(parts, groups, now.steps, (), trace)
    times = seconds / now.seconds
    return Step(seconds, times * now.low_s, times * now.high_s, now.steps)


def _at_mean(groups: MeasuredGroups, mean: float, cap: int) -> MeasuredGroups:
    """All groups longer or shorter in proportion."""
    tokens = np.array([n for group in groups.new_tokens for n in group], dtype=float)

    def short(factor: float) -> bool:
        return bool(np.clip(tokens * factor, 1, cap).mean() < mean)

    scaled = longer(groups, halved(short, 1e-4, 1e4, _ROUNDS, logs=True)[1], cap)
    return replace(scaled, max_new_tokens=max(cap, groups.max_new_tokens))


def _samples(parts: Sequence[Part], median: float, cap: int) -> np.ndarray[Any, Any]:
    """Lengths of the drafted log-normal, at another median."""
    key, rng = "workload.lengths", np.random.default_rng(0)
    spread = math.hypot(*(float(setting(parts, f"{key}.{k}_sd")) for k in ("between", "within")))
    drawn = np.exp(math.log(median) + spread * rng.standard_normal(_SAMPLES))
    away = rng.random(_SAMPLES) < float(setting(parts, f"{key}.runaway") or 0.0)
    return np.where(away, cap, np.clip(np.ceil(drawn), 1, cap))


def _median(parts: Sequence[Part], mean: float, cap: int) -> float:
    def short(median: float) -> bool:
        return bool(_samples(parts, median, cap).mean() < mean)

    return halved(short, 1e-2, 1e9, _ROUNDS, logs=True)[1]


def _trace(known: Fit, parts: Sequence[Part], longest: float, mean: float | None, cap: int) -> str:
    """CSV of one step with this longest response, and this mean or its own."""
    if longest > cap:
        raise ScenarioError(
            FLAG,
            f"{LONGEST}={longest:g} is above the limit of {cap} tokens; give max_new_tokens too",
        )
    size, count = (int(setting(parts, f"workload.{k}")) for k in ("group_size", "batch_groups"))
    ahead = known.batches_ahead(list(range(1, 5)), "freeze", np.random.default_rng(0), False)
    own = float(np.mean([n for batch in ahead for group in batch.groups for n in group]))
    asked_mean = own if mean is None else mean
    if asked_mean > longest:
        raise ScenarioError(
            FLAG, f"{LONGEST}={longest:g} is below the mean of {asked_mean:.0f} tokens"
        )
    spread = (known.few.spread if known.few is not None else Spread.assumed()).total
    drawn = lengths_like(
        size * count, asked_mean, longest, 0.0, cap, spread, np.random.default_rng(0)
    )
    prompt = setting(parts, "workload.prompt_tokens") or known.counts.prompt_tokens
    rows = (f"{i // size},{i % size},{prompt},{n}" for i, n in enumerate(drawn.tolist()))
    return "\n".join(("group,index,prompt_tokens,new_tokens", *rows)) + "\n"
