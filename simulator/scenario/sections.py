"""The sections of a scenario, typed to the leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rollcast.simulator.core.plan import Batch, Prompts, StepPlan
from rollcast.simulator.costs.section import CostSection
from rollcast.simulator.values import Above, Between, Doc, Options, read
from rollcast.simulator.values.later import Later
from rollcast.simulator.workload.section import WorkloadSection

if TYPE_CHECKING:
    from rollcast.simulator.costs.presets.gpus import Gpu
    from rollcast.simulator.costs.presets.models import Model
    from rollcast.simulator.learning.section import LearningSection
    from rollcast.simulator.scenario.plan_section import PlanSection
    from rollcast.simulator.workload.environment import EnvironmentSection, RewardSection
else:
    Gpu = Later("rollcast.simulator.costs.presets.gpus", "Gpu")
    Model = Later("rollcast.simulator.costs.presets.models", "Model")
    LearningSection = Later("rollcast.simulator.learning.section", "LearningSection")
    PlanSection = Later("rollcast.simulator.scenario.plan_section", "PlanSection")
    _ENVIRONMENT = "rollcast.simulator.workload.environment"
    EnvironmentSection = Later(_ENVIRONMENT, "EnvironmentSection")
    RewardSection = Later(_ENVIRONMENT, "RewardSection")

MAX_GPUS = 65_536
MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClusterSection(Options):
    """Which GPUs."""

    FIELD = "cluster"

    placement: Annotated[
        Literal["colocated", "disaggregated"],
        Doc(
            "colocated: replicas and trainer take turns on the same GPUs, of which either may have "
            "more; disaggregated: each has its own"
        ),
    ] = "colocated"
    replicas: Annotated[
        int, Between(1, MAX_GPUS), Doc("number of inference engines", unit="replicas")
    ] = 1
    tensor_parallel: Annotated[
        int,
        Between(1, 1024),
        Doc("GPUs per replica, or per pipeline stage of a replica", unit="GPUs"),
    ] = 1
    pipeline_parallel: Annotated[
        int, Between(1, 1024), Doc("pipeline stages per replica", unit="stages")
    ] = 1
    trainer_gpus: Annotated[
        int | None,
        Between(1, MAX_GPUS),
        Doc("GPUs of the trainer; null: as many as the replicas hold"),
    ] = None
    trainer_gpu: Annotated[
        Gpu | None,
        Doc(
            "GPU of the trainer, as gpu, where it is of another kind; null: of the same kind; "
            "needs placement: disaggregated"
        ),
    ] = None
    routing: Annotated[
        Literal["round_robin", "least_loaded", "group_affinity", "session_affinity"],
        Doc("rule that picks the replica of a rollout, or of its next turn"),
    ] = "least_loaded"


@dataclass(frozen=True, slots=True)
class EngineSection(Options):
    """The limits of each replica, and keys of the real engine alone (`engine.config`)."""

    FIELD = "engine"

    max_seqs: Annotated[
        int,
        Between(1, 1_000_000),
        Doc(
            "maximum number of rollouts running at once on a replica; where it is left out, as "
            "cost.roofline.stack sets it (verl up to 0.8 and SkyRL: 1024, slime: 512)",
            unit="rollouts",
            source="vLLM's default",
        ),
    ] = 256
    max_batched_tokens: Annotated[
        int,
        Between(1, 10_000_000),
        Doc(
            "maximum number of tokens in one iteration of a replica; at least max_seqs",
            source="vLLM's default",
        ),
    ] = 8192
    kv_tokens: Annotated[
        int | None,
        Between(1, 10**12),
        Doc("size of a replica's KV cache in tokens; null: computed from model and GPU memory"),
    ] = None
    block_tokens: Annotated[
        int, Between(1, 65_536), Doc("tokens in one block of the KV cache", source="vLLM's default")
    ] = 16
    prefix_caching: Annotated[
        bool, Doc("whether the rollouts of a group share the KV blocks of their prompt")
    ] = True
    model: Annotated[
        str | None,
        Doc("real engine only: folder of a Hugging Face model; null: the built-in task's model"),
    ] = None
    task: Annotated[
        Mapping[str, Any] | None, Doc("real engine only: the prompts and how responses are graded")
    ] = None
    trainer: Annotated[
        Mapping[str, Any] | None, Doc("real engine only: how the weights are updated")
    ] = None
    sampling: Annotated[
        Mapping[str, Any] | None, Doc("real engine only: how tokens are sampled")
    ] = None
    save: Annotated[
        Mapping[str, Any] | None,
        Doc("real engine only: how often the run is saved, and what stays of it"),
    ] = None
    evaluation: Annotated[
        Mapping[str, Any] | None,
        Doc("real engine only: how often held-out prompts are asked; null: never"),
    ] = None
    wandb: Annotated[
        Mapping[str, Any] | None, Doc("real engine only: curves for Weights & Biases; null: none")
    ] = None
    max_model_len: Annotated[
        int | None,
        Between(2, 10**9),
        Doc(
            "real engine only: maximum tokens of a prompt with its response; null: the model's "
            "context, or the KV pool if that is smaller",
            unit="tokens",
        ),
    ] = None
    dtype: Annotated[str, Doc("real engine only: type of the weights, float32 or bfloat16")] = (
        "float32"
    )
    name: Annotated[
        str, Doc("real engine only: inference engine that samples, vllm or transformers")
    ] = "vllm"
    device: Annotated[
        str, Doc("real engine only: device of trainer and replica, such as cpu, cuda or cuda:1")
    ] = "cpu"
    gpu_memory_utilization: Annotated[
        float | None,
        Above(0, 1),
        Doc(
            "real engine only: share of a GPU's memory that vLLM may use; null: 0.3 if the "
            "trainer shares the GPU, else 0.9",
            unit="share",
        ),
    ] = None
    sleep: Annotated[
        bool,
        Doc("real engine only: whether vLLM frees its GPU memory while a colocated trainer works"),
    ] = False
    weights_by: Annotated[
        Literal["store", "nccl", "ipc"],
        Doc(
            "real engine only: transport of new weights to replicas: store (shared memory; Ray's"
            " object store between machines), or by vLLM's weight transfer nccl (to GPUs of their"
            " own) or ipc (on the trainer's GPUs)"
        ),
    ] = "store"
    weights_folder: Annotated[
        str | None,
        Doc(
            "real engine only: folder that all machines see, through which weights are sent as"
            " files; null: as weights_by says"
        ),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        Doc(
            "real engine only: whether vLLM schedules an iteration while the one before runs; null:"
            " on GPUs"
        ),
    ] = None
    heartbeat_s: Annotated[
        float,
        Between(1, 86_400),
        Doc("real engine only: time without a sign of life after which an actor is replaced"),
    ] = 120.0


@dataclass(frozen=True, slots=True)
class ScenarioModel(Options):
    """The top level of a scenario file."""

    workload: Annotated[WorkloadSection, Doc("prompts, response lengths and rewards")]
    name: Annotated[str | None, Doc("name used in reports; null: the name of the file")] = None
    model: Annotated[
        str | Model | None,
        Doc(
            "model preset (rollcast presets models), path of a Hugging Face config.json or "
            "its folder, or a mapping of keys"
        ),
    ] = None
    gpu: Annotated[Gpu | None, Doc("GPU preset (rollcast presets gpus), or a mapping of keys")] = (
        None
    )
    cluster: Annotated[ClusterSection, Doc("GPUs and how replicas and trainer share them")] = field(
        default_factory=ClusterSection
    )
    environment: Annotated[
        EnvironmentSection | None,
        Doc("environment that answers a rollout's turns; null: it answers at once"),
    ] = None
    reward: Annotated[
        RewardSection | None, Doc("grading of a finished rollout; null: it takes no time")
    ] = None
    engine: Annotated[EngineSection, Doc("limits of each replica")] = field(
        default_factory=EngineSection
    )
    policy: Annotated[
        Any,  # its own reader says better what is wrong with it
        Doc("scheduling policies, applied in the order of the list; empty: synchronous"),
    ] = None
    modules: Annotated[
        str | None, Doc("folder with modules of your own policies; null: the folder of this file")
    ] = None
    cost: Annotated[
        CostSection,
        Doc(
            "source of all durations: roofline, tables, linear or file; a name, or a "
            "mapping with its keys"
        ),
    ] = field(default_factory=lambda: CostSection.from_text("roofline"))
    learning: Annotated[
        LearningSection | None,
        Doc("law by which accuracy rises with the updates; null: seconds alone are forecast"),
    ] = None
    poll_s: Annotated[
        float,
        Between(0, 3600),
        Doc(
            "interval at which the waiting trainer polls for finished rollouts; 0: notified"
            " immediately",
            source="verl's V1 trainer looks every 2 s",
        ),
    ] = 0.0
    steps: Annotated[
        int, Between(1, MAX_STEPS), Doc("number of training steps to simulate", unit="steps")
    ] = 10
    seed: Annotated[int, Between(0, 2**63 - 1), Doc("seed of all random draws", unit="")] = 0
    plan: Annotated[PlanSection | None, Doc("question that rollcast plan answers")] = None


def validate(data: Mapping[str, Any]) -> ScenarioModel:
    """The sections of a scenario; null counts as absent. Raises ScenarioError for the first unknown
    key, else the first wrong one."""
    return read(ScenarioModel, data)


def base_plan(model: ScenarioModel) -> StepPlan:
    """The plan that policies rewrite, in simulated, real and replayed runs alike."""
    counts, environment = model.workload, model.environment
    return StepPlan(
        Batch(counts.batch_groups, counts.group_size),
        prompts=Prompts(dataset=counts.prompts),
        failed="keep" if environment is None else environment.failed,
    )
