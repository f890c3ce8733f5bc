"""The sections of a scenario, typed to the leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from simulator.costs.section import CostSection
from simulator.later import Later
from simulator.options import Above, Between, Doc, Options, read
from simulator.scenario.plan_section import PlanSection
from simulator.workload.environment import EnvironmentSection, RewardSection
from simulator.workload.section import WorkloadSection

if TYPE_CHECKING:
    from simulator.costs.hardware import Gpu
    from simulator.costs.models import Model
else:
    Gpu = Later("simulator.costs.hardware", "Gpu")
    Model = Later("simulator.costs.models", "Model")

MAX_GPUS = 65_536
MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClusterSection(Options):
    """Which GPUs."""

    FIELD = "cluster"

    placement: Annotated[
        Literal["colocated", "disaggregated"],
        Doc("whether replicas and trainer take turns on the same GPUs, or have their own"),
    ] = "colocated"
    replicas: Annotated[
        int, Between(1, MAX_GPUS), Doc("inference engines side by side", unit="replicas")
    ] = 1
    tensor_parallel: Annotated[
        int, Between(1, 1024), Doc("GPUs of one replica, or of one stage of it", unit="GPUs")
    ] = 1
    pipeline_parallel: Annotated[
        int, Between(1, 1024), Doc("stages of one replica, one after another", unit="stages")
    ] = 1
    trainer_gpus: Annotated[
        int | None,
        Between(1, MAX_GPUS),
        Doc("GPUs of the trainer; null is as many as the replicas hold"),
    ] = None
    routing: Annotated[
        Literal["round_robin", "least_loaded", "group_affinity", "session_affinity"],
        Doc("which replica a rollout, or its next turn, is sent to"),
    ] = "least_loaded"


@dataclass(frozen=True, slots=True)
class EngineSection(Options):
    """The limits of each replica, and what is of the real engine alone.

    The latter is read by `engine.config`: one file serves both worlds, and the simulator has no use
    for it.
    """

    FIELD = "engine"

    max_seqs: Annotated[
        int,
        Between(1, 1_000_000),
        Doc("rollouts that run at once, a replica", unit="rollouts", source="vLLM's default"),
    ] = 256
    max_batched_tokens: Annotated[
        int,
        Between(1, 10_000_000),
        Doc("tokens of an iteration, a replica; at least max_seqs", source="vLLM's default"),
    ] = 8192
    kv_tokens: Annotated[
        int | None,
        Between(1, 10**12),
        Doc("what the KV pool of a replica holds; null follows from model and GPU memory"),
    ] = None
    block_tokens: Annotated[
        int, Between(1, 65_536), Doc("of one block of the KV pool", source="vLLM's default")
    ] = 16
    prefix_caching: Annotated[
        bool, Doc("whether the rollouts of a group share their prompt's blocks")
    ] = True
    model: Annotated[
        str | None,
        Doc("folder of a Hugging Face model; null is the built-in task's; the real engine's"),
    ] = None
    task: Annotated[
        Mapping[str, Any] | None, Doc("what is asked, and how it is judged; the real engine's")
    ] = None
    trainer: Annotated[
        Mapping[str, Any] | None, Doc("how the weights are updated; the real engine's")
    ] = None
    sampling: Annotated[
        Mapping[str, Any] | None, Doc("how tokens are drawn; the real engine's")
    ] = None
    dtype: Annotated[str, Doc("type of the weights, float32 or bfloat16; the real engine's")] = (
        "float32"
    )
    device: Annotated[
        str, Doc("of trainer and replica: cpu, or cuda, or cuda:1; the real engine's")
    ] = "cpu"
    gpu_memory_utilization: Annotated[
        float | None,
        Above(0, 1),
        Doc(
            "share of a GPU's memory that vLLM takes; null is 0.3 where the trainer shares it, and "
            "0.9 where not; the real engine's",
            unit="share",
        ),
    ] = None
    sleep: Annotated[
        bool,
        Doc(
            "whether vLLM gives up its GPU memory while a trainer that shares the GPU works; the "
            "real engine's"
        ),
    ] = False
    weights_by: Annotated[
        Literal["store", "nccl"],
        Doc(
            "how weights go to replicas with GPUs of their own: through Ray's object store, or "
            "from GPU to GPU by vLLM's weight transfer; the real engine's"
        ),
    ] = "store"
    weights_folder: Annotated[
        str | None,
        Doc(
            "that every machine sees, for weights to cross as files; null is Ray's object store; "
            "the real engine's"
        ),
    ] = None
    heartbeat_s: Annotated[
        float,
        Between(1, 86_400),
        Doc("without a sign of life after which an actor is replaced; the real engine's"),
    ] = 120.0


@dataclass(frozen=True, slots=True)
class ScenarioModel(Options):
    """The top level of a scenario file."""

    workload: Annotated[WorkloadSection, Doc("what is asked, how long answers are, what they earn")]
    name: Annotated[str | None, Doc("what reports call it; null is the name of its file")] = None
    model: Annotated[
        str | Model | None,
        Doc(
            "a preset (rollcast presets models), a Hugging Face config.json or its folder, or keys"
        ),
    ] = None
    gpu: Annotated[Gpu | None, Doc("a preset (rollcast presets gpus), or keys")] = None
    cluster: Annotated[ClusterSection, Doc("which GPUs")] = field(default_factory=ClusterSection)
    environment: Annotated[
        EnvironmentSection | None, Doc("what answers a rollout's turns; null answers at once")
    ] = None
    reward: Annotated[
        RewardSection | None, Doc("what judges a rollout at its end; null takes no time")
    ] = None
    engine: Annotated[EngineSection, Doc("the limits of each replica")] = field(
        default_factory=EngineSection
    )
    policy: Annotated[
        Any,  # its own reader says better what is wrong with it
        Doc("the scheduling policies, a list in order of application; empty is synchronous"),
    ] = None
    modules: Annotated[
        str | None,
        Doc("the folder in which modules of policies of your own are; null is that of this file"),
    ] = None
    cost: Annotated[CostSection, Doc("where durations come from; a source's name will do")] = field(
        default_factory=lambda: CostSection.from_text("roofline")
    )
    poll_s: Annotated[
        float,
        Between(0, 3600),
        Doc(
            "between two looks of the trainer at whether its rollouts are done, from when it "
            "begins to wait for them; 0 tells it at once",
            source="verl's V1 trainer looks every 2 s",
        ),
    ] = 0.0
    steps: Annotated[int, Between(1, MAX_STEPS), Doc("updates to run", unit="steps")] = 10
    seed: Annotated[int, Between(0, 2**63 - 1), Doc("of every draw", unit="")] = 0
    plan: Annotated[PlanSection | None, Doc("the question that rollcast plan answers")] = None


def validate(data: Mapping[str, Any]) -> ScenarioModel:
    """The sections of a scenario; a key set to null counts as absent.

    Raises ScenarioError for an unknown key, if there is one, else for the first that is wrong.
    """
    return read(ScenarioModel, data)
