"""The question of a plan, with defaults for what it leaves open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner import auto
from rollcast.simulator.planner.choices import Cluster, cluster_of
from rollcast.simulator.planner.goal import Objective, objective_of
from rollcast.simulator.planner.race import Rungs
from rollcast.simulator.planner.whole_run import Work, quality_of, work_of
from rollcast.simulator.policies import parse_labelled
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.plan_section import CLUSTER_KEYS, PlanSection, check_cluster_choice
from rollcast.simulator.scenario.scenario import Outline, outline, overlapping
from rollcast.simulator.scenario.sections import ScenarioModel, validate
from rollcast.simulator.values import keys as keys_of
from rollcast.simulator.values import nearest


@dataclass(frozen=True)
class Question:
    """A scenario, the work, the choices, limits and objective.

    apart: policies whose trainer needs its own GPUs. quality: updates to the target by policy, over
    synchronous ones. intervals: whether to compute intervals. narrowed: a sentence on what the user
    chose, and what was left open. open_policies: whether nobody chose policies, so that their
    numbers may be refined.
    """

    raw: RawScenario
    name: str
    work: Work
    choose: Mapping[str, Sequence[Any]]
    policies: Sequence[str]
    objective: Objective
    cluster: Cluster
    apart: frozenset[str] = frozenset()
    quality: Mapping[str, float] = field(default_factory=dict)
    rungs: Rungs = field(default_factory=Rungs)
    intervals: bool = True
    narrowed: str = ""
    open_policies: bool = False

    def plain(self) -> dict[str, Any]:
        """The question as plain data, for its digest."""
        return {
            "scenario": self.raw.data,
            "folder": str(self.raw.folder.resolve()),
            "work": asdict(self.work),
            "choose": self.choose,
            "policies": list(self.policies),
            "objective": self.objective.name,
            "limits": asdict(self.objective.limits),
            "quality": dict(self.quality),
            "rungs": asdict(self.rungs),
            "intervals": self.intervals,
            "cluster": asdict(self.cluster),
        }


def question(
    raw: RawScenario,
    section: PlanSection | None = None,
    policies: Sequence[str] = (),
    intervals: bool = True,
) -> Question:
    """The question of ``section``, by default the scenario's ``plan``; `simulator.planner.auto`
    completes it.

    policies: replace those of the section. Raises ScenarioError.
    """
    asked = section or validate(raw.data).plan or PlanSection()
    plain = replace(raw, data={key: value for key, value in raw.data.items() if key != "plan"})
    scenario = outline(plain)
    limits = asked.limits
    cluster = cluster_of(scenario, asked.gpus_per_node)
    choose: dict[str, Any] = dict(asked.choose or {})
    check_cluster_choice(choose)
    place = "--policy" if policies else "plan.choose.policy"
    listed = [text.strip() for text in policies or choose.get("policy", ())]
    choose.pop("policy", None)
    listed += _policies_of_settings(plain, choose, listed)
    asked_for = [*choose, *(["policy"] if listed else [])]
    _check_keys(plain, choose)
    opened = auto.choose(scenario, cluster, limits.gpus, choose)
    choose.update(opened)
    if not listed:
        listed = auto.policies(scenario, limits.staleness)
        opened["policy"] = listed
    apart = frozenset(_apart(scenario, listed, place))
    batch = scenario.plan.batch
    quality = {str(name): float(value) for name, value in (asked.quality or {}).items()}
    for name in quality:
        _check_quality(name, listed)
    objective = Objective(objective_of(asked.objective, limits), limits)
    return Question(
        plain,
        scenario.name,
        work_of(asked.run, batch.groups * batch.group_size),
        choose,
        listed,
        objective,
        cluster,
        apart,
        quality,
        Rungs.of(batch.groups * batch.group_size),
        intervals,
        _narrowed(asked_for, opened),
        "policy" in opened,
    )


def _narrowed(asked_for: Sequence[str], opened: Mapping[str, Sequence[Any]]) -> str:
    """Which choices are the user's, and which were left open; empty where all were."""
    if not asked_for:
        return ""
    fixed = ", ".join(asked_for)
    if not opened:
        return f"The search is as narrow as was asked: {fixed}."
    words = {"gpus": "the number of GPUs", "policy": "the policy"}
    free = ", ".join(words.get(key, key) for key in opened)
    return f"The search is narrowed by {fixed}; open are {free}."


def _policies_of_settings(
    raw: RawScenario, choose: dict[str, Any], listed: Sequence[str]
) -> list[str]:
    """Moves choices of policy keys (``policy.april.over_sampling``) from ``choose`` into policies.
    Raises ScenarioError (``plan.choose.KEY``) if policies are chosen too."""
    keys = [key for key in choose if key.startswith("policy.")]
    if not keys:
        return []
    if listed:
        raise ScenarioError(
            f"plan.choose.{keys[0]}",
            "is a parameter of the scenario's policy, but policies are chosen too; "
            "give it with each of them, as in policy: [april(over_sampling=1.5)]",
        )
    values = [choose.pop(key) for key in keys]
    chains = []
    for combination in product(*values):
        texts = [f"{key}={json.dumps(value)}" for key, value in zip(keys, combination, strict=True)]
        chains.append(auto.own_policy(outline(override(raw, texts, option="plan.choose"))))
    return list(dict.fromkeys(chains))


def _apart(scenario: Outline, listed: Sequence[str], place: str) -> Iterator[str]:
    """The policies that overlap training with rollout. Raises ScenarioError (``place``) for an
    unknown or repeated one."""
    names: dict[str, str] = {}
    for text in listed:
        try:
            name, chain = parse_labelled(
                text, seed=scenario.sections.seed, folder=scenario.raw.modules
            )
            overlaps = overlapping(chain, scenario.plan) is not None
        except ScenarioError as error:
            raise scenario.raw.locate(ScenarioError(place, str(error))) from None
        if name in names:
            raise scenario.raw.locate(
                ScenarioError(place, f"{text!r} is the same as {names[name]!r}; give one of them")
            )
        names[name] = text
        if overlaps:
            yield text


def _check_keys(raw: RawScenario, choose: Mapping[str, Sequence[Any]]) -> None:
    """Raises ScenarioError (``plan.choose.KEY``) for a key that is none of a scenario's."""
    for keys in choose:
        for key in keys.split("="):
            if key in CLUSTER_KEYS:
                if "=" in keys:
                    raise ScenarioError(f"plan.choose.{keys}", f"{key} cannot go with other keys")
                continue
            top = key.split(".")[0].split("[")[0]
            valid = [k for k in keys_of(ScenarioModel) if k not in _NOT_CHOSEN]
            valid += [*CLUSTER_KEYS, "policy"]
            if top not in valid:
                raise ScenarioError(
                    f"plan.choose.{keys}", f"{key} names no key to choose; {nearest(key, valid)}"
                )


_NOT_CHOSEN = ("plan", "steps", "seed", "name", "modules")


def _check_quality(name: str, listed: Sequence[str]) -> None:
    if name == SYNCHRONOUS:
        raise ScenarioError(
            f"plan.quality.{name}", "must be 1: the other factors are relative to it"
        )
    if not any(quality_of(policy, {name: 2.0}) != 1.0 for policy in listed):
        raise ScenarioError(
            f"plan.quality.{name}", f"names no policy among the choices; {nearest(name, listed)}"
        )
