"""A tornado: each uncertain input alone at its 5 % and its 95 %.

Inputs are those that costs and length presets draw (`simulator.values.chance`), values given
exactly (within `ASSUMED`), and keys that the user names. Each setting is simulated for a few steps
under common random numbers. Shares of variance are of a line through both ends, without
interactions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_rows
from rollcast.simulator.scenario.file import override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.redrawn import lengths_drawn
from rollcast.simulator.studies.short_runs import kind_of, longer, settled, short_run, sums
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.values.chance import Levels

Z = 1.6448536269514722  # standard deviations of a normal at its 95 % quantile
ASSUMED = 0.10  # relative error of a value that is given exactly
MOST_STEPS = 8  # default length of each simulation
LEAST_EFFECT = 5e-4  # relative change of a step below which an input is left out
MOST_DRAWN = 16  # bars in the picture
_EXACT_LENGTHS = ("median_tokens", "between_sd", "within_sd", "runaway")


@dataclass(frozen=True, slots=True)
class Bar:
    """One input. source: of its uncertainty (`Uncertainty.shares`). low, high: its settings.
    step_s: of the run; step_s_low, step_s_high, hours_low, hours_high, usd_low, usd_high: at the
    settings. share: of all bars' variance. assumed: whether the settings are `ASSUMED` or the
    user's."""

    input: str
    source: str
    low: str
    high: str
    step_s: float
    step_s_low: float
    step_s_high: float
    hours_low: float
    hours_high: float
    usd_low: float | None
    usd_high: float | None
    share: float
    assumed: bool

    @property
    def spread_s(self) -> float:
        """Seconds of a step between both ends."""
        return abs(self.step_s_high - self.step_s_low)


@dataclass(frozen=True, slots=True)
class Asked:
    """A key that the user names and its two values."""

    key: str
    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    source: str
    low: str
    high: str
    settings: tuple[Callable[[], Scenario], Callable[[], Scenario]]
    assumed: bool


def parse_keys(scenario: Scenario, texts: Sequence[str]) -> list[Asked]:
    """``key=20%``, ``key=±20%`` and ``key=LOW,HIGH``.

    Raises ScenarioError (``--tornado-key``) for another form, a key given twice, and a share of
    what is no number.
    """
    inputs: dict[str, Asked] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise _refused(f"{text!r} is not of the form key=20% or key=LOW,HIGH")
        if key in inputs:
            raise _refused(f"{key} is given twice")
        inputs[key] = _asked(scenario, key, value)
        for end in (inputs[key].low, inputs[key].high):
            _at(scenario, key, end)
    return list(inputs.values())


def _asked(scenario: Scenario, key: str, value: str) -> Asked:
    if not value.endswith("%"):
        low, comma, high = (part.strip() for part in value.partition(","))
        if not comma or not low or not high or "," in high:
            raise _refused(f"{key}={value}: give a share, such as 20%, or two values, LOW,HIGH")
        return Asked(key, low, high)
    try:
        share = float(value[:-1].removeprefix("±").removeprefix("+-").strip()) / 100.0
    except ValueError:
        share = math.nan
    if not 0.0 < share < 1.0:
        raise _refused(f"{key}={value}: give a share above 0 % and below 100 %, such as 20%")
    given = _given(scenario, key)
    if not _is_number(given):
        raise _refused(
            f"{key} is {given!r} in the scenario, of which there is no {value}; give {key}=LOW,HIGH"
        )
    ends = [given * (1.0 - share), given * (1.0 + share)]
    if isinstance(given, int):
        ends = [round(end) for end in ends]
    return Asked(key, *ends)


