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
    """GPUs that models beside the actor share with nobody."""
    if value(settings, "run.colocated") is True:
        return
    weight = value(settings, "run.kl_coefficient")
    refers = isinstance(weight, int | float) and weight > 0
    if refers and value(settings, "run.share_reference") is False:
        yield from _own(settings, "reference")
    critic = value(settings, "run.algorithm") == "gae"
    if critic:
        yield from _own(settings, "critic")
    shared = critic and value(settings, "run.share_reward_model") is True
    elsewhere = {"run.reward_elsewhere", "run.tools"} & settings.keys()
    if "run.reward_model" in settings and not elsewhere and not shared:
        yield from _own(settings, "reward_model")


def _own(settings: Settings, role: str) -> Iterable[Setting]:
    nodes = whole(settings, f"run.{role}_nodes")
    gpus = whole(settings, f"run.{role}_gpus_per_node")
    if nodes and gpus:
        cause = settings[f"run.{role}_gpus_per_node"]
        yield cause.implies(f"run.{role}_gpus", nodes * gpus)
