"""What a scenario may say of the roofline (``cost.roofline``), with the sources of the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, get_args

from rollcast.simulator.costs.engine.hosts import Engine, Unsaid, host_of
from rollcast.simulator.costs.engine.layout import NETWORK_BYTES_PER_S, NODE_GPUS
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.presets.provenance import Provenance
from rollcast.simulator.costs.stacks import STACKS, Stack, StackPreset
from rollcast.simulator.costs.stacks import listed as listed_stacks
from rollcast.simulator.costs.sync.sleep import SLEEP_SOURCE, SWITCH_S, SWITCH_SOURCE, Sleep
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.values import Above, Between, Doc, Options, choice, number

SECONDS = Between(0, 1e6)

# What the kernel tables behind the fitted efficiencies cover (Qwen3-8B, aiconfigurator 0.12.0).
FITTED_ROLLOUTS = 512
FITTED_TOKENS_PER_ROLLOUT = 32_768
FITTED_PREFILL_TOKENS = 262_144
FITTED_TENSOR_PARALLEL = 8

FIELD = "cost.roofline"
_SYNC = "checkpoint-engine's published weight updates on 8 and 16 GPUs; those on 256 held out"
_HOST = (
    "as vLLM 0.19, fitted to half of a run's requests on an RTX PRO 6000 (see engine); kernel "
    "tables alone have none, vLLM of mid-2024 1.6 ms and 77 us a rollout, NeMo-RL's loop 3 ms and "
    "53 us (see stack)"
)
_OFFLOAD = (
    "refit in NeMo-RL v0.3's table of phases (H100), Llama-3.1-8B in 5 s and Qwen3-32B in 7 s; "
    "held out: Llama-3.1-70B and Qwen3-30B-A3B. Pageable memory is moved at 0.75e9, pinned at 23e9"
)
_LAUNCH = (
    "eager vLLM: Qwen2.5-Omni-7B 22 ms a token on A800 (vllm-omni issue 7960), 0.8 ms a layer; "
    "Qwen3-0.6B 10 ms (torchtitan pull request 2373), 0.36 ms"
)
_REST = (
    "none; published steps hold 0.3 to 55 s beside their phases, by what computes the rewards: see "
    "cost.roofline.stack"
)
ROOFLINE_SOURCES = {
    "host_s": Provenance("assumed", _HOST),
    "host_per_rollout_s": Provenance("assumed", _HOST),
    "launch_s_per_layer": Provenance("assumed", _LAUNCH),
    "engine_sleep": SLEEP_SOURCE,
    "rest_s": Provenance("assumed", _REST),
    "sync_bytes_per_s": Provenance("fitted", _SYNC),
    "sync_fixed_s": Provenance("fitted", _SYNC),
    "switch_fixed_s": SWITCH_SOURCE,
    "offload_bytes_per_s": Provenance("fitted", _OFFLOAD),
    "reserve_bytes": Provenance("assumed", "activations, captured graphs and the CUDA context"),
    "kv_memory_utilization": Provenance("assumed", "default of vLLM"),
    "network_bytes_per_s": Provenance("assumed", "one 400 Gb/s link a GPU"),
    "kv_rollout_tokens": Provenance("assumed", "a response of a reasoning model"),
}


def _source(name: str) -> str:
    return str(ROOFLINE_SOURCES[name])


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """What a scenario may say of a :class:`RooflineCost`, under ``cost.roofline``."""

    FIELD = FIELD

    stack: Annotated[
        Stack | None,
        Doc(
            "sets engine, host_s, host_per_rollout_s, cuda_graphs, sync, engine_sleep and rest_s "
            "where they are not given",
            source=listed_stacks(),
        ),
    ] = None
    engine: Annotated[
        Engine | None,
        Doc(
            "sets host_s and host_per_rollout_s where they are not given",
            source="rollcast presets engines",
        ),
    ] = None
    host_factor: Annotated[
        float,
        Above(0, 1000),
        Doc(
            "factor by which this host's CPU is slower than the engine preset's; host "
            "figures that are given stay",
            unit="times",
        ),
    ] = 1.0
    host_s: Annotated[
        float,
        SECONDS,
        Doc("host time per engine iteration", source=_source("host_s")),
    ] = Unsaid(5.4e-4)
    host_per_rollout_s: Annotated[
        float,
        SECONDS,
        Doc(
            "host time per engine iteration and running rollout",
            source=_source("host_per_rollout_s"),
        ),
    ] = Unsaid(3.7e-5)
    cuda_graphs: Annotated[
        bool | None,
        Doc(
            "whether the engine replays CUDA graphs (false: vLLM's enforce_eager); null: as"
            " the stack does, else true"
        ),
    ] = None
    launch_s_per_layer: Annotated[
        float,
        SECONDS,
        Doc(
            "minimum time per layer of an engine without CUDA graphs (kernel launches)",
            unit="seconds",
            source=_source("launch_s_per_layer"),
        ),
    ] = 4.0e-4
    sync: Annotated[
        WeightSync | None,
        Doc(
            "transport of new weights; replaces the two keys below",
            source="rollcast presets syncs",
        ),
    ] = None
    sync_bytes_per_s: Annotated[
        float,
        Above(0, 1e30),
        Doc("rate at which new weights reach the replicas", source=_source("sync_bytes_per_s")),
    ] = 73e9
    sync_fixed_s: Annotated[
        float,
        SECONDS,
        Doc("fixed time of a weight sync", source=_source("sync_fixed_s")),
    ] = 0.41
    offload_optimizer: Annotated[
        bool, Doc("whether a colocated trainer offloads its states to host memory during rollouts")
    ] = True
    offload_bytes_per_s: Annotated[
        float,
        Above(0, 1e30),
        Doc(
            "offload rate per GPU, at most that of its host link",
            source=_source("offload_bytes_per_s"),
        ),
    ] = 14e9
    engine_sleep: Annotated[
        Sleep | None,
        Doc(
            "handling of a colocated engine's weights while it sleeps; sets switch_fixed_s "
            "unless given",
            source=_source("engine_sleep"),
        ),
    ] = None
    switch_fixed_s: Annotated[
        float,
        SECONDS,
        Doc(
            "fixed time of a switch between rollout and training on shared GPUs",
            source=_source("switch_fixed_s"),
        ),
    ] = Unsaid(SWITCH_S)
    rest_s: Annotated[
        float,
        SECONDS,
        Doc(
            "time of a step outside all other phases (rewards, data, validation), after the update",
            source=_source("rest_s"),
        ),
    ] = Unsaid(0.0)
    kv_memory_utilization: Annotated[
        float,
        Above(0, 1),
        Doc(
            "share of a GPU's memory that the engine may use",
            unit="share",
            source=_source("kv_memory_utilization"),
        ),
    ] = 0.9
    reserve_bytes: Annotated[
        float,
        Between(0, 1e30),
        Doc(
            "memory within kv_memory_utilization that the KV cache cannot use",
            source=_source("reserve_bytes"),
        ),
    ] = 2e9
    kv_rollout_tokens: Annotated[
        int,
        Between(1, 10**9),
        Doc(
            "rollout length for which the KV cache of models with window or linear "
            "attention is sized; no effect on other models",
            source=_source("kv_rollout_tokens"),
        ),
    ] = 8192
    expert_parallel: Annotated[
        bool, Doc("whether each GPU of a replica holds whole experts rather than a slice of each")
    ] = False
    data_parallel_attention: Annotated[
        bool,
        Doc(
            "whether each GPU of a replica computes all of attention for its own share of rollouts"
        ),
    ] = False
    gpus_per_node: Annotated[
        int,
        Between(1, 1024),
        Doc(
            "GPUs of an engine joined by the interconnect; larger stages cross the network",
            unit="GPUs",
        ),
    ] = NODE_GPUS
    network_bytes_per_s: Annotated[
        float,
        Above(0, 1e30),
        Doc(
            "network bandwidth per GPU between the nodes of an engine, one direction",
            source=_source("network_bytes_per_s"),
        ),
    ] = NETWORK_BYTES_PER_S
    speculative: Annotated[Speculative | None, Doc("speculative decoding; null: off")] = None

    def __post_init__(self) -> None:
        number(self.host_factor, f"{FIELD}.host_factor", Above(0, 1000))
        if self.stack is not None:
            choice(self.stack, f"{FIELD}.stack", get_args(Stack))
            self._take(STACKS[self.stack])
        if self.cuda_graphs is None:
            object.__setattr__(self, "cuda_graphs", True)
        if self.engine is not None:
            choice(self.engine, f"{FIELD}.engine", get_args(Engine))
        host = host_of(self.engine, self.host_s, self.host_per_rollout_s, self.host_factor)
        for name, seconds in zip(("host_s", "host_per_rollout_s"), host, strict=True):
            object.__setattr__(self, name, seconds)
        unsaid = isinstance(self.switch_fixed_s, Unsaid)
        super().__post_init__()
        if unsaid:  # a cost model, which knows the bytes, may still replace it
            object.__setattr__(self, "switch_fixed_s", Unsaid(self.switch_fixed_s))

    def _take(self, stack: StackPreset) -> None:
        """What the stack says, in place of what nobody gave. Its host figures go with its engine:
        another one named has its own."""
        if self.engine is None:
            object.__setattr__(self, "engine", stack.engine)
            for name in ("host_s", "host_per_rollout_s"):
                of_stack = getattr(stack, name)
                if of_stack is not None and isinstance(getattr(self, name), Unsaid):
                    object.__setattr__(self, name, self.host_factor * of_stack)
        for name in ("cuda_graphs", "engine_sleep"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(stack, name))
        if isinstance(self.rest_s, Unsaid):
            object.__setattr__(self, "rest_s", stack.rest_s)


@dataclass(frozen=True, kw_only=True)
class RooflineSection(RooflineOptions):
    """``cost.roofline`` of a scenario."""

    trainer: Annotated[TrainerOptions, Doc("trainer of the roofline")] = field(
        default_factory=TrainerOptions
    )
