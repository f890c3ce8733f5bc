"""Forecasts of a run from a fitted file, with intervals.

*replay*: the run's own lengths and rewards, so that only the costs are judged. *predict*: lengths
and rewards drawn from the fitted models, which judges the whole forecast.

Intervals hold the parameters (drawn from their covariance), lengths, rewards and seed (predict
only) and the machine: a level of the run, and stretches of consecutive steps of a calibrated run
drawn again. Where run and calibration measured the machine's speed (`fits.machine_speed`), costs
can be those at the run's speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rollcast.calibration.calibrate import Fitted
from rollcast.calibration.fits import placeholders
from rollcast.calibration.fits.iterations import Idle
from rollcast.calibration.fits.machine_speed import by_phase, tells
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.folder import SAME, RunFolder
from rollcast.simulator.core.spans import Run
from rollcast.simulator.costs.fitted import FittedCost
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.file import RawScenario, kept_modules, require_trust
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.values import read
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.base import GroupDraw, Trajectory, Workload, longest_context
from rollcast.simulator.workload.environment import EnvironmentSection, environment_spec
from rollcast.simulator.workload.measured import ResampledWorkload, TurnRules
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.workload.recorded_turns import RecordedTrajectory, continued
from rollcast.simulator.workload.turns import MAX_TURNS, Caps, Patience, trajectory

Mode = Literal["replay", "predict"]
METRICS = ("step_s", "rollout_s", "train_s", "tokens_per_s", "bubble", "staleness")
# Draws of the machine's noise for each draw of the parameters: a replay knows all the rest, but a
# prediction's lengths differ with each draw, and must not be counted twice.
NOISE_DRAWS: dict[Mode, int] = {"replay": 20, "predict": 1}
DRAWS = 40
_SEED_STRIDE = 1009


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to do.

    point: each of `METRICS` by step, shape (steps,): under the fitted costs, without noise (of
        predict, the median over draws). draws: the same with every uncertainty, shape
        (draws, steps). total_s: run time of each draw. unmeasured: rollouts whose length the replay
        did not find in the run and drew from the fitted model. flags: what to be wary of.
        at_pulse: whether it is of the machine at the run's own speed.
    """

    point: dict[str, FloatArray]
    draws: dict[str, FloatArray]
    total_s: FloatArray
    unmeasured: int
    flags: list[str]
    at_pulse: bool = False


class MeasuredWorkload:
    """A run's own responses. What the run never launched is drawn from a model; so is what it never
    finished, which gets at least as far as it had; both are counted in ``unmeasured``.

    finished: whether the run finished each (group, attempt, index) that it launched.
    """

    def __init__(
        self,
        measured: RecordedWorkload,
        model: Workload,
        finished: Mapping[tuple[int, int, int], bool],
    ) -> None:
        self.max_new_tokens = measured.max_new_tokens
        self.max_prompt_tokens = max(measured.max_prompt_tokens, model.max_prompt_tokens)
        self.max_context_tokens = max(longest_context(measured), longest_context(model))
        self.unmeasured = 0
        self.warnings: tuple[str, ...] = ()
        self._measured, self._model, self._finished = measured, model, finished

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The group's responses; see `simulator.workload.base.Workload.draw`."""
        known = [self._finished.get((group, attempt, index)) for index in range(size)]
        if all(known):
            return self._measured.draw(group, size, attempt, version, prompt, visit)
        drawn = self._model.draw(group, size, attempt, version, prompt, visit)
        tokens, rewards = list(drawn.new_tokens), list(drawn.rewards)
        prompt_tokens = drawn.prompt_tokens
        launched = known.index(None) if None in known else size
        if launched:
            measured = self._measured.draw(group, launched, attempt, version, prompt, visit)
            for index in range(launched):
                if known[index]:
                    tokens[index], rewards[index] = (
                        measured.new_tokens[index],
                        measured.rewards[index],
                    )
                else:
                    tokens[index] = max(tokens[index], measured.new_tokens[index])
            prompt_tokens = measured.prompt_tokens
        self.unmeasured += size - sum(map(bool, known))
        turned = self._turned(group, attempt, size, drawn)
        if turned is not None:
            tokens = [made.new_tokens for made in turned]
        return GroupDraw(prompt_tokens, tuple(tokens), tuple(rewards), None, turned)

    def _turned(
        self, group: int, attempt: int, size: int, drawn: GroupDraw
    ) -> list[Trajectory] | None:
        """Of rollouts with turns, what each had, and goes on with where it was stopped."""
        measured = self._measured.turned
        if measured is None or drawn.trajectories is None:
            return None
        known = [measured.get((group, attempt, index)) for index in range(size)]
        return [
            made if recorded is None else self._capped(recorded, continued(recorded, made))
            for recorded, made in zip(known, drawn.trajectories, strict=True)
        ]

    def _capped(self, recorded: RecordedTrajectory, made: Trajectory) -> Trajectory:
        """A rollout that went on longer than any of run and model has no room for that."""
        if recorded.cut is None:
            return made
        caps = Caps(self.max_new_tokens, self.max_context_tokens)
        rows = [(*turn, 1.0) for turn in made.turns]
        capped = trajectory(
            recorded.prompt_tokens, rows, made.ending, caps, Patience(), made.boot_s
        )
        return replace(capped, reward_s=made.reward_s)


