"""What every export is made of: a scenario's plan, and the files that carry it out elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import spell
from rollcast.simulator.stacks.exported import Exported, trained_size
from rollcast.simulator.stacks.settings import Settings

MODEL = '"${MODEL:?the folder of the Hugging Face model}"'
"""The model of every export: whoever runs it says where it is."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario, as exports look at it.

    policy, base: the chain, and the plan that it rewrites. first: the plan of its first step.
    learns: whether a policy's later plans may differ from it. max_seqs, max_batched_tokens,
    prefix_caching: the engine's. group_affinity: whether the router keeps a group together.
    minibatches: optimiser steps of an update. parallel: sizes above 1 of the trainer's groups of
    GPUs, by the scenario's key. microbatch_tokens: tokens of one pass; None where passes have
    another size. memory: settings by our key that the fit in memory rests on, beside the passes;
    unsaid: keys of the scenario for which the stack has no setting. run: the trainer's strategy.
    """

    policy: Chain
    base: StepPlan
    first: StepPlan
    learns: bool
    shape: ClusterShape
    steps: int
    seed: int
    max_prompt_tokens: int
    max_new_tokens: int
    max_seqs: int
    max_batched_tokens: int
    prefix_caching: bool
    group_affinity: bool = False
    minibatches: int = 1
    parallel: Mapping[str, int] = field(default_factory=dict)
    microbatch_tokens: int | None = None
    gpus_per_node: int = 8
    memory: Mapping[str, object] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    run: Settings = field(default_factory=dict)

    @property
    def exported(self) -> Exported:
        """The plan for the stack's process. Raises ScenarioError for a policy without a name."""
        try:
            policy = spell(self.policy)
        except ValueError as error:
            raise ScenarioError("policy", f"cannot be written down: {error}") from None
        return Exported(
            policy=policy,
            batch_groups=self.base.batch.groups,
            group_size=self.base.batch.group_size,
            max_new_tokens=self.max_new_tokens,
            replicas=self.shape.replicas,
            tensor_parallel=self.shape.gpus_per_replica,
            trainer_gpus=self.shape.trainer_gpus,
            colocated=self.shape.colocated,
            max_seqs=self.max_seqs,
            prompts=self.base.prompts.dataset,
            seed=self.seed,
            failed=self.base.failed,
        )

    @property
    def trained_size(self) -> int:
        """Rollouts of a group that are trained on."""
        return trained_size(self.first)

    @property
    def rollout_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.shape.replicas * self.shape.gpus_per_replica

    @property
    def sequence_split(self) -> int:
        """GPUs of the trainer that share a sequence, and the tokens of a pass."""
        keys = (f"cost.roofline.trainer.{how}_parallel" for how in ("context", "sequence"))
        said = {**self.parallel, **self.memory}
        return math.prod(int(str(said.get(key, 1))) for key in keys)

    @property
    def passes(self) -> dict[str, object]:
        """The trainer's groups of GPUs, the size of its passes and what else memory rests on, by
        our key."""
        packed = {"run.dynamic_batches": True, "run.max_pass_tokens": self.microbatch_tokens}
        passes = packed if self.microbatch_tokens is not None else {}
        return {**self.parallel, **passes, **self.memory}

    def nodes(self, gpus: int, field: str) -> tuple[int, int]:
        """(nodes, GPUs of each). Raises ScenarioError where they do not fill whole nodes."""
        if gpus <= self.gpus_per_node:
            return 1, gpus
        if gpus % self.gpus_per_node:
            raise ScenarioError(
                field,
                f"{gpus} GPUs do not fill nodes of {self.gpus_per_node}; make it a multiple of "
                "that",
            )
        return gpus // self.gpus_per_node, self.gpus_per_node

    def check(self, stack: str) -> None:
        """Raises ScenarioError for what no stack has a setting for."""
        if self.group_affinity:
            raise ScenarioError(
                "cluster.routing",
                f"group_affinity cannot be exported: {stack}'s own router decides on the replica",
            )
        if self.shape.colocated and self.shape.trainer_gpus != self.rollout_gpus:
            raise ScenarioError(
                "cluster.trainer_gpus",
                f"is {self.shape.trainer_gpus}, but a colocated trainer of {stack} takes all "
                f"{self.rollout_gpus} GPUs of the replicas",
            )


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export. hook: name and text of the file for the stack's own hook; None where
    settings suffice. notes: what a reader should know of this one. made_for: the stack's release.
    hook_on_path: whether the stack imports the hook by its name, from the Python path."""

    command: str
    settings: tuple[str, ...]
    hook: tuple[str, str] | None
    exported: Exported
    made_for: str
    notes: tuple[str, ...] = ()
    hook_on_path: bool = False


def shell_array(settings: Iterable[str], before: str = "") -> str:
    """A file for bash: the settings as an array."""
    lines = "\n".join(f"  {setting}" for setting in settings)
    return f"{before}ROLLCAST_ARGS=(\n{lines}\n)\n"
