"""Whether a scenario fits into memory, judged before its run at the longest possible rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcast.simulator.cluster.replica import check_pool
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.ledger import Sized, ledger_of
from rollcast.simulator.scenario.remedies import remedies
from rollcast.simulator.workload.base import (
    TracedWorkload,
    Workload,
    WorkloadOfTurns,
    longest_context,
    longest_rollout,
)

if TYPE_CHECKING:
    from rollcast.simulator.costs.memory.ledger import Ledger, MemoryPhase

_FIELDS: dict[str, str] = {
    "engine_share": "cost.roofline.kv_memory_utilization",
    "engine": "cluster.tensor_parallel",
    "reference": "cost.roofline.trainer.reference_gpus",
    "critic": "cost.roofline.trainer.critic_gpus",
    "reward": "cost.roofline.trainer.reward_gpus",
}
_WORK: dict[MemoryPhase, str] = {
    "start": "at the start",
    "generation": "while it generates",
    "switch": "as the engine wakes",
    "log_prob": "in the passes before the update",
    "update": "in the update",
    "optimizer_step": "in the optimiser step",
    "sync": "while weights are sent",
}


def check_memory(scenario: Sized) -> None:
    """Raises ScenarioError where the longest rollout does not fit a replica's KV pool, or where the
    ledger says that GPUs run out of memory (`Ledger.refused`). Runs nothing."""
    workload, engine = scenario.workload, scenario.engine
    longest = workload.max_prompt_tokens
    check_pool(engine, longest, longest_context(workload) - longest)
    prompt, new = longest_rollout(workload)
    layout = scenario.policy.plan(scenario.plan, scenario.policy.init()).layout
    try:
        ledger = ledger_of(scenario)
        if ledger is not None and ledger.refused:
            raise _refusal(scenario, ledger)
        scenario.cost.train(TrainLoad([(prompt, [new])], layout == "shared_prefix"))
    except ScenarioError as error:
        raise ScenarioError(
            error.field,
            f"{error.message}. Memory is checked for the longest rollout that {_cap_of(workload)} "
            f"allows: {prompt:,} tokens of prompt and {new:,} new ones",
        ) from None


def _cap_of(workload: Workload) -> str:
    if isinstance(workload, TracedWorkload):
        return "the trace"
    if isinstance(workload, WorkloadOfTurns):
        return "workload.max_context_tokens"
    return "workload.max_new_tokens"


def _refusal(scenario: Sized, ledger: Ledger) -> ScenarioError:
    """What does not fit, where, by how much, and what would."""
    phase, name = min(ledger.places, key=lambda at: ledger.chance(*at))
    pool, wanted = ledger.pools[name], ledger.total(phase, name)
    largest = sorted(
        (
            (size, holding.role, part)
            for holding in ledger.of(phase, name)
            for part, size in holding.bytes.items()
        ),
        reverse=True,
    )[:3]
    held = ", ".join(
        f"{part.replace('_', ' ')} of the {role} {size / 1e9:.0f} GB"
        for size, role, part in largest
    )
    found = remedies(scenario)
    instead = (
        f"what would fit: {', or '.join(map(str, found))}"
        if found
        else ("no single key that is known to save memory makes it fit")
    )
    whose = "its share of each" if name == "engine_share" else "each"
    field = _FIELDS.get(name, found[0].key if found else "cluster.trainer_gpus")
    return ScenarioError(
        field,
        f"out of memory {_WORK[phase]}: {wanted / 1e9:.0f} GB of {whose} {pool.gpu} "
        f"({pool.capacity_bytes / 1e9:.0f} GB) on {pool.gpus} GPUs, of which {held}; {instead}",
    )
