"""What cannot run of a scenario for the real engine: each check raises ScenarioError with the key,
before anything is loaded."""

from __future__ import annotations

from rollcast.engine.engines import adapter
from rollcast.engine.options import TrainerConfig
from rollcast.engine.world_parts import SHAPE
from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import cluster_shape
from rollcast.simulator.scenario.sections import ClusterSection, EngineSection

DTYPES = ("float32", "bfloat16")


def check_cluster(cluster: ClusterSection) -> None:
    """A replica has one pipeline stage, and a colocated trainer no GPU of its own."""
    if cluster.pipeline_parallel != 1:
        message = (
            f"is {cluster.pipeline_parallel}; the real engine supports one stage, so make it 1"
        )
        raise ScenarioError("cluster.pipeline_parallel", message)
    shape = cluster_shape(cluster)
    engines = shape.replicas * shape.gpus_per_replica
    if shape.colocated and shape.trainer_gpus > engines:
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"is {shape.trainer_gpus}, but colocated replicas hold only {engines} GPUs (replicas x "
            "tensor_parallel), and the real engine's ranks share theirs; raise replicas, or use "
            "placement: disaggregated",
        )


def check_streaming(plan: StepPlan, trainer: TrainerConfig) -> None:
    """A batch in parts is trained on in one update."""
    if plan.stream_groups is None:
        return
    for key in ("minibatches", "epochs"):
        if (count := getattr(trainer, key)) > 1:
            raise trainer.refuse(
                key,
                f"is {count}, but a policy that streams groups to the trainer makes one "
                "update of them; make it 1",
            )


def check_devices(cluster: ClusterSection, engine: EngineSection) -> None:
    """Actors are given their GPUs; only sleeping ones share them."""
    if engine.sleep and not engine.device.startswith("cuda"):
        message = (
            f"is true, but engine.device is {engine.device}: only on a GPU does it free memory"
        )
        raise ScenarioError("engine.sleep", message)
    if engine.sleep and cluster.placement != "colocated":
        raise ScenarioError(
            "engine.sleep",
            "is true, but no trainer shares the replica's GPU: leave it out, or make "
            "cluster.placement colocated",
        )
    _check_wire(cluster, engine)
    alone = cluster.replicas == 1 and cluster.placement == "colocated"
    if alone or not engine.device.startswith("cuda"):
        return
    if engine.device != "cuda":
        raise ScenarioError(
            "engine.device",
            f"is {engine.device}; replicas and trainer are given their GPUs, so make it cuda",
        )


def _check_wire(cluster: ClusterSection, engine: EngineSection) -> None:
    """NCCL goes from the trainer's first GPU to other GPUs; CUDA IPC from each of its GPUs to the
    worker there."""
    by, wanted = engine.weights_by, "store"
    if by == "store":
        return
    why, shape = None, cluster_shape(cluster)
    gpus, one_process = shape.replicas * shape.gpus_per_replica, shape == SHAPE
    if not engine.device.startswith("cuda"):
        why = f"engine.device is {engine.device}, which {by.upper()} does not reach"
    elif engine.weights_folder is not None:
        why = "engine.weights_folder has them go through files"
    elif one_process:
        why = "one replica and its trainer share a process, which needs no transport"
    elif by == "nccl" and shape.colocated:
        why, wanted = "replicas have their weights from the trainer's GPUs, which are theirs", "ipc"
    elif by == "ipc" and not shape.colocated:
        why, wanted = "the replicas have GPUs of their own", "nccl"
    elif by == "ipc" and shape.trainer_gpus != gpus:
        why = f"{shape.trainer_gpus} of the replicas' {gpus} GPUs have a rank of the trainer"
    if why is not None:
        raise ScenarioError("engine.weights_by", f"is {by}, but {why}; make it {wanted}")


def check_engine(engine: EngineSection, cluster: ClusterSection, max_new_tokens: int) -> None:
    """The engine's limits leave room for a rollout."""
    adapter(engine.name).check(engine, cluster)
    if engine.max_batched_tokens < engine.max_seqs:
        raise ScenarioError(
            "engine.max_batched_tokens",
            f"is {engine.max_batched_tokens}, less than max_seqs ({engine.max_seqs}): every "
            "running rollout needs one token per iteration",
        )
    if engine.max_model_len is not None and engine.max_model_len <= max_new_tokens:
        raise ScenarioError(
            "engine.max_model_len",
            f"is {engine.max_model_len}, which leaves no token for a prompt beside "
            f"workload.max_new_tokens ({max_new_tokens})",
        )
    pool_tokens = None if engine.kv_tokens is None else engine.kv_tokens // engine.block_tokens
    if pool_tokens is not None and pool_tokens * engine.block_tokens <= max_new_tokens:
        raise ScenarioError(
            "engine.kv_tokens",
            f"a pool of {engine.kv_tokens} tokens cannot hold one rollout of a prompt and "
            f"{max_new_tokens} new tokens",
        )
    if engine.dtype not in DTYPES:
        raise ScenarioError("engine.dtype", f"{engine.dtype!r} is not one of {', '.join(DTYPES)}")


def check_device(name: str) -> None:
    """The device is the trainer's and the engine's."""
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        message = f"{name!r} is not cpu, cuda, or one of several such as cuda:1"
        raise ScenarioError("engine.device", message)


def check_here(engine: EngineSection, cluster: ClusterSection) -> None:
    """This machine must have the devices, and an engine for them."""
    import torch

    name = engine.device
    field, device = "engine.device", torch.device(name)
    runs = adapter(engine.name).runs_on(device.type)
    if device.type == "cpu":
        if not runs:
            raise ScenarioError(field, "is cpu, but the vLLM here is built for GPUs; make it cuda")
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        seen = f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU"
        raise ScenarioError(field, f"is {name}, but torch sees {seen} here; make it cpu")
    if not runs:
        raise ScenarioError(field, f"is {name}, but the vLLM here is built for CPUs")
    if (asked := cluster_shape(cluster).gpus) > count:
        raise ScenarioError(
            "cluster.replicas",
            f"with tensor_parallel and trainer_gpus this takes {asked} GPUs, but torch sees "
            f"{count} here; ask for fewer, or give --ray a cluster that has them",
        )


def check_offload(trainer: TrainerConfig, cluster: ClusterSection) -> None:
    """Several ranks keep their states in host memory, one does not."""
    if trainer.offload and cluster_shape(cluster).trainer_gpus == 1:
        raise trainer.refuse(
            "offload",
            "is true, but the trainer has one rank; make cluster.trainer_gpus 2 or more, or leave "
            "it out",
        )
