"""How long new weights take to reach the engines, by mechanism.

Each mechanism is a few figures fitted to published weight updates, and a spread that the rows held
out of the fit justify (`calibration.jury.weight_updates` judges them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from simulator.costs.hardware import Provenance
from simulator.costs.models import Model
from simulator.options import NOT_NEGATIVE, Above, Between, Doc, Options, read

Mechanism = Literal[
    "nccl_broadcast", "nccl_packed", "nccl_overlapped", "nccl_per_tensor", "reshard", "cuda_ipc",
    "checkpoint_service", "sparse_delta", "disk", "adapter",
]  # fmt: skip

RATE = Above(0, 1e30)
SECONDS = Between(0, 1e6)
NODE_GPUS = 8  # trainer and engines together, up to which they are taken to share a node
GROWS_FROM_GPUS = 16  # engines' GPUs from which a sync takes longer with each doubling
_OWN = "the mechanism's"


@dataclass(frozen=True, slots=True)
class Figures:
    """A mechanism in numbers. low, high: factors on the seconds within which the truth is taken to
    lie. node_bytes_per_s, node_per_tensor_s: inside one node, where they differ. mixture_share:
    share of the bytes sent of a mixture, where it differs. exports_16_bit: whether the trainer's 16
    bit weights are gathered, however few bits the engine's have. The others as in
    :class:`WeightSync`."""

    fixed_s: float
    bytes_per_s: float
    low: float
    high: float
    provenance: Provenance
    expert_bytes_per_s: float = math.inf
    shard_bytes_per_s: float = math.inf
    per_tensor_s: float = 0.0
    share: float = 1.0
    mixture_share: float | None = None
    growth: float = 0.0
    node_bytes_per_s: float | None = None
    node_per_tensor_s: float = 0.0
    exports_16_bit: bool = False


# What vLLM's loader takes for a tensor: verl's buckets of Qwen3-30B-A3B on H20 take 4.38 s, of
# which 1.9 s at nccl_packed's rate.
LOAD_S = 1.3e-4
PACKED_BYTES_PER_S = 32e9
STAGED_BYTES_PER_S = 0.75e9  # 2.4 to 2.7 s for the 1.9 GB of a GPU's shard of Qwen2.5-7B
_SHARDS = "verl issue 7060: offloaded weights are staged from pageable memory"
_LMSYS = "the LMSYS blog of 2026-04-29 on P2P weight transfer (slime's trainer, SGLang, H100)"

MECHANISMS: Mapping[Mechanism, Figures] = {
    "nccl_broadcast": Figures(
        0.2, 5.08e9, 0.5, 2.0,
        Provenance(
            "fitted",
            "verl's full broadcast of FSDP's weights between H100 nodes: Qwen2.5-7B and 72B, and "
            "Qwen3-30B-A3B, whose experts are put together one by one; " + _SHARDS + ". Held out: "
            "32B with offload and without, and 235B-A22B within a factor of 1.1. TorchTitan on "
            "A800 takes 1.4 to 10 times as long. Putting tensors together is 23.5 of 24 s of it, "
            "so that it is no faster inside one node",
        ),
        expert_bytes_per_s=1.85e9,
        shard_bytes_per_s=STAGED_BYTES_PER_S,
    ),
    "nccl_packed": Figures(
        0.0, PACKED_BYTES_PER_S, 0.6, 1.6,
        Provenance(
            "fitted",
            "Megatron's weights in buckets: middle of four models in " + _LMSYS + ", 24e9 to 42e9 "
            "bytes/s; vLLM's loader on verl's Qwen3-30B-A3B on H20, 0 s a tensor with SGLang. Held "
            "out: the other four, NeMo-RL's Qwen3-235B and DeepSeek-V3, verl's Qwen3-235B, all "
            "within a factor of 1.5",
        ),
        per_tensor_s=LOAD_S,
        exports_16_bit=True,
    ),
    "nccl_overlapped": Figures(
        0.0, 85e9, 0.6, 1.6,
        Provenance(
            "fitted",
            "the same while the next bucket is gathered: NeMo-RL pull request 1379, Qwen3-235B in "
            "5.5 s. Held out: DeepSeek-V3 within a factor of 1.2",
        ),
        exports_16_bit=True,
    ),
    "nccl_per_tensor": Figures(
        0.0, PACKED_BYTES_PER_S, 0.6, 1.8,
        Provenance(
            "fitted",
            "a broadcast for each tensor: verl without its checkpoint engine, Qwen3-30B-A3B on H20 "
            "in 15.8 s; inside one node the loader's time and 200e9 bytes/s. Held out: Qwen3-235B, "
            "a factor of 1.4, and Qwen2.5-7B inside a node, 1.1",
        ),
        per_tensor_s=7.3e-4,
        exports_16_bit=True,
        node_per_tensor_s=LOAD_S,
        node_bytes_per_s=2e11,
    ),
    "reshard": Figures(
        2.75, 11.45e9, 0.5, 1.7,
        Provenance(
            "fitted",
            "verl's colocated engines: two 7B models in 3.1 and 5.5 s, DeepSeek-V3 on 128 GPUs in "
            "120 s (verl issue 5311). Held out: a 9B model, 1.3, and DeepSeek-V3 on 256, 1.5",
        ),
        exports_16_bit=True,
    ),
    "cuda_ipc": Figures(
        0.0, 20e9, 0.4, 2.5,
        Provenance(
            "fitted",
            "slime's buckets on 8 H200, Qwen3-30B-A3B in 3.0 s (vime issue 175), 0 s a tensor; "
            "vLLM's loader as in nccl_packed. Held out: vime's buckets, 5.3 s, and SkyRL's 14B on "
            "8 H100, 1.6 s, within a factor of 1.1; NeMo-RL's DeepSeek-V3 on 256 GPUs takes half "
            "as long as forecast. What stacks put around it (pauses, barriers, offload) takes 4 to "
            "20 s more",
        ),
        per_tensor_s=LOAD_S,
        exports_16_bit=True,
    ),
    "checkpoint_service": Figures(
        0.41, 73e9, 0.8, 1.3,
        Provenance(
            "fitted",
            "checkpoint-engine's updates on 8 and 16 GPUs, its growth on DeepSeek-V3.1 on 256. "
            "Held out: Kimi-K2 on 256, within 1 %",
        ),
        growth=0.028,
    ),
    "sparse_delta": Figures(
        0.46, 0.83e9, 0.6, 1.7,
        Provenance(
            "fitted",
            "verl's delta_sharded on H100: Qwen2.5-7B, 32B without offload, Qwen3-30B-A3B, with "
            "2.35 % of a dense model's weights changed (published: 2.1 to 2.6 %), 0.035 % of a "
            "mixture's (0.02 to 0.05 %), six bytes each; " + _SHARDS + ". Held out: 32B with "
            "offload, 72B and 235B-A22B within a factor of 1.1; Qwen3-8B on A800, TorchTitan, 1.7",
        ),
        shard_bytes_per_s=STAGED_BYTES_PER_S,
        per_tensor_s=3.5e-4,
        share=0.07,
        mixture_share=0.001,
    ),
    "disk": Figures(
        1.1, 2.05e9, 0.2, 5.0,
        Provenance(
            "assumed",
            "written as fast as vLLM 0.11 reads weights back from an SSD (0.6B in 0.85 s, 4B in "
            "2.58 s on an A100)",
        ),
    ),
    "adapter": Figures(
        8.5, 2.05e9, 0.1, 1.5,
        Provenance(
            "fitted",
            "TRL's AsyncGRPO with LoRA, Qwen2.5-Math-1.5B: 8.5 s. Held out: 6.2 s with three times "
            "the rollouts in flight",
        ),
        share=0.01,
    ),
}  # fmt: skip


def expert_bytes(model: Model) -> float:
    """Bytes of the weights of routed experts; 0 for a dense model."""
    return model.routed_parameters * model.bytes_of(model.parts.experts)


def tensors(model: Model) -> int:
    """Tensors of a checkpoint: nine to a layer (projections, norms, MLP or router), three to an
    expert, and embedding, head and last norm. Biases are not counted."""
    return 9 * model.layers + 3 * model.sparse_layers * model.experts + 3


@dataclass(frozen=True)
class WeightSync(Options):
    """A sync by one mechanism; figures given override the mechanism's.

    Seconds, on G GPUs of the trainer and E of the engines, of weights of B bytes of which X are of
    routed experts: (``fixed_s`` + ``per_tensor_s`` a tensor + ``share`` x ((B - X) /
    ``bytes_per_s`` + X / ``expert_bytes_per_s``), and, where they are ``staged``, B / G /
    ``shard_bytes_per_s``), and ``growth`` of that more for each doubling of E beyond 16, all of it
    times ``slower``. No rate passes that of the GPUs' interconnect. Up to 8 GPUs in all are taken
    to share a node, for which a mechanism may have figures of its own.
    """

    FIELD = "cost.roofline.sync"

    mechanism: Annotated[Mechanism, Doc("how weights travel")]
    fixed_s: Annotated[float | None, SECONDS, Doc("a sync, whatever the weights", source=_OWN)] = (
        None
    )
    bytes_per_s: Annotated[
        float | None, RATE, Doc("at which weights reach the engines", source=_OWN)
    ] = None
    expert_bytes_per_s: Annotated[
        float | None, RATE,
        Doc("at which those of routed experts do; bytes_per_s where neither says", source=_OWN),
    ] = None  # fmt: skip
    shard_bytes_per_s: Annotated[
        float | None, RATE,
        Doc("at which each trainer GPU brings its shard from host memory, where it is staged",
            source=_OWN),
    ] = None  # fmt: skip
    per_tensor_s: Annotated[
        float | None, SECONDS,
        Doc("each tensor of the checkpoint: the engine's loader (about 0 in SGLang), and 0.5 ms "
            "more where CUDA handles are opened one by one, 0.8 ms where Megatron's experts are "
            "converted one by one",
            source="the mechanism's; handles: vime issue 175; experts: verl issue 7060"),
    ] = None  # fmt: skip
    share: Annotated[
        float | None, Between(0, 1), Doc("of the weights' bytes that are sent", unit="share",
                                         source=_OWN)
    ] = None  # fmt: skip
    growth: Annotated[
        float | None, NOT_NEGATIVE,
        Doc("share more for each doubling of the engines' GPUs beyond 16", unit="share",
            source=_OWN),
    ] = None  # fmt: skip
    staged: Annotated[
        bool, Doc("whether the trainer's weights are offloaded, and come from host memory first")
    ] = False
    slower: Annotated[
        float, Above(0, 1000), Doc("factor on the seconds of a sync", unit="times")
    ] = 1.0  # fmt: skip

    @classmethod
    def from_text(cls, mechanism: str, field: str = FIELD) -> WeightSync:
        """The mechanism of that name with its own figures. Raises ScenarioError."""
        return read(cls, {"mechanism": mechanism}, field)

    @property
    def preset(self) -> Figures:
        """The figures of the mechanism itself."""
        return MECHANISMS[self.mechanism]

    @property
    def figures(self) -> Figures:
        """The mechanism's, with what is given in their place."""
        names = ("fixed_s", "bytes_per_s", "expert_bytes_per_s", "shard_bytes_per_s",
                 "per_tensor_s", "share", "growth")  # fmt: skip
        own = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        if self.share is not None:
            own["mixture_share"] = self.share
        found = replace(self.preset, **own)
        if found.expert_bytes_per_s == math.inf:
            return replace(found, expert_bytes_per_s=found.bytes_per_s)
        return found

    def _figures_of(self, gpus: int) -> Figures:
        """Those of ``gpus`` GPUs of trainer and engines: inside one node the mechanism's own for
        that, where nothing is given in their place."""
        found, preset = self.figures, self.preset
        given = (self.bytes_per_s, self.expert_bytes_per_s, self.per_tensor_s)
        rate = preset.node_bytes_per_s
        if gpus > NODE_GPUS or rate is None or given != (None, None, None):
            return found
        return replace(
            found,
            bytes_per_s=rate,
            expert_bytes_per_s=rate,
            per_tensor_s=preset.node_per_tensor_s,
        )

    def seconds(
        self, model: Model, trainer_gpus: int, engine_gpus: int, link_bytes_per_s: float = math.inf
    ) -> float:
        """Seconds of one sync. ``link_bytes_per_s``: of the GPUs' interconnect."""
        total, routed = model.weight_bytes, expert_bytes(model)
        if self.preset.exports_16_bit:
            wider = max(1.0, 2 * model.parameters / total)
            total, routed = wider * total, wider * routed
        return self.seconds_of(
            total, routed, tensors(model), trainer_gpus, engine_gpus, link_bytes_per_s
        )

    def seconds_of(
        self,
        total_bytes: float,
        routed_bytes: float,
        tensor_count: int,
        trainer_gpus: int,
        engine_gpus: int,
        link_bytes_per_s: float = math.inf,
    ) -> float:
        """As :meth:`seconds`, of weights known by their bytes alone; ``routed_bytes`` of them are
        of routed experts."""
        f = self._figures_of(trainer_gpus + engine_gpus)
        rate = min(f.bytes_per_s, link_bytes_per_s)
        expert_rate = min(f.expert_bytes_per_s, link_bytes_per_s)
        once_s = f.fixed_s + f.per_tensor_s * tensor_count
        mixed = routed_bytes and f.mixture_share is not None
        share = f.mixture_share if mixed and f.mixture_share is not None else f.share
        sent_s = share * ((total_bytes - routed_bytes) / rate + routed_bytes / expert_rate)
        shard_s = total_bytes / trainer_gpus / f.shard_bytes_per_s if self.staged else 0.0
        doublings = math.log2(max(engine_gpus / GROWS_FROM_GPUS, 1.0))
        return self.slower * (once_s + sent_s + shard_s) * (1 + f.growth * doublings)

    def slowed(self, factor: float) -> WeightSync:
        """The same, ``factor`` times as long."""
        return replace(self, slower=factor * self.slower)


def listed() -> str:
    """The mechanisms with their figures and kinds, in words."""
    found = []
    for name, f in MECHANISMS.items():
        parts = [f"{f.fixed_s:g} s"]
        if f.share:
            parts.append(f"{f.bytes_per_s:.3g} bytes/s")
        if f.expert_bytes_per_s < math.inf:
            parts.append(f"{f.expert_bytes_per_s:.3g} of experts")
        if f.shard_bytes_per_s < math.inf:
            parts.append(f"{f.shard_bytes_per_s:.3g} of a trainer GPU's staged shard")
        if f.per_tensor_s:
            parts.append(f"{1e3 * f.per_tensor_s:.2g} ms a tensor")
        found.append(f"{name} {', '.join(parts)}; {f.provenance}")
    return ". ".join(found)
