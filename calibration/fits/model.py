"""One fit of a log: costs with their levels, lengths, and forecasts of steps made from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rollcast.calibration.fits import log_responses
from rollcast.calibration.fits.batches import Batch, dealt, from_figures
from rollcast.calibration.fits.levels import Figure, Levels, figures
from rollcast.calibration.fits.log_costs import Measured, Shape, fit_costs, phases
from rollcast.calibration.fits.log_scenario import built, setting
from rollcast.calibration.fits.noise import RandomWalk, going_on
from rollcast.calibration.fits.robust import FloatArray, median_error
from rollcast.calibration.fits.step_lengths import FewFigures, LengthsFit, Spread, fit_few
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.costs.opening import Opening
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.workload.base import GroupDraw
from rollcast.simulator.workload.measured import MeasuredGroups, ResampledWorkload

Drift = Literal["auto", "freeze", "extrapolate"]
"""How lengths go on: as they still change, if they do (auto), as they were at the end of the log
(freeze), or along the slope of the whole log."""


@dataclass(frozen=True)
class Counts:
    """What of a scenario's workload and cluster the fits need. cap: at which responses are cut;
    cap_known: whether the log says that."""

    batch_groups: int
    group_size: int
    cap: int
    prompt_tokens: int
    cap_known: bool = True

    @classmethod
    def of(cls, parts: Sequence[Part], steps: Steps) -> Counts:
        """From the parts, and the logged prompts where lengths bring theirs."""
        prompt = steps.median("mean_prompt_tokens")
        given = setting(parts, "workload.prompt_tokens")
        return cls(
            int(setting(parts, "workload.batch_groups")),
            int(setting(parts, "workload.group_size")),
            int(setting(parts, "workload.max_new_tokens")),
            int(given) if given else (max(round(prompt), 1) if math.isfinite(prompt) else 512),
            not any(p.key == "workload.max_new_tokens" and p.assumed for p in parts),
        )


@dataclass(frozen=True)
class Fit:
    """What a part of a log says. parts: of the scenario, with its costs. cost: ``cost`` of a
    scenario. shape: where the costs' shape is from. levels: factors on them (already in ``cost``)
    and how sure. steps: that were fitted, of those logged. few: lengths from figures a step;
    rollouts: from the rollouts themselves. ratios: measured over forecast of the fitted steps.
    figures: what was timed. speed, length: how the level of a step's seconds at its tokens, and of
    the mean length, walk on at random. trend: change of log lengths a step that still went on at
    the end of the log; 0 where none is told. trend_sd: how sure it is, or that there is none.
    """

    parts: tuple[Part, ...]
    counts: Counts
    cost: dict[str, Any]
    shape: Shape
    levels: Levels
    few: LengthsFit | None
    rollouts: log_responses.Fitted | None
    tokens_from: str
    steps: int
    logged: int
    ratios: FloatArray
    figures: tuple[Figure, ...]
    speed: RandomWalk
    length: RandomWalk
    coefficients: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trend: float = 0.0
    trend_sd: float = 0.0

    @property
    def scenario(self) -> Scenario:
        """With placeholders for the lengths. Raises ScenarioError."""
        return built(self.parts, self.cost)

    @property
    def opening(self) -> Opening | None:
        """What of generation does not depend on lengths, as ``cost`` has it."""
        said = self.cost.get("scale", {}).get("opening")
        return None if said is None else Opening(**said)

    @property
    def forecasts(self) -> bool:
        """Whether it has costs and lengths, so that steps can be forecast."""
        return self.shape != "none" and (self.few is not None or self.rollouts is not None)

    def noted(self, note: str) -> Fit:
        """With a further note for the user."""
        return replace(self, notes=(*self.notes, note))

    def lengths(self, drift: Drift) -> dict[str, float]:
        """``workload.lengths`` at the end of the log."""
        if self.rollouts is not None and "between_sd" in self.rollouts.lengths["lengths"]:
            keys = {k: v for k, v in self.rollouts.lengths["lengths"].items() if k != "family"}
        elif self.few is not None:
            keys = self.few.lengths()
        else:
            return {}
        gone, back = self._course(keys["drift_per_step"], drift)
        steps = int(setting(self.parts, "steps") or 1)
        longer = math.exp(self.length.shift + back)
        return {
            **keys,
            "median_tokens": min(max(keys["median_tokens"] * longer, 1.0), float(self.counts.cap)),
            "drift_per_step": gone(steps) / steps,
        }

    def followed(self, drift: Drift) -> bool:
        """Whether lengths go on changing."""
        return bool(drift == "extrapolate" or (drift == "auto" and self.trend))

    def groups(self, drift: Drift, steps: int) -> MeasuredGroups | None:
        """The measured groups at the lengths from the end of the log on, for so many steps."""
        if self.rollouts is None:
            return None
        groups, cap = self.rollouts.groups, self.counts.cap
        slope = float(self.rollouts.lengths["lengths"]["drift_per_step"])
        gone, back = self._course(slope, drift)
        level = self.length.shift + back
        if not gone(1):
            return longer(groups, math.exp(level), cap)
        starts = range(0, max(steps, 1), _STRETCH)
        parts = [longer(groups, math.exp(level + gone(at + _STRETCH // 2)), cap) for at in starts]
        return replace(
            groups,
            version=tuple(at for at in starts for _ in groups.version),
            prompt_tokens=groups.prompt_tokens * len(parts),
            new_tokens=tuple(group for part in parts for group in part.new_tokens),
            rewards=groups.rewards * len(parts),
        )

    def _course(self, slope: float, drift: Drift) -> tuple[Callable[[int], float], float]:
        """The change of log lengths in so many steps from here on, and the log of the level from
        which it starts over the end of the log's own slope: where lengths stay, that of its last
        quarter. A trend of its later half fades (`_FADES`)."""
        if not self.followed(drift):
            return lambda steps: 0.0, -slope * self.logged / 8
        if drift == "extrapolate":
            return lambda steps: slope * steps, 0.0
        left = 0.5 ** (1 / (_FADES * max(self.logged, 1)))
        return lambda steps: self.trend * left * (1 - left**steps) / (1 - left), 0.0

    def batches_ahead(
        self, ahead: Sequence[int], drift: Drift, rng: np.random.Generator, sampled: bool
    ) -> list[Batch]:
        """Batches so many steps after the last. sampled: draws the lengths' parameters too."""
        draw = self._drawer(drift, rng, sampled)
        walk = self.length.drawn(list(ahead), rng) if sampled else np.zeros(len(ahead))
        if sampled and drift == "auto":
            slope = self.trend_sd * rng.spawn(1)[0].standard_normal()
            walk = walk + slope * np.array(ahead)
        longer = np.exp(np.clip(self.length.shift + walk, -1.5, 1.5))
        return [draw(step, factor) for step, factor in zip(ahead, longer.tolist(), strict=True)]

    def _drawer(
        self, drift: Drift, rng: np.random.Generator, sampled: bool
    ) -> Callable[[int, float], Batch]:
        counts = self.counts
        if self.rollouts is not None:
            some = self.rollouts.some
            groups = some.drawn(rng) if sampled else some
            workload = ResampledWorkload(groups, counts.cap, int(rng.integers(1 << 30)))
            slope = float(self.rollouts.lengths["lengths"]["drift_per_step"])
            gone, level = self._course(slope, drift)
            back = math.exp(level)

            def resampled(step: int, longer: float) -> Batch:
                first = step * counts.batch_groups
                factor = back * longer * math.exp(gone(step))
                drawn: list[GroupDraw] = [
                    workload.draw(first + i, counts.group_size, version=step % 64)
                    for i in range(counts.batch_groups)
                ]
                prompt = round(float(np.mean([draw.prompt_tokens for draw in drawn])))
                return Batch(
                    max(prompt, 1),
                    tuple(
                        tuple(_scaled(n, factor, counts.cap) for n in draw.new_tokens)
                        for draw in drawn
                    ),
                )

            return resampled
        few = self.few
        assert few is not None
        theta = few.drawn(rng) if sampled else few.values
        lengths = few.lengths(theta)
        gone, level_now = self._course(lengths["drift_per_step"], drift)
        back = math.exp(level_now)

        def from_model(step: int, longer: float) -> Batch:
            shape = (counts.batch_groups, counts.group_size)
            level = math.log(lengths["median_tokens"] * back * longer) + gone(step)
            logs = level + lengths["between_sd"] * rng.standard_normal((shape[0], 1))
            logs = logs + lengths["within_sd"] * rng.standard_normal(shape)
            tokens = np.clip(np.ceil(np.exp(np.minimum(logs, 20.0))), 1, counts.cap)
            tokens = np.where(rng.random(shape) < lengths["runaway"], counts.cap, tokens)
            return dealt(
                tokens.astype(np.int64).ravel().tolist(), counts.group_size, counts.prompt_tokens
            )

        return from_model


