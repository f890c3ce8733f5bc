"""The question of a plan, with defaults for what it leaves open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import product
from operator import getitem
from typing import Any

import numpy as np

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import why_assumed
from rollcast.simulator.learning.answer import DRAWS, planned_needs
from rollcast.simulator.learning.build import build_learning
from rollcast.simulator.learning.section import LearningSection
from rollcast.simulator.planner import auto
from rollcast.simulator.planner.choices import Cluster, cluster_of
from rollcast.simulator.planner.estimate import Estimate
from rollcast.simulator.planner.measure import Measured, Setup
from rollcast.simulator.planner.race import Rungs
from rollcast.simulator.planner.whole_run import (
    ASSUMED_STEPS,
    RunCost,
    Work,
    by_hand,
    quality_of,
    work_of,
)
from rollcast.simulator.policies import parse_labelled
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.results.learning import OWN
from rollcast.simulator.results.text import hours, usd
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.plan_section import (
    CLUSTER_KEYS,
    LimitSection,
    ObjectiveName,
    PlanSection,
    RunSection,
    check_cluster_choice,
)
from rollcast.simulator.scenario.scenario import Outline, outline, overlapping
from rollcast.simulator.scenario.sections import ScenarioModel, base_plan, validate
from rollcast.simulator.values import keys as keys_of
from rollcast.simulator.values import nearest, read

Check = Callable[[Mapping[str, Any]], None]


def assumptions(raw: RawScenario) -> tuple[str, ...]:
    """In a sentence, what of workload and costs neither a launch nor its user says; nothing of a
    scenario's file."""
    texts = []
    for key, source in raw.overridden.items():
        why = why_assumed(source)
        if why and key.partition(".")[0] in ("workload", "cost"):
            value = reduce(getitem, key.split("."), raw.data)
            texts.append(f"{key} is {value} ({why})")
    return (f"Assumed, and taken as known by the intervals: {'; '.join(texts)}.",) if texts else ()


