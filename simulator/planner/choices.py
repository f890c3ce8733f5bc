"""The choices of a plan: splits of GPUs, other keys of a scenario, policies."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import is_synchronous
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.plan_section import CLUSTER_KEYS, gpus_of
from rollcast.simulator.scenario.scenario import Outline, Scenario, build_scenario


@dataclass(frozen=True, slots=True)
class Held:
    """A key, and what is computed from: equal keys stand for equal results."""

    key: Hashable
    held: Any = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """Equal to another of the same object; keeps it, so that no other takes its place."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


MOST_CHOICES = 20_000
MOST_SPLITS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """One combination. chosen: values by key of ``plan.choose``. settings: resulting keys of the
    scenario, in order. policy: its spelling, with its label. unasked: those of the settings that
    nobody chose and without which it would not fit its memory."""

    chosen: Mapping[str, Any]
    settings: Mapping[str, Any]
    policy: str
    unasked: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, raw: RawScenario) -> RawScenario:
        """The scenario with the settings. Raises ScenarioError (``plan.choose``)."""
        texts = [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]
        return override(raw, texts, option="plan.choose")

    def scenario(self, raw: RawScenario) -> Scenario:
        """The scenario to simulate. Raises ScenarioError if it cannot run."""
        key = Same(raw), json.dumps(dict(self.settings))
        return _built(Held(key, (raw, self))).with_policy(self.policy)

    def fitting(self, unasked: Mapping[str, Any]) -> Choice:
        """With these settings beside the chosen ones."""
        return replace(self, settings={**self.settings, **unasked}, unasked=unasked)

    @property
    def synchronous(self) -> bool:
        """Whether the policy is the synchronous one, under whatever label."""
        return is_synchronous(self.policy)

    @property
    def name(self) -> str:
        """The chosen values and the policy."""
        return _text({**self.chosen, **self.unasked}, self.policy)


@lru_cache(maxsize=2)  # choices come policy by policy, some as chosen and so that they fit
def _built(choice: Held) -> Scenario:
    """The scenario of a choice under no policy."""
    raw, one = choice.held
    applied = one.applied(raw)
    # these settings may not allow the scenario's own policy
    return build_scenario(replace(applied, data={**applied.data, "policy": "sync"}))


@dataclass(frozen=True, slots=True)
class Refused:
    """A combination without any split of its GPUs."""

    chosen: Mapping[str, Any]
    policy: str
    problem: str

    @property
    def name(self) -> str:
        """The chosen values and the policy."""
        return _text(self.chosen, self.policy)


def _text(chosen: Mapping[str, Any], policy: str) -> str:
    return ", ".join([*(f"{key} {value}" for key, value in chosen.items()), policy])


@dataclass(frozen=True, slots=True)
class Cluster:
    """The scenario's cluster. A replica has ``tensor_parallel * stages`` GPUs; other_gpus: of
    reference, critic and reward models."""

    gpus: int
    placement: str
    tensor_parallel: int
    stages: int
    other_gpus: int
    gpus_per_node: int


def cluster_of(outline: Outline, gpus_per_node: int) -> Cluster:
    """The cluster of a scenario."""
    shape, stages = outline.shape, outline.sections.cluster.pipeline_parallel
    return Cluster(
        shape.held_gpus,
        "colocated" if shape.colocated else "disaggregated",
        shape.gpus_per_replica // stages,
        stages,
        shape.other_gpus,
        gpus_per_node,
    )


def enumerated(
    cluster: Cluster,
    choose: Mapping[str, Sequence[Any]],
    policies: Sequence[str],
    apart: frozenset[str] = frozenset(),
) -> list[Choice | Refused]:
    """Every combination, in a fixed order, with every split of chosen GPUs.

    apart: policies that need a trainer of its own; chosen placements give them disaggregated ones.
    Raises ScenarioError (``plan.choose``) for more than `MOST_CHOICES`.
    """
    choices: list[Choice | Refused] = []
    for choice in _enumerated(cluster, choose, policies, apart):
        choices.append(choice)
        if len(choices) > MOST_CHOICES:
            raise ScenarioError(
                "plan.choose", f"more than {MOST_CHOICES} choices are too many; choose among fewer"
            )
    return choices


