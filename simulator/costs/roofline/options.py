"""What a scenario may say of the roofline (``cost.roofline``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

from rollcast.simulator.costs.backends import unsaid_options
from rollcast.simulator.costs.engine.hosts import Engine, Unsaid, engine_presets
from rollcast.simulator.costs.engine.layout import NODE_GPUS
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.phase_figures import FixedSeconds, PhaseFactors
from rollcast.simulator.costs.presets.provenance import figures, sources
from rollcast.simulator.costs.ranges import Factor, PositiveShare, Rate, Seconds, Tokens
from rollcast.simulator.costs.stacks import STACKS, Stack, known_stack, loop_of
from rollcast.simulator.costs.sync.sleep import Sleep
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.values import (
    Above,
    AtLeast,
    Between,
    Doc,
    Options,
    choice,
    join,
    mapping,
    number,
    read,
)

FIELD = "cost.roofline"
LAUNCHES = (
    *("launch_s_per_layer", "recurrent_launch_s_per_layer", "mixture_launch_s_per_layer"),
    *("latent_launch_s_per_layer", "adapter_launch_s_per_layer", "prefill_launch_s_per_layer"),
)
"""What a layer takes to launch."""
_OF_HOST = ("host_s", "host_per_rollout_s", "loop_s", "loop_per_rollout_s")
_F = figures("roofline")
_UNSAID = {
    **{
        key: Unsaid(getattr(_F, key))
        for key in (
            *("host_s", "host_per_rollout_s", "switch_fixed_s"),
            *("rest_s", "rest_per_token_s"),
        )
    },
    **{
        key: Unsaid(getattr(_F, key))
        for key in ("kv_memory_utilization", "reserve_bytes", *LAUNCHES)
    },
    **{key: Unsaid(0.0) for key in ("loop_s", "loop_per_rollout_s")},
}


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """What a scenario may say of a :class:`RooflineCost`, under ``cost.roofline``. offload_said:
    whether ``offload_optimizer`` was given; None: it was, if it is not None."""

    FIELD = FIELD
    FIXED: ClassVar[tuple[str, ...]] = ("offload_said",)
    SOURCES = sources("roofline")

    stack: Annotated[
        Stack | None,
        Doc(
            "training stack; it sets engine, cuda_graphs, sync, engine_sleep, offload_optimizer, "
            "client_factor, kv_memory_utilization, rest_s, rest_per_token_s, loop_s, "
            "loop_per_rollout_s, fixed, phase_factors and the trainer's options where they are not "
            "given; unknown: an average over stacks",
            source="rollcast presets stacks",
        ),
    ] = None
    settings_known: Annotated[
        bool,
        Doc(
            "whether every setting of the scenario is the run's own and none a guess: intervals "
            "of a stack's phases, but syncs, are narrower then"
        ),
    ] = False
    engine: Annotated[
        Engine | None,
        Doc(
            "inference engine and version; it sets host_s and host_per_rollout_s where "
            "they are not given",
            source="rollcast presets engines",
        ),
    ] = None
    host_factor: Annotated[
        Factor | None,
        Doc(
            "factor on the engine preset's host times for a slower CPU; a host_s or "
            "host_per_rollout_s that is given is not multiplied; null: 1.3 beside a Grace "
            "(GH200, GB200, GB300), otherwise 1",
            unit="times",
        ),
    ] = None
    host_s: Annotated[Seconds, Doc("host time per engine iteration")] = _UNSAID["host_s"]
    host_per_rollout_s: Annotated[
        Seconds, Doc("host time per engine iteration and running rollout")
    ] = _UNSAID["host_per_rollout_s"]
    loop_s: Annotated[
        Seconds, Doc("time that the stack's loop adds to an engine iteration, beside host_s")
    ] = _UNSAID["loop_s"]
    loop_per_rollout_s: Annotated[
        Seconds, Doc("the loop's time per running rollout, beside host_per_rollout_s")
    ] = _UNSAID["loop_per_rollout_s"]
    client_factor: Annotated[
        float | None,
        Between(0, 1000),
        Doc(
            "factor on the measured time of a single process that sends all rollouts to the "
            "engines and reads their responses over httpx; 0: the stack has no such process; null: "
            "the stack's, else 0",
            unit="times",
        ),
    ] = None
    host_overlaps: Annotated[
        bool | None,
        Doc(
            "whether the host prepares an iteration while the GPU runs the one before (vLLM's"
            " asynchronous scheduling), so that the longer of the two counts; never without CUDA"
            " graphs, whose launches keep it busy; null: as the engine does"
        ),
    ] = None
    cuda_graphs: Annotated[
        bool | Literal["unknown"] | None,
        Doc(
            "whether the engine replays CUDA graphs (false: vLLM's enforce_eager); unknown: either,"
            " in intervals; null: as the stack does, which may be unknown, and true without a stack"
        ),
    ] = None
    graph_rollouts: Annotated[
        int | None,
        AtLeast(1),
        Doc(
            "rollouts of the largest CUDA graph that the engine captures; more at a time are "
            "launched as without graphs; null: the engine's default, without an engine any number",
            unit="rollouts",
        ),
    ] = None
    launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "minimum time per layer of an engine without CUDA graphs (kernel launches); default "
            "0.8 ms on older hosts (with PCIe 4), and 1.5 ms in a stack's own engine such as that "
            "of transformers",
            unit="seconds",
        ),
    ] = _UNSAID["launch_s_per_layer"]
    recurrent_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "launch_s_per_layer of layers with linear attention or a state space, which launch "
            "more kernels",
            unit="seconds",
        ),
    ] = _UNSAID["recurrent_launch_s_per_layer"]
    mixture_launch_s_per_layer: Annotated[
        Seconds,
        Doc("launch_s_per_layer of layers with experts, which launch more kernels", unit="seconds"),
    ] = _UNSAID["mixture_launch_s_per_layer"]
    latent_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "launch_s_per_layer of layers with experts and latent attention (MLA)",
            unit="seconds",
        ),
    ] = _UNSAID["latent_launch_s_per_layer"]
    prefill_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "host time per layer to launch an iteration that prefills, in an engine with CUDA "
            "graphs, which do not hold the attention of a prefill",
            unit="seconds",
        ),
    ] = _UNSAID["prefill_launch_s_per_layer"]
    adapter_s_per_layer: Annotated[
        Seconds,
        Doc(
            "time per layer that an adapter's kernels add to an iteration, if the engine serves "
            "adapters (sync: adapter)",
            unit="seconds",
        ),
    ] = _F.adapter_s_per_layer
    adapter_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "time that an adapter's kernels add to launch_s_per_layer or "
            "recurrent_launch_s_per_layer in an engine without CUDA graphs",
            unit="seconds",
        ),
    ] = _UNSAID["adapter_launch_s_per_layer"]
    sync: Annotated[
        WeightSync | None,
        Doc(
            "mechanism of the weight sync; replaces sync_bytes_per_s and sync_fixed_s",
            source="rollcast presets syncs",
        ),
    ] = None
    shares_weights: Annotated[
        bool,
        Doc(
            "whether a colocated engine uses the trainer's frozen weights in place, so that they "
            "take memory once (Unsloth's fast_inference)"
        ),
    ] = False
    merges_adapters: Annotated[
        bool | None,
        Doc(
            "whether a sync merges adapters and brings all weights, so that the engine serves "
            "none; null: as the stack does on this placement"
        ),
    ] = None
    sync_bytes_per_s: Annotated[Rate, Doc("rate at which new weights reach the replicas")] = (
        _F.sync_bytes_per_s
    )
    sync_fixed_s: Annotated[Seconds, Doc("fixed time of a weight sync")] = _F.sync_fixed_s
    offload_optimizer: Annotated[
        bool | None,
        Doc(
            "whether a colocated trainer offloads its states to host memory during rollouts; null: "
            "as the stack does, else true"
        ),
    ] = None
    offload_bytes_per_s: Annotated[
        Rate, Doc("offload rate per GPU, at most that of its host link")
    ] = _F.offload_bytes_per_s
    engine_sleep: Annotated[
        Sleep | None,
        Doc(
            "what a colocated engine does with its weights while it sleeps: offload (to "
            "host memory) or discard; none: it does not sleep; sets switch_fixed_s unless that is "
            "given"
        ),
    ] = None
    switch_fixed_s: Annotated[
        Seconds, Doc("fixed time of a switch between rollout and training on shared GPUs")
    ] = _UNSAID["switch_fixed_s"]
    rest_s: Annotated[
        Seconds,
        Doc(
            "time of a step outside all other phases (rewards, data, validation), after the update"
        ),
    ] = _UNSAID["rest_s"]
    rest_per_token_s: Annotated[
        Seconds,
        Doc(
            "time of a step outside all other phases, per token of the batch (responses are "
            "decoded to text for their rewards); 0 if rest_s alone is given"
        ),
    ] = _UNSAID["rest_per_token_s"]
    fixed: Annotated[
        FixedSeconds,
        Doc("fixed time of each phase, whatever its work; null: the stack's, else 0"),
    ] = field(default_factory=FixedSeconds)
    phase_factors: Annotated[
        PhaseFactors,
        Doc(
            "factors on the roofline's times by phase, from published runs of the stack; null: the "
            "stack's, else 1"
        ),
    ] = field(default_factory=PhaseFactors)
    kv_memory_utilization: Annotated[
        PositiveShare, Doc("share of a GPU's memory that the engine may use", unit="share")
    ] = _UNSAID["kv_memory_utilization"]
    reserve_bytes: Annotated[
        float,
        Between(0, 1e30),
        Doc(
            "memory within kv_memory_utilization that the KV cache cannot use; unless given 9.5e9 "
            "in vLLM for models of 200e9 parameters and more"
        ),
    ] = _UNSAID["reserve_bytes"]
    kv_rollout_tokens: Annotated[
        Tokens,
        Doc(
            "rollout length for which the KV cache of models with window or linear "
            "attention is sized; no effect on other models"
        ),
    ] = _F.kv_rollout_tokens
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
    host_memory_bytes: Annotated[
        float | None,
        Above(0, 1e15),
        Doc(
            "host memory of a node, within which offloaded states have to fit; null: unknown, and "
            "not checked",
            unit="bytes",
        ),
    ] = None
    saves_checkpoints: Annotated[
        bool,
        Doc(
            "whether the run saves checkpoints, for which some stacks copy each GPU's part of the "
            "states to host memory"
        ),
    ] = True
    network_bytes_per_s: Annotated[
        Rate, Doc("network bandwidth per GPU between the nodes of an engine, one direction")
    ] = _F.network_bytes_per_s
    network_floor_s: Annotated[
        Seconds, Doc("time that a message between the nodes of an engine waits for the network")
    ] = _F.network_floor_s
    speculative: Annotated[Speculative | None, Doc("speculative decoding; null: off")] = None
    offload_said: bool | None = None

    def __post_init__(self) -> None:
        names = [*("kv_memory_utilization", "reserve_bytes", "switch_fixed_s"), *LAUNCHES]
        if self.host_factor is None:
            names += _OF_HOST
        unsaid = [name for name in names if isinstance(getattr(self, name), Unsaid)]
        self._take_stack()
        for name in ("cuda_graphs", "offload_optimizer"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, True)
        if self.client_factor is None:
            object.__setattr__(self, "client_factor", 0.0)
        if self.engine is not None:
            choice(self.engine, f"{FIELD}.engine", get_args(Engine))
            if self.host_overlaps is None:
                object.__setattr__(self, "host_overlaps", engine_presets()[self.engine].overlaps)
        for name in ("host_s", "host_per_rollout_s"):
            seconds = getattr(self, name)
            if isinstance(seconds, Unsaid):
                if self.engine is not None:
                    seconds = getattr(engine_presets()[self.engine], name)
                object.__setattr__(self, name, seconds * (self.host_factor or 1.0))
        super().__post_init__()
        for name in unsaid:  # a cost model, which knows GPU and bytes, may still replace it
            object.__setattr__(self, name, Unsaid(getattr(self, name)))

    @property
    def with_graphs(self) -> bool:
        """Whether the engine replays CUDA graphs; where that is unknown, as the stack does by
        default, else yes."""
        if self.cuda_graphs != "unknown":
            return bool(self.cuda_graphs)
        default = None if self.stack is None else STACKS[self.stack].cuda_graphs
        return default is not False

    @property
    def serves_adapters(self) -> bool:
        """Whether the engine computes adapters beside the weights; merged ones cost nothing."""
        return self.sync is not None and self.sync.preset.of_adapters

    def _take_stack(self) -> None:
        """Sets what nobody gave. What its loop adds is of the same host as the engine's time."""
        factor_of_host = 1.0 if self.host_factor is None else self.host_factor
        number(factor_of_host, f"{FIELD}.host_factor", Above(0, 1000))
        if self.offload_said is None:
            object.__setattr__(self, "offload_said", self.offload_optimizer is not None)
        if self.stack is None:
            return
        stack = STACKS[known_stack(self.stack, f"{FIELD}.stack")]
        for name in ("engine", "cuda_graphs", "engine_sleep", "offload_optimizer", "client_factor"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(stack, name))
        if self.cuda_graphs is None:
            object.__setattr__(self, "cuda_graphs", "unknown")
        loop = loop_of(self.stack, self.engine)
        for name, whose, factor in (
            ("rest_per_token_s", stack, float(isinstance(self.rest_s, Unsaid))),
            ("rest_s", stack, 1.0),
            ("loop_s", loop, factor_of_host),
            ("loop_per_rollout_s", loop, factor_of_host),
        ):
            if isinstance(getattr(self, name), Unsaid):
                object.__setattr__(self, name, factor * getattr(whose, name))
        backend = getattr(getattr(self, "trainer", None), "backend", None)
        fixed = read(FixedSeconds, self.fixed, f"{FIELD}.fixed").or_else(stack.fixed)
        factors = read(PhaseFactors, self.phase_factors, f"{FIELD}.phase_factors")
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "phase_factors", factors.or_else(stack.factors_on(backend)))


@dataclass(frozen=True, kw_only=True)
class RooflineSection(RooflineOptions):
    """``cost.roofline`` of a scenario."""

    trainer: Annotated[TrainerOptions, Doc("trainer of the roofline")] = field(
        default_factory=TrainerOptions
    )

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], field: str) -> RooflineSection:
        """The trainer takes the defaults of its stack and backend where a key is not given. Raises
        ScenarioError."""
        spelt = dict(mapping(value, field))
        stack, trainer = spelt.get("stack"), spelt.get("trainer")
        if stack is not None:
            known_stack(stack, join(field, "stack"))
        if trainer is None or isinstance(trainer, Mapping):
            place, own = join(field, "trainer"), trainer or {}
            defaults = unsaid_options(stack, own, place)
            spelt["trainer"] = read(TrainerOptions, own, place, defaults=defaults)
        return read(cls, spelt, field)