def objective_of(objective: ObjectiveName | None, limits: LimitSection) -> ObjectiveName:
    """The objective; by default cost under a limit of hours, hours under one of cost or GPUs, and
    hours x cost without limits."""
    if objective is not None:
        return objective
    if limits.hours is not None:
        return "usd"
    return "balanced" if limits.usd is None and limits.gpus is None else "hours"


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective under limits (`simulator.planner.race.Goal`)."""

    name: ObjectiveName
    limits: LimitSection

    def value(self, run_cost: RunCost) -> float:
        """The figure to minimise. Raises ScenarioError for a missing price."""
        return run_cost.value(self.name)

    def excess(self, run_cost: RunCost) -> float:
        """The largest ratio of hours and cost to their limits."""
        excesses = [0.0]
        if self.limits.hours is not None:
            excesses.append(run_cost.hours / self.limits.hours)
        if self.limits.usd is not None and run_cost.usd is not None:
            excesses.append(run_cost.usd / self.limits.usd)
        return max(excesses)

    def violation(self, gpus: int, measured: Measured | None) -> float:
        """The largest ratio of GPUs and (1 + staleness) to their limits."""
        violations = [0.0]
        if self.limits.gpus is not None:
            violations.append(gpus / self.limits.gpus)
        if self.limits.staleness is not None and measured is not None:
            violations.append((1 + measured.staleness_max) / (1 + self.limits.staleness))
        return max(violations)

    def beyond_by(self, gpus: int, measured: Measured | None, run_cost: RunCost) -> float:
        """The largest ratio to any limit."""
        return max(self.excess(run_cost), self.violation(gpus, measured))

    def chances(self, run_cost: RunCost, factors: Sequence[float]) -> dict[str, float]:
        """By limit of hours and cost, the share of draws that meet it. factors: of the whole run's
        time, drawn; a limit without draws is left out."""
        if not factors:
            return {}
        drawn = np.asarray(factors)
        chances = {}
        for name in ("hours", "usd"):
            limit, value = getattr(self.limits, name), getattr(run_cost, name)
            if limit is not None and value is not None:
                chances[name] = float(np.mean(drawn * value <= limit))
        return chances

    def sure(self, measured: Measured) -> bool:
        """Whether a longer run cannot break the limit of staleness."""
        return self.limits.staleness is None or measured.staleness_max == 0

    def beyond(
        self, setup: Setup, measured: Measured, run_cost: RunCost
    ) -> Iterator[tuple[str, str]]:
        """(name, sentence) of each broken limit."""
        limits = self.limits
        if limits.hours is not None and run_cost.hours > limits.hours:
            taken = hours(run_cost.hours, like=limits.hours)
            yield "hours", f"the limit of {hours(limits.hours)} ({taken})"
        if limits.usd is not None and run_cost.usd is not None and run_cost.usd > limits.usd:
            yield "usd", f"the limit of {usd(limits.usd)} ({usd(run_cost.usd)})"
        if limits.gpus is not None and setup.gpus > limits.gpus:
            yield "gpus", f"the limit of {limits.gpus} GPU{'s' * (limits.gpus != 1)} ({setup.gpus})"
        if limits.staleness is not None and measured.staleness_max > limits.staleness:
            yield (
                "staleness",
                f"the limit of staleness {limits.staleness:g} ({measured.staleness_max})",
            )


@dataclass(frozen=True)
class Question:
    """A scenario, the work, the choices, limits and objective.

    apart: policies whose trainer needs its own GPUs. quality: updates to the target by policy, over
    synchronous ones. intervals: whether to compute intervals. narrowed: a sentence on what the user
    chose, and what was left open. open_policies: whether nobody chose policies, so that their
    numbers may be refined. told: on the law of learning. learning: the section that the scenario
    has, where it is not part of what is simulated. check: of what a launch's stack refuses.
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
    told: tuple[str, ...] = ()
    learning: Mapping[str, Any] | None = None
    check: Check | None = None

    def quality_for(self, policy: str, figures: Estimate | Measured) -> float:
        """Updates of a choice over those of synchronous training: as given by hand, else as the law
        of learning has it where an accuracy is to be reached, else 1."""
        given, needs = by_hand(policy, self.quality), figures.needs
        if given is None and self.work.accuracy is not None and needs is not None:
            given = needs.quality
        return 1.0 if given is None else given

    def unknown(self, policy: str, figures: Estimate | Measured) -> str | None:
        """Why the updates of a choice are not known; None where they are."""
        needs = figures.needs
        if self.work.accuracy is None or needs is None:
            return None
        rated = needs.quality is not None or by_hand(policy, self.quality) is not None
        return None if rated and needs.level is not None else needs.reason

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
    check: Check | None = None,
) -> Question:
    """The question of ``section``, by default the scenario's ``plan``; `simulator.planner.auto`
    completes it.

    policies: replace those of the section. check: raises ScenarioError for settings that no choice
    may have. Raises ScenarioError.
    """
    asked = section or validate(raw.data).plan or PlanSection()
    run, told, learning = _length(raw, asked.run)
    data = {key: value for key, value in raw.data.items() if key not in ("plan", "learning")}
    plain = replace(raw, data=data if learning is None else {**data, "learning": learning})
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
        work_of(run, batch.groups * batch.group_size),
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
        (*told, *assumptions(raw)),
        raw.data.get("learning") if learning is None else None,
        check,
    )


def _length(
    raw: RawScenario, run: RunSection | None
) -> tuple[RunSection | None, tuple[str, ...], dict[str, Any] | None]:
    """The length of the run, what is said of the law of learning, and the section ``learning`` of
    what is simulated: that of the scenario, up to the accuracy that is asked for. Where the law
    says nothing, it is as without one. Raises ScenarioError."""
    sections = validate(raw.data)
    target = None if sections.learning is None else sections.learning.target
    if run is not None:
        target = run.accuracy
    if target is None:
        return run, (), None
    given = raw.data.get("learning") or {"prior": True}
    learning = {**({"prior": True} if isinstance(given, str) else given), "target": target}
    section = read(LearningSection, learning, LearningSection.FIELD)
    roofline = sections.cost.of_the_roofline
    minibatches = 1 if roofline is None else roofline.trainer.minibatches
    trainer = sections.engine.trainer
    law = build_learning(section, sections.workload, minibatches, raw.folder, trainer)
    needs = planned_needs(base_plan(sections), law, DRAWS)
    if needs.reason:
        return None, (f"{needs.reason} So the plan is for {ASSUMED_STEPS} steps.",), None
    said = f"Accuracy from {law.start:g} to {target:g} follows a law fitted to {law.law.source}."
    told = (said,) if law.own else (said, OWN)
    return run or RunSection(accuracy=target), told, learning


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
