"""What would change a run: a small set of what-ifs on its fitted scenario, and its bottleneck."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollcast.calibration.fits.log_scenario import setting
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.judge.beside import beside
from rollcast.calibration.judge.phases import columns_of, said_of
from rollcast.calibration.judge.small_runs import LAST_STEPS, WARM_STEPS, SmallRun
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.results.phases import STEP_PHASES, bound_text
from rollcast.simulator.studies.drawn import LEVEL, ends

DRAWS = 10
_POINT_STEPS, _DRAWN_STEPS = 20, 3
_TOLD, _LEAST_SHARE = 4, 0.02  # phases that are told, at most; and of a step at least
_BUDGET = 50_000  # rollouts of all runs together
_APRIL = "APRIL: launch 1.5 times the batch, train on the first to end, resume the rest"
_TAIL = (
    "tail batching: launch more than the batch, drop the slowest, sample their "
    "prompts again together"
)
_ONE_OFF = "sample the next batch while this one trains"
_SEER = "submit groups as slots become free, the longest predicted first"


@dataclass(frozen=True)
class WhatIf:
    """A change. key: under which a stack's reader keeps its words for it. parts: of the scenario
    that are different; cost: keys of ``cost.roofline.trainer``."""

    key: str
    said: str
    parts: tuple[Part, ...] = ()
    trainer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What a change does. speedup: the run's mean step over this one's, with its 90 % interval.
    words: how to have it in this stack. why_not: where it cannot be simulated."""

    key: str
    said: str
    words: str
    speedup: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    step_s: float = float("nan")
    why_not: str = ""

    @property
    def sure(self) -> str:
        """faster, slower, or undecided, as is what is less than the half percent that is shown."""
        if self.low >= 1.005:
            return "faster"
        return "slower" if self.high < 0.995 else "undecided"


@dataclass(frozen=True)
class Advice:
    """bottleneck: sentences on where the run's time goes. answers: the what-ifs, the run itself
    first. draws: of lengths and costs behind the intervals. divided: by which the runs simulated
    are smaller than the run."""

    bottleneck: tuple[str, ...]
    answers: tuple[Answer, ...]
    draws: int
    divided: int

    def at(self, step_s: float) -> Advice:
        """With the run's own step as the whole scenario has it, and others in proportion."""
        if not self.answers or not self.answers[0].step_s > 0:
            return self
        times = step_s / self.answers[0].step_s
        return replace(
            self, answers=tuple(replace(a, step_s=times * a.step_s) for a in self.answers)
        )


def what_ifs(known: Fit, log: RunLog) -> list[WhatIf]:
    """The changes that this run could make."""
    parts = known.parts
    policy = setting(parts, "policy") or []
    apart = setting(parts, "cluster.placement") == "disaggregated"
    changes = [WhatIf("as_run", "as it ran")]
    if policy:
        changes.append(_policy("sync", "rollouts and training take turns, all on-policy", []))
    if not runs_under(policy, "april"):
        changes.append(_policy("april", _APRIL, [{"april": {"over_sampling": 1.5}}]))
    changes.append(_policy("over_sampling", _TAIL, ["tail_batching"]))
    changes.append(_policy("by_group", _SEER, ["seer"]))
    if apart and not runs_under(policy, "one_step_off"):
        changes.append(_policy("one_step_off", _ONE_OFF, ["one_step_off"]))
    if apart:
        changes.extend(_splits(parts))
    elif known.shape == "roofline":
        changes.extend(_half(parts))
    trainer = known.cost.get("roofline", {}).get("trainer", {})
    if known.shape == "roofline" and str(trainer.get("batching", "")).startswith("padded"):
        rows = ("microbatch_rollouts", "padded_prompt_tokens")
        without = {k: v for k, v in trainer.items() if k not in rows}
        packed = {**without, "batching": "packed"}
        said = "pack responses into passes of equal tokens"
        changes.append(WhatIf("packing", said, trainer=packed))
    return changes


def runs_under(policy: Sequence[Any] | str, name: str) -> bool:
    """Whether a policy, as a scenario lists or spells it, has one of this name."""
    if isinstance(policy, str):
        return name in re.split(r"\W+", policy)
    return any(term == name or (isinstance(term, Mapping) and name in term) for term in policy)


def _policy(key: str, sentence: str, spelt: list[Any]) -> WhatIf:
    return WhatIf(key, sentence, (Part("policy", spelt, ""),))


