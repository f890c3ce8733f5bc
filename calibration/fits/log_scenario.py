"""The scenario of a log as data, and what else its settings say of costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcast.calibration.fits import placeholders
from rollcast.calibration.fits.generation import Engines
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import (
    TRAINER,
    Step,
    adapter_parts,
    engine_parts,
    pass_parts,
    preset_of,
    role_parts,
)
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.file import RawScenario, named_modules
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.stacks.syntax.json_text import nested


def mapping(parts: Iterable[Part]) -> dict[str, Any]:
    """The nested keys of the parts that have a value."""
    return nested((part.key, part.value) for part in parts if part.value is not None)


def built(
    parts: Iterable[Part],
    cost: Mapping[str, Any],
    lengths: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> Scenario:
    """The scenario with these costs, and with drawn lengths in the place of its own. Raises
    ScenarioError, also for policies of one's own, which are not imported for a log."""
    data = mapping(parts)
    if named := named_modules(data):
        raise ScenarioError(
            "policy", f"names {', '.join(named)}, and an import runs no code that a log names"
        )
    data["cost"] = dict(cost)
    counts = data["workload"]
    if lengths is not None or "trace" in counts.get("lengths", {}):
        counts["lengths"] = dict(lengths or placeholders.LENGTHS)
        counts.setdefault("prompt_tokens", 1)
    return build_scenario(RawScenario(data, name=str(data.get("name", "log")), folder=folder))


def engines_of(scenario: Scenario) -> Engines:
    """The replicas of a scenario."""
    engine = scenario.engine
    return Engines(
        scenario.shape.replicas,
        engine.max_seqs,
        engine.max_batched_tokens,
        engine.kv_tokens,
        engine.prefix_caching,
    )


def setting(parts: Sequence[Part], key: str) -> Any:
    """The value of a part; None where there is none."""
    return next((part.value for part in parts if part.key == key), None)


def carries_over(parts: Sequence[Part]) -> bool:
    """Whether the parts' policy makes of a step's rollouts something else than its batch, so that
    what is timed is not what is trained on; also where no plan tells."""
    if not setting(parts, "policy"):
        return False
    try:
        pool = kv_part(parts)
        whole = replaced(parts, [pool] if pool else [])
        scenario = built(whole, placeholders.COST, placeholders.LENGTHS)
    except ScenarioError:
        return True
    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    chosen = any(selector.keep < plan.batch.group_size for selector in plan.select)
    return chosen or replace(plan, select=()) != scenario.plan


def kv_part(parts: Sequence[Part]) -> Part | None:
    """A pool of KV that never runs full, where neither log nor model tells how large it is."""
    if setting(parts, "engine.kv_tokens") is not None:
        return None
    seqs = setting(parts, "engine.max_seqs") or 256
    cap = setting(parts, "workload.max_new_tokens")
    prompt = setting(parts, "workload.prompt_tokens") or 1024
    room = int(seqs) * (int(cap) + 2 * int(prompt) + 64)
    return Part("engine.kv_tokens", room, "assumed: as much as all rollouts need", True)


def cost_parts(log: RunLog, steps: Steps, parts: Sequence[Part]) -> list[Part]:
    """What settings and timed passes say of the costs' shape (``cost.roofline``), as a launch's."""
    known, preset = log.settings, preset_of(log.stack, log.releases.since)
    size = int(setting(parts, "workload.group_size"))
    rollouts = int(setting(parts, "workload.batch_groups")) * size
    said = {key: setting for key, setting in known.items() if not setting.implied}
    found = [
        *engine_parts(said, preset),
        *adapter_parts(known),
        *pass_parts(known, Step(rollouts, size)),
        *role_parts(known, preset),
    ]
    seen = []
    if steps.has("update_s"):
        passes = sum(steps.has(name) for name in ("log_prob_s", "reference_s"))
        seen.append(Part(f"{TRAINER}.log_prob_passes", passes, "the passes that the log times"))
    if steps.has("critic_update_s"):
        seen.append(Part(f"{TRAINER}.critic", True, "the log times its updates"))
    return list(replaced(found, seen))