_FADES = 1 / 4
"""Share of the log in whose steps a trend falls by half: a damped trend (Gardner and McKenzie,
Management Science 31, 1985). In public logs whose lengths still changed at 50, 60 and 70 % of their
steps (11 to 23 of 93), the log of the mean of the rest was off by 0.62, 0.44 and 0.20, by 0.68,
0.46 and 0.20 if the trend goes on, and by 0.71, 0.44 and 0.26 if lengths stay; from a sixteenth to
a half it is off by as much."""
_STRETCH = 12
"""Steps of a run whose groups are resampled at one length, where lengths go on changing."""


def longer(groups: MeasuredGroups, factor: float, cap: int) -> MeasuredGroups:
    """Groups whose responses are so many times as long, cut at the cap."""
    longer = tuple(tuple(_scaled(n, factor, cap) for n in group) for group in groups.new_tokens)
    return replace(groups, new_tokens=longer)


def _scaled(tokens: int, factor: float, cap: int) -> int:
    return min(max(round(tokens * factor), 1), cap) if factor != 1.0 and tokens < cap else tokens


def fit(
    log: RunLog,
    steps: Steps,
    parts: Sequence[Part],
    rollouts: log_responses.Rollouts | None,
    graded_too: bool = True,
) -> Fit:
    """Fits costs and lengths to ``steps`` of the log. parts: of its scenario, without costs.
    graded_too: whether rewards are wanted.

    Raises ScenarioError where the parts make no scenario.
    """
    counts = Counts.of(parts, steps)
    of_rollouts = few = None
    if rollouts is not None:
        collected = log_responses.as_responses(rollouts, steps, counts.cap, counts.prompt_tokens)
        of_rollouts = log_responses.fit_rollouts(collected, 60, graded_too)
    if of_rollouts is None:
        usual = counts.batch_groups * counts.group_size
        few = fit_few(FewFigures.of(steps, counts.group_size, counts.cap, usual, counts.cap_known))
    spread = Spread.assumed() if few is None else few.spread
    batches = batches_of(steps, rollouts, counts, spread)
    timed = figures(steps, log.overlapped)
    known = of_rollouts is not None or steps.has("max_new_tokens")
    mean = steps.median("mean_new_tokens")
    longest_sd = 0.0
    if not known and math.isfinite(mean):
        most = counts.cap if counts.cap_known else math.inf
        longest_sd = spread.longest_sd(mean, counts.batch_groups, counts.group_size, most)
    measured = Measured.of(log, steps, parts, batches, timed, longest_sd)
    costs = fit_costs(measured)
    whole = replaced(parts, costs.parts)
    length, trend, trend_sd = _length(steps, few, of_rollouts)
    ratios = np.zeros(0)
    if costs.shape != "none" and not log.overlapped and measured.batches:
        forecast = phases(built(whole, costs.cost), measured.batches).total()
        ratios = steps.whole_s[measured.places] / forecast
        ratios = ratios[np.isfinite(ratios)]
    speed = RandomWalk.of(np.log(ratios))
    level = speed.shift + _level(np.log(ratios))
    costs, ratios = costs.slower(level), ratios * math.exp(-level)
    return Fit(
        whole,
        counts,
        costs.cost,
        costs.shape,
        costs.levels,
        few,
        of_rollouts,
        "" if rollouts is None else rollouts.tokens_from,
        int(steps.quiet.sum()),
        len(steps),
        ratios,
        timed,
        replace(speed, shift=0.0),  # which the costs have
        length,
        costs.coefficients,
        (() if of_rollouts is None else of_rollouts.notes) + costs.notes,
        trend,
        trend_sd,
    )


