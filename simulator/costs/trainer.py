"""What an update costs: time and memory of a data-parallel trainer, dense or with a shared prefix.

Shared-prefix training follows arXiv 2606.01143: phase A computes the prompt of a group once, phase
B the responses in microbatches that read its keys and values, phase C the prompt's backward.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from simulator.costs.base import TrainCost, TrainLoad
from simulator.costs.hardware import Gpu, Provenance
from simulator.costs.memory import (
    ACTIVATION_BYTES,
    Recompute,
    activation_bytes_per_token,
    layer_activation_bytes,
    shared_kv_bytes_per_token,
)
from simulator.costs.models import Model
from simulator.errors import ScenarioError
from simulator.options import Above, AtLeast, Between, Doc, Options, whole

Weights = Literal["full", "lora"]

FIELD = "cost.roofline.trainer"  # where a scenario sets what follows

PER_PARAMETER = Above(0, 1e6)
COMPUTE_BYTES = 2  # bf16 copies of the weights that the passes read
STREAM_EFFICIENCY = 0.8  # of memory bandwidth, by the optimiser's elementwise kernels (assumed)
STEP_BYTES_PER_PARAMETER = 28  # Adam reads weight, gradient, two moments; writes three (fp32)
LOGIT_BYTES = 17  # held per logit of a chunk: bf16 and fp32 logits, softmax, gradients (fitted)
EXPERT_SHARE = 0.635  # of the efficiency of dense products, reached by routed experts (fitted)

_PRIME_RL = (
    "every second H100 and H200 row of prime-rl benchmarks/baselines (Qwen3 0.6B to 30B-A3B, "
    "INTELLECT-3, PyTorch without kernel fusion); RTX A6000 and B200 held out whole"
)
_EXPERTS = "the 17 H100 RL rows of prime-rl benchmarks/baselines"
TRAINER_SOURCES = {
    "traffic_per_activation_byte": Provenance("fitted", _PRIME_RL),
    "traffic_per_logit": Provenance("fitted", _PRIME_RL),
    "traffic_per_adapted_byte": Provenance("fitted", _PRIME_RL),
    "kernel_bytes_per_s": Provenance("fitted", _PRIME_RL),
    "EXPERT_SHARE": Provenance("fitted", _EXPERTS),
    "expert_launch_s": Provenance(
        "assumed", "grouped kernels; prime-rl's B200 baselines have 0.4 ms"
    ),
    "LOGIT_BYTES": Provenance("fitted", "prime-rl benchmarks/baselines, H100 fine-tuning memory"),
    "STREAM_EFFICIENCY": Provenance("assumed", "typical of elementwise kernels"),
    "collective_efficiency": Provenance("assumed", "typical of large ring collectives"),
    "network_bytes_per_s": Provenance("assumed", "one 400 Gb/s link a GPU"),
    "memory_utilization": Provenance("assumed", "5 % to fragmentation and the CUDA context"),
}


class Work(NamedTuple):
    """Counts of one sequence or microbatch: tokens computed, positions that reach the LM head, and
    query-key pairs of causal attention."""

    tokens: int
    head_tokens: int
    pairs: float


def dense_work(prompt_tokens: int, response_tokens: int) -> Work:
    """A rollout on its own: P + S tokens, (P + S)^2 / 2 pairs."""
    tokens = prompt_tokens + response_tokens
    return Work(tokens, response_tokens, tokens * tokens / 2)


def prefix_work(prompt_tokens: int) -> Work:
    """Phases A and C of a group: P tokens, P^2 / 2 pairs, no logits."""
    return Work(prompt_tokens, 0, prompt_tokens * prompt_tokens / 2)


def suffix_work(prompt_tokens: int, response_tokens: int) -> Work:
    """Phase B of a rollout: S tokens, P S + S^2 / 2 pairs."""
    pairs = response_tokens * (prompt_tokens + response_tokens / 2)
    return Work(response_tokens, response_tokens, pairs)


def pack(sequences: Iterable[Work], budget_tokens: int) -> list[Work]:
    """Sequences merged in order into microbatches of at most ``budget_tokens``; a longer sequence
    is a microbatch of its own."""
    microbatches: list[Work] = []
    tokens, head, pairs = 0, 0, 0.0
    for work in sequences:
        if tokens and tokens + work.tokens > budget_tokens:
            microbatches.append(Work(tokens, head, pairs))
            tokens, head, pairs = 0, 0, 0.0
        tokens, head, pairs = tokens + work.tokens, head + work.head_tokens, pairs + work.pairs
    if tokens:
        microbatches.append(Work(tokens, head, pairs))
    return microbatches


def _source(name: str) -> str:
    return str(TRAINER_SOURCES[name])


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(Options):
    """What a scenario may say of a :class:`RooflineTrainer`, under ``cost.roofline.trainer``."""

    FIELD = FIELD

    weights: Annotated[Weights, Doc("whether all weights are trained, or adapters")] = "full"
    recompute: Annotated[
        Recompute, Doc("whether the backward computes activations again, or keeps them")
    ] = "full"
    shard: Annotated[
        bool, Doc("whether states are spread over the GPUs (fully sharded data parallel)")
    ] = True
    log_prob_passes: Annotated[
        int,
        Between(0, 1000),
        Doc("forwards over the batch before the update; a reference model adds one", unit="passes"),
    ] = 1
    minibatches: Annotated[
        int, Between(1, 1_000_000), Doc("optimiser steps an update", unit="steps")
    ] = 1
    microbatch_tokens: Annotated[
        int | None,
        Between(1, 10**9),
        Doc("of one microbatch on one GPU; null takes the largest that fits, 32,768 at most unless "
            "a rollout is longer"),
    ] = None  # fmt: skip
    logits_chunk_tokens: Annotated[
        int, Between(1, 10**9), Doc("tokens whose logits are held at once")
    ] = 1024
    state_bytes_per_parameter: Annotated[
        float,
        PER_PARAMETER,
        Doc("of weight, gradient and optimiser", unit="bytes",
            source="fp32 weight, gradient and two Adam moments"),
    ] = 16.0  # fmt: skip
    frozen_bytes_per_parameter: Annotated[
        float, PER_PARAMETER, Doc("of a weight that adapters leave alone", unit="bytes")
    ] = 4.0
    exchange_bytes_per_parameter: Annotated[
        float, PER_PARAMETER, Doc("of a gradient that is exchanged", unit="bytes", source="fp32")
    ] = 4.0
    collective_efficiency: Annotated[
        float,
        Above(0, 1),
        Doc("share of a link that collectives reach", source=_source("collective_efficiency")),
    ] = 0.7
    network_bytes_per_s: Annotated[
        float, Above(0, 1e30), Doc("between nodes, a GPU", source=_source("network_bytes_per_s"))
    ] = 50e9
    gpus_per_node: Annotated[
        int,
        Between(1, 100_000),
        Doc("GPUs that share a node", unit="GPUs"),
    ] = 8
    memory_utilization: Annotated[
        float,
        Above(0, 1),
        Doc("share of a GPU's memory that the trainer may use", unit="share",
            source=_source("memory_utilization")),
    ] = 0.95  # fmt: skip
    traffic_per_activation_byte: Annotated[
        float,
        Between(0, 1e6),
        Doc("bytes that elementwise kernels move for each byte of activations kept; 0 leaves them "
            "out", unit="bytes", source=_source("traffic_per_activation_byte")),
    ] = 5.74  # fmt: skip
    traffic_per_adapted_byte: Annotated[
        float,
        Between(0, 1e6),
        Doc("what adapters add to that, with weights: lora", unit="bytes",
            source=_source("traffic_per_adapted_byte")),
    ] = 0.9  # fmt: skip
    kernel_bytes_per_s: Annotated[
        float,
        Above(0, 1e30),
        Doc("at which elementwise kernels issue what they move, beside the time that memory takes; "
            "1e30 leaves memory alone to bound them", source=_source("kernel_bytes_per_s")),
    ] = 4.0e12  # fmt: skip
    traffic_per_logit: Annotated[
        float,
        Between(0, 1e6),
        Doc("bytes moved for each logit by a chunked fp32 log-softmax", unit="bytes",
            source=_source("traffic_per_logit")),
    ] = 75.0  # fmt: skip
    expert_launch_s: Annotated[
        float,
        Between(0, 1e6),
        Doc("a routed expert's kernels beside their flop, where experts run one by one",
            source=_source("expert_launch_s")),
    ] = 0.0  # fmt: skip


@dataclass(frozen=True)
class RooflineTrainer(TrainerOptions):
    """A data-parallel trainer of ``model`` on ``gpus`` GPUs.

    A forward takes 2 flop per active weight and token (at ``gpu.gemm_flop_efficiency``),
    attention's 4 x heads x head_dim x layers flop per query-key pair, and the elementwise kernels
    between them: ``traffic_per_activation_byte`` bytes per activation byte kept (norms, rotations,
    gates; adapters add ``traffic_per_adapted_byte``) and ``traffic_per_logit`` bytes per logit (a
    chunked fp32 log-softmax). A byte takes 1 / bandwidth + 1 / ``kernel_bytes_per_s``: published
    steps shorten by less than memory gets faster, from RTX A6000 to B200. Fused kernels move less;
    0 leaves them out. ``expert_launch_s`` is what a routed
    expert's kernels take beside their flop, in each layer of each microbatch's forward, where
    experts run one by one; grouped kernels take nothing. A backward takes twice that, and
    ``recompute="full"`` one more forward. ``weights="lora"`` saves states, gradient exchange and
    optimiser, but no time in the passes: in prime-rl's published steps adapters take back more than
    frozen weights save. ``log_prob_passes`` forwards over the whole batch run first (the old
    policy's; a reference model adds one). Then come ``minibatches`` optimiser steps, each over its
    share of the groups. The LM head runs on response tokens.

    ``shard`` spreads states over the GPUs and gathers weights for each pass of each microbatch
    (fully sharded data parallel); otherwise each GPU holds them all. Gradients are exchanged in
    fp32. Communication is not overlapped with computation. Beyond ``gpus_per_node`` GPUs it crosses
    ``network_bytes_per_s`` per GPU. ``microbatch_tokens`` is the budget of one microbatch on one
    GPU; None takes the largest that fits, 32,768 at most unless a rollout is longer.
    """

    model: Model
    gpu: Gpu
    gpus: int = 1
    FIXED = ("model", "gpu", "gpus")

    def __post_init__(self) -> None:
        whole(self.gpus, "cluster.trainer_gpus", AtLeast(1))
        super().__post_init__()

    # --- memory of one GPU ---

    @cached_property
    def state_bytes_per_gpu(self) -> float:
        """Bytes of weights, gradients and optimiser states that one GPU keeps between steps."""
        full = self.weights == "full"
        each = self.state_bytes_per_parameter if full else self.frozen_bytes_per_parameter
        return self.model.parameters * each / (self.gpus if self.shard else 1)

    @property
    def trained_bytes_per_gpu(self) -> float:
        """Those of :attr:`state_bytes_per_gpu` that an update changes: all of them, or with
        adapters none, whose own states are small beside the frozen weights and not counted."""
        return self.state_bytes_per_gpu if self.weights == "full" else 0.0

    @cached_property
    def _gathered_bytes(self) -> float:
        """bf16 weights in use: two layers (one prefetched) and the LM head."""
        model = self.model
        embeddings = model.head_parameters * (1 if model.tied_embeddings else 2)
        layer = (model.parameters - embeddings) / model.layers
        return COMPUTE_BYTES * (2 * layer + model.head_parameters)

    @cached_property
    def _fixed_bytes(self) -> float:
        logits = LOGIT_BYTES * self.model.vocab * self.logits_chunk_tokens
        return self.state_bytes_per_gpu + self._gathered_bytes + logits

    @cached_property
    def _budget_bytes(self) -> float:
        return self.gpu.memory_bytes * self.memory_utilization

    def peak_bytes(self, microbatch_tokens: int, prefix_tokens: int = 0) -> int:
        """Peak memory of one GPU at a microbatch of that many tokens, with the K/V and gK/gV of a
        shared prefix (and its recomputation's checkpoints) beside it."""
        per_token = activation_bytes_per_token(self.model, self.recompute)
        held = shared_kv_bytes_per_token(self.model)
        if self.recompute == "full":
            held += self.model.layers * self.model.hidden * ACTIVATION_BYTES
        else:
            held += self.model.layers * layer_activation_bytes(self.model)
        activations = per_token * microbatch_tokens + held * prefix_tokens
        # Phases A and C: the prefix as a microbatch (K/V among its activations) with gK/gV.
        alone = (per_token + shared_kv_bytes_per_token(self.model) / 2) * prefix_tokens
        return math.ceil(self._fixed_bytes + max(activations, alone))

    def largest_microbatch_tokens(self) -> int:
        """Tokens of the largest dense microbatch that fits on one GPU; 0 where none does."""
        room = self._budget_bytes - self._fixed_bytes
        return max(0, math.floor(room / activation_bytes_per_token(self.model, self.recompute)))

    def _check_states(self) -> None:
        if self.largest_microbatch_tokens() > 0:
            return
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"out of memory before the first token: weights, gradients and optimiser states of "
            f"{self.model.name} take {self._fixed_bytes / 1e9:.0f} GB of each of {self.gpus} x "
            f"{self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB usable); give the trainer more "
            "GPUs, or sharded states",
        )

    def _budget_tokens(self, longest: int) -> int:
        """Tokens of a microbatch, at least those of the longest sequence."""
        budget = self.microbatch_tokens
        if budget is None:
            budget = min(32_768, self.largest_microbatch_tokens())
        return max(budget, longest)

    # --- time of one GPU ---

    @cached_property
    def _rate_bytes_per_s(self) -> float:
        link = self.gpu.link_bytes_per_s(min(self.gpus, self.gpus_per_node))
        if self.gpus > self.gpus_per_node:
            link = min(link, self.network_bytes_per_s)
        return link * self.collective_efficiency

    @cached_property
    def _others(self) -> float:
        """(n - 1) / n: the share of a tensor that a ring collective sends per GPU."""
        return (self.gpus - 1) / self.gpus

    @cached_property
    def _gather_s(self) -> float:
        """All weights, gathered once for one pass."""
        if not self.shard:
            return 0.0
        return COMPUTE_BYTES * self.model.parameters * self._others / self._rate_bytes_per_s

    def _exchange_s(self, microbatches: int) -> float:
        """Gradients: a reduce-scatter each microbatch (sharded), or one all-reduce."""
        if self.weights == "lora":
            return 0.0
        one_way_s = (
            self.exchange_bytes_per_parameter
            * self.model.parameters
            * self._others
            / self._rate_bytes_per_s
        )
        return one_way_s * (microbatches if self.shard else 2)

    @cached_property
    def _optimizer_s(self) -> float:
        if self.weights == "lora":
            return 0.0
        owned = self.model.parameters / (self.gpus if self.shard else 1)
        return (
            STEP_BYTES_PER_PARAMETER * owned / (self.gpu.bandwidth_bytes_per_s * STREAM_EFFICIENCY)
        )

    @property
    def _moved_s_per_byte(self) -> float:
        """An elementwise kernel waits for memory, and for its instructions to issue."""
        return 1 / self.gpu.bandwidth_bytes_per_s + 1 / self.kernel_bytes_per_s

    def _forward_s(self, work: Work) -> tuple[float, float]:
        """Seconds of (all but attention, attention) of one forward."""
        model, gpu = self.model, self.gpu
        expert_weights = model.sparse_layers * model.expert_parameters
        routed_flop = 2 * expert_weights * model.experts_per_token
        dense_flop = model.linear_flop_per_token - routed_flop
        flop = work.tokens * (dense_flop + routed_flop / EXPERT_SHARE)
        flop += work.head_tokens * model.head_flop_per_token
        compute_s = flop / (gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency)
        touched = model.experts_touched(work.tokens)
        untouched = model.experts - touched
        read_bytes = COMPUTE_BYTES * (model.parameters - expert_weights * untouched)
        read_s = read_bytes / (gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency)
        kept_bytes = model.layers * layer_activation_bytes(model)
        traffic = self.traffic_per_activation_byte
        if self.weights == "lora" and traffic:  # 0 is fused: adapters' kernels too
            traffic += self.traffic_per_adapted_byte
        moved_bytes = work.tokens * traffic * kept_bytes
        moved_bytes += work.head_tokens * self.traffic_per_logit * model.vocab
        attention_s = (
            work.pairs
            * model.attention_flop_per_pair
            / (gpu.bf16_flop_per_s * gpu.trainer_attention_flop_efficiency)
        )
        others_s = moved_bytes * self._moved_s_per_byte
        others_s += model.sparse_layers * touched * self.expert_launch_s
        return max(compute_s, read_s) + others_s, attention_s

    def _phases_s(self, microbatches: Sequence[Work]) -> dict[str, float]:
        linear = attention = 0.0
        for work in microbatches:
            linear_s, attention_s = self._forward_s(work)
            linear += linear_s
            attention += attention_s
        gather = self._gather_s * len(microbatches)
        forward = linear + attention
        backward = 2 * forward
        if self.recompute == "full":
            backward += forward
        return {
            "log_prob": self.log_prob_passes * (forward + gather),
            "forward": forward + gather,
            "backward": backward + gather,
            "gradient_exchange": self._exchange_s(len(microbatches)),
            "optimizer": self._optimizer_s,
        }

    # --- the update ---

    def _microbatches(self, load: TrainLoad) -> tuple[list[list[Work]], int]:
        """Microbatches of each GPU, and the longest prefix shared.

        Rollouts (whole groups, with a shared prefix) go to the GPU with the fewest tokens, longest
        first (Graham's longest processing time rule).
        """
        jobs: list[tuple[int, list[list[Work]]]] = []
        longest, prefix = 1, 0
        for prompt, responses in load.groups:
            if not responses:
                continue
            if load.shared_prefix:
                suffixes = [suffix_work(prompt, s) for s in responses]
                parts = [[prefix_work(prompt)], suffixes] if prompt else [suffixes]
                jobs.append((sum(w.tokens for p in parts for w in p), parts))
                longest, prefix = max(longest, *responses), max(prefix, prompt)
            else:
                for response in responses:
                    work = dense_work(prompt, response)
                    jobs.append((work.tokens, [[work]]))
                    longest = max(longest, work.tokens)
        self._check_fits(longest, prefix)
        budget = self._budget_tokens(longest)
        jobs.sort(key=lambda job: -job[0])
        heap = [(0, gpu) for gpu in range(min(self.gpus, max(1, len(jobs))))]
        assigned: list[list[list[Work]]] = [[] for _ in heap]
        for tokens, parts in jobs:
            held, gpu = heapq.heappop(heap)
            assigned[gpu].extend(parts)
            heapq.heappush(heap, (held + tokens, gpu))
        if load.shared_prefix:  # the suffixes of two groups read two prefixes: never one microbatch
            return [[m for part in parts for m in pack(part, budget)] for parts in assigned], prefix
        return [pack((w for part in parts for w in part), budget) for parts in assigned], 0

    def _check_fits(self, longest: int, prefix: int) -> None:
        """Raises ScenarioError where the longest sequence, or the budget given, does not fit."""
        self._check_states()
        wanted = max(self.microbatch_tokens or 0, longest)
        peak = self.peak_bytes(wanted, prefix)
        if peak <= self._budget_bytes:
            return
        given = self.microbatch_tokens is not None and self.microbatch_tokens > longest
        what = "the microbatch" if given else "the longest rollout"
        beside = f" beside a shared prefix of {prefix:,}" if prefix else ""
        raise ScenarioError(
            f"{FIELD}.microbatch_tokens" if given else "cluster.trainer_gpus",
            f"the trainer is out of memory: {what} of {wanted:,} tokens{beside} needs "
            f"{peak / 1e9:.0f} GB of each {self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB "
            f"usable); the largest microbatch that fits is {self.largest_microbatch_tokens():,} "
            f"tokens on {self.gpus} GPUs",
        )

    def train(self, load: TrainLoad) -> TrainCost:
        """The phases of one update on the GPU that takes longest.

        Raises ScenarioError where states or the longest rollout do not fit in memory, with the
        largest microbatch that does.
        """
        if not load.rollouts:
            return TrainCost(())
        per_gpu, prefix = self._microbatches(load)
        phases = _slowest([self._phases_s(m) for m in per_gpu])
        count = max(len(m) for m in per_gpu)
        largest = max((w.tokens for m in per_gpu for w in m), default=0)
        if self.minibatches > 1:
            updates, count, largest = self._updates(load)
            phases = {"log_prob": phases["log_prob"], **updates}
        known = tuple((name, s) for name, s in phases.items() if s > 0)
        return TrainCost(known, self.peak_bytes(largest, prefix), count)

    def _updates(self, load: TrainLoad) -> tuple[dict[str, float], int, int]:
        """Phases of all optimiser steps together, microbatches of one GPU, and the tokens of the
        largest."""
        total: dict[str, float] = {}
        count = largest = 0
        for share in range(self.minibatches):
            part = TrainLoad(load.groups[share :: self.minibatches], load.shared_prefix)
            if not part.rollouts:
                continue
            per_gpu, _ = self._microbatches(part)
            every = [self._phases_s(m) for m in per_gpu]
            for phases in every:
                del phases["log_prob"]
            for name, seconds in _slowest(every).items():
                total[name] = total.get(name, 0.0) + seconds
            count += max(len(m) for m in per_gpu)
            largest = max(largest, *(w.tokens for m in per_gpu for w in m))
        return total, count, largest


def _slowest(phases: Sequence[dict[str, float]]) -> dict[str, float]:
    return max(phases, key=lambda each: sum(each.values()))
