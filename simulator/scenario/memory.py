"""Whether a scenario fits into memory, judged before its run at the longest possible rollout."""

from __future__ import annotations

from dataclasses import replace

from rollcast.simulator.cluster.replica import check_pool
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.memory.ledger import REFUSED_BELOW, Ledger
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.text import MEMORY_PHASES
from rollcast.simulator.scenario.ledger import Sized, batch_of, ledger_of_batch, roofline_of
from rollcast.simulator.workload.base import (
    TracedWorkload,
    Workload,
    WorkloadOfTurns,
    longest_context,
    longest_rollout,
)

_TRAINER = "cost.roofline.trainer"
_FIELDS: dict[str, str] = {
    "engine_share": "cost.roofline.kv_memory_utilization",
    "engine": "cluster.tensor_parallel",
    "reference": "cost.roofline.trainer.reference_gpus",
    "critic": "cost.roofline.trainer.critic_gpus",
    "reward": "cost.roofline.trainer.reward_gpus",
}


def check_memory(scenario: Sized, *, likely: bool = False, remedied: bool = True) -> None:
    """Raises ScenarioError where the longest rollout does not fit a replica's KV pool, or where the
    ledger says that it is clear that GPUs run out of memory (`REFUSED_BELOW`), or with ``likely``
    that they more likely do than not. remedied: whether the error names what would fit, the search
    for which is most of the time. Runs nothing."""
    workload, engine = scenario.workload, scenario.engine
    longest = workload.max_prompt_tokens
    check_pool(engine, longest, longest_context(workload) - longest)
    prompt, new = longest_rollout(workload)
    layout = scenario.policy.plan(scenario.plan, scenario.policy.init()).layout
    try:
        ledger, least = scenario.ledger, 0.5 if likely else REFUSED_BELOW
        short = ledger is not None and ledger.fits_probability < least
        if ledger is not None and short and _chance_offloaded(scenario) < least:
            raise _refusal(scenario, ledger, remedied)
        scenario.cost.train(TrainLoad([(prompt, [new])], layout == "shared_prefix"))
    except ScenarioError as error:
        raise ScenarioError(
            error.field,
            f"{error.message}. Memory is checked for the longest rollout that {_cap_of(workload)} "
            f"allows: {prompt:,} tokens of prompt and {new:,} new ones",
        ) from None


def _chance_offloaded(scenario: Sized) -> float:
    """Chance that the scenario fits with the states of a colocated trainer away while it generates,
    where nobody said that they stay; else 0."""
    cost = roofline_of(scenario.cost)
    if cost is None or cost.offload_said or cost.offload_optimizer:
        return 0.0
    offloaded = replace(cost, offload_optimizer=True)
    return ledger_of_batch(offloaded, batch_of(scenario)).fits_probability


def _cap_of(workload: Workload) -> str:
    if isinstance(workload, TracedWorkload):
        return "the trace"
    if isinstance(workload, WorkloadOfTurns):
        return "workload.max_context_tokens"
    return "workload.max_new_tokens"


def _refusal(scenario: Sized, ledger: Ledger, remedied: bool) -> ScenarioError:
    """What does not fit, where, by how much, and where ``remedied`` what would."""
    from rollcast.simulator.scenario.remedies import remedies  # what a run that fits never needs

    found = remedies(scenario) if remedied else ()
    instead = "; no change of one key is known to make it fit" if remedied else ""
    if found:
        instead = f"; what would fit: {', or '.join(map(str, found))}"
    if ledger.host_decides:
        return ScenarioError(
            "cost.roofline.host_memory_bytes",
            f"out of host memory: a node needs {ledger.host_total / 1e9:.0f} GB and may use "
            f"{(ledger.host_capacity_bytes or 0.0) / 1e9:.0f} GB{instead}",
        )
    phase, name = min(
        ledger.places,
        key=lambda at: (
            ledger.chance(*at),
            -ledger.total(*at) / ledger.pools[at[1]].capacity_bytes,
        ),
    )
    pool, wanted = ledger.pools[name], ledger.total(phase, name)
    parts = [
        (size, f"{part.replace('_', ' ')} of the {holding.role} {size / 1e9:.0f} GB")
        for holding in ledger.of(phase, name)
        for part, size in holding.bytes.items()
    ]
    held = ", ".join(words for _, words in sorted(parts, reverse=True)[:3])
    cost = roofline_of(scenario.cost)
    model = "the model" if cost is None else cost.model.name
    share = "its share of " if name == "engine_share" else ""
    field = _FIELDS.get(name, "cluster.trainer_gpus")
    if phase == "generation":
        field = "cost.roofline.kv_memory_utilization"
    elif f"{_TRAINER}.microbatch_tokens" in {key for one in found for key in one.keys}:
        field = f"{_TRAINER}.microbatch_tokens"
    return ScenarioError(
        field,
        f"out of memory {MEMORY_PHASES[phase]}: {model} needs {wanted / 1e9:.0f} GB of {share}each "
        f"of {pool.gpus} x {pool.gpu} ({pool.capacity_bytes / 1e9:.0f} GB usable), of which {held}"
        f"{instead}",
    )
