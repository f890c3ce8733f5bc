"""Changes of a scenario that would make it fit into memory: values of `knobs`, by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollcast.simulator.costs.backends import BACKENDS
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import FUSED_CHUNK_TOKENS
from rollcast.simulator.scenario.knobs import Knob, knobs_of
from rollcast.simulator.scenario.ledger import Sized, batch_of, ledger_of_batch, roofline_of
from rollcast.simulator.stacks.syntax.yaml_text import spelt

if TYPE_CHECKING:
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.costs.roofline.memory_phases import Batch

MOST = 4
_ROOFLINE, _TRAINER = "cost.roofline", "cost.roofline.trainer"
_GPUS, _CAP = "cluster.trainer_gpus", "workload.max_new_tokens"
_SHARE = f"{_ROOFLINE}.kv_memory_utilization"
_SPLITS = (f"{_TRAINER}.tensor_parallel", "cluster.tensor_parallel")
_NEEDS_LESS = {
    f"{_ROOFLINE}.offload_optimizer": True,
    f"{_ROOFLINE}.engine_sleep": "offload",
    f"{_TRAINER}.recompute": "full",
    f"{_TRAINER}.logits_chunk_tokens": FUSED_CHUNK_TOKENS,
    f"{_TRAINER}.optimizer_on_host": True,
    f"{_TRAINER}.sharding": "fsdp",
    f"{_TRAINER}.states_on_host": True,
    f"{_TRAINER}.weights": "lora",
}
"""Of keys without an order, the value that needs least memory."""
_MILDEST_FIRST = (
    *(f"{_ROOFLINE}.offload_optimizer", f"{_ROOFLINE}.engine_sleep", _SHARE),
    *(f"{_TRAINER}.microbatch_tokens", f"{_TRAINER}.microbatch_rollouts"),
    *(f"{_TRAINER}.recompute", f"{_TRAINER}.logits_chunk_tokens", _GPUS, _SPLITS[0]),
    *(f"{_TRAINER}.optimizer_on_host", f"{_TRAINER}.sharding", f"{_TRAINER}.states_on_host"),
    *(f"{_TRAINER}.weights", _SPLITS[1], _CAP),
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Keys and the values at which the scenario fits: one key, or two that go together."""

    changes: tuple[tuple[str, Any], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """What changes."""
        return tuple(key for key, _ in self.changes)

    def __str__(self) -> str:
        if self.keys == (_GPUS,):
            return f"{self.changes[0][1]} trainer GPUs"
        return " with ".join(f"{key}: {spelt(value)}" for key, value in self.changes)


def remedies(scenario: Sized, most: int = MOST) -> tuple[Remedy, ...]:
    """Up to ``most`` changes at which the ledger says that the scenario fits; the mildest first.
    Each is of one key, or of the engine's share and another where no key but more GPUs is enough.
    Empty where its costs know of no memory."""
    cost = roofline_of(scenario.cost)
    return () if cost is None else _remedies(cost, batch_of(scenario))[:most]


@lru_cache(maxsize=8)  # a plan asks for a setting that fits, and again to say that none does
def _remedies(cost: RooflineCost, batch: Batch) -> tuple[Remedy, ...]:
    found: list[Remedy] = []
    for remedy, changed, used in _candidates(cost, batch):
        if remedy.keys not in [one.keys for one in found] and _fits(changed, used):
            found.append(remedy)
    if all(_GPUS in one.keys for one in found):
        found = [*_with_share(cost, batch), *found]
    return tuple(found)


def unasked(scenario: Sized, kept: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The mildest settings of trainer and engine at which a scenario more likely fits than not:
    those that its stack has, and on which nothing of what is learned depends. kept: keys that stay.
    Empty where it fits as it is, where no such setting makes it fit, and where its costs know of
    no memory."""
    cost, ledger = roofline_of(scenario.cost), scenario.ledger
    if cost is None or ledger is None or ledger.fits:
        return {}
    offered = knobs_of(cost.stack, cost.trainer_of.backend, cost.placement, cost.model)
    free = {knob.key for knob in offered if knob.effect != "training"} - kept - {_GPUS}
    for remedy in remedies(scenario, len(_MILDEST_FIRST)):
        if free.issuperset(remedy.keys):
            return dict(remedy.changes)
    return {}


def _with_share(cost: RooflineCost, batch: Batch) -> Iterator[Remedy]:
    """The mildest change beside a smaller share of the engine, if there is one that fits."""
    for share, smaller, _ in _candidates(cost, batch):
        if share.keys == (_SHARE,) and share.changes[0][1] < cost.kv_memory_utilization:
            for other, changed, used in _candidates(smaller, batch):
                alone = _GPUS not in other.keys and _SHARE not in other.keys
                if alone and _fits(changed, used):
                    yield Remedy((*share.changes, *other.changes))
                    return


def _fits(cost: RooflineCost, batch: Batch) -> bool:
    with suppress(ScenarioError):  # a split that does not divide
        return ledger_of_batch(cost, batch).fits
    return False


def _candidates(cost: RooflineCost, batch: Batch) -> Iterator[tuple[Remedy, RooflineCost, Batch]]:
    """Changes with what they change, the mildest first. Those that are refused are left out."""
    backend = cost.trainer_of.backend
    offered: dict[str, Knob] = {}
    for able in (backend,) if backend else BACKENDS:
        for knob in knobs_of(None, able, cost.placement, cost.model):
            offered.setdefault(knob.key, knob)
    for key in _MILDEST_FIRST:
        if key == _GPUS:
            yield from _more_gpus(cost, batch)
            continue
        now = _now(cost, batch, key)
        for value in _milder(offered[key].others(now), now, key) if key in offered else ():
            with suppress(ScenarioError):
                yield Remedy(((key, value),)), *_changed(cost, batch, key, value)


def _now(cost: RooflineCost, batch: Batch, key: str) -> Any:
    """The value of a key."""
    if key == _CAP:
        return batch.new_tokens
    owner: Any = cost.trainer_of if key.startswith(f"{_TRAINER}.") else cost
    name = key.rpartition(".")[2]
    return owner.kept if name == "sharding" else getattr(owner, name)


def _milder(values: tuple[Any, ...], now: Any, key: str) -> Iterator[Any]:
    """Values that need less memory, those that change least first: of what is counted the smaller
    ones, of a split or of an engine's share the larger ones too."""
    if key in (_SHARE, *_SPLITS):
        more = (value for value in values if value > now)
        less = (value for value in reversed(values) if key == _SHARE and value < now)
        yield from (*less, *more)
    elif isinstance(now, int) and not isinstance(now, bool):
        yield from (value for value in reversed(values) if value < now)
    elif key in _NEEDS_LESS:
        yield from (value for value in values if value == _NEEDS_LESS[key])


def _changed(cost: RooflineCost, batch: Batch, key: str, value: Any) -> tuple[RooflineCost, Batch]:
    """With another value; a pass is no shorter than the longest rollout."""
    name = key.rpartition(".")[2]
    if key == _CAP:
        mean = min(batch.mean_tokens, batch.prompt_tokens + value)
        return cost, replace(batch, new_tokens=value, mean_tokens=mean)
    if not key.startswith(f"{_TRAINER}."):
        return replace(cost, **{name: value}), batch
    if name == "microbatch_tokens" and value < batch.longest:
        raise ScenarioError(key, "is shorter than a rollout")
    return replace(cost, trainer=replace(cost.trainer_of, **{name: value})), batch


def _more_gpus(cost: RooflineCost, batch: Batch) -> Iterator[tuple[Remedy, RooflineCost, Batch]]:
    for times in (2, 4, 8):
        with suppress(ScenarioError):
            gpus = times * cost.trainer_of.gpus
            trainer = replace(cost.trainer_of, gpus=gpus)
            more: dict[str, Any] = {"trainer": trainer, "trainer_gpus": gpus}
            if cost.placement == "colocated":
                replicas = times * cost.replicas
                changed = replace(cost, replicas=replicas, **more)
                both = (("cluster.replicas", replicas), (_GPUS, gpus))
                yield Remedy(both), changed, batch
            else:
                yield Remedy(((_GPUS, gpus),)), replace(cost, **more), batch