def forecast(
    fitted: Fitted,
    target: RunFolder,
    mode: Mode,
    draws: int = DRAWS,
    seed: int = 0,
    at_pulse: bool = False,
) -> Forecast:
    """Forecasts ``target``'s steps under its own scenario and policy.

    draws: of the parameters; each is simulated. seed: of every draw, so that two policies' draws of
    one number share parameters, prompts and the machine's noise, and can be ranked pair by pair.
    at_pulse: for the machine at the run's own speed, where that is known; a flag says where not.
    Raises ScenarioError or RunError where the scenario cannot be simulated.
    """
    rng = np.random.default_rng(seed)
    pulses = fitted.pulses(target) if at_pulse else None
    machine = fitted.noise(pulses is not None)
    scenario, cost, groups = _own_scenario(target), fitted.cost, fitted.groups
    slower = None if pulses is None else by_phase(pulses)
    priced_at_level = _priced_at_level(target)
    level = np.ones(3) if slower is None or not priced_at_level else slower.mean(axis=0)
    runs, noisy, totals, unmeasured = [], [], [], 0
    flags: list[str] = []
    for number in range(draws + 1):
        known, priced = groups, cost
        if number:
            known, priced = groups.drawn(rng), cost.drawn(Drawn(rng))
        own_seed = seed + _SEED_STRIDE * (number + 1)
        resampled = ResampledWorkload(known, target.cap, own_seed, _rules(fitted, target))
        replayed = _measured(target, resampled) if mode == "replay" else None
        workload = resampled if replayed is None else replayed
        if priced_at_level and slower is not None:
            priced = priced.slowed(*level.tolist())
        result, warnings = _simulate(replace(scenario, workload=workload, cost=priced))
        if number == 0:
            flags = [*warnings, *workload.warnings, *_flags(fitted, target)]
            unmeasured = 0 if replayed is None else replayed.unmeasured
        metrics = _by_step(result)
        if slower is not None:
            metrics = _slowed(metrics, slower / level)
        runs.append(metrics)
        if number or draws == 0:
            for _ in range(NOISE_DRAWS[mode]):
                noisy.append(_slowed(metrics, machine.drawn(len(metrics["step_s"]), rng)))
                totals.append(float(noisy[-1]["step_s"].sum()))
    if unmeasured:
        flags.append(
            f"the replay needed {unmeasured} rollouts that the run never launched or never "
            "finished; their lengths were drawn from the fitted model"
        )
    if at_pulse and pulses is None:
        flags.append(
            "the run or the calibration has no speed probe: the machine is assumed to "
            "be as fast as in the calibration"
        )
    point = runs[0]
    if mode == "predict":
        point = {name: np.median([run[name] for run in runs], axis=0) for name in METRICS}
    stacked = {name: np.array([draw[name] for draw in noisy]) for name in METRICS}
    return Forecast(point, stacked, np.array(totals), unmeasured, flags, pulses is not None)


