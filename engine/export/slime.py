"""A plan for slime: command-line arguments, and where these do not suffice a rollout function."""

from __future__ import annotations

from dataclasses import replace

from engine.export.parts import Export, Planned
from engine.stacks.limits import SLIME, check_sizes
from simulator.errors import ScenarioError
from simulator.plan import EnoughGroups, Filter, StepPlan
from simulator.selection import ZeroVariance

MODULE = "rollcast_slime"

HOOK = '''"""slime's hooks, driven by rollcast's policies: made by rollcast export --to slime.

--rollout-function-path rollcast_slime.generate_rollout
--data-source-path rollcast_slime.DataSource
--custom-reward-post-process-path rollcast_slime.post_process_rewards (where the plan needs it)

Needs rollcast in slime's environment; the plan is in plan.json beside this file.
"""

from pathlib import Path
from typing import Any

from rollcast._own import own

own("simulator", "engine")  # whatever else is called so on the Python path

from engine.stacks.slime import Adapter  # noqa: E402

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


def export(plan: Planned) -> Export:
    """The arguments and the hook. Raises ScenarioError, which names the policy, for a plan that
    slime cannot carry out."""
    scenario = plan.scenario
    plan.check("slime")
    SLIME.check(scenario.policy, scenario.plan)
    check_sizes(scenario.policy, scenario.plan)
    own = None if plan.learns else _own_settings(plan.first, scenario.plan)
    settings = [*_settings(plan), *(own if own is not None else _hooks(plan))]
    overlaps = plan.first.launch.run_ahead > 0
    if overlaps:
        settings.append(f"--update-weights-interval {plan.first.sync_every}")
    return Export(
        "python3 " + ("train_async.py" if overlaps else "train.py"),
        tuple(settings),
        None if own is not None else (f"{MODULE}.py", HOOK),
        plan.exported,
        _notes(plan, own is None),
    )


def _own_settings(first: StepPlan, base: StepPlan) -> list[str] | None:
    """Arguments that make slime's own rollout function do all of the plan; None where none do.

    slime launches a wave of ``--over-sampling-batch-size``, stops at the batch, loses complete
    groups beyond it, and resumes the rest (``generate_rollout_async``)."""
    launch = replace(base.launch, run_ahead=min(first.launch.run_ahead, 1))
    plain = replace(base, launch=launch, sync_every=first.sync_every)
    if first == plain:
        return []
    wave = replace(launch, over_sampling=first.launch.over_sampling)
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
    own = [
        "--partial-rollout",
        f"--over-sampling-batch-size {wave.groups_in_wave(base.batch)}",
    ]
    if first.filter is not None:
        own.append(
            "--dynamic-sampling-filter-path "
            "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
        )
    if first.staleness.mask_off_policy:
        own.append("--mask-offpolicy-in-partial-rollout")
    return own


def _hooks(plan: Planned) -> list[str]:
    own = [
        f"--rollout-function-path {MODULE}.generate_rollout",
        f"--data-source-path {MODULE}.DataSource",
        "--partial-rollout",
    ]
    scenario = plan.scenario
    sizes = scenario.policy.group_sizes(frozenset({scenario.plan.batch.group_size}))
    if len(sizes) > 1 or plan.first.advantages != "after_selection":
        own.append(f"--custom-reward-post-process-path {MODULE}.post_process_rewards")
    return own


def _settings(plan: Planned) -> list[str]:
    scenario, shape = plan.scenario, plan.scenario.shape
    nodes, gpus = plan.nodes(shape.trainer_gpus, "cluster.trainer_gpus")
    batch, engine, trainer = plan.first.batch, scenario.engine, plan.trainer
    rollouts = batch.groups * plan.trained_size
    steps = trainer.minibatches if trainer else 1
    if rollouts % steps:
        raise ScenarioError(
            "cost.roofline.trainer.minibatches",
            f"{rollouts} rollouts cannot be dealt into {steps} equal minibatches",
        )
    settings = [
        '--hf-checkpoint "${MODEL:?the folder of the Hugging Face model}"',
        f"--num-rollout {scenario.steps}",
        f"--rollout-batch-size {batch.groups}",
        f"--n-samples-per-prompt {plan.trained_size}",
        f"--global-batch-size {rollouts // steps}",
        f"--rollout-max-response-len {scenario.workload.max_new_tokens}",
        f"--rollout-seed {scenario.seed % 2**31}",
        f"--actor-num-nodes {nodes}",
        f"--actor-num-gpus-per-node {gpus}",
        f"--num-gpus-per-node {plan.nodes(plan.rollout_gpus, 'cluster.replicas')[1]}",
        f"--rollout-num-gpus-per-engine {shape.gpus_per_replica}",
        "--colocate" if shape.colocated else f"--rollout-num-gpus {plan.rollout_gpus}",
        f"--sglang-server-concurrency {engine.max_seqs}",
        f"--sglang-max-running-requests {engine.max_seqs}",
        f"--sglang-chunked-prefill-size {engine.max_batched_tokens}",
    ]
    if not engine.prefix_caching:
        settings.append("--sglang-disable-radix-cache")
    if trainer is not None:
        parallel = {
            "--tensor-model-parallel-size": trainer.tensor_parallel,
            "--pipeline-model-parallel-size": trainer.pipeline_parallel,
            "--context-parallel-size": trainer.context_parallel,
            "--expert-model-parallel-size": trainer.expert_parallel,
        }
        settings += [f"{flag} {size}" for flag, size in parallel.items() if size > 1]
        if trainer.microbatch_tokens is not None:
            settings += ["--use-dynamic-batch-size"]
            settings += [f"--max-tokens-per-gpu {trainer.microbatch_tokens}"]
    return settings


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