def _enumerated(
    cluster: Cluster,
    choose: Mapping[str, Sequence[Any]],
    every: Sequence[str],
    apart: frozenset[str],
) -> Iterator[Choice | Refused]:
    for values in product(*choose.values()):
        chosen = dict(zip(choose, values, strict=True))
        policies = every
        if chosen.get("placement") == "colocated" and "disaggregated" in choose["placement"]:
            policies = [policy for policy in every if policy not in apart]
        others = {
            part: value
            for key, value in chosen.items()
            if key not in CLUSTER_KEYS
            for part in key.split("=")
        }
        kind = gpus_of(chosen["gpus"])[1] if "gpus" in chosen else None
        if kind or "gpu" in chosen:
            others = {"gpu": kind or chosen["gpu"], **others}
        try:
            splits = list(_splits(cluster, chosen, others))
        except ScenarioError as error:
            yield from (Refused(chosen, policy, str(error)) for policy in policies)
            continue
        for split in splits:
            for policy in policies:
                yield Choice({**chosen, **_shown(split, chosen)}, {**others, **split}, policy)


def _shown(split: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a split that ``chosen`` does not show."""
    if split.get("cluster.placement") != "disaggregated" or "cluster.trainer_gpus" in chosen:
        return {}
    return {"trainer_gpus": split["cluster.trainer_gpus"]}


def _splits(
    cluster: Cluster, chosen: Mapping[str, Any], others: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The settings of each split of the chosen GPUs. Raises ScenarioError if there is none."""
    named = {"gpus", "placement", "tensor_parallel"} & set(chosen)
    if not named:
        yield {}
        return
    tensor = int(chosen.get("tensor_parallel", cluster.tensor_parallel))
    stages = int(others.get("cluster.pipeline_parallel", cluster.stages))
    placement = str(chosen.get("placement", cluster.placement))
    fixed = {"cluster.placement": placement, "cluster.tensor_parallel": tensor}
    held = gpus_of(chosen.get("gpus", cluster.gpus))[0]
    gpus = held - cluster.other_gpus
    if "cluster.replicas" in others or "cluster.trainer_gpus" in others:
        yield fixed
        return
    for replicas, trainer in ways_to_split(gpus, tensor * stages, placement, cluster.gpus_per_node):
        yield {**fixed, "cluster.replicas": replicas, "cluster.trainer_gpus": trainer}


def ways_to_split(
    gpus: int, replica_gpus: int, placement: str, gpus_per_node: int
) -> list[tuple[int, int]]:
    """(replicas, trainer GPUs) of every split of ``gpus`` GPUs: within a node one by one, else in
    whole nodes, at most `MOST_SPLITS`.

    Raises ScenarioError for partial nodes, a replica across nodes, or no split.
    """
    node = gpus_per_node
    if gpus > node and gpus % node:
        up = -(-gpus // node) * node
        raise ScenarioError("gpus", f"GPUs come in nodes of {node}; take {up - node} or {up}")
    if (node % replica_gpus if replica_gpus < node else replica_gpus % node) != 0:
        raise ScenarioError(
            "tensor_parallel", f"replicas of {replica_gpus} GPUs do not fit into nodes of {node}"
        )
    if placement == "colocated":
        if gpus < replica_gpus or gpus % replica_gpus:
            raise ScenarioError(
                "gpus", f"{gpus} GPUs cannot be divided into replicas of {replica_gpus}"
            )
        return [(gpus // replica_gpus, gpus)]
    unit = 1 if gpus <= node else node * -(-(gpus // node) // MOST_SPLITS)
    splits = [
        ((gpus - trainer) // replica_gpus, trainer)
        for trainer in range(unit, gpus, unit)
        if (gpus - trainer) % replica_gpus == 0
    ]
    if not splits:
        raise ScenarioError(
            "gpus", f"{gpus} GPUs cannot be split into a trainer and replicas of {replica_gpus}"
        )
    return splits
