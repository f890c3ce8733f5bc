"""Default choices of a plan: GPUs from the fewest that fit, and common policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollcast.simulator.core.policy import chain
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.planner.choices import Choice, Cluster, enumerated
from rollcast.simulator.planner.estimate import estimate
from rollcast.simulator.planner.measure import Failure
from rollcast.simulator.policies import (
    build_chain,
    check_policy,
    decisions,
    name_of,
    parse_policy,
    spell,
)
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Outline

MOST_GPUS = 4096
TIMES_THE_LEAST = 8
SCHEDULES = (
    *("sync", "april(over_sampling=1.5)", "april(over_sampling=2)", "partial_rollout"),
    *("colocate_async", "one_step_off", "fully_async(max_staleness=2)"),
)
"""Default policies."""

_AHEAD = ("colocate_async", "one_step_off", "fully_async")  # always train on older versions
TELLING = frozenset({"over_sampling", "max_staleness"})  # parameters that are always spelt

_SCHEDULING = (
    "launch",
    "stop",
    "interrupt",
    "unfinished",
    "staleness",
    "surplus",
    "take",
    "budget_tokens",
    "budget_turns",
    "dispatch",
    "sync_every",
    "stream_groups",
)


def choose(
    outline: Outline,
    cluster: Cluster,
    most_gpus: int | None,
    chosen: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Sequence[Any]]:
    """Choices of what nobody chose of the cluster: powers of two of GPUs from the fewest that fit
    up to the limit (default: `TIMES_THE_LEAST` times as many, or twice the scenario's), both
    placements (one where the trainer's GPUs are of another kind), tensor parallelism up to a node.
    None for fitted and linear costs, which hold for one cluster.

    chosen: what is chosen already; what it decides is left out.
    """
    chosen = chosen or {}
    decided = {part for key in chosen for part in key.split("=")}
    if outline.sections.cost.of_the_roofline is None or outline.sections.gpu is None:
        return {}
    widths = [n for n in (1, 2, 4, 8, 16, 32) if n <= cluster.gpus_per_node]
    if cluster.tensor_parallel not in widths:
        widths = sorted({*widths, cluster.tensor_parallel})
    apart = outline.sections.cluster.trainer_gpu is not None or "cluster.trainer_gpu" in decided
    axes: dict[str, Sequence[Any]] = {
        "placement": ["disaggregated"] if apart else ["colocated", "disaggregated"],
        "tensor_parallel": widths,
    }
    axes = {key: values for key, values in axes.items() if not {key, f"cluster.{key}"} & decided}
    if decided & {"gpus", "cluster.replicas", "cluster.trainer_gpus"}:
        return axes
    fitting = {key: chosen[key] for key in ("gpu", "placement", "tensor_parallel") if key in chosen}
    least = _least(outline.raw, cluster, {**fitting, **axes})
    if least is None:
        return {"gpus": [cluster.gpus], **axes}
    most = min(most_gpus or max(TIMES_THE_LEAST * least, 2 * cluster.gpus), MOST_GPUS)
    listed = [n for n in (2**i for i in range(13)) if least <= n <= most] or [least]
    return {"gpus": listed, **axes}


def _least(raw: RawScenario, cluster: Cluster, axes: dict[str, Sequence[Any]]) -> int | None:
    """The smallest power of two of GPUs on which the scenario runs synchronously."""
    gpus = 1
    while gpus <= MOST_GPUS:
        for choice in enumerated(cluster, {"gpus": [gpus], **axes}, ["sync"]):
            if isinstance(choice, Choice) and not isinstance(estimate(raw, choice), Failure):
                return gpus
        gpus *= 2
    return None


def policies(outline: Outline, staleness: float | None) -> list[str]:
    """The scenario's own chain, and `SCHEDULES` with those of its policies that do not schedule.
    staleness: its limit; 0 leaves synchronous schedules."""
    plan, policy = outline.plan, outline.policy
    names = [name_of(member) for member in policy.policies]
    kept = [
        member
        for member, made in zip(policy.policies, decisions.made(policy, plan, names), strict=True)
        if not any(path.split(".")[0] in _SCHEDULING for path in made.claim.decides)
    ]
    rest = spell(chain(*kept)) if kept else ""
    listed: list[str] = []
    for schedule in SCHEDULES:
        if staleness == 0 and schedule.startswith(_AHEAD):
            continue
        for text in _joined(schedule, rest):
            if _works(outline, text):
                listed.append(text)
                break
    mine = own_policy(outline)
    return [mine, *(text for text in listed if text != mine)]


def own_policy(outline: Outline) -> str:
    """The scenario's own chain, spelt with its `TELLING` parameters."""
    return spell(build_chain(outline.sections.policy, folder=outline.raw.modules), TELLING)


def _joined(schedule: str, rest: str) -> list[str]:
    if not rest:
        return [schedule]
    if schedule == "sync":
        return [rest]
    return [f"{schedule}+{rest}", f"{rest}+{schedule}"]


def _works(outline: Outline, text: str) -> bool:
    """Whether the policies are compatible."""
    try:
        check_policy(parse_policy(text, folder=outline.raw.modules), outline.plan)
    except RollcastError:
        return False
    return True
