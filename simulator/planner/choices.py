"""What there is to choose from: set-ups of GPUs, other keys of a scenario, and policies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.plan_section import CLUSTER_KEYS
from rollcast.simulator.scenario.scenario import Outline, Scenario, build_scenario

MOST_CHOICES = 20_000
MOST_SPLITS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """One combination. chosen: what was varied, by the keys of ``plan.choose``. settings: the keys
    of the scenario that follow, in order. policy: its spelling, with a label if it has one."""

    chosen: Mapping[str, Any]
    settings: Mapping[str, Any]
    policy: str

    def applied(self, raw: RawScenario) -> RawScenario:
        """The scenario with the settings. Raises ScenarioError, naming the key of the choice."""
        texts = [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]
        return override(raw, texts, option="plan.choose")

    def scenario(self, raw: RawScenario) -> Scenario:
        """The scenario to simulate. Raises ScenarioError where it cannot be run."""
        applied = self.applied(raw)
        # the scenario's own policy, which these settings may not allow, is not asked for
        plain = replace(applied, data={**applied.data, "policy": "sync"})
        return build_scenario(plain).with_policy(self.policy)

    @property
    def said(self) -> str:
        """In words: what was varied."""
        return ", ".join([*(f"{key} {value}" for key, value in self.chosen.items()), self.policy])


@dataclass(frozen=True, slots=True)
class Refused:
    """A combination that cannot be, and why; nothing was built."""

    chosen: Mapping[str, Any]
    policy: str
    problem: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """What of the scenario's cluster stays as it is: the GPUs of one replica are
    ``tensor_parallel * stages``; other_gpus are of reference, critic and reward models."""

    gpus: int
    placement: str
    tensor_parallel: int
    stages: int
    other_gpus: int
    gpus_per_node: int


def cluster_of(outline: Outline, gpus_per_node: int) -> Cluster:
    """The cluster that a scenario has."""
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
    """Every combination, in a fixed order; where GPUs are chosen, every split of them.

    apart: those of the policies that take GPUs of their own for the trainer: where placements are
    chosen among, they go with disaggregated ones alone.

    Raises ScenarioError (``plan.choose``) where there are too many.
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
        if "gpu" in chosen:
            others = {"gpu": chosen["gpu"], **others}
        try:
            splits = list(_splits(cluster, chosen, others))
        except ScenarioError as error:
            yield from (Refused(chosen, policy, str(error)) for policy in policies)
            continue
        for split in splits:
            for policy in policies:
                yield Choice({**chosen, **_shown(split, chosen)}, {**others, **split}, policy)


def _shown(split: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What of a split is not seen from what was chosen."""
    if split.get("cluster.placement") != "disaggregated" or "cluster.trainer_gpus" in chosen:
        return {}
    return {"trainer_gpus": split["cluster.trainer_gpus"]}


def _splits(
    cluster: Cluster, chosen: Mapping[str, Any], others: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The settings of each way to have the GPUs chosen; one without any where none are. Raises
    ScenarioError where there is no way."""
    named = {"gpus", "placement", "tensor_parallel"} & set(chosen)
    if not named:
        yield {}
        return
    tensor = int(chosen.get("tensor_parallel", cluster.tensor_parallel))
    stages = int(others.get("cluster.pipeline_parallel", cluster.stages))
    placement = str(chosen.get("placement", cluster.placement))
    fixed = {"cluster.placement": placement, "cluster.tensor_parallel": tensor}
    held = int(chosen.get("gpus", cluster.gpus))
    gpus = held - cluster.other_gpus
    if "cluster.replicas" in others or "cluster.trainer_gpus" in others:
        yield fixed
        return
    for replicas, trainer in ways_to_split(gpus, tensor * stages, placement, cluster.gpus_per_node):
        yield {**fixed, "cluster.replicas": replicas, "cluster.trainer_gpus": trainer}


def ways_to_split(
    gpus: int, replica_gpus: int, placement: str, gpus_per_node: int
) -> list[tuple[int, int]]:
    """(replicas, trainer GPUs) of every way to hold ``gpus`` GPUs. Up to a node's GPUs are split
    one by one, more in whole nodes, in steps so large that there are no more than `MOST_SPLITS`.

    Raises ScenarioError where there is none: GPUs that make no whole nodes, a replica that lies
    across nodes, or too few of them.
    """
    node = gpus_per_node
    if gpus > node and gpus % node:
        up = -(-gpus // node) * node
        raise ScenarioError("gpus", f"GPUs come in nodes of {node}; take {up - node} or {up}")
    if (node % replica_gpus if replica_gpus < node else replica_gpus % node) != 0:
        raise ScenarioError(
            "tensor_parallel", f"replicas of {replica_gpus} GPUs lie across nodes of {node}"
        )
    if placement == "colocated":
        if gpus < replica_gpus or gpus % replica_gpus:
            raise ScenarioError("gpus", f"{gpus} are not filled by replicas of {replica_gpus}")
        return [(gpus // replica_gpus, gpus)]
    unit = 1 if gpus <= node else node * -(-(gpus // node) // MOST_SPLITS)
    splits = [
        ((gpus - trainer) // replica_gpus, trainer)
        for trainer in range(unit, gpus, unit)
        if (gpus - trainer) % replica_gpus == 0
    ]
    if not splits:
        raise ScenarioError(
            "gpus", f"{gpus} leave no split into a trainer and replicas of {replica_gpus}"
        )
    return splits