def _refused(message: str) -> ScenarioError:
    return ScenarioError("--tornado-key", message)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _given(scenario: Scenario, key: str) -> Any:
    """The value of a key in a scenario's file; None if absent."""
    place: Any = scenario.raw.data
    for part in key.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def tornado(
    scenario: Scenario,
    asked: Sequence[Asked] = (),
    *,
    result: Result | None = None,
    steps: int | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> list[Bar]:
    """The bars of a scenario, longest first.

    asked: further keys. result: the finished run; made by default. steps: of each simulation.

    Raises ScenarioError or RunError if the scenario or the setting of an asked key cannot run;
    leaves out an uncertain input that cannot.
    """
    run = simulate(scenario, on_step) if result is None else result
    records = run.run.steps
    kind = kind_of(records)
    count = min(steps or MOST_STEPS, scenario.steps)
    base = sums(settled(short_run(scenario, count, on_step), kind)).step_s
    bars: list[Bar] = []
    for change in (
        *_uncertain(scenario),
        *_exact(scenario),
        *(_of_key(scenario, key, "asked") for key in asked),
    ):
        try:
            ratios = [
                sums(settled(short_run(make(), count, on_step), kind)).step_s / base
                for make in change.settings
            ]
        except RollcastError:
            if change.source == "asked":
                raise
            continue
        if change.source == "asked" or max(abs(ratio - 1.0) for ratio in ratios) >= LEAST_EFFECT:
            bars.append(_bar(change, run, *ratios))
    return _with_shares(bars)


def _bar(of: _Input, run: Result, low: float, high: float) -> Bar:
    summary = run.summary
    hours, usd = summary["makespan_s"] / 3600.0, summary.get("cost_usd")
    return Bar(
        of.name,
        of.source,
        of.low,
        of.high,
        summary["step_s"],
        low * summary["step_s"],
        high * summary["step_s"],
        low * hours,
        high * hours,
        None if usd is None else low * usd,
        None if usd is None else high * usd,
        0.0,
        of.assumed,
    )


def _with_shares(bars: Sequence[Bar]) -> list[Bar]:
    total = math.fsum(bar.spread_s**2 for bar in bars)
    shared = [replace(bar, share=bar.spread_s**2 / total if total > 0 else 0.0) for bar in bars]
    return sorted(shared, key=lambda bar: -bar.spread_s)


# Inputs


def _uncertain(scenario: Scenario) -> Iterator[_Input]:
    """Inputs that costs and length presets draw."""
    raw = scenario.raw
    asked = Levels()
    lengths_drawn(raw, asked)
    for name in asked.names:
        source, _, figure = name.partition("/")
        drawn = [lengths_drawn(raw, Levels({name: z})) for z in (-Z, Z)]
        low, high = (_short(draw.data["workload"]["lengths"].get(figure)) for draw in drawn)
        settings = (partial(longer, scenario, name, -Z), partial(longer, scenario, name, Z))
        yield _Input(figure, source, low, high, settings, False)
    asked = Levels()
    scenario.cost.drawn(asked)
    for name in asked.names:
        source, _, figure = name.partition("/")
        ends = [Levels({name: z}) for z in (-Z, Z)]
        slow, fast = (
            partial(replace, scenario, cost=scenario.cost.drawn(levels)) for levels in ends
        )
        words = [spread.names[name] for spread in ends]
        yield _Input(figure, source, words[0], words[1], (slow, fast), False)


def _exact(scenario: Scenario) -> Iterator[_Input]:
    """Inputs that are given exactly: lengths in full, coefficients of linear costs."""
    raw = scenario.raw
    keys = []
    lengths = raw.data["workload"].get("lengths")
    if isinstance(lengths, dict) and "family" in lengths:
        keys += [f"workload.lengths.{key}" for key in _EXACT_LENGTHS if lengths.get(key)]
    cost = raw.data.get("cost")
    if isinstance(cost, dict) and isinstance(cost.get("linear"), dict):
        numbers = (key for key, value in cost["linear"].items() if value and _is_number(value))
        keys += [f"cost.linear.{key}" for key in numbers]
    for key in keys:
        given = _given(scenario, key)
        ends = (given * (1.0 - ASSUMED), given * (1.0 + ASSUMED))
        yield _of_key(scenario, Asked(key, *ends), "given exactly")


def _of_key(scenario: Scenario, asked: Asked, source: str) -> _Input:
    settings = (
        partial(_at, scenario, asked.key, asked.low),
        partial(_at, scenario, asked.key, asked.high),
    )
    return _Input(asked.key, source, _short(asked.low), _short(asked.high), settings, True)


def _at(scenario: Scenario, key: str, value: Any) -> Scenario:
    """The scenario with a key at a value, under its own policy. Raises ScenarioError."""
    text = value if isinstance(value, str) else repr(value)
    changed = from_raw(override(scenario.raw, [f"{key}={text}"], option="--tornado-key"))
    return changed if key.split(".")[0] == "policy" else changed.with_policy(scenario.policy)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_tornado(folder: Path, bars: Sequence[Bar], plot: bool = True) -> None:
    """Writes tornado.csv and tornado.png; nothing without bars."""
    if not bars:
        return
    write_rows(folder, schema.TORNADO_CSV, None, [asdict(bar) for bar in bars])
    if plot:
        from rollcast.simulator.results.bars import draw_bars

        rows = [(label(bar), bar.step_s_low, bar.step_s_high, bar.assumed) for bar in bars]
        draw_bars(rows[:MOST_DRAWN], bars[0].step_s, folder / schema.TORNADO_PICTURE.name)


def label(bar: Bar) -> str:
    """The name of a bar, with both settings."""
    return f"{bar.input} ({bar.low} to {bar.high})"
