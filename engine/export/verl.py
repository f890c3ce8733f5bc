"""A plan for verl: Hydra overrides, and where these do not suffice a sampler of its V1 trainer."""

from __future__ import annotations

import math

from engine.export.parts import Export, Planned
from engine.stacks.limits import VERL
from engine.stacks.verl import trainer_mode
from simulator.errors import ScenarioError
from simulator.policies.colocate_async import ColocateAsync
from simulator.policies.fully_async import FullyAsync
from simulator.policies.one_step_off import OneStepOff

MODULE = "rollcast_verl"
UNBOUNDED = 1_000_000
"""verl's threshold is a whole number; this one is never reached."""

HOOK = '''"""verl's V1 sampler, driven by rollcast's policies; made by rollcast export --to verl.

trainer.v1.sampler.custom_sampler.path=.../rollcast_verl.py
trainer.v1.sampler.custom_sampler.name=Sampler

Needs rollcast in verl's environment; the plan is in plan.json beside this file.
"""

from pathlib import Path
from typing import Any

from rollcast._own import own

own("simulator", "engine")  # whatever else is called so on the Python path

from engine.stacks.verl import make_sampler  # noqa: E402


def __getattr__(name: str) -> Any:
    """Sampler, which derives from verl's own: made when verl asks for it."""
    if name != "Sampler":
        raise AttributeError(name)
    made = globals()[name] = make_sampler(Path(__file__).with_name("plan.json"))
    return made
'''

V1 = "python3 -m verl.trainer.main_ppo"
ONE_STEP_OFF = "python3 -m verl.experimental.one_step_off_policy.main_ppo"
FULLY_ASYNC = "python3 -m verl.experimental.fully_async_policy.fully_async_main"
RECIPES = {ONE_STEP_OFF: "one_step_off", FULLY_ASYNC: "fully_async"}
MEGATRON = "model_engine=megatron"


def export(plan: Planned) -> Export:
    """The overrides and the sampler. Raises ScenarioError, which names the policy, for a plan that
    verl cannot carry out."""
    plan.check("verl")
    found = None if plan.learns else _own(plan)
    if found is not None:
        return found
    VERL.check(plan.scenario.policy, plan.scenario.plan)
    if not plan.scenario.shape.colocated:
        raise ScenarioError(
            "cluster.placement",
            "must be colocated: the modes of verl's V1 trainer that a sampler can drive, sync and "
            "colocate_async, share the GPUs",
        )
    return _sampled(plan)


def _own(plan: Planned) -> Export | None:
    """Overrides that say all of the plan; None where none do."""
    first, base = plan.first, plan.scenario.plan
    if first == base and plan.scenario.shape.colocated:
        return _only(plan, V1, [*_v1("sync"), *_settings(plan), *_shared(plan)])
    if first == OneStepOff().plan(base, None):
        return _only(plan, ONE_STEP_OFF, [*_settings(plan), *_separate(plan)])
    return _colocated(plan) or _fully_async(plan)


def _colocated(plan: Planned) -> Export | None:
    first, bound = plan.first, plan.first.staleness
    warmup = first.launch.over_sampling - 1
    limit = bound.max_versions
    if (
        bound.exceeded not in ("drop", "wait")
        or not float(warmup).is_integer()
        or limit != _whole(limit)
    ):
        return None
    same = ColocateAsync(warmup, _whole(limit), bound.exceeded).plan(plan.scenario.plan, None)
    if first != same:
        return None
    # verl counts the version that a trajectory began under as one, rollcast the updates between
    threshold = UNBOUNDED if limit is None else int(limit) + 1
    own = [
        f"trainer.v1.colocate_async.num_warmup_batches={warmup:.0f}",
        f"trainer.v1.sampler.max_off_policy_threshold={threshold}",
        f"trainer.v1.sampler.max_off_policy_strategy={bound.exceeded}",
    ]
    return _only(plan, V1, [*_v1("colocate_async"), *own, *_settings(plan), *_shared(plan)])


def _fully_async(plan: Planned) -> Export | None:
    first = plan.first
    eta, in_flight = first.staleness.max_versions, first.launch.over_sampling
    if eta is None or not first.launch.run_ahead or in_flight < 1:
        return None
    how = first.staleness.exceeded
    same = FullyAsync(eta, in_flight, first.sync_every, how).plan(plan.scenario.plan, None)
    if first != same or how not in ("capacity", "wait"):
        return None
    share = (eta + 1) / first.sync_every - 1  # a version of verl's is a sync of the weights
    prompts = math.ceil(in_flight * first.batch.groups / plan.scenario.shape.replicas)
    own = [
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"rollout.total_rollout_steps={plan.scenario.steps * first.batch.groups}",
        f"async_training.staleness_threshold={share:g}",
        f"async_training.trigger_parameter_sync_step={first.sync_every}",
        "async_training.require_batches=1",
        "async_training.partial_rollout=True",
        f"async_training.concurrent_samples_per_replica={prompts}",
        f"rollout.n={first.batch.group_size}",
    ]
    settings = _settings(plan, streamed=True)
    return _only(plan, FULLY_ASYNC, [*settings, *_separate(plan), *own])


