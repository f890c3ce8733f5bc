"""The answer to a launch: whether it fits, how long it takes, what would change that, and what an
expert would ask about: waits and settings that cost time for nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.check import search
from rollcast.simulator.check.forecast import (
    LAST,
    Forecast,
    Seconds,
    fits_below,
    fits_to,
    forecast,
    over_lengths,
)
from rollcast.simulator.check.question import Question
from rollcast.simulator.check.search import Change
from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.launches.turned import FLAG, told_by
from rollcast.simulator.results.schema import CHECK_SCHEMA
from rollcast.simulator.stacks.syntax.json_text import nested
from rollcast.simulator.studies import ranking
from rollcast.simulator.studies.compare import run_each
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.workload.slots import UNLIMITED

OnWork = Callable[[StepRecord | None], None]
MOST_SIMULATED = 16_384
"""Rollouts of a short run that prices a change."""


@dataclass(frozen=True)
class Priced:
    """A change and what it does to a step. step: of the forecast, times the ratio of two short
    simulations, or for large batches of the planner's estimates."""

    change: Change
    step: Seconds | None

    def plain(self) -> dict[str, Any]:
        """As ``--json`` has it."""
        change = self.change
        return {
            "lines": list(change.lines),
            "settings": dict(change.settings),
            "words": list(change.words),
            "fits": change.ledger.fits,
            "fits_probability": change.ledger.fits_probability,
            "peak_bytes": round(change.ledger.fullest_gpu.bytes),
            "host_bytes": round(change.ledger.host_total),
            "step_s": None if self.step is None else self.step.median,
            "trains_otherwise": change.trains_otherwise,
        }


@dataclass(frozen=True)
class Answer:
    """forecast: as if it fit where it does not. fixes: changes that make it fit, or surer to.
    faster: changes that make it faster. oddities: what an expert would ask about. searched: whether
    changes were looked for. fits_below: the mean length of responses, in tokens, up to which it
    fits, where that decides and nobody says it. fits_to: the longest response, in tokens, with
    which it fits, where its cap does not and no mean decides."""

    question: Question
    ledger: Ledger
    forecast: Forecast
    fixes: tuple[Priced, ...] = ()
    faster: tuple[Priced, ...] = ()
    oddities: tuple[Odd, ...] = ()
    searched: bool = True
    fits_below: int | None = None
    fits_to: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it more likely fits than not."""
        return self.ledger.fits

    def over(self, share: float) -> bool:
        """Whether the peak is above this share of a GPU's memory."""
        peak = self.ledger.peak
        return peak.bytes > share * peak.capacity_bytes

    def plain(self) -> dict[str, Any]:
        """The contract of ``rollcast check --json``."""
        launch, found = self.question.launch, self.forecast
        memory = self.ledger.plain()
        hours, usd, known_length = found.hours, found.usd, found.known_length
        return {
            "schema": CHECK_SCHEMA,
            "stack": self.question.stack,
            "stack_version": launch.release,
            "fits": memory["fits"],
            "fits_probability": memory["fits_probability"],
            "fits_below_mean_tokens": self.fits_below,
            "fits_to_tokens": self.fits_to,
            "peak": memory["peak"],
            "phases": memory["phases"],
            "host_bytes": memory["host_bytes"],
            "host_capacity_bytes": memory["host_capacity_bytes"],
            "step_s": {
                **_plain(found.step),
                "as_if_it_fit": not self.fits,
                "known_length": None if known_length is None else _plain(known_length),
                "phases": {name: _plain(phase) for name, phase in found.phases.items()},
            },
            "steps": found.steps,
            "hours": None if hours is None else hours.median,
            "hours_interval": None if hours is None else [hours.low, hours.high],
            "usd": None if usd is None else usd.median,
            "usd_interval": None if usd is None else [usd.low, usd.high],
            "bound_by": found.summary["bound_by"],
            "changes": [one.plain() for one in (*self.fixes, *self.faster)],
            "odd": [one.plain() for one in self.oddities],
            "warnings": list(found.summary["warnings"]),
            "assumed": [
                {"key": part.key, "value": part.value, "why": part.source}
                for part in self.question.draft.assumed
                if part.key != "seed"
            ],
            "unknown_keys": sorted({item.key for item in launch.unknown}),
            "unresolved": [
                {"key": item.key, "text": item.text, "place": str(item.place), "why": item.why}
                for item in launch.unresolved
            ],
            "notes": list(launch.notes),
            "scenario": nested(
                (part.key, part.value) for part in self.question.written if part.value is not None
            ),
        }


def _plain(seconds: Seconds) -> dict[str, float]:
    return {"median": seconds.median, "low": seconds.low, "high": seconds.high}


