"""Costs from first principles: a model's flop and bytes against a GPU's peaks (the roofline).

Williams, Waterman and Patterson (2009): a kernel takes the longer of its flop at peak compute and
its bytes at peak bandwidth, each times a measured efficiency. An iteration is the sum of its parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal, get_args

import numpy as np

from simulator.costs.base import Curve, Extremes, Iteration, TrainCost, TrainLoad
from simulator.costs.hardware import EFFICIENCIES, TRAINER_EFFICIENCIES, Gpu, Provenance
from simulator.costs.models import Model
from simulator.costs.roofline_draws import COST_SPREADS, TRAINER_SPREADS, drawn_gpu, factors
from simulator.costs.trainer import RooflineTrainer
from simulator.costs.trainer_options import TrainerOptions
from simulator.errors import ScenarioError
from simulator.options import (
    Above,
    AtLeast,
    Between,
    Doc,
    Options,
    choice,
    given,
    number,
    whole,
)

SECONDS = Between(0, 1e6)

Placement = Literal["colocated", "disaggregated"]

# What the kernel tables behind the fitted efficiencies cover (Qwen3-8B, aiconfigurator 0.12.0).
FITTED_ROLLOUTS = 512
FITTED_TOKENS_PER_ROLLOUT = 32_768
FITTED_PREFILL_TOKENS = 262_144
FITTED_TENSOR_PARALLEL = 8

FIELD = "cost.roofline"
_SYNC = "checkpoint-engine's published weight updates on 8 and 16 GPUs; those on 256 held out"
_HOST = (
    "between kernel tables alone (0) and vLLM of mid-2024 (1.2 to 2.5 ms, and 64 to 126 us a "
    "rollout, fitted to LLM-Inference-Bench)"
)
_SWITCH = (
    "the on-policy steps of NeMo-RL v0.4 on H100 fit 7.5 to 10 s a switch, those of v0.5 and GB200 "
    "held out; verl's generation spends 22 and 37 s a switch outside the engine. An engine alone "
    "sleeps and wakes in a second or two; errors of engine and trainer are in these figures too"
)
_LAUNCH = (
    "eager vLLM: Qwen2.5-Omni-7B 22 ms a token on A800 (vllm-omni issue 7960), 0.8 ms a layer; "
    "Qwen3-0.6B 10 ms (torchtitan pull request 2373), 0.36 ms"
)
ROOFLINE_SOURCES = {
    "host_s": Provenance("assumed", _HOST),
    "host_per_rollout_s": Provenance("assumed", _HOST),
    "launch_s_per_layer": Provenance("assumed", _LAUNCH),
    "sync_bytes_per_s": Provenance("fitted", _SYNC),
    "sync_fixed_s": Provenance("fitted", _SYNC),
    "switch_fixed_s": Provenance("fitted", _SWITCH),
    "reserve_bytes": Provenance("assumed", "activations, captured graphs and the CUDA context"),
    "kv_memory_utilization": Provenance("assumed", "default of vLLM"),
}


def kv_pool_tokens(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int,
    memory_utilization: float = 0.9,
    reserve_bytes: float = 2e9,
) -> int:
    """Tokens that the KV pool of one replica holds.

    Each GPU has ``memory_utilization`` of its memory, less its share of the weights, less
    ``reserve_bytes`` for activations and captured graphs (assumed). More GPUs than KV heads hold
    copies of the heads, so the pool grows no further. Raises ScenarioError
    (``cluster.tensor_parallel``) where the weights leave no room, with the number that would fit.
    """
    number(memory_utilization, f"{FIELD}.kv_memory_utilization", Above(0, 1))
    budget = gpu.memory_bytes * memory_utilization - reserve_bytes

    def room(gpus: int) -> float:
        return budget - model.weight_bytes / gpus

    kv_share = model.kv_bytes_per_token / min(tensor_parallel, model.kv_heads)
    tokens = math.floor(room(tensor_parallel) / kv_share)
    if tokens >= 1:
        return tokens
    enough = [n for n in (2**i for i in range(1, 11)) if room(n) > 0.1 * budget]
    advice = f"tensor_parallel {enough[0]} would fit" if enough else "no number of them holds it"
    raise ScenarioError(
        "cluster.tensor_parallel",
        f"{model.name} has {model.weight_bytes / 1e9:.0f} GB of weights, which leaves no room for "
        f"KV on {tensor_parallel} x {gpu.name} ({gpu.memory_bytes / 1e9:.0f} GB each); {advice}",
    )


def _source(name: str) -> str:
    return str(ROOFLINE_SOURCES[name])


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """What a scenario may say of a :class:`RooflineCost`, under ``cost.roofline``."""

    FIELD = FIELD

    host_s: Annotated[
        float, SECONDS, Doc("an iteration on the engine's host, beside its GPUs",
                            source=_source("host_s"))
    ] = 1.0e-3  # fmt: skip
    host_per_rollout_s: Annotated[
        float, SECONDS, Doc("each running rollout on the engine's host, an iteration",
                            source=_source("host_per_rollout_s"))
    ] = 1.0e-5  # fmt: skip
    cuda_graphs: Annotated[
        bool, Doc("whether the engine replays captured graphs; false is vLLM's enforce_eager")
    ] = True
    launch_s_per_layer: Annotated[
        float,
        SECONDS,
        Doc("the least that an eager engine takes for a layer", unit="seconds",
            source=_source("launch_s_per_layer")),
    ] = 4.0e-4  # fmt: skip
    sync_bytes_per_s: Annotated[
        float, Above(0, 1e30), Doc("at which new weights reach the replicas",
                                   source=_source("sync_bytes_per_s"))
    ] = 73e9  # fmt: skip
    sync_fixed_s: Annotated[
        float, SECONDS, Doc("a sync of the weights, whatever their size",
                            source=_source("sync_fixed_s"))
    ] = 0.41  # fmt: skip
    offload_optimizer: Annotated[
        bool, Doc("whether colocated GPUs move the trainer's states to host memory for rollouts")
    ] = True
    switch_fixed_s: Annotated[
        float, SECONDS, Doc("a switch between rollout and training on shared GPUs, beside that",
                            source=_source("switch_fixed_s"))
    ] = 7.5  # fmt: skip
    kv_memory_utilization: Annotated[
        float, Above(0, 1), Doc("share of a GPU's memory that the engine may use", unit="share",
                                source=_source("kv_memory_utilization"))
    ] = 0.9  # fmt: skip
    reserve_bytes: Annotated[
        float, Between(0, 1e30), Doc("of that, kept from the KV pool",
                                     source=_source("reserve_bytes"))
    ] = 2e9  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RooflineSection(RooflineOptions):
    """``cost.roofline`` of a scenario."""

    trainer: Annotated[TrainerOptions, Doc("the trainer's")] = field(default_factory=TrainerOptions)


@dataclass(frozen=True)
class RooflineCost(RooflineOptions):
    """Prices a run from ``model`` and ``gpu``, ``tensor_parallel`` GPUs a replica.

    An iteration is the sum of: matrix products of the layers over all its tokens (weights read
    once; of a mixture, the experts that its tokens are expected to reach); attention of decoding
    rollouts (KV bytes); attention of prefilling ones (the longer of pairs and KV bytes); the LM
    head for every rollout; a floor per layer; two all-reduces a layer; and ``host_s`` +
    ``host_per_rollout_s`` per rollout, which is what the engine's host code adds to the GPU's time.
    Without ``cuda_graphs`` (vLLM's ``enforce_eager``, in verl the default until August 2025) the
    host launches every kernel, and the GPU's part takes ``launch_s_per_layer`` a layer at least.

    ``trainer`` prices the updates (default: :class:`RooflineTrainer` with its defaults on
    ``trainer_gpus``). ``offload_optimizer`` says whether colocated GPUs move the trainer's states
    to host memory during the rollout phase; ``switch_fixed_s`` is what a switch takes beside that.
    With adapters the frozen weights stay where they are (stacks differ; one that parks them too
    says so in ``switch_fixed_s``), and a sync still sends all weights, merged.
    Raises ScenarioError for a number out of range or a model that does not fit.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1
    replicas: int = 1
    trainer_gpus: int = 1
    placement: Placement = "colocated"
    trainer: RooflineTrainer | None = None
    _curves: dict[int, Curve] = field(default_factory=dict, init=False, repr=False, compare=False)

    FIXED = ("model", "gpu", "tensor_parallel", "replicas", "trainer_gpus", "placement", "trainer")

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "replicas", "trainer_gpus"):
            whole(getattr(self, name), f"cluster.{name}", AtLeast(1))
        choice(self.placement, "cluster.placement", get_args(Placement))
        super().__post_init__()

    def agree(self) -> None:
        """The model's heads can be dealt to the GPUs of a replica."""
        if self.model.heads % self.tensor_parallel:
            raise ScenarioError(
                "cluster.tensor_parallel",
                f"{self.tensor_parallel} does not divide the {self.model.heads} attention heads "
                f"of {self.model.name}",
            )

    @classmethod
    def from_options(
        cls,
        model: Model,
        gpu: Gpu,
        options: RooflineSection | None = None,
        *,
        tensor_parallel: int = 1,
        replicas: int = 1,
        trainer_gpus: int = 1,
        placement: Placement = "colocated",
    ) -> RooflineCost:
        """A cost model with the options of a scenario's ``cost.roofline``."""
        options = options or RooflineSection()
        trainer = RooflineTrainer(model, gpu, trainer_gpus, **given(options.trainer))
        return cls(
            model,
            gpu,
            tensor_parallel,
            replicas,
            trainer_gpus,
            placement,
            **{**given(options), "trainer": trainer},
        )

    @cached_property
    def trainer_of(self) -> RooflineTrainer:
        """What prices the updates."""
        return self.trainer or RooflineTrainer(self.model, self.gpu, self.trainer_gpus)

    @property
    def kv_pool_tokens(self) -> int:
        """Tokens of KV that one replica holds (:func:`kv_pool_tokens`)."""
        return kv_pool_tokens(
            self.model,
            self.gpu,
            self.tensor_parallel,
            self.kv_memory_utilization,
            self.reserve_bytes,
        )

    # --- parts of an iteration, in seconds on one GPU of the replica ---

    def _gemm_s(self, parameters: float, flop: float) -> float:
        """Matrix products that read ``parameters`` weights once and compute ``flop``."""
        gpu, share = self.gpu, self.tensor_parallel
        read_s = (
            parameters
            * self.model.weight_bytes_per_parameter
            / (share * gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency)
        )
        return max(read_s, flop / (share * gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency))

    def _layers_s(self, tokens: int) -> float:
        """The layers' matrix products over ``tokens`` tokens."""
        model = self.model
        shared = model.attention_parameters + model.dense_mlp_parameters
        seconds = self._gemm_s(shared, 2.0 * shared * tokens)
        if model.experts:
            read = model.sparse_layers * model.experts_touched(tokens) * model.expert_parameters
            used = model.sparse_layers * model.experts_per_token * model.expert_parameters
            seconds += self._gemm_s(read, 2.0 * used * tokens)
        return seconds

    def _all_reduce_s(self, tokens: int) -> float:
        """Two ring all-reduces a layer of the hidden states: 2 (n - 1) / n of their bytes each."""
        n, gpu, model = self.tensor_parallel, self.gpu, self.model
        if n == 1:
            return 0.0
        sent_bytes = 2 * (n - 1) / n * 2 * model.hidden * tokens
        rate = gpu.link_bytes_per_s(n) * gpu.interconnect_efficiency
        return 2 * model.layers * (gpu.all_reduce_floor_s + sent_bytes / rate)

    @cached_property
    def _kv_s_per_token(self) -> float:
        """Reading one token's KV; GPUs beyond the KV heads read copies."""
        share = min(self.tensor_parallel, self.model.kv_heads)
        gpu = self.gpu
        rate = gpu.bandwidth_bytes_per_s * gpu.decode_attention_bandwidth_efficiency
        return self.model.kv_bytes_per_token / (share * rate)

    def _prefill_attention_s(self, pairs: int, context_tokens: int) -> float:
        gpu = self.gpu
        rate = self.tensor_parallel * gpu.bf16_flop_per_s * gpu.prefill_attention_flop_efficiency
        compute_s = pairs * self.model.attention_flop_per_pair / rate
        return max(compute_s, context_tokens * self._kv_s_per_token)

    def _base_s(self, tokens: int, rollouts: int) -> float:
        """The GPU's part but for attention: ``tokens`` computed, ``rollouts`` sampled."""
        model = self.model
        return (
            self._layers_s(tokens)
            + self._gemm_s(model.head_parameters, float(model.head_flop_per_token) * rollouts)
            + model.layers * self.gpu.layer_floor_s
            + self._all_reduce_s(tokens)
        )

    def _host_s(self, rollouts: int) -> float:
        return self.host_s + self.host_per_rollout_s * rollouts

    @cached_property
    def _launch_s(self) -> float:
        """What launching the kernels of an iteration takes at least."""
        return 0.0 if self.cuda_graphs else self.model.layers * self.launch_s_per_layer

    def iteration_s(self, work: Iteration) -> float:
        """Seconds of any iteration; the decode curves are this formula in closed form."""
        tokens = work.rollouts - work.prefill_rollouts + work.prefill_tokens
        decode_context = work.context_tokens - work.prefill_context_tokens
        seconds = self._base_s(tokens, work.rollouts) + decode_context * self._kv_s_per_token
        if work.prefill_tokens:
            seconds += self._prefill_attention_s(work.prefill_pairs, work.prefill_context_tokens)
        return max(seconds, self._launch_s) + self._host_s(work.rollouts)

    # --- the CostModel protocol ---

    def decode_curve(self, rollouts: int) -> Curve:
        """Affine in the context: attention reads its KV, all else is fixed by ``rollouts``. Where
        launching takes longer, flat up to the context at which it no longer does."""
        curve = self._curves.get(rollouts)
        if curve is None:
            base_s, slope, host_s = (
                self._base_s(rollouts, rollouts), self._kv_s_per_token, self._host_s(rollouts)
            )  # fmt: skip
            flat_until = math.ceil((self._launch_s - base_s) / slope)
            if flat_until <= 0:
                curve = Curve.affine(base_s + host_s, slope)
            else:
                later_s = base_s + slope * flat_until + host_s
                curve = Curve([(0, self._launch_s + host_s, 0.0), (flat_until, later_s, slope)])
            self._curves[rollouts] = curve
        return curve

    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration that prefills."""
        return self.iteration_s(work)

    def train(self, load: TrainLoad) -> TrainCost:
        """The update's phases (:meth:`RooflineTrainer.train`)."""
        return self.trainer_of.train(load)

    @property
    def sync_s(self) -> float:
        """Seconds to bring new weights to every replica.

        All weights at ``sync_bytes_per_s`` (or the GPU's interconnect, if that is slower) plus
        ``sync_fixed_s``, whatever the number of replicas: broadcasts from many trainers to many
        engines run side by side. With adapters too: they are merged first. A stack that sends the
        adapter alone pays little more than ``sync_fixed_s``.
        """
        rate = min(self.sync_bytes_per_s, self.gpu.interconnect_bytes_per_s)
        return self.sync_fixed_s + self.model.weight_bytes / rate

    def _switch_s(self) -> float:
        if self.placement != "colocated":
            return 0.0
        moved = self.trainer_of.trained_bytes_per_gpu if self.offload_optimizer else 0.0
        return self.switch_fixed_s + moved / self.gpu.host_link_bytes_per_s

    @property
    def switch_to_train_s(self) -> float:
        """Colocated: free the KV pool (fixed) and load the trained states from the host."""
        return self._switch_s()

    @property
    def switch_to_rollout_s(self) -> float:
        """Colocated: move the trained states to the host and map the KV pool (fixed)."""
        return self._switch_s()

    def drawn(self, rng: np.random.Generator) -> RooflineCost:
        """The costs with every uncertain figure drawn anew: `simulator.costs.roofline_draws`."""
        gpu, trainer = drawn_gpu(self.gpu, rng), self.trainer_of
        changed = {n: f * getattr(trainer, n) for n, f in factors(TRAINER_SPREADS, rng).items()}
        own = {n: f * getattr(self, n) for n, f in factors(COST_SPREADS, rng).items()}
        return replace(self, gpu=gpu, trainer=replace(trainer, gpu=gpu, **changed), **own)

    def warnings(self, extremes: Extremes) -> list[str]:
        """Ranges that the run left, and figures that nobody measured."""
        said = []
        gpu = self.gpu
        for names, use in ((EFFICIENCIES, "engine"), (TRAINER_EFFICIENCIES, "trainer")):
            if not gpu.kinds(names) & {"measured", "fitted"}:
                said.append(
                    f"{gpu.name}: {use} efficiencies are assumed; no kernel or step of this GPU "
                    "was measured"
                )
        limits = (
            (extremes.rollouts, FITTED_ROLLOUTS, "rollouts running on a replica"),
            (extremes.rollout_tokens, FITTED_TOKENS_PER_ROLLOUT, "tokens in a rollout"),
            (extremes.prefill_tokens, FITTED_PREFILL_TOKENS, "tokens prefilled in an iteration"),
            (self.tensor_parallel, FITTED_TENSOR_PARALLEL, "GPUs in a replica"),
        )
        for reached, limit, what in limits:
            if reached > limit:
                said.append(f"{reached:,} {what}: the efficiencies were fitted up to {limit:,}")
        if self.tensor_parallel > 1 and gpu.interconnect_shared:
            said.append(
                f"{gpu.name}: over PCIe two GPUs of a replica are taken to talk directly and more "
                "to share one link, as in the kernel tables of the L40S; hosts differ"
            )
        return said
