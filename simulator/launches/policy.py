"""The policy that a launch or a log runs, as far as its settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.stacks.exported import PLAN_FILE, read_exported
from rollcast.simulator.stacks.settings import Settings, value, whole

_OLDEST = 10_000
"""The largest bound on staleness, in versions."""


def policy_part(known: Settings, overlapped: bool, stack: str, exceeded: str) -> Part:
    """The policy of the run itself, as far as its settings say. overlapped: whether rollouts
    overlap training. exceeded: what ``stack`` does with rollouts beyond the bound on staleness, as
    `fully_async` spells it."""
    own = known.get("policy")
    if own is not None and isinstance(own.value, str):
        source = f"{own.theirs} is {own.value} in {own.place}"
        return Part("policy", [] if own.value == SYNCHRONOUS else own.value, source)
    if (exported := _exported(known)) is not None:
        return exported
    over, batch = whole(known, "run.over_sampling_groups"), whole(known, "workload.batch_groups")
    if value(known, "run.partial_rollout") is True and over and batch and over >= batch:
        place = known["run.over_sampling_groups"].place
        source = f"partial rollouts, {over} groups for {batch} ({place})"
        return Part("policy", [{"april": {"over_sampling": over / batch}}], source)
    if not overlapped:
        return Part("policy", [], "rollouts and training took turns")
    if own is not None and own.implied:
        return Part("policy", own.value, own.source)
    bound = value(known, "run.max_staleness")
    if isinstance(bound, int | float) and not isinstance(bound, bool) and 0 < bound <= _OLDEST:
        setting = known["run.max_staleness"]
        options: dict[str, Any] = {"max_staleness": bound, "exceeded": exceeded}
        syncs = whole(known, "run.sync_every")
        if syncs is not None and 1 < syncs <= bound + 1:
            options["sync_every"] = syncs
        source = f"{setting.source}; exceeded as {stack} does"
        return Part("policy", [{"fully_async": options}], source)
    return Part("policy", ["one_step_off"], "assumed: rollouts overlapped training", True)


def _exported(known: Settings) -> Part | None:
    """By the plan beside an exported sampler, where it is still there."""
    sampler = known.get("run.sampler")
    if sampler is None or not isinstance(sampler.value, str):
        return None
    try:
        plan = Path(sampler.value).with_name(PLAN_FILE)
        exported = read_exported(plan)
        exported.chain()
    except (ScenarioError, ValueError):  # nobody's, no path, or a policy that is not here
        return None
    source = f"{plan}, beside the sampler of {sampler.source}"
    text = exported.policy
    return Part("policy", [] if text == SYNCHRONOUS else text, source)
