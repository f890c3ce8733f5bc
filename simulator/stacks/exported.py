"""What an exported folder says of the plan: all that the loop needs to take its decisions again
in another stack's process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rollcast.simulator.core.plan import Batch, Failed, Prompts, StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.values import AtLeast, Doc, Options, read

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Exported(Options):
    """The plan of a scenario, without its lengths and costs, which the stack itself has."""

    FIELD = "plan"

    policy: Annotated[str, Doc("the chain of policies, as on a command line")]
    batch_groups: Annotated[int, AtLeast(1), Doc("groups a step trains on")]
    group_size: Annotated[int, AtLeast(1), Doc("rollouts of a group")]
    max_new_tokens: Annotated[int, AtLeast(1), Doc("the cap on a response", unit="tokens")]
    replicas: Annotated[int, AtLeast(1), Doc("inference engines side by side")]
    tensor_parallel: Annotated[int, AtLeast(1), Doc("GPUs of one replica")]
    trainer_gpus: Annotated[int, AtLeast(1), Doc("GPUs of the trainer")]
    colocated: Annotated[bool, Doc("whether replicas and trainer take turns on the same GPUs")]
    max_seqs: Annotated[int, AtLeast(1), Doc("rollouts that run at once, a replica")]
    prompts: Annotated[int | None, AtLeast(1), Doc("different prompts; null is endless")] = None
    seed: Annotated[int, AtLeast(0), Doc("of the policies' draws")] = 0
    failed: Annotated[Failed, Doc("what becomes of rollouts whose environment fails")] = "keep"

    @property
    def shape(self) -> ClusterShape:
        """The GPUs, as the scenario has them."""
        slots = self.replicas * self.max_seqs
        gpus = (self.replicas, self.tensor_parallel, self.trainer_gpus)
        return ClusterShape(*gpus, colocated=self.colocated, slots=slots)

    @property
    def base(self) -> StepPlan:
        """The plan that the policies rewrite, as `simulator.scenario.sections.base_plan` of the
        scenario: a stack's process has no scenario."""
        batch = Batch(self.batch_groups, self.group_size)
        return StepPlan(batch, prompts=Prompts(dataset=self.prompts), failed=self.failed)

    @property
    def first(self) -> StepPlan:
        """The plan of the first step. Raises ScenarioError as `chain` does."""
        policy = self.chain()
        return policy.plan(self.base, policy.init())

    def chain(self) -> Chain:
        """The policies. Raises ScenarioError where one cannot be imported here."""
        return parse_policy(self.policy, seed=self.seed)

    def text(self) -> str:
        """As a file holds it."""
        return json.dumps(asdict(self), indent=1) + "\n"


def trained_size(plan: StepPlan) -> int:
    """Rollouts of a group that are trained on."""
    return plan.select[-1].keep if plan.select else plan.batch.group_size


def read_exported(path: Path) -> Exported:
    """Reads a plan. Raises ScenarioError, which names the file or the key."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError("", f"cannot read {path}: {error}") from None
    return read(Exported, data, "plan")
