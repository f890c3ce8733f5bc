"""Published phases of RL steps, each judged on its own: generation, log-probs, update, refit, rest.

A constant is fitted to the phase that it names and to nothing else, and a whole step counts as met
only where its phases are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.validation.case import Case, Check, Role, bias, by, held_out, spread_text
from benchmarks.validation.files import column
from benchmarks.validation.rl_scenario import (
    DRAWS,
    SPREADS,
    Run,
    built,
    drawn_name,
    scenario,
    smaller,
)
from benchmarks.validation.suite import Judged
from rollcast.simulator.results.phases import PhaseName, phase_of
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.simulate import simulate

Phase = Literal["generation", "log_prob", "update", "refit", "rest"]
PUBLISHED: Mapping[PhaseName, Phase] = {
    "generation": "generation",
    "reward": "rest",
    "log_prob": "log_prob",
    "reference": "log_prob",
    "values": "log_prob",
    "update": "update",
    "optimiser": "update",
    "sync": "refit",
    "switch": "refit",
    "other": "rest",
}
"""What is published of a step's phases."""
BIAS = 0.10  # of generation, held out
NEAR = 0.20  # within which a phase is met
SMALL = 0.05  # of a step: a phase that is less and forecast as less counts as met


@dataclass(frozen=True, kw_only=True)
class Row(Run):
    """A step on shared GPUs, and seconds of the phases that are judged. log_prob_role: of that
    phase alone, to which figures of the trainer are fitted; those of the rest are fitted to all."""

    overlapped: bool = False
    rollout_gpus: int = column("gpus")
    trainer_gpus: int = column("gpus")
    microbatch_tokens: int | None = column()
    generation_s: float | None = column()
    log_prob_s: float | None = column()
    update_s: float | None = column()
    refit_s: float | None = column()
    rest_s: float | None = column()
    log_prob_role: Role = column()

    @property
    def phases_s(self) -> dict[Phase, float]:
        """Seconds of each phase that is published."""
        seconds = {phase: getattr(self, f"{phase}_s") for phase in get_args(Phase)}
        return {phase: value for phase, value in seconds.items() if value is not None}


def keys_of(row: Row, spread: str = "assumed") -> dict[str, Any]:
    """The scenario of a step, with one of ``SPREADS``; the same one whatever is judged."""
    keys = {**scenario(row, spread), "steps": 1}
    if row.microbatch_tokens:
        keys["cost"]["roofline"]["trainer"]["microbatch_tokens"] = row.microbatch_tokens
    return keys


def forecast_s(keys: Mapping[str, Any], draw: int | None = None) -> dict[Phase, float]:
    """Seconds of each phase of the scenario's only step, its costs drawn anew."""
    seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
    for phase in simulate(built(keys, draw)).run.phases:
        seconds[PUBLISHED[phase_of(phase.kind)]] += phase.seconds
    return seconds


def cases(row: Row) -> Iterator[Case]:
    """A case for each published phase, with the spread of lengths, and the costs, drawn anew."""
    guess, small = forecast_s(keys_of(row)), smaller(row)
    base = forecast_s(keys_of(small))
    drawn = [
        forecast_s(keys_of(small, drawn_name(np.random.default_rng(draw), SPREADS)), draw)
        for draw in range(DRAWS)
    ]
    for phase, measured in row.phases_s.items():
        roles: Mapping[Phase, Role] = {"log_prob": row.log_prob_role, "rest": "calibrated"}
        role = roles.get(phase, row.role)
        low, high = ends([guess[phase] * draw[phase] / base[phase] for draw in drawn]).tolist()
        yield Case(phase, row.name, "s", measured, guess[phase], role, low, high, row.name)


def met(case: Case, step_s: float) -> bool:
    """Whether a phase is forecast within 20 %, or by less than a twentieth of its step."""
    return abs(case.error) <= NEAR or abs(case.forecast - case.measured) <= SMALL * step_s


def totals(found: Sequence[Case]) -> Iterator[str]:
    """A sentence for each step: met, or what of it is not."""
    for name, phases in by(found, lambda case: case.name).items():
        step_s = sum(case.measured for case in phases)
        error = sum(case.forecast for case in phases) / step_s - 1
        missed = [f"{c.group} {c.error:+.0%}" for c in phases if not met(c, step_s)]
        result = f"not met: {', '.join(missed)}" if missed else "met in every phase"
        yield f"{name}, sum of the judged phases {error:+.0%}, {result}"


def judge(rows: Sequence[Row]) -> Judged:
    """Every phase of every step, and the sum of each step."""
    found = [case for row in rows for case in cases(row)]
    held = held_out(found)
    generation = [case for case in held if case.group == "generation"]
    name = "held out, generation, bias"
    return Judged(
        found,
        [Check(name, bias(generation), BIAS, len(generation), signed=True)],
        [*totals(found), spread_text(held)],
        scenarios={row.name: keys_of(row) for row in rows},
    )
