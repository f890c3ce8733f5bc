"""What an expert would ask about in a launch: waits and settings that cost time for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.check.forecast import LAST, Forecast
from rollcast.simulator.check.question import Question
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies import ranking
from rollcast.simulator.studies.compare import run_each

OnStep = Callable[[StepRecord], None] | None
LONG_TAIL = 0.25
"""Of generation: a wait for the last 3 % of responses that is told."""
FEW_SEQS = 0.5


@dataclass(frozen=True, slots=True)
class Odd:
    """sentence: what is odd. speedup: of what it names, with its 90 % interval; None if it names
    nothing."""

    sentence: str
    speedup: tuple[float, float, float] | None = None

    def plain(self) -> dict[str, Any]:
        """As ``--json`` has it."""
        return {"sentence": self.sentence, "speedup": self.speedup}


def odd(question: Question, found: Forecast, on_step: OnStep = None) -> Iterator[Odd]:
    """Every oddity of a launch."""
    yield from _tail(question, found, on_step)
    summary = found.summary
    if summary["preemptions"]:
        share = summary["reprefilled_tokens"] / max(summary["generated_tokens"], 1)
        yield Odd(
            f"engines put responses off {summary['preemptions'] / summary['steps']:,.0f} times a "
            f"step, since the KV pool runs full; {share:.0%} of the tokens are computed twice"
        )
    if summary["truncated_share"] > 0.2:
        yield Odd(f"{summary['truncated_share']:.0%} of the responses are cut at the cap")
    scenario = found.result.scenario
    running = summary["rollouts"] / summary["steps"] / scenario.shape.replicas
    if scenario.engine.max_seqs < FEW_SEQS * running:
        yield Odd(
            f"each engine runs {scenario.engine.max_seqs} responses at once and has "
            f"{running:.0f} to make in a step: the rest wait in its queue"
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
        ranked = ranking.from_short_runs(results)
    except RollcastError:
        yield Odd(waits)
        return
    step, other = ranked.step_s
    low, high = ranked.speedup(ranked.names[1])
    speedup = float(step / other)
    yield Odd(f"{waits}: APRIL {speedup:.2f}x ({low:.2f} to {high:.2f})", (speedup, low, high))
