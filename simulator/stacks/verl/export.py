"""A plan for verl: Hydra overrides, and where these do not suffice a sampler of its V1 trainer."""

from __future__ import annotations

import math
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies.colocate_async import ColocateAsync
from rollcast.simulator.policies.fully_async import FullyAsync
from rollcast.simulator.policies.one_step_off import OneStepOff
from rollcast.simulator.stacks.exporting import MODEL, Export, Planned
from rollcast.simulator.stacks.launch import Launch
from rollcast.simulator.stacks.verl.hooks import trainer_mode
from rollcast.simulator.stacks.verl.limits import LIMITS

MODULE = "rollcast_verl"
MADE_FOR = "verl v0.9.1"
UNBOUNDED = 1_000_000
"""verl's threshold is a whole number; this one is never reached."""
PASS_TOKENS = 16_384
"""verl's own size of a pass (``ppo_max_token_len_per_gpu``), where the scenario says none."""

HOOK = '''"""verl's V1 sampler, driven by rollcast's policies; made by rollcast export --to verl.

trainer.v1.sampler.custom_sampler.path=.../rollcast_verl.py
trainer.v1.sampler.custom_sampler.name=Sampler

Needs rollcast in verl's environment; the plan is in plan.json beside this file.
"""

from pathlib import Path
from typing import Any

from rollcast.simulator.stacks.verl.hooks import make_sampler  # noqa: E402


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
ENGINE = (
    "verl has no engine of its own choice: give `actor_rollout_ref.rollout.name`, vllm or sglang."
)
SEARCH = "hydra.searchpath=[pkg://verl.trainer.config]"
"""The recipes' configurations look for verl's own below the working folder (``file://``)."""


def export(plan: Planned, launch: Launch) -> Export:
    """Overrides and sampler. Raises ScenarioError, naming the policy, if verl cannot do it."""
    plan.check("verl")
    settings = None if plan.learns else _own(plan, launch)
    if settings is not None:
        return settings
    LIMITS.check(plan.policy, plan.base)
    if not plan.shape.colocated:
        raise ScenarioError(
            "cluster.placement",
            "must be colocated: the modes of verl's V1 trainer that a sampler can drive, sync and "
            "colocate_async, share the GPUs",
        )
    return _sampled(plan, launch)


def _own(plan: Planned, launch: Launch) -> Export | None:
    """Overrides that say all of the plan; None where none do."""
    first = plan.first
    if first == plan.base and plan.shape.colocated:
        return _only(plan, V1, [*_v1("sync", plan, launch)])
    if first == OneStepOff().plan(plan.base, None):
        return _only(plan, ONE_STEP_OFF, [*_settings(plan, launch), *_separate(plan, launch)])
    return _colocated(plan, launch) or _fully_async(plan, launch)


def _colocated(plan: Planned, launch: Launch) -> Export | None:
    first, bound = plan.first, plan.first.staleness
    warmup = first.launch.over_sampling - 1
    limit = bound.max_versions
    if (
        bound.exceeded not in ("drop", "wait")
        or not float(warmup).is_integer()
        or limit != _whole(limit)
    ):
        return None
    same = ColocateAsync(warmup, _whole(limit), bound.exceeded).plan(plan.base, None)
    if first != same:
        return None
    settings = launch.written(
        {
            "run.warmup_batches": f"{warmup:.0f}",
            # verl counts the version that a trajectory began under, rollcast the updates between
            "run.max_off_policy": UNBOUNDED if limit is None else int(limit) + 1,
            "run.exceeded": bound.exceeded,
        }
    )
    return _only(plan, V1, [*settings, *_v1("colocate_async", plan, launch)])


def _fully_async(plan: Planned, launch: Launch) -> Export | None:
    first = plan.first
    eta, in_flight = first.staleness.max_versions, first.launch.over_sampling
    if eta is None or not first.launch.run_ahead or in_flight < 1:
        return None
    how = first.staleness.exceeded
    same = FullyAsync(eta, in_flight, first.sync_every, how).plan(plan.base, None)
    if first != same or how not in ("capacity", "wait"):
        return None
    share = (eta + 1) / first.sync_every - 1  # a version of verl's is a sync of the weights
    values = launch.written(
        {
            "run.planned_groups": plan.steps * first.batch.groups,
            "run.staleness_share": f"{share:g}",
            "run.sync_every": first.sync_every,
            "run.partial_rollout": True,
            "run.in_flight_groups": math.ceil(in_flight * first.batch.groups / plan.shape.replicas),
        }
    )
    values += [
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"async_training.require_batches={plan.minibatches}",  # of ppo_mini_batch_size: a batch
        f"rollout.n={first.batch.group_size}",
    ]
    settings = _settings(plan, launch, streamed=True)
    return _only(plan, FULLY_ASYNC, [*settings, *_separate(plan, launch), *values])


def _sampled(plan: Planned, launch: Launch) -> Export:
    first, whole = plan.first, plan.first.batch.group_size
    mode = trainer_mode(plan.exported)
    waits = mode == "sync"
    arguments = [
        'trainer.v1.sampler.custom_sampler.path="${ROLLCAST_DIR}/' + MODULE + '.py"',
        "trainer.v1.sampler.custom_sampler.name=Sampler",
    ]
    if plan.learns:
        arguments.append(
            "'+trainer.v1.sampler.sampler_kwargs.state_dir=${trainer.default_local_dir}/rollcast'"
        )
    if not waits:
        more = math.floor(first.launch.over_sampling - 1 + 1e-9)
        arguments += launch.written({"run.warmup_batches": more})
    arguments += launch.written({"run.over_sampling_groups": 1})  # a failed prompt's place, too
    notes = [ENGINE]
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
    settings = [*arguments, *_v1(mode, plan, launch)]
    hook = (f"{MODULE}.py", HOOK)
    return Export(V1, tuple(settings), hook, plan.exported, MADE_FOR, tuple(notes))


def _only(plan: Planned, command: str, settings: list[str]) -> Export:
    notes = ("verl's own settings say all of this plan: there is no sampler to install.", ENGINE)
    recipe = RECIPES.get(command)
    if recipe and MEGATRON in settings:  # a configuration of its own there
        settings = [setting for setting in settings if setting != MEGATRON]
        command += f" --config-name={recipe}_ppo_megatron_trainer"
    settings = [*([SEARCH] if recipe else []), *settings]
    return Export(command, tuple(settings), None, plan.exported, MADE_FOR, notes)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _v1(mode: str, plan: Planned, launch: Launch) -> list[str]:
    """Settings of the V1 trainer in one of its modes that share the GPUs."""
    return [
        *launch.written({"run.v1": True, "run.mode": mode}),
        "transfer_queue.enable=True",
        *_settings(plan, launch),
        *launch.written(_trainer_gpus(plan)),
    ]


def _trainer_gpus(plan: Planned) -> dict[str, Any]:
    nodes, gpus = plan.nodes(plan.shape.trainer_gpus, "cluster.trainer_gpus")
    return {"run.nodes": nodes, "run.gpus_per_node": gpus}


def _separate(plan: Planned, launch: Launch) -> list[str]:
    nodes, gpus = plan.nodes(plan.rollout_gpus, "cluster.replicas")
    rollout = {"run.rollout_nodes": nodes, "run.rollout_gpus_per_node": gpus}
    return launch.written({"run.colocated": False, **_trainer_gpus(plan), **rollout})


def _settings(plan: Planned, launch: Launch, streamed: bool = False) -> list[str]:
    """What every mode needs. streamed: prompts come one by one, and no batch is set."""
    batch, steps = plan.first.batch, plan.minibatches
    rollouts = batch.groups * plan.trained_size
    if rollouts % (batch.group_size * steps):
        field, reason = "cost.roofline.trainer.minibatches", f"{steps} equal minibatches"
        if steps == 1:
            field, reason = "policy", f"whole groups of {batch.group_size}, as verl counts them"
        raise ScenarioError(field, f"{rollouts} rollouts a step cannot be dealt into {reason}")
    sized = {"workload.batch_groups": batch.groups}
    if streamed:
        sized = {"workload.batch_groups": 0, "run.over_sampling_groups": 1}
    settings = {
        "model": MODEL,
        "run.algorithm": "grpo",
        **sized,
        "run.max_prompt_tokens": plan.max_prompt_tokens,
        "workload.max_new_tokens": plan.max_new_tokens,
        "workload.group_size": batch.group_size,
        "run.mini_batch_groups": rollouts // batch.group_size // steps,
        "cluster.tensor_parallel": plan.shape.gpus_per_replica,
        "engine.max_seqs": plan.max_seqs,
        "engine.max_batched_tokens": plan.max_batched_tokens,
        "engine.prefix_caching": plan.prefix_caching,
        "run.steps": plan.steps,
        **_passes(plan),
    }
    return [*([MEGATRON] if plan.parallel else []), *launch.written(settings, run=plan.run)]


def _passes(plan: Planned) -> dict[str, object]:
    """The trainer's passes, of which verl wants a size (``ActorConfig``, ``validate_config``), by
    tokens no smaller than its longest rollout (``rearrange_micro_batches``)."""
    passes = plan.passes
    if "run.micro_batch_rollouts" in passes and plan.microbatch_tokens is None:
        return {**passes, "run.log_prob_micro_rollouts": passes["run.micro_batch_rollouts"]}
    split = plan.sequence_split
    longest = plan.max_prompt_tokens + plan.max_new_tokens
    passes_hold = plan.microbatch_tokens or PASS_TOKENS * split
    tokens = math.ceil(max(passes_hold, longest) / split)
    return {**passes, "run.dynamic_batches": True, "run.max_pass_tokens": tokens}
