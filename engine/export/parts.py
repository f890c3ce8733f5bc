"""What every export is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.stacks.exported import Exported, trained_size
from simulator.costs.trainer_options import TrainerOptions
from simulator.errors import ScenarioError
from simulator.plan import StepPlan
from simulator.policies import spell
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import ScenarioModel, validate

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario, as exports look at it. first: the plan of its first step. learns: whether a
    policy's later plans may differ from it."""

    scenario: Scenario
    model: ScenarioModel
    first: StepPlan
    learns: bool

    @property
    def exported(self) -> Exported:
        """What the stack's process needs to know of it. Raises ScenarioError for a policy whose
        class has no name."""
        scenario, shape = self.scenario, self.scenario.shape
        try:
            policy = spell(scenario.policy)
        except ValueError as error:
            raise ScenarioError("policy", f"cannot be written down: {error}") from None
        return Exported(
            policy=policy,
            batch_groups=scenario.plan.batch.groups,
            group_size=scenario.plan.batch.group_size,
            max_new_tokens=scenario.workload.max_new_tokens,
            replicas=shape.replicas,
            tensor_parallel=shape.gpus_per_replica,
            trainer_gpus=shape.trainer_gpus,
            colocated=shape.colocated,
            max_seqs=scenario.engine.max_seqs,
            prompts=scenario.plan.prompts.dataset,
            seed=scenario.seed,
        )

    @property
    def trainer(self) -> TrainerOptions | None:
        """What it says of the trainer; None where its costs are measured ones."""
        cost = self.model.cost
        roofline = cost.tables.roofline if cost.tables else cost.roofline
        return roofline.trainer if roofline else None

    @property
    def trained_size(self) -> int:
        """Rollouts of a group that are trained on."""
        return trained_size(self.first)

    @property
    def rollout_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.scenario.shape.replicas * self.scenario.shape.gpus_per_replica

    def nodes(self, gpus: int, field: str) -> tuple[int, int]:
        """(nodes, GPUs of each). Raises ScenarioError where they do not fill whole nodes."""
        per_node = self.trainer.gpus_per_node if self.trainer else GPUS_PER_NODE
        if gpus <= per_node:
            return 1, gpus
        if gpus % per_node:
            raise ScenarioError(
                field, f"{gpus} GPUs do not fill nodes of {per_node}; make it a multiple of that"
            )
        return gpus // per_node, per_node

    def check(self, stack: str) -> None:
        """Raises ScenarioError for what no stack has a setting for."""
        if self.model.cluster.routing == "group_affinity":
            raise ScenarioError(
                "cluster.routing",
                f"group_affinity cannot be exported: {stack}'s own router decides on the replica",
            )
        shape = self.scenario.shape
        if shape.colocated and shape.trainer_gpus != self.rollout_gpus:
            raise ScenarioError(
                "cluster.trainer_gpus",
                f"is {shape.trainer_gpus}, but a colocated trainer of {stack} takes all "
                f"{self.rollout_gpus} GPUs of the replicas",
            )


def planned(scenario: Scenario) -> Planned:
    """A scenario, looked at."""
    policy = scenario.policy
    state = policy.init()
    learns = any(part is not None for part in state)
    first = policy.plan(scenario.plan, state)
    return Planned(scenario, validate(scenario.raw.data), first, learns)


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export, by name. notes: what a reader should know of this one."""

    command: str
    settings: tuple[str, ...]
    hook: tuple[str, str] | None
    exported: Exported
    notes: tuple[str, ...] = ()


def shell_array(settings: Iterable[str], before: str = "") -> str:
    """A file for bash: the settings as an array."""
    lines = "\n".join(f"  {setting}" for setting in settings)
    return f"{before}ROLLCAST_ARGS=(\n{lines}\n)\n"
