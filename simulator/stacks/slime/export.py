"""A plan for slime: command-line arguments, and where these do not suffice a rollout function."""

from __future__ import annotations

import math
from dataclasses import replace

from rollcast.simulator.core.plan import EnoughGroups, Filter, StepPlan
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.selection import ZeroVariance
from rollcast.simulator.stacks.exporting import MODEL, Export, Planned
from rollcast.simulator.stacks.launch import Launch
from rollcast.simulator.stacks.limits import check_sizes
from rollcast.simulator.stacks.slime.limits import LIMITS

MODULE = "rollcast_slime"
MADE_FOR = "slime v0.3.1 and its main branch of August 2026"

HOOK = '''"""slime's hooks, driven by rollcast's policies: made by rollcast export --to slime.

--rollout-function-path rollcast_slime.generate_rollout
--data-source-path rollcast_slime.DataSource
--custom-reward-post-process-path rollcast_slime.post_process_rewards (where the plan needs it)

Needs rollcast in slime's environment; the plan is in plan.json beside this file.
"""

from pathlib import Path
from typing import Any

from rollcast.simulator.stacks.slime.hooks import Adapter  # noqa: E402

_ADAPTER = Adapter.read(Path(__file__).with_name("plan.json"))

generate_rollout = _ADAPTER.generate_rollout
post_process_rewards = _ADAPTER.post_process_rewards


def __getattr__(name: str) -> Any:
    """DataSource, which derives from slime's own: made when slime asks for it."""
    if name != "DataSource":
        raise AttributeError(name)
    made = globals()[name] = _ADAPTER.data_source()
    return made
'''


def export(plan: Planned, launch: Launch) -> Export:
    """Arguments and hook. Raises ScenarioError, naming the policy, if slime cannot carry it out."""
    plan.check("slime")
    LIMITS.check(plan.policy, plan.base)
    check_sizes(plan.policy, plan.base)
    values = None if plan.learns else _own_settings(plan.first, plan.base, launch)
    settings = [*_settings(plan, launch), *(values if values is not None else _hooks(plan))]
    overlaps = plan.first.launch.run_ahead > 0
    if overlaps:
        settings += launch.written({"run.sync_every": plan.first.sync_every})
    return Export(
        "python3 " + ("train_async.py" if overlaps else "train.py"),
        tuple(settings),
        None if values is not None else (f"{MODULE}.py", HOOK),
        plan.exported,
        MADE_FOR,
        _notes(plan, values is None),
        hook_on_path=True,
    )


def _own_settings(first: StepPlan, base: StepPlan, launch: Launch) -> list[str] | None:
    """Arguments that make slime's own rollout function do all of the plan; None where none do.

    slime launches a wave of ``--over-sampling-batch-size``, stops at the batch, loses complete
    groups beyond it, and resumes the rest (``generate_rollout_async``)."""
    ahead = replace(base.launch, run_ahead=min(first.launch.run_ahead, 1))
    plain = replace(base, launch=ahead, sync_every=first.sync_every)
    if first == plain:
        return []
    wave = replace(ahead, over_sampling=first.launch.over_sampling)
    dapo = Filter(ZeroVariance())
    partial = replace(
        plain,
        launch=wave,
        stop=EnoughGroups(),
        unfinished="resume",
        surplus="drop",
        filter=dapo if first.filter == dapo else None,
        staleness=replace(base.staleness, mask_off_policy=first.staleness.mask_off_policy),
    )
    if first != partial:
        return None
    settings: dict[str, object] = {
        "run.partial_rollout": True,
        "run.over_sampling_groups": wave.groups_in_wave(base.batch),
    }
    if first.filter is not None:
        settings["run.filter_groups"] = (
            "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
        )
    settings["run.mask_off_policy"] = first.staleness.mask_off_policy
    return launch.written(settings)


def _hooks(plan: Planned) -> list[str]:
    settings = [
        f"--rollout-function-path {MODULE}.generate_rollout",
        f"--data-source-path {MODULE}.DataSource",
        "--partial-rollout",
    ]
    sizes = plan.policy.group_sizes(frozenset({plan.base.batch.group_size}))
    if len(sizes) > 1 or plan.first.advantages != "after_selection":
        settings.append(f"--custom-reward-post-process-path {MODULE}.post_process_rewards")
    return settings


def _settings(plan: Planned, launch: Launch) -> list[str]:
    nodes, gpus = plan.nodes(plan.shape.trainer_gpus, "cluster.trainer_gpus")
    batch = plan.first.batch
    rollouts = batch.groups * plan.trained_size
    if rollouts % plan.minibatches:
        raise ScenarioError(
            "cost.roofline.trainer.minibatches",
            f"{rollouts} rollouts cannot be dealt into {plan.minibatches} equal minibatches",
        )
    colocated = plan.shape.colocated
    placed = {"run.colocated": True} if colocated else {"run.rollout_gpus": plan.rollout_gpus}
    settings = {
        "model": MODEL,
        "run.steps": plan.steps,
        "workload.batch_groups": batch.groups,
        "workload.group_size": plan.trained_size,
        "run.mini_batch_rollouts": rollouts // plan.minibatches,
        "workload.max_new_tokens": plan.max_new_tokens,
        "seed": plan.seed % 2**31,
        "run.nodes": nodes,
        "run.gpus_per_node": gpus,
        "run.rollout_gpus_per_node": plan.nodes(plan.rollout_gpus, "cluster.replicas")[1],
        "run.engine_gpus": plan.shape.gpus_per_replica,
        **placed,
        "engine.max_seqs": plan.max_seqs,
        "engine.max_batched_tokens": plan.max_batched_tokens,
        "engine.prefix_caching": plan.prefix_caching,
        **plan.passes,
        **_each(plan),
    }
    return [f"--sglang-server-concurrency {plan.max_seqs}", *launch.written(settings, run=plan.run)]


def _each(plan: Planned) -> dict[str, object]:
    """The tokens of a pass of each GPU that shares it (``slime/utils/dp_schedule.py``)."""
    if plan.microbatch_tokens is None:
        return {}
    return {"run.max_pass_tokens": math.ceil(plan.microbatch_tokens / plan.sequence_split)}


def _notes(plan: Planned, hooked: bool) -> tuple[str, ...]:
    notes = []
    if not hooked:
        notes.append("slime's own settings say all of this plan: there is no hook to install.")
    if plan.trained_size != plan.first.batch.group_size:
        notes.append(
            f"`--n-samples-per-prompt` is {plan.trained_size}, the rollouts of a group that are "
            f"trained on; the rollout function samples {plan.first.batch.group_size} of each."
        )
    if hooked and plan.first.launch.run_ahead:
        notes.append(
            "`train_async.py` saves a checkpoint after the next batch has been sampled: a run that "
            "goes on from it samples that batch again, from later prompts."
        )
    return tuple(notes)