def replayed_run(fitted: Fitted, target: RunFolder) -> Run:
    """A replay of ``target`` without noise, with every span: its own lengths and rewards, under the
    fitted costs. Raises ScenarioError or RunError where its scenario cannot be simulated."""
    resampled = ResampledWorkload(fitted.groups, target.cap, _SEED_STRIDE)
    workload = _measured(target, resampled)
    scenario = replace(_own_scenario(target), workload=workload, cost=_priced(fitted, target))
    return _simulate(scenario)[0]


def _priced(fitted: Fitted, target: RunFolder) -> FittedCost:
    """The fitted costs, of actors or turns at the machine's mean speed in the run where known."""
    pulses = fitted.pulses(target) if _priced_at_level(target) and tells(target) else None
    if pulses is None:
        return fitted.cost
    return fitted.cost.slowed(*by_phase(pulses).mean(axis=0).tolist())


def _priced_at_level(target: RunFolder) -> bool:
    """Whether a machine's level goes into the costs, not into the phases that come of them. Where
    phases overlap, so do their levels, and environments take the time that they take."""
    return target.of_actors or target.turned is not None


def _own_scenario(target: RunFolder) -> Scenario:
    """The target's scenario without workload and costs; its policy keeps the run's seed."""
    data = dict(target.scenario)
    counts = target.section("workload")
    data["steps"] = len(target.steps["step"])
    data["workload"] = {
        **{key: counts.get(key) for key in ("batch_groups", "group_size", "max_new_tokens")},
        "prompt_tokens": 1,
        "lengths": placeholders.LENGTHS,
    }
    if target.turned is not None:
        data["workload"] |= {
            "max_context_tokens": counts.get("max_context_tokens"),
            "turns": placeholders.TURNS,
        }
    data["cost"] = placeholders.COST
    require_trust(target.scenario, target.trust_modules, str(target.path), "RUN_DIR")
    return build_scenario(
        RawScenario(data, {}, target.name, target.path, modules=kept_modules(data))
    )


def _measured(target: RunFolder, model: Workload) -> MeasuredWorkload:
    table = target.rollouts
    columns = (table[name].tolist() for name in ("group", "attempt", "index", "finished"))
    finished = {(g, a, i): bool(done) for g, a, i, done in zip(*columns, strict=True)}
    pools = environment_spec(target.environment, None)
    recorded = RecordedWorkload(target.segments(), target.cap, 1, target.calls(), pools)
    return MeasuredWorkload(recorded, model, finished)


def _rules(fitted: Fitted, target: RunFolder) -> TurnRules:
    """The target's caps and patience, and its environments' seconds over the calibration's."""
    turns = target.section("workload", "turns")
    context = target.section("workload").get("max_context_tokens")
    rules = TurnRules.of(target.cap, context, target.environment)
    slower = _stated_s(target.section("environment")) / _stated_s(fitted.environment)
    return replace(rules, max_turns=turns.get("max_turns") or MAX_TURNS, slower=slower)


def _stated_s(environment: Mapping[str, Any]) -> float:
    """The median seconds of an answer that a scenario states; 1 where it states none."""
    if environment.get("turn_s") is None:
        return 1.0
    model = read(EnvironmentSection, environment, "environment").answers
    return model.median_s or 1.0


def _simulate(scenario: Scenario) -> tuple[Run, list[str]]:
    world = scenario.world()
    result = drive(scenario, world, scenario.steps)
    return result, scenario.cost.warnings(world.extremes)


