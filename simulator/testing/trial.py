"""A policy tried on a small cluster, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, Prompts, StepPlan
from rollcast.simulator.core.policy import Chain, Policy, chain
from rollcast.simulator.core.spans import Run, Segments, StepRecord
from rollcast.simulator.core.world import ClusterShape, World
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import check_policy, parse_policy
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.runs.drive import Parts, drive
from rollcast.simulator.scenario.scenario import overlapping
from rollcast.simulator.testing.listed import ListedWorkload
from rollcast.simulator.testing.watched import Watched
from rollcast.simulator.values import read
from rollcast.simulator.workload.base import Workload
from rollcast.simulator.workload.section import WorkloadSection, build_workload

LONGEST_DRAWN = 16_384
"""The cap where lengths are drawn and no cap is given, tokens."""


@dataclass(frozen=True)
class Trial:
    """A policy's run. run: what the loop recorded. seen: what passed between loop and world."""

    policy: Policy
    run: Run
    seen: Watched

    @property
    def steps(self) -> list[StepRecord]:
        """One record a step: times, counts, rewards, tokens by age."""
        return self.run.steps

    @property
    def rollouts(self) -> Segments:
        """The table of segments; ``rollouts["new_tokens"]`` is a column (`core.spans.Segments`)."""
        return self.run.segments

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decision log, one mapping a step: plan, launches, stop, selection, leftovers."""
        return self.run.decisions

    @property
    def summary(self) -> dict[str, Any]:
        """The run's metrics, as in summary.json (`simulator.results.metrics.summarise`)."""
        return summarise(self.run)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submit to the last sync."""
        return self.run.makespan_s


def as_policy(policy: str | Policy | type[Policy], seed: int = 0) -> Chain:
    """The policy of an object, a class or a spelling. seed: for spellings without one. Raises
    ScenarioError for an unreadable spelling, TypeError for anything else."""
    if isinstance(policy, str):
        return parse_policy(policy, seed=seed)
    if isinstance(policy, type) and issubclass(policy, Policy):
        return chain(policy())
    if isinstance(policy, Policy):
        return chain(policy)
    raise TypeError(f"a policy is an object, a class or a spelling, not {policy!r}")


def try_policy(
    policy: str | Policy | type[Policy],
    lengths: Sequence[Sequence[int]] | Mapping[str, Any],
    *,
    batch_groups: int = 2,
    group_size: int = 4,
    steps: int = 5,
    rewards: Sequence[Sequence[float]] | Mapping[str, Any] | None = None,
    prompt_tokens: int | Sequence[int] = 8,
    max_new_tokens: int | None = None,
    replicas: int = 1,
    apart: bool | None = None,
    max_seqs: int = 64,
    kv_tokens: int | None = None,
    iteration_s: float = 1.0,
    train_s: float = 4.0,
    sync_s: float = 1.0,
    cost: CostModel | None = None,
    routing: str = "least_loaded",
    seed: int = 0,
) -> Trial:
    """Runs a policy for a few steps on a small simulated cluster.

    lengths: response lengths, a list for each prompt (`ListedWorkload`): the third rollout of the
        first prompt gets ``lengths[0][2]`` tokens. Or, to draw them, what a scenario's
        ``workload.lengths`` holds, such as ``{"family": "lognormal", "median_tokens": 300,
        "between_sd": 0.5, "within_sd": 0.7}`` or ``{"preset": "deepseek-r1-distill-qwen-7b"}``.
    rewards: a list for each prompt, or what ``workload.rewards`` holds. Listed lengths have 1 and 0
        in turn where none are given.
    max_new_tokens: the cap; where none is given, nothing that is listed is truncated, and what is
        drawn has at most 16,384 tokens.
    replicas, max_seqs, kv_tokens: of GPUs that generate, the rollouts that each runs at once, and
        the tokens that it has room for (None: enough).
    apart: whether the trainer has a GPU of its own; None where the policy needs it.
    iteration_s, train_s, sync_s: seconds of an engine iteration (a token of every running rollout),
        an update and a weight sync, whatever is in them: with the first at 1 the clock counts
        tokens. cost: a cost model, in their place.
    seed: of what is drawn, and of policies spelt without one of their own.

    Raises ScenarioError for what contradicts itself, naming the argument, and RunError where the
    run cannot go on.
    """
    tried = as_policy(policy, seed)
    plan = StepPlan(Batch(batch_groups, group_size))
    workload = _workload(lengths, rewards, prompt_tokens, max_new_tokens, group_size, seed)
    check_policy(tried, plan)
    overlaps = overlapping(tried, plan)
    if apart is False and overlaps is not None:
        raise ScenarioError(
            "apart", f"{overlaps} overlaps training with rollout, which needs apart=True"
        )
    if min(replicas, steps) < 1:
        raise ScenarioError("replicas" if replicas < 1 else "steps", "must be at least 1")
    longest = workload.max_prompt_tokens + workload.max_new_tokens
    engine = EngineSpec(
        max_seqs, max(max_seqs, 2048), max_seqs * (longest + 16) if kv_tokens is None else kv_tokens
    )
    shape = ClusterShape(
        replicas,
        gpus_per_replica=1,
        trainer_gpus=1,
        colocated=not (overlaps is not None if apart is None else apart),
        slots=replicas * max_seqs,
    )
    if cost is None:
        cost = LinearCost(
            iteration_s, 0.0, 0.0, 0.0, train_per_token_s=0.0, train_fixed_s=train_s, sync_s=sync_s
        )
    world = SimulatedCluster(shape, engine, cost, workload, routing)
    return try_on(world, tried, batch_groups=batch_groups, group_size=group_size, steps=steps)


def try_on(
    world: World,
    policy: str | Policy | type[Policy],
    *,
    batch_groups: int = 2,
    group_size: int = 4,
    prompts: int | None = None,
    steps: int = 5,
) -> Trial:
    """Runs a policy on a world of your own, fresh and idle. prompts: size of the dataset; None:
    unlimited. Raises ScenarioError and RunError."""
    tried = as_policy(policy)
    plan = StepPlan(Batch(batch_groups, group_size), prompts=Prompts(dataset=prompts))
    seen = world if isinstance(world, Watched) else Watched(world)
    return Trial(tried, drive(Parts(tried, plan, 0.0), seen, steps), seen)


def _workload(
    lengths: Sequence[Sequence[int]] | Mapping[str, Any],
    rewards: Sequence[Sequence[float]] | Mapping[str, Any] | None,
    prompt_tokens: int | Sequence[int],
    max_new_tokens: int | None,
    group_size: int,
    seed: int,
) -> Workload:
    if not isinstance(lengths, Mapping):
        if isinstance(rewards, Mapping):
            raise ScenarioError("rewards", "listed lengths go with listed rewards")
        return ListedWorkload.of(lengths, rewards, prompt_tokens, max_new_tokens)
    if rewards is not None and not isinstance(rewards, Mapping):
        raise ScenarioError("rewards", "lengths that are drawn go with rewards that are drawn")
    spec: dict[str, Any] = {
        "lengths": lengths,
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": LONGEST_DRAWN if max_new_tokens is None else max_new_tokens,
        "batch_groups": 1,
        "group_size": group_size,
    }
    if rewards is not None:
        spec["rewards"] = rewards
    return build_workload(read(WorkloadSection, spec, "workload"), seed)
