"""What moves a run most: each uncertain input alone at its 5 % and its 95 %, all else as it is.

Inputs are what the costs and a length preset say of themselves, by the same draws as intervals are
(`simulator.values.chance`); what a scenario gives exactly and nobody knows the error of is taken to
be known within `ASSUMED`, and marked; any other key of the scenario can be asked for. Each setting
is simulated, for a few steps, and its figures are the run's own times the ratio to the same steps
of the run as it stands, under common random numbers.

A tornado's bars are one at a time: shares of variance (``share``) are those of a straight line
through either end, and leave out what inputs do together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_rows
from rollcast.simulator.scenario.file import override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies.redrawn import lengths_drawn
from rollcast.simulator.studies.short_runs import kind_of, longer, settled, short_run, sums
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.values.chance import Levels

QUANTILE = 0.95
Z = 1.6448536269514722
"""Standard deviations of a normal at `QUANTILE`."""

ASSUMED = 0.10
"""By which an input that is given exactly is moved down and up."""

MOST_STEPS = 8
"""Of each simulation, where not said."""

LEAST_EFFECT = 5e-4
"""Inputs that move a step by a smaller share either way are left out."""

MOST_DRAWN = 16
"""Bars in the picture."""

_EXACT_LENGTHS = ("median_tokens", "between_sd", "within_sd", "runaway")


@dataclass(frozen=True, slots=True)
class Bar:
    """One input. source: to which its uncertainty belongs (`Uncertainty.shares`). low, high: its
    settings, in words. step_s: seconds of a step of the run as it stands; step_s_low, step_s_high:
    at them; hours_low, hours_high: of the run; usd_low, usd_high: its cost, None without a price.
    share: of the variance of the step times that all bars stand for. assumed: whether the settings
    are `ASSUMED` or were asked for, and not what is known of the input."""

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
        """Between both ends, seconds of a step."""
        return abs(self.step_s_high - self.step_s_low)


@dataclass(frozen=True, slots=True)
class Asked:
    """A key of the scenario and the values at either end of its bar."""

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
    """``key=20%`` (or ``key=±20%``) and ``key=LOW,HIGH``, of any number of a scenario.

    Raises ScenarioError (``--tornado-key``) for another form, a key that is given twice, and a
    share of what is no number.
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
    """What a scenario's file says of a key; None where it does not."""
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

    asked: keys beside the uncertain inputs. result: the scenario's finished run, where there is
    one; else it is made. steps: of each simulation (default: as many as the run has, `MOST_STEPS`
    at most).

    Raises ScenarioError or RunError where the scenario itself, or an asked key's setting, cannot
    be run; an uncertain input that cannot is left out.
    """
    run = simulate(scenario, on_step) if result is None else result
    records = run.run.steps
    kind = kind_of(records)
    count = min(steps or MOST_STEPS, scenario.steps)
    base = sums(settled(short_run(scenario, count, on_step), kind)).step_s
    bars: list[Bar] = []
    for change in (*_uncertain(scenario), *_exact(scenario), *_of_keys(scenario, asked)):
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
    total = sum(bar.spread_s**2 for bar in bars)
    shared = [replace(bar, share=bar.spread_s**2 / total if total > 0 else 0.0) for bar in bars]
    return sorted(shared, key=lambda bar: -bar.spread_s)


# Inputs


def _uncertain(scenario: Scenario) -> Iterator[_Input]:
    """What the costs and a length preset say of themselves."""
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
        slow, fast = (replace(scenario, cost=scenario.cost.drawn(levels)) for levels in ends)
        words = [spread.names[name] for spread in ends]
        yield _Input(figure, source, words[0], words[1], (_as_is(slow), _as_is(fast)), False)


def _as_is(scenario: Scenario) -> Callable[[], Scenario]:
    return lambda: scenario


def _exact(scenario: Scenario) -> Iterator[_Input]:
    """What is given exactly: lengths in full, and the coefficients of linear costs."""
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


def _of_keys(scenario: Scenario, asked: Sequence[Asked]) -> Iterator[_Input]:
    for key in asked:
        yield _of_key(scenario, key, "asked")


def _of_key(scenario: Scenario, asked: Asked, source: str) -> _Input:
    settings = (
        partial(_at, scenario, asked.key, asked.low),
        partial(_at, scenario, asked.key, asked.high),
    )
    return _Input(
        asked.key,
        source,
        _short(asked.low),
        _short(asked.high),
        settings,
        True,
    )


def _at(scenario: Scenario, key: str, value: Any) -> Scenario:
    """The scenario with a key at a value, under its own policy unless that is what the key is of.
    Raises ScenarioError for what cannot be set."""
    text = value if isinstance(value, str) else repr(value)
    changed = from_raw(override(scenario.raw, [f"{key}={text}"], option="--tornado-key"))
    return changed if key.split(".")[0] == "policy" else changed.with_policy(scenario.policy)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_tornado(folder: Path, bars: Sequence[Bar], plot: bool = True) -> None:
    """Writes tornado.csv and, unless ``plot`` is False, tornado.png; nothing where there are no
    bars."""
    if not bars:
        return
    write_rows(folder, schema.TORNADO_CSV, None, [asdict(bar) for bar in bars])
    if plot:
        from rollcast.simulator.results.bars import draw_bars

        rows = [(label(bar), bar.step_s_low, bar.step_s_high, bar.assumed) for bar in bars]
        draw_bars(rows[:MOST_DRAWN], bars[0].step_s, folder / schema.TORNADO_PICTURE.name)


def label(bar: Bar) -> str:
    """What a bar is called: its input, and both settings."""
    return f"{bar.input} ({bar.low} to {bar.high})"
