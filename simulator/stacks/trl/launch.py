"""What TRL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Place, Setting, Settings, value, whole

_COPIES = Setting(
    "run.strategy",
    "ddp",
    "a model on each GPU, as without DeepSpeed or FSDP; give the whole launch command after --",
    Place("TRL"),
    implied=True,
    unsaid=True,
    assumed=True,
)


def implied(settings: Settings) -> Iterable[Setting]:
    """Placement by the engine, GPUs and batch of one another (GRPOConfig.__post_init__), the
    trainer's split by its launcher."""
    yield from _placed(settings)
    yield from _sized(settings)
    yield from _scored(settings)
    split = list(_split(settings))
    yield from split
    weights = settings.get("run.cpu_parameters")
    if weights is not None and weights.value is True and value(settings, "run.zero_stage") == 3:
        yield weights.implies("run.cpu_offload", True)  # with the optimiser's states, as usual
    norms, shards = settings.get("run.fp32_norms"), {"fsdp", "fsdp2"}
    sharded = value(settings, "run.zero_stage") == 3 or value(settings, "run.strategy") in shards
    if norms is not None and sharded:  # is_sharded_qlora of trl/models/utils.py
        yield norms.implies("run.fp32_norms", False)
    rank = settings.get("run.lora_rank")
    own = {"run.patched", "run.fork", "run.lora_targets"} & settings.keys()
    if rank is not None and rank.value and not own:  # peft/utils/constants.py, of its usual models
        yield rank.implies("run.lora_targets", ["q_proj", "v_proj"])
    batches, adapters = settings.get("run.sync_batches"), settings.get("run.sends_adapters")
    if (whole(settings, "run.sync_batches") or 1) > 1 and batches is not None:
        yield batches.implies("run.merges_at_once", False)
    elif adapters is not None and adapters.value is True:
        yield adapters.implies("run.merges_at_once", False)
    known = {**settings, **{one.key: one for one in split}}
    yield from _stepped(known)
    accumulates = (whole(settings, "run.gradient_accumulation") or 1) > 1
    said = "run.reduce_every_pass" in settings  # else accelerate's no_sync
    if accumulates and not said and value(known, "run.strategy") == "fsdp":
        yield known["run.strategy"].implies("run.reduce_every_pass", False)


def _placed(settings: Settings) -> Iterable[Setting]:
    """Without vLLM each GPU generates; before there was a mode, one GPU was the engine's. The
    asynchronous trainer has a server of vLLM's (experimental/async_grpo)."""
    engine, mode = settings.get("run.engine"), _mode(settings)
    device, ahead = settings.get("run.rollout_devices"), _ahead(settings)
    if ahead is not None:
        yield ahead.implies("run.engine", True)
        yield ahead.implies("run.mode", "server")
        if served := _served(settings):
            yield settings["run.gpus_per_node"].implies("run.rollout_gpus", served)
    elif engine is not None and engine.value is False:
        yield engine.implies("run.mode", "transformers")
        yield engine.implies("run.colocated", True)
    elif mode is not None and mode.value in ("server", "colocate"):
        yield mode.implies("run.colocated", mode.value == "colocate")
        if served := _served(settings):
            yield settings["run.gpus_per_node"].implies("run.rollout_gpus", served)
        elif mode.theirs == "server":
            copies = whole(settings, "run.data_parallel") or 1
            tensor = whole(settings, "cluster.tensor_parallel") or 1
            yield mode.implies("run.rollout_gpus", copies * tensor)
            yield mode.implies("cluster.replicas", copies)
    elif device is not None:
        yield device.implies("run.colocated", False)
        yield device.implies("run.rollout_gpus", 1)


def _ahead(settings: Settings) -> Setting | None:
    """What tells the asynchronous trainer, if anything does."""
    for key in ("run.asynchronous", "run.max_staleness", "run.sync_every"):
        setting = settings.get(key)
        if (
            setting is not None
            and not setting.unsaid
            and not (key == "run.asynchronous" and setting.value is not True)
        ):
            return setting
    return None


def _mode(settings: Settings) -> Setting | None:
    """The engine's, whose default is of later releases than a GPU of its own."""
    mode = settings.get("run.mode")
    return None if mode and mode.unsaid and "run.rollout_devices" in settings else mode


