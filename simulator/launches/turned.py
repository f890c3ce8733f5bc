"""Rollouts of several turns: which setting of a launch has them, and what a preset says of them."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.stacks.settings import Settings, value, whole
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.workload.turn_presets import turn_presets

FLAG = "--turns"
_TOLD_BY = ("run.tools", "run.own_rollouts", "run.environment_groups")
_NONE = (None, False, "", "none", "null")
_TIMEOUT_S = 60


def told_by(launch: Launched, known: Settings) -> str | None:
    """Where a launch says that rollouts have several turns; None where nothing does.

    known: what holds in the run.
    """
    for key in _TOLD_BY:
        said = value(known, key)
        if (said.lower() if isinstance(said, str) else said) not in _NONE:
            return known[key].source
    if (whole(known, "run.max_turns") or 1) > 1:
        return known["run.max_turns"].source
    meanings = all_stacks()[launch.stack].launch.meanings
    for item in launch.unresolved:
        if any(ours in _TOLD_BY for ours, _, _ in meanings.get(item.key, ())):
            return f"{item.key} in {item.place}"
    return None


def turn_parts(name: str, cap: Part, prompt: int) -> Iterable[Part]:
    """Parts of a scenario whose rollouts have the turns of a preset.

    cap: tokens of a rollout's turns and answers together, as stacks have it. prompt: tokens of the
    longest prompt. Raises ScenarioError (``--turns``) for another name.
    """
    if name not in turn_presets():
        raise ScenarioError(FLAG, f"is {name!r}; give one of {', '.join(turn_presets())}")
    given, limit = f"given by {FLAG}", "environment.timeout_s"
    both = prompt + int(cap.value)
    yield Part("workload.turns.preset", name, given)
    yield Part("workload.max_context_tokens", both, f"{cap.source}, with the prompt")
    yield Part("environment.turn_s.preset", name, given)
    yield Part(limit, _TIMEOUT_S, f"assumed; give --set {limit}=SECONDS", True)
