"""The section ``plan`` of a scenario: the question that ``rollcast plan`` answers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import (
    POSITIVE,
    Above,
    AtLeast,
    Between,
    Doc,
    Options,
    join,
    mapping,
    number,
    read,
    wrong,
)
from rollcast.simulator.values.readers import HOURS, TIMES, amount

ObjectiveName = Literal["usd", "hours", "gpu_hours", "balanced"]

CLUSTER_KEYS = ("gpu", "gpus", "placement", "tensor_parallel")
"""What may be chosen of the cluster as a whole, beside the keys of a scenario."""


@dataclass(frozen=True, slots=True)
class RunSection(Options):
    """How much is trained."""

    FIELD = "plan.run"

    steps: Annotated[
        int | None,
        Between(1, 10_000_000),
        Doc(
            "length of the run in updates of the scenario's batch; a choice with another "
            "batch or group size takes as many as train on the same number of rollouts",
            unit="updates",
        ),
    ] = None
    prompts: Annotated[
        int | None,
        Between(1, 10**10),
        Doc("length of the run in prompts; prompts rejected by a filter count", unit="prompts"),
    ] = None
    epochs: Annotated[float, POSITIVE, Doc("passes over the prompts", unit="epochs")] = 1.0
    trained_rollouts: Annotated[
        int | None,
        Between(1, 10**12),
        Doc("length of the run in rollouts trained on", unit="rollouts"),
    ] = None
    accuracy: Annotated[
        float | None,
        Above(0, 1, below=True),
        Doc(
            "length of the run by the accuracy to reach, with as many updates as the law of "
            "learning (section learning) needs under each policy",
            unit="share",
        ),
    ] = None

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], field: str) -> RunSection:
        """Counts may be written as 40k. Raises ScenarioError."""
        counts = {
            key: item if key == "accuracy" else amount(item, TIMES)
            for key, item in mapping(value, field).items()
        }
        return read(cls, counts, field)

    def updates(self, groups: int, group_size: int) -> int:
        """Updates of batches of which every group is used, and every rollout trained on. Raises
        ValueError for a run whose length is an accuracy."""
        if self.steps is not None:
            return self.steps
        if self.prompts is not None:
            return max(1, math.ceil(self.prompts * self.epochs / groups))
        if self.trained_rollouts is None:
            raise ValueError("a law of learning, and no batch, says how many updates that takes")
        return max(1, math.ceil(self.trained_rollouts / (groups * group_size)))

    def agree(self) -> None:
        """One measure of what is trained, and one only."""
        given = [
            key
            for key in ("steps", "prompts", "trained_rollouts", "accuracy")
            if getattr(self, key) is not None
        ]
        if len(given) != 1:
            listed = " and ".join(given) if given else "neither"
            raise ScenarioError(
                self.FIELD,
                "give one of steps, prompts (with epochs), trained_rollouts and accuracy; it has "
                f"{listed}",
            )
        if self.epochs != 1.0 and self.prompts is None:
            raise self.refuse("epochs", "counts passes over the prompts; give prompts too")


@dataclass(frozen=True, slots=True)
class LimitSection(Options):
    """What the run may take; null is no limit."""

    FIELD = "plan.limits"
    ALSO: ClassVar[Mapping[str, Doc]] = {
        "days": Doc("maximum duration of the run in days; in the place of hours", unit="days")
    }

    hours: Annotated[float | None, POSITIVE, Doc("maximum duration of the run", unit="hours")] = (
        None
    )
    usd: Annotated[float | None, POSITIVE, Doc("maximum cost of the run", unit="US dollars")] = None
    gpus: Annotated[int | None, AtLeast(1), Doc("maximum number of GPUs", unit="GPUs")] = None
    staleness: Annotated[
        float | None, AtLeast(0), Doc("maximum staleness of any token trained on", unit="versions")
    ] = None

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], field: str) -> LimitSection:
        """Amounts may be written as 16k, times as 5d or under ``days``. Raises ScenarioError."""
        given = dict(mapping(value, field))
        days = given.pop("days", None)
        if days is not None:
            if given.get("hours") is not None:
                raise ScenarioError(
                    join(field, "days"), "is the same limit as hours; give one of them"
                )
            given["hours"] = 24 * number(amount(days, TIMES), join(field, "days"), POSITIVE)
        for key, units in (("hours", {**HOURS, "": 1.0}), ("usd", TIMES), ("gpus", TIMES)):
            if key in given:
                given[key] = amount(given[key], units)
        return read(cls, given, field)


@dataclass(frozen=True, slots=True)
class PlanSection(Options):
    """What to plan: how much is trained, what there is to choose, what it may take."""

    FIELD = "plan"

    run: Annotated[
        RunSection | None,
        Doc("length of the run; null: up to learning.target, else 500 steps, and the plan says so"),
    ] = None
    choose: Annotated[
        Mapping[str, Any] | None,
        Doc(
            "values to choose from, a list for each key: any key of the scenario, gpu, gpus"
            " (numbers, or 64xh100 with their kind; their split is found), placement, "
            "tensor_parallel, policy; KEY=KEY for keys that change together. null: a sensible set"
        ),
    ] = None
    limits: Annotated[LimitSection, Doc("limits of the whole run")] = field(
        default_factory=LimitSection
    )
    objective: Annotated[
        ObjectiveName | None,
        Doc(
            "what to minimise: usd, hours, gpu_hours or balanced (hours x usd, or hours x "
            "gpu_hours without a price). null: usd under a limit of hours, hours under a "
            "limit of usd or gpus, else balanced"
        ),
    ] = None
    quality: Annotated[
        Mapping[str, Any] | None,
        Doc(
            "updates needed to reach the target as a multiple of synchronous training, by "
            "policy: {april: 1.05}; the factors of a chain multiply"
        ),
    ] = None
    gpus_per_node: Annotated[
        int, Between(1, 1024), Doc("GPUs per node; larger numbers come in whole nodes", unit="GPUs")
    ] = 8

    def agree(self) -> None:
        """Lists of values to choose from, and factors of quality."""
        for name in ("choose", "quality"):
            if getattr(self, name) is not None:
                mapping(getattr(self, name), join(self.FIELD, name))
        for key, values in (self.choose or {}).items():
            place = join("plan.choose", str(key))
            if not isinstance(values, list | tuple):
                raise wrong(place, "a list of values", values)
            if key == "policy" and not all(isinstance(value, str) for value in values):
                raise wrong(place, "a list of policies, each as --policy takes it", values)
            if not values:
                raise ScenarioError(place, "has no values; give at least one, or leave it out")
            for i, value in enumerate(values):
                if value in values[:i]:
                    raise ScenarioError(place, f"holds {value!r} twice")
        if self.choose is not None and not self.choose:
            raise ScenarioError("plan.choose", "is empty; give what to choose, or leave it out")
        for name, factor in (self.quality or {}).items():
            number(factor, join("plan.quality", str(name)), Above(0, 1000))


_GPUS = re.compile(r"(\d{1,9})\s*(?:[x*\u00d7]\s*)?([a-z].*)", re.IGNORECASE)


def gpus_of(value: Any) -> tuple[int, str | None]:
    """The number of a choice of ``gpus``, and its preset where it names a kind: ``64xh100``, or
    ``64 h100-sxm``. Raises ScenarioError (``plan.choose.gpus``)."""
    place = "plan.choose.gpus"
    match = _GPUS.fullmatch(value.strip()) if isinstance(value, str) else None
    number, kind = (int(match[1]), match[2]) if match else (value, None)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise wrong(
            place, "a list of numbers of 1 or more, each alone or with its kind (64xh100)", value
        )
    if kind is None:
        return number, None
    from rollcast.simulator.costs.presets.gpus import load_gpu, named_gpu

    known = named_gpu(kind) or kind
    load_gpu(known, place)
    return number, known


def check_cluster_choice(choose: Mapping[str, Any]) -> None:
    """Raises ScenarioError for wrong values of ``gpu``, ``gpus``, ``placement`` and
    ``tensor_parallel``, and for keys of the cluster that these decide."""
    from rollcast.simulator.costs.presets.gpus import load_gpu

    counted = [gpus_of(value) for value in choose.get("gpus", ())]
    if any(counted.count(one) > 1 for one in counted):
        raise ScenarioError("plan.choose.gpus", "holds the same GPUs twice")
    if "gpu" in choose and any(kind for _, kind in counted):
        raise ScenarioError(
            "plan.choose.gpu", "is in gpus already, which names kinds; give one of them"
        )
    for value in choose.get("gpu", ()):
        if isinstance(value, str):
            load_gpu(value, "plan.choose.gpu")
    for value in choose.get("tensor_parallel", ()):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise wrong(
                "plan.choose.tensor_parallel", "a list of whole numbers of 1 or more", value
            )
    known = ("colocated", "disaggregated")
    for value in choose.get("placement", ()):
        if value not in known:
            raise wrong("plan.choose.placement", f"one of {', '.join(known)}", value)
    decided = {"cluster.placement": "placement", "cluster.tensor_parallel": "tensor_parallel"}
    for long, brief in decided.items():
        if long in choose and brief in choose:
            raise ScenarioError(f"plan.choose.{long}", f"is the same as {brief}; give one of them")
    if "gpus" in choose:
        for long in ("cluster.replicas", "cluster.trainer_gpus"):
            if any(long in key.split("=") for key in choose):
                raise ScenarioError(
                    f"plan.choose.{long}",
                    "follows from gpus, whose split is found; leave one of them out",
                )
