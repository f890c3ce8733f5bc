"""What verl's launch settings imply."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_COLOCATED = {"sync": True, "colocate_async": True, "separate_async": False}
_MEGATRON = "actor_rollout_ref.actor.megatron."
_AS_A_CRITIC = {
    "run.critic_model": "run.reward_model",
    "run.critic_packing": "run.reward_packing",
    "run.critic_micro_rollouts": "run.reward_micro_rollouts",
    "run.critic_recompute": "run.recompute",  # as the policy's (prime_trainer.yaml)
    "run.offload_critic": "run.offload_reward",
    "run.offload_critic_parameters": "run.offload_reward_parameters",
}
_GROUPS = 16  # of a server in fully_async_rollouter.py


def implied(settings: Settings) -> Iterable[Setting]:
    """Placement and policy of the trainer's mode, the bound on staleness, and the models that the
    configuration asks for in other words."""
    yield from _placed(settings)
    yield from _bounded(settings)
    yield from _models(settings)
    yield from _batch(settings)
    if several := whole(settings, "run.trajectories"):
        size = several * (whole(settings, "workload.group_size") or 1)
        yield settings["run.trajectories"].implies("workload.group_size", size)
        mini = settings.get("run.mini_batch_groups")
        if mini is not None and settings["run.trajectories"].theirs == "data.n_samples":
            yield mini.implies("run.mini_batch_rollouts", mini.value)  # dp_actor.py of PRIME's fork
    theirs, own = settings.get("run.offload_reference"), settings.get("run.offload_parameters")
    if theirs is not None and theirs.value is None and own is not None:
        yield own.implies("run.offload_reference", own.value)  # Megatron's, since 0.7
    merged = settings.get("run.merges_adapters")
    if merged is not None and merged.value is True and value(settings, "run.strategy") == "fsdp":
        yield merged.implies("run.merges_at_once", True)  # fsdp_merge_unmerge of FSDP1
    saves = settings.get("run.save_every")
    if saves is not None and not (whole(settings, "run.save_every") or 0) > 0:
        yield saves.implies("run.saves_checkpoints", False)  # ray_trainer.py, fit
    packing = settings.get("run.packing")
    if packing is not None and packing.value is False:
        yield packing.implies("run.padding", _padding(settings))
    yield from _logits(settings)
    if (own := _of_megatron(settings)) is not None:
        yield own.implies("run.strategy", "megatron")


def _of_megatron(settings: Settings) -> Setting | None:
    """What tells that the trainer is on Megatron where its strategy does not."""
    strategy = settings.get("run.strategy")
    if strategy is not None and not strategy.unsaid:
        return None
    said = (one for one in settings.values() if not one.unsaid)
    return next((one for one in said if one.theirs.startswith(_MEGATRON)), None)


def _padding(settings: Settings) -> str:
    """How rows are padded that are not packed. Megatron's passes cut them to the longest of their
    microbatch (models/mcore/util.py, preprocess_bshd), or of the batch that they are from."""
    if value(settings, "run.strategy") != "megatron" and _of_megatron(settings) is None:
        return "padded_to_cap"
    alike = value(settings, "run.builds_attention") is False
    return "padded_to_batch" if alike else "padded"


def _placed(settings: Settings) -> Iterable[Setting]:
    """By V1's trainer mode; ``rollout.nnodes`` is of the asynchronous trainers before it, whose
    engines have GPUs of their own."""
    apart, mode = settings.get("run.rollout_nodes"), settings.get("run.mode")
    if apart is not None and apart.theirs == "rollout.nnodes":
        yield apart.implies("run.colocated", False)
        yield apart.implies("run.asynchronous", True)
        if "run.staleness_share" not in settings:
            yield apart.implies("policy", ["one_step_off"])
    elif mode is not None and str(mode.value) in _COLOCATED:
        yield mode.implies("run.colocated", _COLOCATED[mode.value])
        yield mode.implies("run.asynchronous", mode.value != "sync")
        if mode.value == "colocate_async":
            yield mode.implies("policy", ["colocate_async"])


def _bounded(settings: Settings) -> Iterable[Setting]:
    """``staleness_threshold`` is how many more rollouts than one synchronisation's updates train on
    may be started between two of them (fully_async_policy, ``max_required_samples``); a server has
    so many prompts at once (``max_concurrent_samples``)."""
    share, every = value(settings, "run.staleness_share"), whole(settings, "run.sync_every")
    if isinstance(share, int | float) and share >= 0 and every:
        bound = math.ceil((1 + share) * every - 1e-9) - 1
        yield settings["run.staleness_share"].implies("run.max_staleness", bound)
        yield settings["run.staleness_share"].implies("run.asynchronous", True)
        keys = ("rollout_nodes", "rollout_gpus_per_node")
        gpus = math.prod(whole(settings, f"run.{key}") or 0 for key in keys)
        servers = gpus // (whole(settings, "cluster.tensor_parallel") or 1)
        each = whole(settings, "run.in_flight_groups") or _GROUPS
        if most := servers * each * (whole(settings, "workload.group_size") or 0):
            yield settings["run.staleness_share"].implies("run.in_flight_rollouts", most)


def _models(settings: Settings) -> Iterable[Setting]:
    """A reference for either divergence, a critic for its advantage (trainer/ppo/utils.py)."""
    apart, each = settings.get("run.reward_model_apart"), "run.reward_model_gpus_per_node"
    nodes, gpus = whole(settings, "run.reward_model_nodes"), whole(settings, each)
    if apart is not None and apart.value is True and nodes and gpus:
        yield apart.implies("run.reward_model_gpus", nodes * gpus)
    if value(settings, "run.trains_reward") is True:  # which takes what a critic of its size does
        for critic, reward in _AS_A_CRITIC.items():
            if reward in settings:
                yield settings[reward].implies(critic, settings[reward].value)


def _logits(settings: Settings) -> Iterable[Setting]:
    """Bytes of a logit under FSDP (workers/actor/dp_actor.py, workers/engine/fsdp/
    transformer_impl.py, utils/torch_functional.py). Logits are in 16 bit; their division by the
    temperature makes a second tensor, before 0.9 in the backward alone. Rows without padding have
    a compiled entropy, which makes no tensor of their size, and flash-attn's cross-entropy, whose
    backward writes where the logits were unless the entropy has a gradient too. Rows with padding
    have an entropy that is not compiled: its softmax and a product in 32 bit, of which a backward
    has two more and their gradients; and a copy of the logits that count. Before 0.4 the loss
    always has an entropy.

    Under Megatron (workers/actor/megatron_actor.py, utils/megatron/tensor_parallel.py) logits are
    in 32 bit, its cross-entropy writes where they are, and an entropy has a copy of them and its
    softmax beside, as in every pass for old log-probabilities."""
    packing, weighed = settings.get("run.packing"), settings.get("run.entropy_coefficient")
    if weighed is not None and weighed.value in (0, None):
        weighed = None
    if value(settings, "run.graded_entropy") is True:
        weighed = weighed or settings["run.graded_entropy"]
    if value(settings, "run.strategy") == "megatron":
        if weighed is not None:
            yield weighed.implies("run.logit_bytes", 14)
        return
    if packing is None or not isinstance(packing.value, bool):
        return
    scored = 4 if value(settings, "run.copied_logits") is True else 2
    of_update, of_entropy, scored = (4, 4, scored) if packing.value else (8, 12, 12)
    of_update += of_entropy * (weighed is not None)
    yield (weighed or packing).implies("run.logit_bytes", of_update)
    yield packing.implies("run.scored_logit_bytes", scored)


def _batch(settings: Settings) -> Iterable[Setting]:
    """The fully asynchronous trainer gathers mini-batches; a micro-batch of old is of all GPUs."""
    mini, gathered = whole(settings, "run.mini_batch_groups"), whole(settings, "run.minibatches")
    if mini and gathered:
        yield settings["run.mini_batch_groups"].implies("workload.batch_groups", mini * gathered)
    if all_of_a_step := whole(settings, "run.gathered_groups"):
        yield settings["run.gathered_groups"].implies("workload.batch_groups", all_of_a_step)
    nodes, gpus = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
    for of_all, each in (
        ("run.micro_batch_all", "run.micro_batch_rollouts"),
        ("run.log_prob_micro_all", "run.log_prob_micro_rollouts"),
        ("run.critic_micro_all", "run.critic_micro_rollouts"),
    ):
        rows = whole(settings, of_all)
        if rows and gpus and each not in settings:
            yield settings[of_all].implies(each, max(rows // (nodes * gpus), 1))