def _splits(parts: Sequence[Part]) -> list[WhatIf]:
    """A quarter of the smaller side's GPUs to the other, either way."""
    tensor = int(setting(parts, "cluster.tensor_parallel") or 1)
    replicas = int(setting(parts, "cluster.replicas") or 1)
    trainer = setting(parts, "cluster.trainer_gpus")
    if not trainer:
        return []
    splits = []
    moved = max(min(replicas, int(trainer) // tensor) // 4, 1)
    for sign, word in ((1, "more"), (-1, "fewer")):
        to, left = replicas + sign * moved, int(trainer) - sign * moved * tensor
        if to < 1 or left < 1:
            continue
        said = (
            f"{to * tensor} GPUs for rollouts and {left} for training "
            f"({replicas * tensor} and {trainer} as it ran)"
        )
        dealt = (Part("cluster.replicas", to, ""), Part("cluster.trainer_gpus", left, ""))
        splits.append(WhatIf(f"split_{word}", said, dealt))
    return splits


def _half(parts: Sequence[Part]) -> list[WhatIf]:
    """The shared GPUs dealt to rollouts and training, one step off."""
    tensor = int(setting(parts, "cluster.tensor_parallel") or 1)
    replicas = int(setting(parts, "cluster.replicas") or 1)
    if replicas < 2:
        return []
    to = replicas // 2
    left = (replicas - to) * tensor
    settings = {
        "policy": ["one_step_off"],
        "cluster.placement": "disaggregated",
        "cluster.replicas": to,
        "cluster.trainer_gpus": left,
    }
    said = f"one step off: {to * tensor} GPUs for rollouts and {left} for training, side by side"
    return [WhatIf("one_step_off", said, tuple(Part(k, v, "") for k, v in settings.items()))]


def advise(known: Fit, log: RunLog, steps: Steps, drift: Drift) -> Advice:
    """Simulates the what-ifs and the run with the same draws, half of them in a second process."""
    asked = what_ifs(known, log)
    runs: dict[str, SmallRun] = {}
    failed: dict[str, str] = {}
    for change in asked:
        try:
            runs[change.key] = SmallRun.of(known, change.parts, _cost(known, change), drift)
        except ScenarioError as error:
            failed[change.key] = str(error)
    base = runs.get(asked[0].key)
    if base is None:
        return Advice(bottleneck(known, log, steps), (), 0, 1)
    rollouts = max(known.counts.batch_groups * known.counts.group_size // base.divided, 1)
    effort = _effort(rollouts, len(asked))
    able = list(runs.items())
    with beside(lambda: _timed(able[1::2], *effort)) as others:
        timed, why_not = _timed(able[::2], *effort)
        timed_beside, why_not_beside = others()
    timed |= timed_beside
    failed |= why_not | why_not_beside
    answers = []
    for change in asked:
        answer = Answer(change.key, change.said, log.advice.get(change.key, ""))
        if asked[0].key in timed and change.key in timed:
            answers.append(_compared(answer, timed[asked[0].key], timed[change.key]))
        else:
            answers.append(replace(answer, why_not=failed.get(change.key, "")))
    return Advice(bottleneck(known, log, steps), tuple(answers), effort[1], base.divided)


def _compared(answer: Answer, base: list[float], changed: list[float]) -> Answer:
    """With its speed-up. base, changed: mean steps, of the long run as fitted and of each draw."""
    ratios = np.array(base) / np.array(changed)
    middle = float(ratios[0])
    # the draws are short: they tell how far, and the long run where
    low, high = (middle * ends(ratios[1:] / np.median(ratios[1:]), LEVEL)).tolist()
    return replace(answer, speedup=middle, low=low, high=high, step_s=changed[0])


def _timed(
    runs: Sequence[tuple[str, SmallRun]], point: int, draws: int, length: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Mean step by run, of ``point`` steps as fitted and ``length`` a draw; errors by run."""
    timed, failed = {}, {}
    for key, run in runs:
        try:
            timed[key] = [
                run.mean_step_s(draw, length if draw else point) for draw in range(draws + 1)
            ]
        except (ScenarioError, RunError) as error:
            failed[key] = str(error)
    return timed, failed


def _effort(rollouts: int, runs: int) -> tuple[int, int, int]:
    """Steps of the run as fitted, draws, and steps of each, as far as the budget allows."""
    able = _BUDGET // max(rollouts * runs, 1)
    point = min(max(3 * able // 10, 3), _POINT_STEPS)
    beside = WARM_STEPS + LAST_STEPS
    draws = min(max((able - point - beside) // (_DRAWN_STEPS + beside), 3), DRAWS)
    return point, draws, _DRAWN_STEPS


def _cost(known: Fit, change: WhatIf) -> dict[str, Any]:
    if change.trainer is None:
        return known.cost
    roofline = {**known.cost["roofline"], "trainer": dict(change.trainer)}
    return {**known.cost, "roofline": roofline}


def bottleneck(known: Fit, log: RunLog, steps: Steps) -> tuple[str, ...]:
    """Where a step's time goes, with the log's own names of it."""
    said = said_of(log, steps)
    largest = sorted(said["phases"].items(), key=lambda pair: -pair[1]["share"])[:_TOLD]
    parts = [
        f"{STEP_PHASES[name].words} ({', '.join(named(log, c) for c in columns_of(steps, name))}) "
        f"{100 * phase['share']:.0f} %"
        for name, phase in largest
        if phase["share"] > _LEAST_SHARE
    ]
    sentences = [
        bound_text(said, "logged steps"),
        f"shares of a step: {', '.join(parts)}" if parts else "",
    ]
    mean, longest = steps.median("mean_new_tokens"), steps.median("max_new_tokens")
    if math.isfinite(mean) and math.isfinite(longest) and mean > 0 and longest > 2 * mean:
        sentences.append(
            f"the longest response of a step ({named(log, 'max_new_tokens')}) is "
            f"{longest / mean:.1f} times the mean ({named(log, 'mean_new_tokens')}): "
            "replicas end their phase with few responses running"
        )
    size = log.settings.get("workload.group_size")
    batch = log.settings.get("workload.batch_groups") or log.settings.get("run.batch_rollouts")
    settings = [f"{s.theirs} = {s.value}" for s in (batch, size) if s is not None]
    if settings:
        sentences.append("the batch is " + ", ".join(settings))
    return tuple(filter(None, sentences))


def named(log: RunLog, column: str) -> str:
    """A column by the name that the log's own stack has for it."""
    return log.words.get(column, column)