def _sized(settings: Settings) -> Iterable[Setting]:
    """A batch is rows x GPUs x passes between two generations: GPUs follow from it and from passes
    that are said, batch or passes from GPUs."""
    batch, rows = settings.get("run.batch_rollouts"), settings.get("run.micro_batch_rollouts")
    per_pass, passes = whole(settings, "run.micro_batch_rollouts"), _passes(settings)
    gpus = _processes(settings)
    rollouts, group = whole(settings, "run.batch_rollouts"), whole(settings, "workload.group_size")
    if batch is not None and rollouts and group and rollouts % group == 0:
        yield batch.implies("workload.batch_groups", rollouts // group)
    if rows is None or not per_pass or not passes:
        return
    said = "run.generation_every" in settings
    if batch is not None and rollouts and said and rollouts % (per_pass * passes) == 0:
        gpus = batch.implies("cluster.trainer_gpus", rollouts // (per_pass * passes))
    if gpus is None:
        return
    yield gpus
    if not rollouts:
        rollouts = per_pass * passes * gpus.value
        yield rows.implies("run.batch_rollouts", rollouts)
        if group and rollouts % group == 0:
            yield rows.implies("workload.batch_groups", rollouts // group)
    accumulated = whole(settings, "run.gradient_accumulation")
    if accumulated:
        step = per_pass * accumulated * gpus.value
        yield rows.implies("run.mini_batch_rollouts", step)
    if _ahead(settings) is not None:
        return
    alone, mode = value(settings, "run.engine") is False, _mode(settings)
    together = whole(settings, "run.passes_at_once")
    if together and together < passes:
        # the engine has those of all GPUs; without it each has its own. That a pass waits for its
        # longest rollout is not in it.
        at_once = together * per_pass * (1 if alone else gpus.value)
        yield rows.implies("engine.max_seqs", at_once)
    if alone or (mode and mode.value == "colocate"):
        tensor = 1 if alone else whole(settings, "cluster.tensor_parallel") or 1
        yield gpus.implies("cluster.replicas", max(gpus.value // tensor, 1))


def _passes(settings: Settings) -> int | None:
    """Between two generations: those of an optimiser step, unless said, or the batch over all GPUs'
    rows where it is (GRPOConfig.__post_init__)."""
    if said := whole(settings, "run.generation_every"):
        return said
    batch, rows = (
        whole(settings, f"run.{key}") for key in ("batch_rollouts", "micro_batch_rollouts")
    )
    gpus = _processes(settings)
    if batch and rows and gpus is not None and batch % (rows * gpus.value) == 0:
        return int(batch // (rows * gpus.value))
    return whole(settings, "run.gradient_accumulation")


def _scored(settings: Settings) -> Iterable[Setting]:
    """Log-probabilities are computed before the update where weights change between generations, or
    to correct for the engine's (_generate_and_score_completions of grpo_trainer.py);
    AsyncGRPOTrainer takes the engine's (compute_loss), ms-swift and Unsloth always compute them."""
    engine, corrects = settings.get("run.engine"), value(settings, "run.engine_correction")
    if (ahead := _ahead(settings)) is not None:
        yield ahead.implies("run.log_probs", False)
        return
    if engine is None or (engine.value is True and corrects):
        return
    if value(settings, "run.patched") or value(settings, "run.fork"):
        return
    passes, between = whole(settings, "run.gradient_accumulation"), _passes(settings)
    between = (between or 0) * (whole(settings, "run.iterations") or 1)
    if passes and between and passes % between == 0:
        yield engine.implies("run.log_probs", False)


def _processes(settings: Settings) -> Setting | None:
    """The trainer's GPUs, of which its launcher starts a process each."""
    processes = whole(settings, "run.processes")
    if processes:
        return settings["run.processes"].implies("cluster.trainer_gpus", processes)
    nodes, gpus = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
    if gpus:
        trained = nodes * gpus - _served(settings)
        return settings["run.gpus_per_node"].implies("cluster.trainer_gpus", trained)
    return None


def _served(settings: Settings) -> int:
    """Of the GPUs that the user counts in all, those of the server that generates: one engine,
    since no launch of the trainer's says how many; 0 where the launcher's own are meant."""
    nodes, gpus = whole(settings, "run.nodes") or 1, settings.get("run.gpus_per_node")
    mode, engine = _mode(settings), settings.get("run.engine")
    if gpus is None or gpus.theirs != "--gpus":
        return 0
    if mode is None and engine is not None and engine.value and "run.rollout_devices" in settings:
        return int(nodes * gpus.value > 1)
    if _ahead(settings) is None and (mode is None or mode.value != "server"):
        return 0
    if _ahead(settings) is None and engine is not None and engine.value is False:
        return 0
    tensor = whole(settings, "cluster.tensor_parallel") or 1
    return tensor if nodes * (whole(settings, "run.gpus_per_node") or 0) > tensor else 0


def _split(settings: Settings) -> Iterable[Setting]:
    """DeepSpeed where there is a stage of ZeRO, the second FSDP by its version, else copies: surely
    where a launcher is there, which would name a configuration."""
    stage, version = settings.get("run.zero_stage"), settings.get("run.fsdp_version")
    if stage is not None and value(settings, "run.strategy") in (None, "deepspeed"):
        yield stage.implies("run.strategy", "deepspeed")
    elif version is not None and version.value == 2:
        yield version.implies("run.strategy", "fsdp2")
    elif (split := settings.get("run.strategy")) and split.theirs == "accelerate.use_deepspeed":
        yield split.implies("run.zero_stage", 2)  # accelerate's own
    elif "run.strategy" not in settings:
        gpus = _processes(settings)
        launched = gpus is not None and gpus.theirs != "--gpus"
        yield gpus.implies("run.strategy", "ddp") if gpus and launched else _COPIES


def _stepped(settings: Settings) -> Iterable[Setting]:
    """DeepSpeed's ZeRO and FSDP under mixed precision step weights of fp32, however these were
    loaded (DeepSpeed's stage_1_and_2.py and stage3.py, accelerate's accelerator.py from 0.26 and
    fsdp_utils.py); copies on each GPU stay as they are."""
    dtype, strategy = settings.get("run.trainer_dtype"), value(settings, "run.strategy")
    zero = strategy == "deepspeed" and value(settings, "run.zero_stage") != 0
    mixed = value(settings, "run.mixed_precision") not in (False, "no")
    if dtype is not None and (zero or (strategy in ("fsdp", "fsdp2") and mixed)):
        yield settings["run.strategy"].implies("run.trainer_dtype", "fp32")
