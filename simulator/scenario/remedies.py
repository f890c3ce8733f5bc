"""Single changes of a scenario that would make it fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.ledger import Sized, batch_of, ledger_of_batch, roofline_of

if TYPE_CHECKING:
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.costs.roofline.memory_phases import Batch

MOST = 4
_TRAINER = "cost.roofline.trainer"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A key and the value at which the scenario fits."""

    key: str
    value: Any

    def __str__(self) -> str:
        if self.key == "cluster.trainer_gpus":
            return f"{self.value} trainer GPUs"
        spelt = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.key}: {spelt}"


def remedies(scenario: Sized, most: int = MOST) -> tuple[Remedy, ...]:
    """Up to ``most`` changes, each of one key, at which the ledger says that the scenario fits; the
    mildest first. Empty where its costs know of no memory."""
    cost = roofline_of(scenario.cost)
    if cost is None:
        return ()
    batch = batch_of(scenario)
    found: list[Remedy] = []
    for remedy, changed, used in _candidates(cost, batch):
        if len(found) == most:
            break
        if remedy.key not in [one.key for one in found] and _fits(changed, used):
            found.append(remedy)
    return tuple(found)


def _fits(cost: RooflineCost, batch: Batch) -> bool:
    with suppress(ScenarioError):  # a split that does not divide
        return ledger_of_batch(cost, batch).fits
    return False


def _candidates(cost: RooflineCost, batch: Batch) -> Iterator[tuple[Remedy, RooflineCost, Batch]]:
    """Changes with what they change, the mildest first. Those that are refused are left out."""
    trainer = cost.trainer_of

    def trained(key: str, value: Any) -> Iterator[tuple[Remedy, RooflineCost, Batch]]:
        with suppress(ScenarioError):
            changed = replace(cost, trainer=replace(trainer, **{key: value}))
            yield Remedy(f"{_TRAINER}.{key}", value), changed, batch

    def roofline(key: str, value: Any) -> Iterator[tuple[Remedy, RooflineCost, Batch]]:
        with suppress(ScenarioError):
            yield Remedy(f"cost.roofline.{key}", value), replace(cost, **{key: value}), batch

    if cost.placement == "colocated":
        if not cost.offload_optimizer:
            yield from roofline("offload_optimizer", True)
        if cost.engine_sleep == "none":
            yield from roofline("engine_sleep", "offload")
    for hundredths in (95, 90, 85, 80, 70, 60, 50, 40, 30, 20):
        share = hundredths / 100
        if abs(share - cost.kv_memory_utilization) > 0.01:
            yield from roofline("kv_memory_utilization", share)
    for tokens in (65_536, 32_768, 16_384, 8192, 4096, 2048):
        if batch.longest <= tokens < (trainer.microbatch_tokens or 0):
            yield from trained("microbatch_tokens", tokens)
    rows = trainer.microbatch_rollouts or 1
    while rows > 1:
        rows //= 2
        yield from trained("microbatch_rollouts", rows)
    if trainer.recompute != "full":
        yield from trained("recompute", "full")
    if trainer.logits_chunk_tokens is None:
        yield from trained("logits_chunk_tokens", 1024)
    for times in (2, 4, 8):
        with suppress(ScenarioError):
            gpus = times * trainer.gpus
            more: dict[str, Any] = {"trainer": replace(trainer, gpus=gpus), "trainer_gpus": gpus}
            if cost.placement == "colocated":
                replicas = times * cost.replicas
                changed = replace(cost, replicas=replicas, **more)
                yield Remedy("cluster.replicas", replicas), changed, batch
            else:
                yield Remedy("cluster.trainer_gpus", gpus), replace(cost, **more), batch
    yield from trained("tensor_parallel", 2 * trainer.tensor_parallel)
    if not trainer.optimizer_on_host:
        yield from trained("optimizer_on_host", True)
    if trainer.kept not in ("fsdp", "hybrid"):
        yield from trained("sharding", "fsdp")
    elif not trainer.states_on_host:
        yield from trained("states_on_host", True)
    if trainer.weights == "full":
        yield from trained("weights", "lora")
    tensor = 2 * cost.tensor_parallel
    with suppress(ScenarioError):
        yield (
            Remedy("cluster.tensor_parallel", tensor),
            replace(cost, tensor_parallel=tensor),
            batch,
        )
    shorter = batch.longest
    while shorter > 512:
        shorter //= 2
        new = max(1, shorter - batch.prompt_tokens)
        used = replace(batch, new_tokens=new, mean_tokens=min(batch.mean_tokens, shorter))
        yield Remedy("workload.max_new_tokens", new), cost, used