def _level(logs: FloatArray) -> float:
    """The median of a series of logs, 0 where it is not told from that."""
    if not len(logs):
        return 0.0
    middle = float(np.median(logs))
    return middle if abs(middle) > 2 * median_error(logs) else 0.0


def _length(
    steps: Steps, few: LengthsFit | None, of_rollouts: log_responses.Fitted | None
) -> tuple[RandomWalk, float, float]:
    """Of the logs of the steps' mean lengths: how they walk beside their drift, the drift that goes
    on, and how sure it is."""
    if of_rollouts is not None:
        slope = float(of_rollouts.lengths["lengths"]["drift_per_step"])
    elif few is not None:
        slope = few.lengths()["drift_per_step"]
    else:
        return RandomWalk.still(), 0.0, 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(steps.column("mean_new_tokens"))
    walk = RandomWalk.of(logs - slope * np.arange(len(logs)))
    return walk, *going_on(logs, slope)


def batches_of(
    steps: Steps, rollouts: log_responses.Rollouts | None, counts: Counts, spread: Spread
) -> list[Batch | None]:
    """Of each step: its own rollouts where the log holds them, else lengths with its figures."""
    if rollouts is not None:
        measured = log_responses.batches_of(rollouts, steps, counts.prompt_tokens)
        if all(measured):
            return measured
    usual = counts.batch_groups * counts.group_size
    made = from_figures(steps, counts.group_size, usual, counts.cap, counts.prompt_tokens, spread)
    if rollouts is None:
        return made
    return [batch or other for batch, other in zip(measured, made, strict=True)]