def answer(question: Question, changes: bool = True, on_work: OnWork | None = None) -> Answer:
    """Answers a question. changes: whether to search for them. on_work: called at each simulated
    step, and with None at each change tried. Raises ScenarioError where the scenario has no memory
    to count, and as `simulate` does."""
    ledger = question.scenario.ledger
    if ledger is None:
        raise ScenarioError(
            "cost", "counts no memory; one of model and gpu (roofline, which is the default) does"
        )
    ledger = over_lengths(question, ledger)
    found = forecast(question, ledger.fits, on_work)

    def on_try() -> None:
        if on_work is not None:
            on_work(None)

    fixes: list[Priced] = []
    faster: list[Priced] = []
    if changes:
        base = question.with_keys({} if ledger.fits else question.as_if_it_fit())
        base_s = search.estimate_s(base)
        if not ledger.nearly_sure:
            fixes = _priced(search.that_fit(question, ledger, base_s, on_try), found, base_s)
        if ledger.fits:
            faster = _shorter(_priced(search.that_speed_up(question, on_try), found, base_s), found)
    oddities = (*untold_turns(question), *(odd(question, found, on_work) if changes else ()))
    below = fits_below(question)
    longest = None if ledger.fits or below is not None else fits_to(question)
    return Answer(
        question, ledger, found, tuple(fixes), tuple(faster), oddities, changes, below, longest
    )


def _priced(changes: Sequence[Change], found: Forecast, base_s: float) -> list[Priced]:
    """Changes with their steps. base_s: the planner's estimate of the launch."""
    priced = []
    for change in changes:
        ratio = _simulated(change, found)
        if ratio is None:
            ratio = change.estimate_s / base_s if base_s > 0 else math.nan
        priced.append(Priced(change, found.step.times(ratio) if math.isfinite(ratio) else None))
    return priced


def _simulated(change: Change, found: Forecast) -> float | None:
    """A step of a change over one of the launch, on the same draws, of a part of a large run; None
    where batches are too large for a short run, or have turns, or the change does not run."""
    now, part, scenario = found.summary, found.part, change.question.scenario
    turns, many = scenario.environment is not UNLIMITED, now["rollouts"] > MOST_SIMULATED
    if turns or (many and part is None) or now["step_s"] <= 0:
        return None
    try:
        if part is not None:
            return part.seconds(change.question, {})["step"] / float(now["step_s"])
        return float(simulate(scenario).summary["step_s"] / now["step_s"])
    except RollcastError:
        return None


def _shorter(changes: Sequence[Priced], found: Forecast) -> list[Priced]:
    """Those that are still faster, the fastest first."""
    most = (1 - search.LEAST_GAIN) * found.step.median
    kept = [(one.step.median, one) for one in changes if one.step and one.step.median < most]
    return [one for _, one in sorted(kept, key=lambda pair: pair[0])]


OnStep = Callable[[StepRecord], None] | None
LONG_TAIL = 0.25
"""Of generation: a wait for the last 3 % of responses that is told."""
FEW_SEQS = 0.5


@dataclass(frozen=True, slots=True)
class Odd:
    """sentence: what is odd. speedup: of what it names, with its 90 % interval, or None."""

    sentence: str
    speedup: tuple[float, float, float] | None = None

    def plain(self) -> dict[str, Any]:
        """As ``--json`` has it."""
        return {"sentence": self.sentence, "speedup": self.speedup}


def untold_turns(question: Question) -> Iterator[Odd]:
    """That rollouts have turns, of which nothing is said."""
    draft = question.draft
    told = told_by(question.launch, draft.settings) if draft.settings else None
    if told and question.scenario.environment is UNLIMITED:
        yield Odd(
            f"rollouts have several turns ({told}), and the launch does not say how many, how long "
            "or what their tools take: each is forecast as one response that waits for nothing; "
            f"give {FLAG} (rollcast presets turns)"
        )


def odd(question: Question, found: Forecast, on_step: OnStep = None) -> Iterator[Odd]:
    """Every oddity of a launch."""
    yield from _tail(question, found, on_step)
    summary = found.summary
    if summary["preemptions"]:
        share = summary["reprefilled_tokens"] / max(summary["generated_tokens"], 1)
        yield Odd(
            f"engines preempt responses {summary['preemptions'] / summary['steps']:,.0f} times a "
            f"step, since the KV pool runs full, and prefill again {share:.0%} as many tokens "
            "as they sample"
        )
    if summary["truncated_share"] > 0.2:
        yield Odd(f"{summary['truncated_share']:.0%} of the responses are cut at the cap")
    scenario = found.result.scenario
    running = summary["rollouts"] / summary["steps"] / scenario.shape.replicas
    if scenario.engine.max_seqs < FEW_SEQS * running:
        yield Odd(
            f"each engine runs at most {scenario.engine.max_seqs:,} at once of the "
            f"{running:,.0f} responses that it has to make in a step: the rest wait in its queue"
        )


def _tail(question: Question, found: Forecast, on_step: OnStep) -> Iterator[Odd]:
    """A long wait for the last responses, and what a policy that does not wait would bring."""
    if found.last_share < LONG_TAIL or question.value("policy"):
        return
    waits = (
        f"generation waits {found.last_share:.0%} of its time for its last {LAST:.0%} of responses"
    )
    try:
        scenario = found.result.scenario
        variants = [scenario, scenario.with_policy("april")]
        results = run_each(variants, on_step)
        ranked = ranking.from_short_runs(results, sources=False)
    except RollcastError:
        yield Odd(waits)
        return
    step, other = ranked.step_s
    low, high = ranked.speedup(ranked.names[1])
    speedup = float(step / other)
    yield Odd(f"{waits}: APRIL {speedup:.2f}x ({low:.2f} to {high:.2f})", (speedup, low, high))