def _flags(fitted: Fitted, target: RunFolder) -> list[str]:
    flags = []
    if target.policy not in fitted.policies:
        flags.append(
            f"{target.policy} is not among the calibrated policies ({', '.join(fitted.policies)})"
        )
    if fitted.content["fits"]["iteration"]["assumed_prefill_token"]:
        flags.append("the cost of a prefill token was assumed: the prompts hardly vary in length")
    actors = int(target.section("cluster").get("replicas") or 1) + 1
    cores = target.provenance.get("cores")
    if target.of_actors and not target.provenance.get("gpu") and cores and cores < actors:
        flags.append(f"{actors} actors shared {cores} CPU cores: their contention is not priced")
    made_on = fitted.content["provenance"]
    if len(made_on["runs"]) == 1:
        flags.append(
            "calibrated on one run: how much runs differ from one another is not in the intervals"
        )
    for key in SAME:
        if target.provenance.get(key) != made_on.get(key):
            flags.append(f"{target.name} was not measured with the calibration's {key}")
    engine, section = made_on.get("engine") or {}, target.scenario.get("engine") or {}
    changed = sorted(key for key in {*engine, *section} if engine.get(key) != section.get(key))
    flags += [f"the calibration had another engine.{key}" for key in changed]
    return flags


def measured_by_step(target: RunFolder) -> dict[str, FloatArray]:
    """`METRICS` of a real run by step, as `Forecast.point` has them."""
    steps = target.steps
    times = {name: steps[name].astype(float) for name in ("step_s", "rollout_s", "train_s")}
    return _derived(
        times, steps["sync_s"], steps["generated_tokens"], steps["mean_staleness"].astype(float)
    )


def _by_step(result: Run) -> dict[str, FloatArray]:
    steps = result.steps
    times = {
        name: np.array([getattr(record, name) for record in steps])
        for name in ("step_s", "rollout_s", "train_s")
    }
    behind = [sum(age * n for age, n in record.staleness.items()) for record in steps]
    total = [max(sum(record.staleness.values()), 1) for record in steps]
    columns = _derived(
        times,
        np.array([record.sync_s for record in steps]),
        np.array([record.generated_tokens for record in steps]),
        np.array(behind) / np.array(total),
    )
    return {**columns, "away": _away(result)}


def _away(result: Run) -> FloatArray:
    """Share of each step's rollout phase without a rollout on any replica, shape (steps,)."""
    steps = result.steps
    if not len(result.calls):
        return np.zeros(len(steps))
    columns = ("replica", "submitted_s", "end_s")
    idle = Idle.of({name: result.segments[name] for name in columns})
    start, end = (
        np.array([getattr(record, name) for record in steps])
        for name in ("rollout_start_s", "rollout_end_s")
    )
    return np.asarray(np.clip(idle.between(start, end) / np.maximum(end - start, 1e-12), 0.0, 1.0))


def _derived(
    times: dict[str, FloatArray], sync_s: FloatArray, tokens: Any, staleness: FloatArray
) -> dict[str, FloatArray]:
    """bubble: share of the step in which GPUs neither roll out, train nor sync."""
    idle_s = times["step_s"] - times["rollout_s"] - times["train_s"] - sync_s
    return {
        **times,
        "tokens_per_s": tokens / np.maximum(times["rollout_s"], 1e-12),
        "bubble": np.maximum(idle_s, 0.0) / np.maximum(times["step_s"], 1e-12),
        "staleness": staleness,
    }


def _slowed(metrics: dict[str, FloatArray], ratios: FloatArray) -> dict[str, FloatArray]:
    """The metrics with rollout, update and rest so many times as long; shape (steps, 3). A step
    in which rollout and update overlap is as much longer as both together. Time in which all
    rollouts are in their environments is the environments' own."""
    rollout, train, rest = ratios.T
    away = metrics["away"]
    rollout = away + (1.0 - away) * rollout
    rollout_s, train_s = metrics["rollout_s"] * rollout, metrics["train_s"] * train
    both_s = metrics["rollout_s"] + metrics["train_s"]
    other_s = (metrics["step_s"] - both_s) * rest
    mean = (rollout_s + train_s) / np.maximum(both_s, 1e-12)
    step_s = np.where(other_s < 0, metrics["step_s"] * mean, rollout_s + train_s + other_s)
    idle_s = metrics["bubble"] * metrics["step_s"] * rest
    return {
        "step_s": step_s,
        "rollout_s": rollout_s,
        "train_s": train_s,
        "tokens_per_s": metrics["tokens_per_s"] / rollout,
        "bubble": idle_s / np.maximum(step_s, 1e-12),
        "staleness": metrics["staleness"],
        "away": away,
    }
