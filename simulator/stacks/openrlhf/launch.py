"""What OpenRLHF's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """As openrlhf/cli/train_ppo_ray.py starts its groups of actors: engines have GPUs of their own
    unless all models share them; each of reference, critic and reward model has its own, shared
    with the actor or with one another where that is said."""
    yield from _engines(settings)
    nodes, gpus = whole(settings, "run.nodes"), whole(settings, "run.gpus_per_node")
    if nodes and gpus:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", nodes * gpus)
    stage, sleeps = settings.get("run.zero_stage"), settings.get("run.offload_optimizer")
    if stage is not None:
        yield stage.implies("run.strategy", "deepspeed")
    if sleeps is not None:
        for name in ("parameters", "gradients"):
            yield sleeps.implies(f"run.offload_{name}", sleeps.value)
    total = settings.get("run.max_total_tokens")
    if total is not None and "workload.max_new_tokens" not in settings:
        yield total.implies("workload.max_new_tokens", total.value)
    yield from _models(settings)


def _engines(settings: Settings) -> Iterable[Setting]:
    engines = settings.get("cluster.replicas")
    count = whole(settings, "cluster.replicas")
    if engines is None or count is None:
        return
    shared = value(settings, "run.colocated") is True
    if shared and value(settings, "run.asynchronous") is True:
        yield settings["run.asynchronous"].implies("run.colocated", False)
        shared = False
    elif "run.colocated" not in settings:
        yield engines.implies("run.colocated", False)
    if not shared:
        gpus = count * (whole(settings, "cluster.tensor_parallel") or 1)
        yield engines.implies("run.rollout_gpus", gpus)


def _models(settings: Settings) -> Iterable[Setting]:
    """Which there are beside the actor, and those of their GPUs that they share with nobody."""
    weight, algorithm = settings.get("run.kl_coefficient"), settings.get("run.algorithm")
    all_shared = value(settings, "run.colocated") is True
    if weight is not None and isinstance(weight.value, int | float):
        yield weight.implies("run.reference", weight.value > 0)
        if not all_shared and weight.value > 0 and value(settings, "run.share_reference") is False:
            yield from _own(settings, "reference")
    if algorithm is not None:
        yield algorithm.implies("run.critic", algorithm.value == "gae")
        if not all_shared and algorithm.value == "gae":
            yield from _own(settings, "critic")
    elsewhere, model = settings.get("run.reward_elsewhere"), settings.get("run.reward_model")
    if elsewhere is not None:
        yield elsewhere.implies("run.reward_models", False)
    elif model is not None:
        yield model.implies("run.reward_models", True)
        shares = value(settings, "run.share_reward_model") is True
        if not all_shared and not (shares and value(settings, "run.algorithm") == "gae"):
            yield from _own(settings, "reward_model")


def _own(settings: Settings, role: str) -> Iterable[Setting]:
    nodes = whole(settings, f"run.{role}_nodes")
    gpus = whole(settings, f"run.{role}_gpus_per_node")
    if nodes and gpus:
        cause = settings[f"run.{role}_gpus_per_node"]
        yield cause.implies(f"run.{role}_gpus", nodes * gpus)
