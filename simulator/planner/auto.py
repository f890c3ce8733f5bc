"""What there is to choose where nobody says: GPUs from the least that fits, and policies that make
sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.planner.choices import Choice, Cluster, enumerated
from rollcast.simulator.planner.estimate import estimate
from rollcast.simulator.planner.measure import Failure
from rollcast.simulator.policies import check_policy, decisions, name_of, parse_policy, spell
from rollcast.simulator.policy import chain
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Outline, build_policies

MOST_GPUS = 4096
TIMES_THE_LEAST = 8
SCHEDULES = ("sync", "april(over_sampling=1.5)", "one_step_off", "fully_async(max_staleness=2)")
"""The policies that are tried where none is named."""

TELLING = frozenset({"over_sampling", "max_staleness"})
"""Parameters without which a policy's name says little."""

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


def choose(outline: Outline, cluster: Cluster, most_gpus: int | None) -> dict[str, Sequence[Any]]:
    """What to choose of the cluster: GPUs at powers of two from the least that fits to their limit
    (without one to `TIMES_THE_LEAST` times the least, or twice what the scenario has, if that is
    more), both placements, tensor parallelism up to a node. Nothing where costs do not follow from
    the GPUs: fitted or linear ones hold for the cluster that they were fitted to."""
    if outline.sections.cost.of_the_roofline is None or outline.sections.gpu is None:
        return {}
    widths = [n for n in (1, 2, 4, 8, 16, 32) if n <= cluster.gpus_per_node]
    if cluster.tensor_parallel not in widths:
        widths = sorted({*widths, cluster.tensor_parallel})
    axes: dict[str, Sequence[Any]] = {
        "placement": ["colocated", "disaggregated"],
        "tensor_parallel": widths,
    }
    least = _least(outline.raw, cluster, axes)
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
    """The scenario's own chain, and `SCHEDULES` with what of it does not schedule: selection,
    filters, group sizes, the layout. staleness: its limit; 0 leaves synchronous schedules."""
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
        if staleness == 0 and schedule.startswith(("one_step_off", "fully_async")):
            continue
        for text in _joined(schedule, rest):
            if _works(outline, text):
                listed.append(text)
                break
    mine = own_policy(outline)
    return listed if mine in listed else [mine, *listed]


def own_policy(outline: Outline) -> str:
    """The scenario's own chain, spelt with what matters most even where it is the default."""
    return spell(build_policies(outline.sections.policy, 0, outline.raw.modules), TELLING)


def _joined(schedule: str, rest: str) -> list[str]:
    if not rest:
        return [schedule]
    if schedule == "sync":
        return [rest]
    return [f"{schedule}+{rest}", f"{rest}+{schedule}"]


def _works(outline: Outline, text: str) -> bool:
    """Whether the policies go together; where they run is another question."""
    try:
        check_policy(parse_policy(text, folder=outline.raw.modules), outline.plan)
    except RollcastError:
        return False
    return True
