"""Models beside the policy in an update: a reference, a critic, reward models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, CRITIC, TrainerOptions
from rollcast.simulator.results.phases import GRADES

_SPLIT = (
    *("tensor_parallel", "context_parallel", "sequence_parallel", "pipeline_parallel"),
    *("virtual_stages", "expert_parallel", "shard", "sharding", "shard_gpus", "recompute_layers"),
)
_BESIDE = (
    *("log_prob_passes", "log_prob_microbatch_tokens", "log_prob_microbatch_rollouts"),
    *("reference", "reference_model", "reference_gpus"),
    *("critic", "critic_model", "critic_gpus", *CRITIC.values()),
    *("reward_passes", "reward_model", "reward_gpus", "reward_with_critic"),
)


def _unset(names: Sequence[str]) -> Mapping[str, Any]:
    return {name: getattr(TrainerOptions, name) for name in names}


# The options of a trainer of their own: nothing beside them, split as the policy is, or states
# spread over all its GPUs.
TOGETHER = _unset(_BESIDE)
ALONE = _unset((*_SPLIT, *_BESIDE))
# And of those that are not trained: weights as a forward reads them.
JUDGES: Mapping[str, Any] = {
    "weights": "lora",
    "base_bits": 8 * COMPUTE_BYTES,
    "adapted": False,
    "traffic_per_adapted_byte": 0.0,
    "adapter_gather_launch_s_per_layer": 0.0,
    "minibatches": 1,
}


_GRADE: Mapping[str, str] = {"reference": "reference", "critic": "values", "reward": "reward"}
"""The phase of a role's forward before the update."""


class Role(NamedTuple):
    """A model beside the policy: ``model`` (None: as the policy) on ``gpus`` (0: the policy's).
    with_critic: whether these are the critic's."""

    name: Literal["reference", "critic", "reward"]
    model: str | Model | None
    gpus: int
    passes: int
    trained: bool
    with_critic: bool = False


def critic_options(options: TrainerOptions) -> dict[str, Any]:
    """What is said of a critic alone, by the policy's names; of its microbatch either both measures
    or none."""
    own = {name: getattr(options, key) for name, key in CRITIC.items()}
    microbatch = {name: own.pop(name) for name in ("microbatch_tokens", "microbatch_rollouts")}
    own = {name: value for name, value in own.items() if value is not None}
    if any(value is not None for value in microbatch.values()):
        own |= microbatch
    return own


def roles_apart(options: TrainerOptions) -> list[Role]:
    """The roles that are priced on their own."""
    shared = options.reward_with_critic
    reward_gpus = options.critic_gpus if shared else options.reward_gpus
    roles = (
        Role("reference", options.reference_model, options.reference_gpus, 1, False),
        Role("critic", options.critic_model, options.critic_gpus, int(options.critic), True),
        Role("reward", options.reward_model, reward_gpus, options.reward_passes, False, shared),
    )
    own = critic_options(options)
    differs = {"critic": any(getattr(options, name) != value for name, value in own.items())}
    return [
        role
        for role in roles
        if role.passes and (role.model is not None or role.gpus or differs.get(role.name))
    ]


def beside(
    policy: Mapping[str, float], others: Sequence[tuple[Role, Mapping[str, float]]]
) -> dict[str, float]:
    """The policy's phases with those of the others: one after another on its GPUs, side by side on
    GPUs of their own. What a critic's update takes beyond the policy's is ``critic``; what the
    slowest forward apart takes beyond the policy's own forwards is of its own phase."""
    phases = {**dict.fromkeys(GRADES, 0.0), **policy}  # in this order
    apart, updated = dict.fromkeys(GRADES, 0.0), 0.0
    for role, phases_s in others:
        forward_s = graded_s(phases_s)
        update_s = math.fsum(phases_s.values()) - forward_s if role.trained else 0.0
        name = _GRADE[role.name]
        if role.with_critic:  # after the critic's
            apart["values"] += forward_s
            continue
        if role.gpus:
            apart[name], updated = max(apart[name], forward_s), max(updated, update_s)
            continue
        phases[name] += forward_s
        if role.trained:
            phases["critic"] = phases.get("critic", 0.0) + update_s
    slowest = max(GRADES, key=lambda name: apart[name])
    phases[slowest] += max(0.0, apart[slowest] - graded_s(phases))
    shared_s = math.fsum(phases.values()) - graded_s(phases)
    phases["critic"] = phases.get("critic", 0.0) + max(0.0, updated - shared_s)
    return phases


def graded_s(phases: Mapping[str, float]) -> float:
    """Seconds of the forwards before an update."""
    return math.fsum(phases.get(name, 0.0) for name in GRADES)
