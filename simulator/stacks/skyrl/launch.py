"""What SkyRL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of the roles (placement), which share them with the policy where that is said; a bound
    on passes in tokens; and the models that other settings ask for."""
    yield from _placed(settings)
    room = settings.get("run.max_pass_tokens")
    if room is not None:
        yield room.implies("run.dynamic_batches", bool(whole(settings, "run.max_pass_tokens")))
    terms = [settings[key] for key in ("run.kl_in_loss", "run.kl_in_reward") if key in settings]
    if terms:
        term = next((one for one in terms if one.value is True), terms[0])
        yield term.implies("run.reference", term.value is True)
    critic = settings.get("run.critic_model")
    if critic is not None:
        yield critic.implies("run.critic", critic.value is not None)


def _placed(settings: Settings) -> Iterable[Setting]:
    colocated = settings.get("run.colocated")
    nodes, gpus = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
    if gpus:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", nodes * gpus)
    if colocated is None:
        return
    if colocated.value is True:
        yield colocated.implies("run.free_engine", True)
        yield colocated.implies("run.offload_parameters", True)
        if "run.asynchronous" not in settings:
            yield colocated.implies("run.asynchronous", False)
        return
    yield colocated.implies("run.offload_optimizer", False)
    engines = whole(settings, "cluster.replicas")
    if engines:
        per = (whole(settings, "cluster.tensor_parallel") or 1) * (
            whole(settings, "run.engine_pipeline_parallel") or 1
        )
        total = engines * per * (whole(settings, "run.data_parallel") or 1)
        yield settings["cluster.replicas"].implies("run.rollout_gpus", total)
    if value(settings, "run.share_reference") is False:
        own = whole(settings, "run.reference_gpus_per_node")
        if own:
            machines = whole(settings, "run.reference_nodes") or 1
            yield settings["run.reference_gpus_per_node"].implies(
                "run.reference_gpus", machines * own
            )
