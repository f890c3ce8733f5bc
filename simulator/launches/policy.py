"""The policy that a launch or a log runs, as far as its settings say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.stacks.exported import PLAN_FILE, read_exported
from rollcast.simulator.stacks.settings import Settings, value, whole

_OLDEST = 10_000
"""The largest bound on staleness, in versions."""


def policy_part(known: Settings, overlapped: bool, stack: str, rules: Mapping[str, Any]) -> Part:
    """The policy of the run itself, as far as its settings say. overlapped: whether rollouts
    overlap training. rules: options of `fully_async` that ``stack`` runs (`StackLog.fully_async`).
    """
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
        options: dict[str, Any] = {"max_staleness": bound, **rules, **_in_flight(known, rules)}
        syncs = whole(known, "run.sync_every")
        if syncs is not None and 1 < syncs <= bound + 1:
            options["sync_every"] = syncs
        source = f"{setting.source}; {' and '.join(rules)} as in {stack}"
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


def _in_flight(known: Settings, rules: Mapping[str, Any]) -> dict[str, float]:
    """Batches in flight, where nothing else limits what is started."""
    if rules["exceeded"] != "window":
        return {}
    sizes = [whole(known, key) for key in ("workload.batch_groups", "workload.group_size")]
    most = whole(known, "run.in_flight_rollouts")
    if most is not None and most > 0 and all(sizes):
        return {"in_flight": max(round(most / math.prod(filter(None, sizes)), 4), 1.0)}
    if rules.get("in_flight") == "max_staleness":
        return {"in_flight": max(float(known["run.max_staleness"].value), 1.0)}
    return {}