def _sampled(plan: Planned) -> Export:
    first, whole = plan.first, plan.first.batch.group_size
    mode = trainer_mode(plan.exported)
    waits = mode == "sync"
    own = [
        'trainer.v1.sampler.custom_sampler.path="${ROLLCAST_DIR}/' + MODULE + '.py"',
        "trainer.v1.sampler.custom_sampler.name=Sampler",
    ]
    if plan.learns:
        own.append(
            "'+trainer.v1.sampler.sampler_kwargs.state_dir=${trainer.default_local_dir}/rollcast'"
        )
    if not waits:
        more = math.floor(first.launch.over_sampling - 1 + 1e-9)
        own.append(f"trainer.v1.colocate_async.num_warmup_batches={more}")
    if first.filter is not None or not float(first.launch.over_sampling).is_integer():
        own.append("data.gen_batch_size=1")
    notes = []
    if plan.trained_size != whole:
        notes.append(
            f"The sampler returns {plan.trained_size} of the {whole} rollouts of each group; "
            "`ppo_mini_batch_size`, which verl multiplies by `rollout.n`, is scaled to that."
        )
    if not waits:
        notes.append(
            "verl says of a prompt that it is whole, and not how far it is: tokens of groups that "
            "were interrupted are counted when the group is whole."
        )
    settings = [*_v1(mode), *own, *_settings(plan), *_shared(plan)]
    return Export(V1, tuple(settings), (f"{MODULE}.py", HOOK), plan.exported, tuple(notes))


def _only(plan: Planned, command: str, settings: list[str]) -> Export:
    said = "verl's own settings say all of this plan: there is no sampler to install."
    if command in RECIPES and MEGATRON in settings:  # a configuration of its own there
        settings = [setting for setting in settings if setting != MEGATRON]
        command += f" --config-name={RECIPES[command]}_ppo_megatron_trainer"
    return Export(command, tuple(settings), None, plan.exported, (said,))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _v1(mode: str) -> list[str]:
    return [
        "trainer.use_v1=True",
        f"trainer.v1.trainer_mode={mode}",
        "transfer_queue.enable=True",
    ]


def _shared(plan: Planned) -> list[str]:
    nodes, gpus = plan.nodes(plan.scenario.shape.trainer_gpus, "cluster.trainer_gpus")
    return [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={gpus}"]


def _separate(plan: Planned) -> list[str]:
    nodes, gpus = plan.nodes(plan.rollout_gpus, "cluster.replicas")
    return [
        "actor_rollout_ref.hybrid_engine=False",
        *_shared(plan),
        f"rollout.nnodes={nodes}",
        f"rollout.n_gpus_per_node={gpus}",
    ]


def _settings(plan: Planned, streamed: bool = False) -> list[str]:
    """What every mode needs. streamed: prompts come one by one, and no batch is set."""
    scenario, batch, trainer = plan.scenario, plan.first.batch, plan.trainer
    engine, steps = scenario.engine, trainer.minibatches if trainer else 1
    rollouts = batch.groups * plan.trained_size
    if rollouts % (batch.group_size * steps):
        field, reason = "cost.roofline.trainer.minibatches", f"{steps} equal minibatches"
        if steps == 1:
            field, reason = "policy", f"whole groups of {batch.group_size}, as verl counts them"
        raise ScenarioError(field, f"{rollouts} rollouts a step cannot be dealt into {reason}")
    sized = [f"data.train_batch_size={batch.groups}"]
    if streamed:
        sized = ["data.train_batch_size=0", "data.gen_batch_size=1"]
    settings = [
        'actor_rollout_ref.model.path="${MODEL:?the folder of the Hugging Face model}"',
        "algorithm.adv_estimator=grpo",
        *sized,
        f"data.max_prompt_length={scenario.workload.max_prompt_tokens}",
        f"data.max_response_length={scenario.workload.max_new_tokens}",
        f"actor_rollout_ref.rollout.n={batch.group_size}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={rollouts // batch.group_size // steps}",
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={scenario.shape.gpus_per_replica}",
        f"actor_rollout_ref.rollout.max_num_seqs={engine.max_seqs}",
        f"actor_rollout_ref.rollout.max_num_batched_tokens={engine.max_batched_tokens}",
        f"actor_rollout_ref.rollout.enable_prefix_caching={engine.prefix_caching}",
        f"trainer.total_training_steps={scenario.steps}",
    ]
    if trainer is not None:
        settings += _parallel(plan)
    return settings


def _parallel(plan: Planned) -> list[str]:
    trainer = plan.trainer
    if trainer is None:
        return []
    sizes = {
        "tensor_model_parallel_size": trainer.tensor_parallel,
        "pipeline_model_parallel_size": trainer.pipeline_parallel,
        "context_parallel_size": trainer.context_parallel,
        "expert_model_parallel_size": trainer.expert_parallel,
    }
    megatron = [
        f"actor_rollout_ref.actor.megatron.{name}={size}"
        for name, size in sizes.items()
        if size > 1
    ]
    settings = [MEGATRON, *megatron] if megatron else []
    if trainer.microbatch_tokens is not None:
        settings += [
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={trainer.microbatch_tokens}",
        ]
    return settings
