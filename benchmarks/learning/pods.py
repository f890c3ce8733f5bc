"""The law against published learning curves: those of PODS (arXiv 2504.13818), whose authors keep
every evaluation of 140 runs in their repository.

The law is fitted to the paper's own GRPO runs and to the prior, and then asked for the runs with
selection, which it has not seen. One prompt an update, so its groups are far larger, and its
batches far smaller, than those of the campaign.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.matched import alike
from benchmarks.learning.tables import TABLE, rows, write
from benchmarks.runner import read_json
from rollcast.calibration.fits.learning import LearningRun, fit, known_from, law_of
from rollcast.calibration.judge.learning import judge, time_to
from rollcast.simulator.learning.data import prior

PODS = TABLE.with_name("pods.jsonl.xz")
HOURS = 0.5  # between two evaluations
SEEDS = 5  # of each evaluation's answers
SOONER = ("sooner", "sooner_in_time", "forecast_sooner", "forecast_in_time")
PEAK = 0.99  # of GRPO's best accuracy, the paper's measure


@dataclass(frozen=True)
class Setting:
    """Runs of one kind. sampled, trained: rollouts of the one prompt of an update."""

    name: str
    data: str
    sampled: int
    trained: int
    rule: str = "MaxVariance"

    @property
    def selection(self) -> str:
        return self.rule if self.trained < self.sampled else "none"


SETTINGS = (
    Setting("Instruct-GSM8K-512-16-16", "gsm8k", 16, 16),
    Setting("Instruct-GSM8K-512-32-16", "gsm8k", 32, 16),
    Setting("Instruct-GSM8K-512-64-16", "gsm8k", 64, 16),
    Setting("Instruct-GSM8K-512-128-16", "gsm8k", 128, 16),
    Setting("Instruct-GSM8K-512-256-16", "gsm8k", 256, 16),
    Setting("Instruct-GSM8K-512-64-8", "gsm8k", 64, 8),
    Setting("Instruct-GSM8K-512-64-4", "gsm8k", 64, 4),
    Setting("Instruct-GSM8K-512-64-2", "gsm8k", 64, 2),
    Setting("Instruct-GSM8K-Rand-512-64-16", "gsm8k", 64, 16, "RandomSubset"),
    Setting("Instruct-GSM8K-MaxR-512-64-16", "gsm8k", 64, 16, "MaxReward"),
    Setting("Instruct-MATH-NF-512-8-8", "math500", 8, 8),
    Setting("Instruct-MATH-NF-512-32-8", "math500", 32, 8),
)
QUESTIONS = {"gsm8k": 1319, "math500": 500}


def read(checkout: Path) -> int:
    """Packs the evaluations in a checkout of github.com/YixuanEvenXu/pods; how many runs."""
    results = checkout / "results"
    base = read_json(results / "base-qwen.json", {})
    lines = []
    for setting in SETTINGS:
        for file in sorted(results.glob(f"{setting.name}-Run*.json")):
            saves = {
                int(name.split("-")[-1]): save
                for name, save in json.loads(file.read_text()).items()
            }
            accuracy = [base[setting.data], *(saves[step][setting.data] for step in sorted(saves))]
            lines.append(
                {
                    "setting": setting.name,
                    "run": int(file.stem.rpartition("Run")[2]),
                    "updates": [0, *sorted(saves)],
                    "accuracy": [float(np.mean(found["ans_acc"])) for found in accuracy],
                }
            )
    write(lines, PODS)
    return len(lines)


def curves() -> dict[str, list[LearningRun]]:
    """The runs of each setting."""
    named = {setting.name: setting for setting in SETTINGS}
    found: dict[str, list[LearningRun]] = {}
    for line in rows(PODS):
        found.setdefault(line["setting"], []).append(_curve(named[line["setting"]], line))
    return found


def _curve(setting: Setting, line: Mapping[str, Any]) -> LearningRun:
    updates = np.array(line["updates"], dtype=np.int64)
    hours = HOURS * np.arange(len(updates))
    signals = alike(
        int(updates[-1]),
        setting.trained,
        setting.sampled,
        kept=setting.trained / setting.sampled,
        selection=setting.selection,
    )
    return LearningRun(
        name=f"{setting.name}-{line['run']}",
        origin=setting.data,
        policy=setting.name,
        seed=line["run"],
        rate=1.0,
        signals=replace(signals, seconds=np.interp(signals.seconds, updates, hours)),
        updates=updates,
        accuracy=np.array(line["accuracy"]),
        answers=np.full(len(updates), float(SEEDS * QUESTIONS[setting.data])),
        right_tokens=np.full(len(updates), np.nan),
        wrong_tokens=np.full(len(updates), np.nan),
    )


def cut(run: LearningRun, evaluations: int) -> LearningRun:
    """A run's first evaluations, and the updates up to the last of them."""
    setting = next(setting for setting in SETTINGS if setting.name == run.policy)
    columns = {name: getattr(run, name)[:evaluations].tolist() for name in ("updates", "accuracy")}
    return _curve(setting, {"run": run.seed, **columns})


def judged() -> list[dict[str, Any]]:
    """One row a setting: updates and hours up to `PEAK` of GRPO's best accuracy on the mean curve,
    how many times as soon as GRPO that is, what the law says of both, and how many of the runs'
    means lie inside its intervals."""
    found = curves()
    return [row for data in QUESTIONS for row in _judged(found, data)]


def _judged(found: Mapping[str, Sequence[LearningRun]], data: str) -> list[dict[str, Any]]:
    settings = [setting for setting in SETTINGS if setting.data == data]
    base = found[settings[0].name]
    law = law_of(fit(base, *known_from(prior())), data, "", prior())
    start, target = float(base[0].accuracy[0]), PEAK * float(_mean(base)[1].max())
    table: list[dict[str, Any]] = []
    first: tuple[float, ...] | None = None
    for setting in settings:
        runs = found[setting.name]
        updates, accuracy = _mean(runs)
        longest = max(runs, key=lambda run: int(run.updates[-1])).signals
        measured = time_to(updates, accuracy, target)
        hours = HOURS * np.interp(measured, updates, np.arange(len(updates)))
        curve = law.best(longest, start)
        forecast = time_to(np.arange(len(curve)), curve, target)
        pace = HOURS * (len(updates) - 1) / float(updates[-1])
        times = (measured, hours if np.isfinite(measured) else np.inf, forecast, forecast * pace)
        first = first or times
        sooner = [_told(other / own) for other, own in zip(first, times, strict=True)]
        inside = sum(
            one.inside
            for run in runs
            for one in judge(law, run, start, 1.0, ())
            if one.what == "area"
        )
        table.append(
            {
                "data": data,
                "sampled": setting.sampled,
                "trained": setting.trained,
                "rule": setting.selection,
                "target": target,
                "updates": _told(measured),
                "forecast": _told(forecast),
                **dict(zip(SOONER, sooner, strict=True)),
                "inside": inside,
                "runs": len(runs),
                "abstains": law.domain_reason(longest, start) is not None,
            }
        )
    return table


def _told(value: float) -> float | None:
    """None for a time that is never, and for times as soon as never."""
    return float(value) if 0 < value < np.inf else None


def _mean(runs: Sequence[LearningRun]) -> tuple[Any, Any]:
    """Mean updates and accuracy of each evaluation that all runs have."""
    count = min(len(run.updates) for run in runs)
    columns = ([run.updates[:count] for run in runs], [run.accuracy[:count] for run in runs])
    return np.mean(columns[0], axis=0), np.mean(columns[1], axis=0)
