"""What an update costs: time and memory of a trainer, dense or with a shared prefix.

Shared-prefix training follows arXiv 2606.01143: phase A computes the prompt of a group once, phase
B the responses in microbatches that read its keys and values, phase C the prompt's backward.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from rollcast.simulator.costs.base import TrainCost, TrainLoad
from rollcast.simulator.costs.memory.training import (
    activation_bytes_per_token,
    kept_bytes_per_token,
    layer_bytes,
    shared_kv_bytes,
)
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.sync.state_copies import copy_bytes_per_s
from rollcast.simulator.costs.trainer.attention_kernels import with_kernel
from rollcast.simulator.costs.trainer.options import (
    COMPUTE_BYTES,
    FIELD,
    FROZEN_BYTES,
    FUSED_SHARE,
    STATE_BYTES,
    STEP_BYTES_PER_PARAMETER,
    TrainerOptions,
)
from rollcast.simulator.costs.trainer.packing import (
    Work,
    dense_work,
    pack,
    pad,
    prefix_work,
    suffix_work,
)
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES, Layout, Talk
from rollcast.simulator.costs.trainer.roles import ALONE, JUDGES, Role, beside, roles_apart
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import AtLeast, whole

MOMENT_BYTES = 8  # Adam's two, in fp32
_F = figures("trainer")
LOGIT_BYTES: int = _F.logit_bytes  # held per logit of a chunk: 16 and 32 bit, softmax, gradients
STREAM_EFFICIENCY: float = _F.stream_efficiency  # of bandwidth, by the optimiser's kernels


class UnitTimes(NamedTuple):
    """Seconds of a forward over all layers: of one token, position of the LM head, expert read or
    launched, and query-key pair (in layers that see all, and within the window of others); and of
    reading the weights that every token uses. Attention's shares of a token: of its products, and
    of what it moves."""

    token: float
    head_token: float
    weights: float
    expert: float
    moved_token: float
    moved_head_token: float
    launched_expert: float
    pair: float
    near_pair: float
    attention_token: float
    attention_product_share: float
    attention_moved_share: float


@dataclass(frozen=True)
class RooflineTrainer(TrainerOptions):
    """A trainer of ``model`` on ``gpus`` GPUs.

    A forward takes 2 flop per active weight and token, attention's 4 x heads x head_dim flop per
    query-key pair and layer (pairs within the window, in layers that have one), and elementwise
    kernels: ``traffic_per_activation_byte`` bytes per activation byte kept and
    ``traffic_per_logit`` per logit. A byte takes 1 / bandwidth + 1 / ``kernel_bytes_per_s``:
    published steps shorten by less than memory gets faster, from RTX A6000 to B200. A backward
    takes two forwards, and what is computed again. ``weights="lora"`` saves states, gradient
    exchange, optimiser, and of a backward the products that would give gradients of frozen weights.
    ``log_prob_passes`` forwards over the whole batch run first, then ``minibatches`` optimiser
    steps, each over its share of the groups. The LM head runs on response tokens.

    Weights are gathered for each pass of each microbatch where states are sharded. Communication
    is not overlapped with computation, but for ``overlap``. Where the model is split
    (:class:`simulator.costs.trainer.parallel.Layout`), what is said of a GPU's microbatches holds
    for the GPUs that share a copy of it, and a pipeline of p stages idles (p - 1) / v of a
    microbatch's time each step.

    A critic and reward models of the policy's size on its GPUs are split as it is; a reference, a
    critic or reward models of another model, or on GPUs of their own, are trainers of theirs, fully
    sharded (:mod:`simulator.costs.trainer.roles`). On their own GPUs they work beside the policy.

    ``attention`` is resolved into ``gpu``. logits: whether the LM head runs. copies_scale: factor
    on the speed of pageable copies. expert_share: efficiency of routed experts' products over that
    of dense ones. frozen_bytes: of a parameter that is not trained.
    """

    model: Model
    gpu: Gpu
    gpus: int = 1
    logits: bool = True
    copies_scale: float = 1.0
    expert_share: float = _F.expert_share
    frozen_bytes: int = FROZEN_BYTES
    FIXED = ("model", "gpu", "gpus", "logits", "copies_scale", "expert_share", "frozen_bytes")

    def __post_init__(self) -> None:
        whole(self.gpus, "cluster.trainer_gpus", AtLeast(1))
        super().__post_init__()
        if self.attention is not None:  # once: a draw changes the figure afterwards
            gpu = with_kernel(self.gpu, self.attention, f"{FIELD}.attention")
            object.__setattr__(self, "gpu", gpu)
            object.__setattr__(self, "attention", None)
        if (self.recompute_layers or 0) > self.model.layers:
            raise ScenarioError(
                f"{FIELD}.recompute_layers", f"more than the {self.model.layers} layers"
            )
        if self.precision == "fp8" and not self.gpu.fp8_flop_per_s:
            raise ScenarioError(f"{FIELD}.precision", f"{self.gpu.name} has no fp8; give bf16")
        _ = self.layout, self.others  # refuse a split that does not divide, an unknown model

    @cached_property
    def layout(self) -> Layout:
        """The model split over the GPUs."""
        return Layout(self.model, self.gpu, self.gpus, self)

    @cached_property
    def others(self) -> tuple[tuple[Role, RooflineTrainer], ...]:
        """The models beside the policy that are priced on their own, each with its trainer."""
        return tuple((role, self._of(role)) for role in roles_apart(self))

    def _of(self, role: Role) -> RooflineTrainer:
        model = load_model(role.model, f"{FIELD}.{role.name}_model") if role.model else self.model
        options = ALONE if role.trained else {**ALONE, **JUDGES, "log_prob_passes": role.passes}
        gpus, logits = role.gpus or self.gpus, role.name == "reference"
        return replace(self, model=model, gpus=gpus, logits=logits, **options)

    def _shares(self, name: str) -> bool:
        """Whether that role is of the policy's model, on the policy's GPUs."""
        return name not in [role.name for role, _ in self.others]

    # --- memory of one GPU ---

    @cached_property
    def _policy_bytes(self) -> float:
        """Weights, gradients and optimiser states of the policy."""
        full = self.weights == "full"
        bytes_each = STATE_BYTES if full else self.frozen_bytes
        if full and self.optimizer_on_host:  # the fp32 weight stays, the moments do not
            bytes_each = max(bytes_each - MOMENT_BYTES, COMPUTE_BYTES)
        return self.layout.state_bytes(bytes_each, trained=full) + self._unreduced_bytes

    @cached_property
    def _unreduced_bytes(self) -> float:
        """What whole gradients take beyond sharded ones."""
        sharded = self.kept in ("fsdp", "hybrid")
        if self.weights != "full" or self.reduce_every_microbatch or not sharded:
            return 0.0
        return GRADIENT_BYTES * (self._whole_parameters - self.layout.owned_parameters)

    @property
    def _whole_parameters(self) -> float:
        return sum(weights for weights, _ in self.layout.parts)

    @cached_property
    def state_bytes_per_gpu(self) -> float:
        """Bytes of weights, gradients and optimiser states that one GPU keeps between steps."""
        held = self._policy_bytes
        if self.critic and self._shares("critic"):
            held *= 2
        if self.reward_passes and self._shares("reward"):
            held += self.layout.state_bytes(COMPUTE_BYTES, trained=False)
        return held + sum(t.state_bytes_per_gpu for role, t in self.others if not role.gpus)

    @cached_property
    def trained_bytes_per_gpu(self) -> float:
        """Of these, what lasts to the next update and changes in it: all but gradients and the
        weights of reference and reward models. With adapters none (their states are small)."""
        if self.weights != "full":
            return 0.0
        sharded = self.kept in ("fsdp", "hybrid") and not self._unreduced_bytes
        gradients = self.layout.owned_parameters if sharded else self._whole_parameters
        policy_bytes = max(0.0, self._policy_bytes - GRADIENT_BYTES * gradients)
        if self.critic and self._shares("critic"):
            policy_bytes *= 2
        here = [trainer for role, trainer in self.others if not role.gpus]
        return policy_bytes + sum(trainer.trained_bytes_per_gpu for trainer in here)

    def copies_s(self, pinned_bytes_per_s: float = math.inf) -> tuple[float, float]:
        """Seconds in which those reach host memory, and come back; pinned copies at
        ``pinned_bytes_per_s`` at most."""
        down, up = copy_bytes_per_s(self.state_copies, self.gpu, pinned_bytes_per_s)
        scale = self.copies_scale if self.state_copies == "pageable" else 1.0
        moved = self.trained_bytes_per_gpu
        return moved / (down * scale), moved / (up * scale)

    @cached_property
    def _gathered_bytes(self) -> float:
        """bf16 weights in use: two layers (one prefetched) and the LM head, or all that the GPU
        computes with where a forward leaves them gathered."""
        model, layout = self.model, self.layout
        if not self.reshard_after_forward and self.kept in ("fsdp", "hybrid"):
            return COMPUTE_BYTES * sum(weights for weights, _ in layout.parts)
        embeddings = model.head_parameters * (1 if model.tied_embeddings else 2)
        dense = model.parameters - model.routed_parameters - embeddings
        layer = dense / self.tensor_parallel + model.routed_parameters / layout.expert_split
        head = model.head_parameters / self.tensor_parallel
        return COMPUTE_BYTES * (2 * layer / model.layers + head)

    @cached_property
    def _fixed_bytes(self) -> float:
        logits = LOGIT_BYTES * self.model.vocab * self.logits_chunk_tokens / self.tensor_parallel
        return self.state_bytes_per_gpu + self._gathered_bytes + logits

    @cached_property
    def _budget_bytes(self) -> float:
        return self.gpu.memory_bytes * self.memory_utilization

    def peak_bytes(self, microbatch_tokens: int, prefix_tokens: int = 0) -> int:
        """Peak memory of one GPU at a microbatch of that many tokens, with the K/V and gK/gV of a
        shared prefix (and its recomputation's checkpoints) beside it."""
        per_token = self._activation_bytes
        shared = shared_kv_bytes(self.model, prefix_tokens) / self.layout.share
        activations = per_token * microbatch_tokens + shared + self._kept_bytes * prefix_tokens
        # Phases A and C: the prefix as a microbatch (K/V among its activations) with gK/gV.
        alone = per_token * prefix_tokens + shared / 2
        return math.ceil(self._fixed_bytes + max(activations, alone))

    @cached_property
    def _kept_bytes(self) -> float:
        """Bytes that a backward needs of one token, on one GPU. A pipeline's first stage holds as
        many microbatches as stages, of its share of the layers, and (p - 1) / (p v) more where
        they are interleaved (arXiv 2104.04473, section 2.2)."""
        kept = kept_bytes_per_token(self.model, self.recompute, self.recompute_layers)
        if self.virtual_stages > 1:
            stages = self.pipeline_parallel
            kept *= 1 + (stages - 1) / (stages * self.virtual_stages)
        return kept / self.layout.share

    @cached_property
    def _activation_bytes(self) -> float:
        """Peak bytes of one token on one GPU: what is kept (two layers of it where activations wait
        in host memory, one on its way), and the layer at work."""
        recomputed = self.recompute, self.recompute_layers
        whole = activation_bytes_per_token(self.model, *recomputed) / self.layout.share
        at_work = whole - self._kept_bytes
        if self.virtual_stages > 1:
            at_work = whole - kept_bytes_per_token(self.model, *recomputed) / self.layout.share
        if self.offload_activations:
            return at_work + min(1.0, 2 / self.model.layers) * self._kept_bytes
        return at_work + self._kept_bytes if self.virtual_stages > 1 else whole

    def largest_microbatch_tokens(self) -> int:
        """Tokens of the largest dense microbatch that fits on one GPU; 0 where none does."""
        room = self._budget_bytes - self._fixed_bytes
        return max(0, math.floor(room / self._activation_bytes))

    def _check_states(self) -> None:
        if self.largest_microbatch_tokens() > 0:
            return
        shard = "" if self.kept == "fsdp" else f" states shared by all ({FIELD}.sharding: fsdp),"
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"out of memory before the first token: weights, gradients and optimiser states of "
            f"{self.model.name} take {self._fixed_bytes / 1e9:.0f} GB of each of {self.gpus} x "
            f"{self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB usable); give the trainer more "
            f"GPUs,{shard} adapters ({FIELD}.weights: lora), or a split model "
            f"({FIELD}.tensor_parallel, expert_parallel, pipeline_parallel)",
        )

    def _budget_tokens(self, longest: int) -> int:
        """Tokens of a microbatch, at least those of the longest sequence."""
        budget = self.microbatch_tokens
        if budget is None:
            budget = min(32_768, self.largest_microbatch_tokens())
        return max(budget, longest)

    # --- time of one GPU ---

    @cached_property
    def _optimizer_s(self) -> float:
        if self.weights == "lora":
            return 0.0
        owned, gpu = self.layout.owned_parameters, self.gpu
        if self.optimizer_on_host:  # gradients down, Adam in host memory, weights up
            node_s = STEP_BYTES_PER_PARAMETER * owned * min(self.gpus, self.gpus_per_node)
            moved_s = (GRADIENT_BYTES + COMPUTE_BYTES) * owned / gpu.host_link_bytes_per_s
            return node_s / self.host_memory_bytes_per_s + moved_s
        return STEP_BYTES_PER_PARAMETER * owned / (gpu.bandwidth_bytes_per_s * STREAM_EFFICIENCY)

    @property
    def _moved_s_per_byte(self) -> float:
        """An elementwise kernel waits for memory, and for its instructions to issue."""
        return 1 / self.gpu.bandwidth_bytes_per_s + 1 / self.kernel_bytes_per_s

    @cached_property
    def _unit_times(self) -> UnitTimes:
        """What a forward over all layers takes, on the GPUs that share a microbatch."""
        model, gpu, layout = self.model, self.gpu, self.layout
        expert_weights = model.sparse_layers * model.expert_parameters
        routed_flop = 2 * expert_weights * model.experts_per_token
        dense_flop = model.linear_flop_per_token - routed_flop
        products = layout.share * gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency
        attention = layout.share * gpu.bf16_flop_per_s * gpu.trainer_attention_flop_efficiency
        read = gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency / COMPUTE_BYTES
        fused = FUSED_SHARE if self.kernels == "fused" else 1.0
        traffic = fused * self.traffic_per_activation_byte
        if self.weights == "lora" and traffic:  # 0 is fused: adapters' kernels too
            traffic += self.traffic_per_adapted_byte
        moved = self._moved_s_per_byte / layout.share
        kept = layer_bytes(model)
        kept_bytes = model.layers * kept.whole
        layer_pair_s = model.attention_flop_per_layer / attention
        return UnitTimes(
            token=(dense_flop + routed_flop / self.expert_share) / self._precision_gain / products,
            head_token=model.head_flop_per_token / products,
            weights=(model.parameters - model.routed_parameters) / self.tensor_parallel / read,
            expert=expert_weights / read,
            moved_token=traffic * kept_bytes * moved,
            moved_head_token=self.traffic_per_logit * model.vocab * moved,
            launched_expert=model.sparse_layers * self.expert_launch_s,
            pair=model.full_layers * layer_pair_s,
            near_pair=model.windowed_layers * layer_pair_s,
            attention_token=model.linear_attention_flop_per_token / attention,
            attention_product_share=2 * model.attention_parameters / model.linear_flop_per_token,
            attention_moved_share=(kept.stream / 2 + kept.attention) / kept.whole,
        )

    def _forward_s(self, work: Work) -> tuple[float, float]:
        """Seconds of (all but attention, attention) of one forward over all layers, on the GPUs
        that share a microbatch."""
        seconds_each = self._unit_times
        touched = self._experts_touched(work.tokens) if self.model.experts else 0.0
        products_s = work.tokens * seconds_each.token + work.head_tokens * seconds_each.head_token
        read_s = seconds_each.weights + touched * seconds_each.expert
        moved_s = (
            work.tokens * seconds_each.moved_token
            + work.head_tokens * seconds_each.moved_head_token
        )
        others_s = moved_s + touched * seconds_each.launched_expert
        return max(products_s, read_s) + others_s, self._attention_s(work)

    def _attention_s(self, work: Work) -> float:
        seconds_each = self._unit_times
        far_s = work.pairs * seconds_each.pair + work.tokens * seconds_each.attention_token
        return far_s + work.near_pairs * seconds_each.near_pair

    @cached_property
    def _precision_gain(self) -> float:
        """How much faster the layers' products are than in bf16."""
        return self.gpu.fp8_flop_per_s / self.gpu.bf16_flop_per_s if self.precision == "fp8" else 1

    def _experts_touched(self, tokens: int) -> float:
        """Experts of a layer that a microbatch reaches, as whole experts on one GPU; an expert
        parallel group sends the tokens of all of its GPUs."""
        here = tokens / self.context_parallel
        if self.expert_parallel > 1:
            here = here / self.tensor_parallel * self.expert_parallel
        return self.model.experts_touched(here) / self.layout.expert_split

    def _head_s(self, work: Work) -> float:
        """The part of a forward that is the LM head's."""
        return work.head_tokens * (self._unit_times.head_token + self._unit_times.moved_head_token)

    def _stage_s(self, work: Work) -> float:
        """A forward of one microbatch in the slowest stage, computation alone."""
        linear_s, attention_s = self._forward_s(work)
        whole_s = linear_s + attention_s
        if self.pipeline_parallel > 1:
            head_s = self._head_s(work)
            whole_s = self.layout.stage_s(max(0.0, whole_s - head_s), head_s)
        return max(whole_s, self._launch_s)

    @property
    def _launch_s(self) -> float:
        """The least that a stage's forward takes."""
        return self.model.layers / self.pipeline_parallel * self.launch_s_per_layer

    def _frozen_s(self, work: Work, whole_s: float) -> float:
        """What a backward saves without gradients of the weights: one of its two products for each
        of the forward's, and no more than launching its kernels leaves."""
        seconds_each = self._unit_times
        products_s = work.tokens * seconds_each.token + work.head_tokens * seconds_each.head_token
        return min(products_s / self.pipeline_parallel, 2 * (whole_s - self._launch_s))

    def _part_s(self, work: Work, whole_s: float, talk: Talk) -> float:
        """What a backward computes again of attention or MLPs, of a forward of ``whole_s``."""
        seconds_each = self._unit_times
        products_s = seconds_each.token * seconds_each.attention_product_share
        moved_s = seconds_each.moved_token * seconds_each.attention_moved_share
        part_s, talk_s = work.tokens * (products_s + moved_s), talk.attention
        if self.recompute == "mlp":
            whole_token_s = seconds_each.token + seconds_each.moved_token
            part_s, talk_s = work.tokens * whole_token_s - part_s, talk.mlp
        else:
            part_s += self._attention_s(work)
        return min(part_s / self.pipeline_parallel, whole_s) + talk_s

    def _phases_s(self, microbatches: Sequence[Work]) -> dict[str, float]:
        """The policy's phases, with those of a critic and of reward models of its size: these have
        no logits, and their forwards before the update count as ``log_prob``."""
        phases = self._pass_s(
            microbatches if self.logits else _bare(microbatches), self.log_prob_passes
        )
        critic = self.critic and self._shares("critic")
        rewards = self.reward_passes if self._shares("reward") else 0
        if critic or rewards:
            valued = self._pass_s(_bare(microbatches), 1)
            phases["log_prob"] += (rewards + critic) * valued.pop("log_prob")
            if critic:
                for name, seconds in valued.items():
                    phases[name] += seconds
        return phases

    def _pass_s(self, microbatches: Sequence[Work], passes: int) -> dict[str, float]:
        """Phases of one model, with ``passes`` forwards before the update."""
        count, layout = len(microbatches), self.layout
        forward = talk = between = offload = again = saved = 0.0
        adapted, part = self.weights == "lora", self.recompute in ("attention", "mlp")
        messages = Talk(0.0, 0.0, 0.0)
        split = self.gpus > layout.data_parallel or self.expert_parallel > 1
        for work in microbatches:
            stage_s = self._stage_s(work)
            forward += stage_s
            if split:
                messages = layout.talk_s(work.tokens)
                talk, between = talk + messages.attention + messages.mlp, between + messages.between
            if adapted:
                saved += self._frozen_s(work, stage_s)
            if part:
                again += self._part_s(work, stage_s, messages)
            if self.offload_activations:
                kept_bytes = work.tokens * self._kept_bytes / self.pipeline_parallel
                moved_s = kept_bytes / self.gpu.host_link_bytes_per_s
                offload += max(0.0, moved_s - stage_s)
        idle = 1 + layout.bubble(count) / count if count else 1.0
        gather, exchange = layout.gather_s * count, 0.0
        if self.weights == "full":
            exchange = layout.exchange_s(count)
        if self.recompute == "full":
            again = forward + talk
        again *= (self.recompute_layers or self.model.layers) / self.model.layers
        ahead = (forward + talk + between) * idle
        behind = (2 * forward + talk + between + again - saved) * idle
        gathered_again = gather if self.reshard_after_forward else 0.0
        hidden = self.overlap
        return {
            "log_prob": passes * (ahead + _seen(gather, hidden, forward)),
            "forward": ahead + offload + _seen(gather, hidden, forward),
            "backward": behind + offload + _seen(gathered_again, hidden, 2 * forward),
            "gradient_exchange": _seen(exchange, hidden, 2 * forward),
            "optimizer": self._optimizer_s + self.step_fixed_s,
        }

    # --- the update ---

    def _microbatches(self, load: TrainLoad) -> tuple[list[list[Work]], int]:
        """Microbatches of each GPU, and the longest prefix shared.

        Rollouts (whole groups, with a shared prefix) go to the GPU with the fewest tokens, longest
        first (Graham's longest processing time rule).
        """
        jobs: list[tuple[int, list[list[Work]]]] = []
        longest, prefix, window = 1, 0, self._window
        for prompt, responses in load.groups:
            if not responses:
                continue
            if load.shared_prefix:
                suffixes = [suffix_work(prompt, s, window) for s in responses]
                parts = [[prefix_work(prompt, window)], suffixes] if prompt else [suffixes]
                jobs.append((sum(w.tokens for p in parts for w in p), parts))
                longest, prefix = max(longest, *responses), max(prefix, prompt)
            else:
                for response in responses:
                    work = dense_work(prompt, response, window)
                    jobs.append((work.tokens, [[work]]))
                    longest = max(longest, work.tokens)
        if self.batching.startswith("padded"):
            if load.shared_prefix:
                raise ScenarioError(
                    f"{FIELD}.batching",
                    f"is {self.batching}, but training on shared prefixes packs responses; give "
                    "packed or one_sequence",
                )
            longest = max(longest, sum(self._widest(load)) if jobs else 0)
        self._check_fits(longest, prefix)
        budget = self._budget_tokens(longest)
        sizes = [tokens for tokens, _ in jobs]
        order = sorted(range(len(jobs)), key=sizes.__getitem__, reverse=True)
        heap = [(0, gpu) for gpu in range(min(self.layout.data_parallel, max(1, len(jobs))))]
        assigned: list[list[int]] = [[] for _ in heap]
        for job in order:
            held, gpu = heapq.heappop(heap)
            assigned[gpu].append(job)
            heapq.heappush(heap, (held + sizes[job], gpu))
        if self.batching.startswith("padded"):
            rows = [[jobs[job][1][0][0] for job in sorted(mine)] for mine in assigned]
            return [self._padded(mine, budget, load) for mine in rows], 0
        dealt = [[part for job in mine for part in jobs[job][1]] for mine in assigned]
        if self.batching == "one_sequence":
            return [[work for part in mine for work in part] for mine in dealt], prefix
        if load.shared_prefix:  # the suffixes of two groups read two prefixes: never one microbatch
            return [[m for part in mine for m in pack(part, budget)] for mine in dealt], prefix
        return [pack((w for part in mine for w in part), budget) for mine in dealt], 0

    def _padded(self, rows: list[Work], budget: int, load: TrainLoad) -> list[Work]:
        """Rows in the order that they came in, not sorted by length."""
        least = self._widest(load) if self.batching == "padded_to_batch" else (0, 0)
        return pad(rows, budget, self.microbatch_rollouts or len(rows), least, self._window)

    @property
    def _window(self) -> int:
        return self.model.window_tokens if self.model.windowed_layers else 0

    @staticmethod
    def _widest(load: TrainLoad) -> tuple[int, int]:
        """The longest prompt and the longest response of a batch."""
        taught = [(prompt, max(responses)) for prompt, responses in load.groups if responses]
        return max(p for p, _ in taught), max(r for _, r in taught)

    def _check_fits(self, longest: int, prefix: int) -> None:
        """Raises ScenarioError where the longest sequence, or the budget given, does not fit."""
        self._check_states()
        wanted = max(self.microbatch_tokens or 0, longest)
        peak = self.peak_bytes(wanted, prefix)
        if peak <= self._budget_bytes:
            return
        given = self.microbatch_tokens is not None and self.microbatch_tokens > longest
        what = "the microbatch" if given else "a microbatch of the longest rollout alone,"
        beside = f" beside a shared prefix of {prefix:,}" if prefix else ""
        raise ScenarioError(
            f"{FIELD}.microbatch_tokens" if given else "cluster.trainer_gpus",
            f"the trainer is out of memory: {what} of {wanted:,} tokens{beside} needs "
            f"{peak / 1e9:.0f} GB of each {self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB "
            f"usable); the largest microbatch that fits is {self.largest_microbatch_tokens():,} "
            f"tokens on {self.gpus} GPUs; {self._what_would_fit(wanted, prefix)}",
        )

    def _what_would_fit(self, tokens: int, prefix: int) -> str:
        """Advice for a microbatch that does not."""

        def fits(**changes: int) -> bool:
            with suppress(ScenarioError):  # a split that does not divide
                changed: RooflineTrainer = replace(self, **changes)  # type: ignore[arg-type]
                return changed.peak_bytes(tokens, prefix) <= self._budget_bytes
            return False

        enough = [n for n in (2, 4, 8) if fits(gpus=n * self.gpus)]
        remedies = [f"{enough[0] * self.gpus} trainer GPUs"] if enough else []
        split = 2 * self.tensor_parallel
        if fits(tensor_parallel=split):
            remedies.append(f"{FIELD}.tensor_parallel: {split} on these")
        remedies.append("fewer tokens (workload.max_new_tokens)")
        return f"what would fit: {', or '.join(remedies)}"

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
        if self.others:
            costs = [(role, dict(t.train(load).phases_s)) for role, t in self.others]
            phases = beside(phases, costs)
        known = tuple((name, s) for name, s in phases.items() if s > 0)
        return TrainCost(known, self.peak_bytes(largest, prefix), count)

    def _updates(self, load: TrainLoad) -> tuple[dict[str, float], int, int]:
        """Phases of all optimiser steps, microbatches of one GPU, tokens of the largest."""
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


def _bare(microbatches: Sequence[Work]) -> list[Work]:
    """Without logits."""
    return [work._replace(head_tokens=0) for work in microbatches]


def _seen(seconds: float, hidden: float, behind_s: float) -> float:
    """What is seen of communication of which a share may hide behind ``behind_s``."""
    return seconds - min(seconds * hidden, behind_s)


def _slowest(phases: Sequence[dict[str, float]]) -> dict[str, float]:
    return max(phases, key=lambda phases_s: sum(phases_s.values()))
