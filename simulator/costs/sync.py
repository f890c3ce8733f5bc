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
    "nccl_broadcast", "reshard", "cuda_ipc", "checkpoint_service", "sparse_delta", "disk", "adapter"
]

RATE = Above(0, 1e30)
SECONDS = Between(0, 1e6)
NODE_GPUS = 8  # trainer and engines together, up to which they are taken to share a node
GROWS_FROM_GPUS = 16  # engines' GPUs from which a sync takes longer with each doubling
_OWN = "the mechanism's"


@dataclass(frozen=True, slots=True)
class Figures:
    """A mechanism in numbers. low, high: factors on the seconds within which the truth is taken to
    lie. node_fixed_s, node_bytes_per_s: inside one node, where they differ. The others as in
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
    growth: float = 0.0
    node_fixed_s: float | None = None
    node_bytes_per_s: float = math.inf


MECHANISMS: Mapping[Mechanism, Figures] = {
    "nccl_broadcast": Figures(
        3.06, 5.65e9, 0.2, 3.4,
        Provenance(
            "fitted",
            "verl's full broadcast between H100 nodes: Qwen2.5-7B and 72B, and Qwen3-30B-A3B, "
            "whose experts go one by one. Held out: 32B and 235B-A22B within a factor of 1.15; "
            "another network takes 3.4 times as long. Inside one node 0.22 s and 200e9 bytes/s, in "
            "the middle of two rows a factor of five apart",
        ),
        expert_bytes_per_s=2.03e9,
        node_fixed_s=0.22,
        node_bytes_per_s=2e11,
    ),
    "reshard": Figures(
        0.0, 2.8e9, 0.3, 3.0,
        Provenance("fitted", "one 7B run on 16 GPUs, 5.5 s; nothing is held out"),
    ),
    "cuda_ipc": Figures(
        0.0, 8.7e9, 0.4, 3.5,
        Provenance(
            "fitted",
            "slime on 8 H100, Qwen3-30B-A3B in 7 s. Held out: the same on 8 H200, 3.0 s for the "
            "loop alone and 21 to 26 s with what surrounds it (vime issue 175)",
        ),
    ),
    "checkpoint_service": Figures(
        0.41, 73e9, 0.5, 3.4,
        Provenance(
            "fitted",
            "checkpoint-engine's updates on 8 and 16 GPUs, its growth on DeepSeek-V3.1 on 256. "
            "Held out: Kimi-K2 on 256, within 1 %; verl with it, 30 times less to 3 times more",
        ),
        growth=0.028,
    ),
    "sparse_delta": Figures(
        3.8, 5.65e9, 0.8, 2.2,
        Provenance(
            "fitted",
            "verl's delta_sharded on H100: Qwen2.5-7B, 32B without offload, Qwen3-30B-A3B. Held "
            "out: 32B with offload, 72B and 235B-A22B take 1.8 to 2.1 times as long. What is "
            "sent is so little that no row shows it: share is 0",
        ),
        shard_bytes_per_s=2.2e9,
        share=0.0,
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
    ``bytes_per_s`` + X / ``expert_bytes_per_s``) + B / G / ``shard_bytes_per_s``), and ``growth``
    of that more for each doubling of E beyond 16, all of it times ``slower``. No rate passes that
    of the GPUs' interconnect. Up to 8 GPUs in all are taken to share a node, for which a mechanism
    may have figures of its own.
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
        Doc("at which each trainer GPU compares its shard with the last one sent", source=_OWN),
    ] = None  # fmt: skip
    per_tensor_s: Annotated[
        float | None, SECONDS,
        Doc("each tensor of the checkpoint; 0.5 ms where CUDA handles are opened one by one",
            source="vime issue 175; 0 otherwise"),
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
        found = replace(self.preset, **own)
        if found.expert_bytes_per_s == math.inf:
            return replace(found, expert_bytes_per_s=found.bytes_per_s)
        return found

    def _figures_of(self, gpus: int) -> Figures:
        """Those of ``gpus`` GPUs of trainer and engines: inside one node the mechanism's own for
        that, where nothing is given in their place."""
        found, preset = self.figures, self.preset
        given = (self.fixed_s, self.bytes_per_s, self.expert_bytes_per_s)
        if gpus > NODE_GPUS or preset.node_fixed_s is None or given != (None, None, None):
            return found
        rate = preset.node_bytes_per_s
        return replace(
            found, fixed_s=preset.node_fixed_s, bytes_per_s=rate, expert_bytes_per_s=rate
        )

    def seconds(
        self, model: Model, trainer_gpus: int, engine_gpus: int, link_bytes_per_s: float = math.inf
    ) -> float:
        """Seconds of one sync. ``link_bytes_per_s``: of the GPUs' interconnect."""
        total, routed = model.weight_bytes, expert_bytes(model)
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
        sent_s = f.share * ((total_bytes - routed_bytes) / rate + routed_bytes / expert_rate)
        shard_s = total_bytes / trainer_gpus / f.shard_bytes_per_s
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
            parts.append(f"{f.shard_bytes_per_s:.3g} of a trainer GPU's shard")
        found.append(f"{name} {', '.join(parts)}; {f.provenance}")
    return ". ".join(found)
