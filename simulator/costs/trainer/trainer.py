"""What an update costs, dense or with a shared prefix.

Shared-prefix training follows arXiv 2606.01143: phase A computes the prompt of a group once, phase
B the responses in microbatches that read its keys and values, phase C the prompt's backward. Each
group has passes of its own, of which each takes the time to launch its kernels at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from rollcast.simulator.costs.base import TrainCost, TrainLoad
from rollcast.simulator.costs.memory.training import ACTIVATION_BYTES, layer_bytes
from rollcast.simulator.costs.presets.one_layer import mtp_layer
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.sync.state_copies import MAPPED_BYTES, tensor_down_bytes_per_s
from rollcast.simulator.costs.trainer.dealing import Dealing, shares
from rollcast.simulator.costs.trainer.delta_loop import DeltaLoop
from rollcast.simulator.costs.trainer.microbatch_room import ANY_TOKENS, TrainerRoom
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, LOADED_SHARE, MASTER_BYTES
from rollcast.simulator.costs.trainer.packing import Work
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES, Talk
from rollcast.simulator.costs.trainer.roles import beside
from rollcast.simulator.costs.trainer.step_options import (
    FIELD,
    MOVED_SHARES,
    STEP_BYTES_PER_PARAMETER,
)
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import GRADES

FP32_SHARE: float = figures("trainer").fp32_share  # of products in bf16, by those in fp32
STREAM_EFFICIENCY: float = figures("trainer").stream_efficiency  # of bandwidth, by the optimiser


class UnitTimes(NamedTuple):
    """Seconds of a forward over all layers: of one token, position of the LM head, expert read or
    launched, and query-key pair (in layers that see all, and within what others see); of a prompt's
    token in the vision tower, and of its patches there; and of reading the weights that every token
    uses. Attention's shares of a token: of its products, and of what it moves."""

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
    prompt_token: float
    prompt_patches: float


@dataclass(frozen=True)
class RooflineTrainer(TrainerRoom):
    """A trainer of ``model`` on ``gpus`` GPUs.

    A forward takes 2 flop per active weight and token, attention's 4 x heads x head_dim flop per
    query-key pair and layer (pairs within the window, in layers that have one), and elementwise
    kernels: ``traffic_per_activation_byte`` bytes per activation byte kept and
    ``traffic_per_logit`` per logit. A byte takes 1 / bandwidth + 1 / ``kernel_bytes_per_s``:
    published steps shorten by less than memory gets faster, from RTX A6000 to B200. A backward
    takes two forwards, and what is computed again. ``weights="lora"`` saves states, gradient
    exchange, optimiser, and of a backward the products that would give gradients of frozen weights.
    ``log_prob_passes`` forwards over the whole batch run first, then ``minibatches`` optimiser
    steps, each over its share of the groups. Log-softmax runs on response tokens, with
    ``scores_prompts`` on all that are packed, and the LM head on all unless ``logits_of_prompts``
    is false.

    Weights are gathered for each pass of each microbatch where states are sharded, with
    ``states_on_host`` over the host link first. Communication is not overlapped with computation,
    but for ``overlap``. Where the model is split
    (:class:`simulator.costs.trainer.parallel.Layout`), what is said of a GPU's microbatches holds
    for the GPUs that share a copy of it, GPUs of an expert-parallel group take as long as the one
    to which most tokens are routed (`Layout.busiest`), and a pipeline of p stages idles
    (p - 1) / v of a microbatch's time each step, and wherever microbatches differ that are not
    packed.

    A critic and reward models of the policy's size on its GPUs are split as it is; a reference, a
    critic or reward models of another model, or on GPUs of their own, are trainers of theirs, fully
    sharded (:mod:`simulator.costs.trainer.roles`). On their own GPUs they work beside the policy.
    """

    # --- time of one GPU ---

    @cached_property
    def _optimizer_s(self) -> float:
        if self.weights == "lora":
            return 0.0
        owned, gpu = self.layout.owned_parameters, self.gpu
        if self.states_on_host:
            return self._host_memory_s(STEP_BYTES_PER_PARAMETER)
        if self.optimizer_on_host:  # gradients down, Adam in host memory, weights up
            moved_s = (GRADIENT_BYTES + COMPUTE_BYTES) * owned / gpu.host_link_bytes_per_s
            return self._host_memory_s(STEP_BYTES_PER_PARAMETER) + moved_s
        return STEP_BYTES_PER_PARAMETER * owned / (gpu.bandwidth_bytes_per_s * STREAM_EFFICIENCY)

    def _host_memory_s(self, bytes_each: float) -> float:
        """Seconds in which a node's CPUs touch so many bytes of each parameter of its GPUs."""
        node = self.layout.owned_parameters * min(self.gpus, self.gpus_per_node)
        return bytes_each * node / self.host_memory_bytes_per_s

    @cached_property
    def _loaded_s(self) -> float:
        """A GPU's fp32 shard of the weights, from host memory for one pass: FSDP's comes as its
        reference's does."""
        if not self.states_on_host:
            return 0.0
        share = 1.0 if self.backend == "deepspeed" else LOADED_SHARE
        rate = share * self.gpu.host_link_bytes_per_s
        return MASTER_BYTES * self.layout.owned_parameters / rate

    @property
    def _reference_loaded_s(self) -> float:
        """The reference's shard, from host memory while the microbatch before is computed; one of
        adapters is the policy without them."""
        each = self.reference_on_host and self.reference_loads == "microbatch"
        if not each or self.weights == "lora":
            return 0.0
        rate = LOADED_SHARE * self.gpu.host_link_bytes_per_s
        return MASTER_BYTES * self.layout.owned_parameters / rate

    @cached_property
    def _unloaded_s(self) -> float:
        """Its shard of the gradients, to host memory."""
        if not self.states_on_host:
            return 0.0
        return GRADIENT_BYTES * self.layout.owned_parameters / self.gpu.host_link_bytes_per_s

    @cached_property
    def _added_s(self) -> float:
        """The same, added to those that are there, for which the backward waits: FSDP2 copies
        without blocking, to pinned memory, only where nothing is added (torch.distributed.fsdp,
        foreach_reduce), else each parameter's to memory of malloc."""
        if not self.states_on_host:
            return 0.0
        moved_s = self._unloaded_s
        if self.backend not in ("deepspeed", "fsdp"):  # which have buffers for them
            shard = self.layout.owned_parameters / self.model.parameters
            new = self.model.share_of_matrices(MAPPED_BYTES / GRADIENT_BYTES / shard)
            rate = self.copies_scale * tensor_down_bytes_per_s(self.gpu, new)
            moved_s = GRADIENT_BYTES * self.layout.owned_parameters / rate
        return moved_s + self._host_memory_s(3 * GRADIENT_BYTES)

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
        busiest_flop = layout.busiest * routed_flop
        products = layout.share * gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency
        attention = layout.share * gpu.bf16_flop_per_s * gpu.trainer_attention_flop_efficiency
        read = gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency / COMPUTE_BYTES
        traffic = MOVED_SHARES[self.kernels] * self.traffic_per_activation_byte
        if self.weights == "lora" and traffic:  # 0 is fused: adapters' kernels too
            traffic += self.traffic_per_adapted_byte
        moved = self._moved_s_per_byte / layout.share
        kept = layer_bytes(model)
        again = layout.recurrent_again
        dense_flop += again * 2 * model.recurrent_parameters
        made_again = again * ACTIVATION_BYTES * model.recurrent_elements_per_token
        stream, alike = layout.stream_copies * kept.stream, kept.attention + kept.mlp
        layer_moved = stream + alike + (layout.busiest - 1) * kept.routed
        kept_bytes = model.layers * layer_moved + made_again
        tower, patches = model.vision, model.patches_per_prompt_token
        seen_bytes = ACTIVATION_BYTES * tower.layers * tower.layer_elements if tower else 0
        window, seen = self._window, [kind for kind in model.reaches if kind.seen_tokens]
        near = sum(kind.layers * kind.flop * kind.seen_tokens / window for kind in seen)
        far = sum(kind.layers * kind.flop for kind in model.reaches if not kind.seen_tokens)
        return UnitTimes(
            token=(dense_flop + busiest_flop / self.expert_share) / self._precision_gain / products,
            head_token=model.head_flop_per_token / products,
            weights=(model.parameters - model.routed_parameters) / self.tensor_parallel / read,
            expert=expert_weights / read,
            moved_token=traffic * kept_bytes * moved,
            moved_head_token=self.traffic_per_logit * model.vocab * moved,
            launched_expert=model.sparse_layers * self._expert_s,
            pair=far / attention,
            near_pair=near / attention,
            attention_token=(1 + again)
            * (
                model.linear_attention_flop_per_token / attention
                + model.linear_attention_bytes_per_token
                / (gpu.bandwidth_bytes_per_s * layout.share)
            ),
            attention_product_share=2 * model.attention_parameters / model.linear_flop_per_token,
            attention_moved_share=(stream / 2 + kept.attention) / (stream + alike),
            prompt_token=model.vision_flop_per_prompt_token / products
            + patches * traffic * seen_bytes * moved,
            prompt_patches=patches * self.patch_launch_s,
        )

    @property
    def _expert_s(self) -> float:
        """Seconds of an expert beside its flop. Megatron's grouped products launch little for each:
        what is left of the host there is Python, as an engine's, and slower by as much."""
        if self.backend != "megatron" or not self.gpu.grace or self.host_factor is not None:
            return self.expert_launch_s * self._slower_host
        return self.expert_launch_s * float(figures("grace").host_factor)

    def _forward_s(self, work: Work) -> tuple[float, float]:
        """Seconds of (all but attention, attention) of one forward over all layers, on the GPUs
        that share a microbatch."""
        seconds_each = self._unit_times
        touched = self._experts_touched(work.tokens) if self.model.experts else 0.0
        products_s = work.tokens * seconds_each.token + self._head_product_s(work)
        read_s = seconds_each.weights + touched * seconds_each.expert
        moved_s = work.tokens * seconds_each.moved_token
        moved_s += self._moved_positions(work) * seconds_each.moved_head_token
        others_s = moved_s + touched * seconds_each.launched_expert + self._tower_s(work)
        return max(products_s, read_s) + others_s, self._attention_s(work)

    def _tower_s(self, work: Work) -> float:
        """A forward of the vision tower over the images of its prompts."""
        return (work.tokens - work.head_tokens) * self._unit_times.prompt_token

    def _attention_s(self, work: Work) -> float:
        seconds_each = self._unit_times
        far_s = work.pairs * seconds_each.pair + work.tokens * seconds_each.attention_token
        attention_s = far_s + work.near_pairs * seconds_each.near_pair
        loop = self.delta_loop
        return attention_s + (loop.forward_s(work.tokens, work.pairs) if loop else 0.0)

    @cached_property
    def delta_loop(self) -> DeltaLoop | None:
        """That of gated delta nets without kernels of their own; None where they have them."""
        model = self.model
        if self.linear_attention == "fused" or not model.linear_layers:
            return None
        return DeltaLoop(
            model.linear_layers * (1 + self.layout.recurrent_again),
            model.linear_value_heads,
            model.linear_head_dim,
            self.layout.share,
            self._moved_s_per_byte,
            self.slice_launch_s * self._slower_host,
        )

    @cached_property
    def _precision_gain(self) -> float:
        """How much faster the layers' products are than in bf16."""
        if self.precision == "fp32":
            return FP32_SHARE
        return self.gpu.fp8_flop_per_s / self.gpu.bf16_flop_per_s if self.precision == "fp8" else 1

    def _experts_touched(self, tokens: int) -> float:
        """Experts of a layer that a microbatch reaches, as whole experts on one GPU; an expert
        parallel group sends the tokens of all of its GPUs."""
        here = tokens / self.sequence_split
        if self.expert_parallel > 1:
            here = here / self.tensor_parallel * self.expert_parallel
        return self.model.experts_touched(here) / self.layout.expert_split

    def _head_s(self, work: Work) -> float:
        """The part of a forward that is the LM head's."""
        moved_s = self._moved_positions(work) * self._unit_times.moved_head_token
        return self._head_product_s(work) + moved_s

    def _head_product_s(self, work: Work) -> float:
        """The LM head's product: over a pass's every token, or over responses alone."""
        every = self.logits_of_prompts and work.head_tokens
        return (work.tokens if every else work.head_tokens) * self._unit_times.head_token

    def _moved_positions(self, work: Work) -> int:
        """Positions whose logits kernels move."""
        responses = work.head_tokens + work.padding
        every = self.scores_prompts and work.head_tokens and not self._dealing.pads
        return max(work.tokens, responses) if every else responses

    @property
    def _ungraded_traffic(self) -> float:
        """Bytes per logit that a pass without gradients saves; negative where it moves more than a
        third of an update's, whose backward has fewer kernels."""
        graded, traffic = self.graded_traffic_per_logit, self.traffic_per_logit
        return 0.0 if graded is None else traffic - graded

    def _logits_s(self, microbatches: Sequence[Work], bytes_each: float) -> float:
        """Seconds in which so many bytes of every logit are moved."""
        if not bytes_each or not self.logits:
            return 0.0
        positions = sum(map(self._moved_positions, microbatches))
        moved_bytes = positions * self.model.vocab * bytes_each
        return moved_bytes * self._moved_s_per_byte / self.layout.share

    @property
    def _entropy_traffic(self) -> float:
        """Bytes per logit that the policy's entropy moves."""
        packed = None if self._dealing.pads else self.packed_entropy_traffic_per_logit
        return self.entropy_traffic_per_logit if packed is None else packed

    def _stage_s(self, work: Work, *, head: bool = True) -> float:
        """A forward of one microbatch in the slowest stage, computation alone. head: with that of
        the LM head."""
        linear_s, attention_s = self._forward_s(work)
        whole_s, head_s = linear_s + attention_s, self._head_s(work)
        if self.pipeline_parallel > 1:
            whole_s = self.layout.stage_s(max(0.0, whole_s - head_s), head_s if head else 0.0)
        elif not head:
            whole_s = max(0.0, whole_s - head_s)
        if self.launch_overlap == "partial":
            return math.hypot(whole_s, self._launch_s)
        return max(whole_s, self._launch_s)

    @cached_property
    def _launch_s(self) -> float:
        """The least that a stage's forward takes."""
        each_s = self._launched_s_per_layer
        if self.layout.gather_s:
            each_s += self.gather_launch_s_per_layer
            if self.weights == "lora":
                each_s += self.adapter_gather_launch_s_per_layer
        tower = self.model.vision if self.model.image_share else None
        layers = self.model.layers / self.pipeline_parallel + (tower.layers if tower else 0)
        return layers * each_s * self._slower_host

    @property
    def _launched_s_per_layer(self) -> float:
        """``launch_s_per_layer`` beside a host as new as this GPU's."""
        newer = self.gpu.host_link_bytes_per_s >= figures("roofline").newer_host_bytes_per_s
        share = self.newer_host_share if newer and not self.model.experts else 1.0
        return share * self.launch_s_per_layer

    @property
    def _slower_host(self) -> float:
        """What launching takes on this trainer's host, of what it takes on x86."""
        return self.gpu.launch_factor if self.host_factor is None else self.host_factor

    def _frozen_s(self, work: Work, whole_s: float) -> float:
        """What a backward saves without gradients of the weights: one of its two products for each
        of the forward's, and no more than launching its kernels leaves."""
        seconds_each = self._unit_times
        products_s = work.tokens * seconds_each.token + self._head_product_s(work)
        return min(products_s / self.pipeline_parallel, 2 * (whole_s - self._launch_s))

    def _unseen_s(self, work: Work, whole_s: float) -> float:
        """What a backward saves of a tower that is not trained, of which the forward stays."""
        passes = 3 if self.recompute == "full" else 2
        return passes * min(self._tower_s(work), max(whole_s - self._launch_s, 0.0))

    def _part_s(self, work: Work, whole_s: float, talk: Talk) -> float:
        """What a backward computes again of attention or MLPs, of a forward of ``whole_s``."""
        seconds_each = self._unit_times
        products_s = seconds_each.token * seconds_each.attention_product_share
        moved_s = seconds_each.moved_token * seconds_each.attention_moved_share
        part_s, talk_s = work.tokens * (products_s + moved_s), talk.attention
        if self.recompute == "selective":  # every second product, and all between them
            part_s = work.tokens * (seconds_each.token / 2 + seconds_each.moved_token)
            talk_s = (talk.attention + talk.mlp) / 2
        elif self.recompute == "mlp":
            whole_token_s = seconds_each.token + seconds_each.moved_token
            part_s, talk_s = work.tokens * whole_token_s - part_s, talk.mlp
        else:
            part_s += self._attention_s(work)
        return min(part_s / self.pipeline_parallel, whole_s) + talk_s

    def _phases_s(self, microbatches: Sequence[Work]) -> dict[str, float]:
        """The policy's phases, with those of a critic and of reward models of its size, which have
        no logits. Of ``log_prob_passes``, those after the first are the reference's."""
        phases = self._pass_s(microbatches if self.logits else _bare(microbatches))
        if self.model.mtp_layers:
            ahead_s = self._further_tokens_s(microbatches)
            phases["forward"] += ahead_s
            phases["backward"] += (3 if self.recompute == "full" else 2) * ahead_s
        least_s, passes = len(microbatches) * self._launch_s, self.log_prob_passes
        graded_s = phases["log_prob"] - self._logits_s(microbatches, self._ungraded_traffic)
        graded_s = max(graded_s, min(least_s, phases["log_prob"]))
        # cuDNN plans once for each length (verl, pull request 6901), before a reference meets it.
        built_s = len(microbatches) * self.attention_build_s
        phases["backward"] += built_s
        own_s = graded_s + built_s + self._logits_s(microbatches, self._entropy_traffic)
        loaded_s = len(microbatches) * self._reference_loaded_s
        compared_s = graded_s
        if passes > 1 and self.adapter_gather_launch_s_per_layer:
            compared_s = min(graded_s, self._unadapted._pass_s(microbatches)["log_prob"])
        reference_s = max(passes - 1, 0) * max(compared_s, loaded_s)
        grades = {"log_prob": min(passes, 1) * own_s, "reference": reference_s}
        critic = self.critic and self._shares("critic")
        rewards = self.reward_passes if self._shares("reward") else 0
        if critic or rewards:
            valued = self._pass_s(_bare(microbatches))
            valued_s = valued.pop("log_prob")
            grades |= {"values": critic * valued_s, "reward": rewards * valued_s}
            if critic:
                for name, seconds in valued.items():
                    phases[name] += seconds
        return {**grades, **{name: s for name, s in phases.items() if name not in GRADES}}

    @cached_property
    def _unadapted(self) -> RooflineTrainer:
        """As the reference of adapters is: nobody gathers them."""
        return replace(self, adapter_gather_launch_s_per_layer=0.0)

    def _further_tokens_s(self, microbatches: Sequence[Work]) -> float:
        """A forward of the layers that predict further tokens, each with its turn of the LM head.
        Passes for log-probabilities leave them out."""
        forward_s = math.fsum(self._further._stage_s(work) for work in microbatches)
        return self.model.mtp_layers * forward_s

    @cached_property
    def _further(self) -> RooflineTrainer:
        """Of one such layer, on the GPUs of the last stage."""
        return replace(
            self,
            model=mtp_layer(self.model),
            gpus=self.gpus // self.pipeline_parallel,
            pipeline_parallel=1,
            virtual_stages=1,
            recompute_layers=None,
        )

    def _pass_s(self, microbatches: Sequence[Work]) -> dict[str, float]:
        """Phases of one model, with one forward before the update."""
        count, layout = len(microbatches), self.layout
        forward = talk = between = offload = again = saved = 0.0
        adapted, part = self.weights == "lora", self.recompute in ("attention", "mlp", "selective")
        frozen = self.model.vision is not None and (adapted or self.freeze_tower)
        messages = Talk(0.0, 0.0, 0.0)
        split = self.gpus > layout.data_parallel or self.expert_parallel > 1
        stages_s = [self._stage_s(work) for work in microbatches]
        for work, stage_s in zip(microbatches, stages_s, strict=True):
            forward += stage_s
            if split:
                messages = layout.talk_s(work.tokens)
                talk, between = talk + messages.attention + messages.mlp, between + messages.between
            if adapted:
                saved += self._frozen_s(work, stage_s)
            if frozen:
                saved += self._unseen_s(work, stage_s)
            if part:
                again += self._part_s(work, stage_s, messages)
            if self.offload_activations:
                kept_bytes = work.tokens * self._kept_bytes / self.pipeline_parallel
                moved_s = kept_bytes / self.gpu.host_link_bytes_per_s
                offload += max(0.0, moved_s - stage_s)
        idle = 1 + layout.bubble(count) / count if count else 1.0
        if self.batching != "packed":  # bins of one size: stacks fill them better than `pack` does
            idle *= layout.stalls(stages_s)
        gather, exchange = (layout.gather_s + self._loaded_s) * count, 0.0
        added = 0.0
        if self.weights == "full":
            exchange = layout.exchange_s(count) + self._unloaded_s
            added = self._added_s * (count - 1 if self.reduce_every_microbatch and count else 0)
        if self.recompute == "full":
            # Layers are checkpointed, the LM head is not; logits in chunks are made again.
            chunked = self.logits_chunk_tokens is not None
            layers_s = (self._stage_s(work, head=False) for work in microbatches)
            again = talk + (forward if chunked else math.fsum(layers_s))
        again *= (self.recompute_layers or self.model.layers) / self.model.layers
        prompts = sum(work.tokens - work.head_tokens for work in microbatches)
        patches_s = prompts * self._unit_times.prompt_patches  # on each GPU of a split model
        ahead = (forward + talk + between) * idle + patches_s
        looped, loop = 0.0, self.delta_loop
        if loop is not None:
            looped = math.fsum(loop.backward_s(work.tokens, work.pairs) for work in microbatches)
            looped /= self.pipeline_parallel
        behind = (2 * forward + talk + between + again - saved + looped) * idle
        behind += 0.0 if frozen else patches_s
        gathered_again = gather if self.reshard_after_forward else 0.0
        hidden, passes = self.overlap, 3 if self.recompute == "full" else 2
        room = max(passes * forward - hidden * gathered_again, 0.0)  # one link for both
        return {
            "log_prob": ahead + _seen(gather, hidden, forward),
            "forward": ahead + offload + _seen(gather, hidden, forward),
            "backward": behind + offload + _seen(gathered_again, hidden, passes * forward),
            "gradient_exchange": _seen(exchange, hidden, room) + added,
            "optimizer": self._optimizer_s + self.step_fixed_s,
        }

    def driver_s(self, load: TrainLoad) -> float:
        """Seconds in which one process sends the trainer's GPUs a padded batch for one pass, and
        the pixels of every rollout's images."""
        padded = load.rollouts * self.padded_tokens or load.padded_tokens
        pixels_s, tower = 0.0, self.model.vision
        if self.pixel_bytes_per_s is not None and tower is not None:
            prompts = sum(prompt * len(responses) for prompt, responses in load.groups)
            sent_bytes = self.model.image_share * prompts * tower.token_bytes
            pixels_s = sent_bytes / self.pixel_bytes_per_s
        return self.driver_per_token_s * padded + pixels_s

    def collected_s(self, rollouts: int) -> float:
        """Seconds in which it puts a batch of so many rollouts together, padded to the caps."""
        return self.collected_per_token_s * self.padded_tokens * rollouts

    # --- the update ---

    def _microbatches(self, load: TrainLoad) -> list[list[Work]]:
        """Microbatches of each GPU."""
        dealing = self._dealing
        if dealing.pads and load.shared_prefix:
            raise ScenarioError(
                f"{FIELD}.batching",
                f"is {self.batching}, but training on shared prefixes packs responses; give "
                "packed or one_sequence",
            )
        longest, prefix = dealing.longest(load)
        self._check_fits(longest, prefix)
        return dealing.microbatches(load, self._budget_tokens(longest))

    @cached_property
    def _dealing(self) -> Dealing:
        return Dealing(
            self.layout.data_parallel,
            self.batching,
            self.balanced,
            self.microbatch_rollouts or 0,
            self._window,
            self.padded_logits,
            self.padded_prompt_tokens or 0,
            self.padded_tokens,
            self.prefix_microbatch_tokens,
            self.static_pipeline and self.pipeline_parallel > 1,
        )

    @property
    def _window(self) -> int:
        """The most tokens that a query attends to in layers that do not see all."""
        return max((kind.seen_tokens for kind in self.model.reaches), default=0)

    def train(self, load: TrainLoad) -> TrainCost:
        """The phases of one update on the GPU that takes longest.

        Raises ScenarioError where states or the longest rollout do not fit in memory, with the
        largest microbatch that does.
        """
        if not load.rollouts:
            return TrainCost(())
        if load.shared_prefix and self._sharing is not self:
            return self._sharing.train(load)
        by, cost = load.kept.setdefault("priced", (self, None))  # the first, for costs near it
        if by is self and cost is not None:
            return cost  # type: ignore[no-any-return]
        cost = self._priced(load)
        if by is self:
            load.kept["priced"] = self, cost
        return cost

    def _priced(self, load: TrainLoad) -> TrainCost:
        per_gpu = self._microbatches(load)
        phases = self._slowest(per_gpu, by_length=load.shared_prefix)
        if self._scorer is not None:
            scored = self._scorer._microbatches(load)
            graded = self._scorer._slowest(scored, by_length=load.shared_prefix)
            phases |= {name: graded[name] for name in GRADES if name in graded}
        count = max(len(m) for m in per_gpu)
        largest, prefix = _largest(per_gpu, load.shared_prefix)
        if self.minibatches > 1:
            updates, count, largest, prefix = self._updates(load)
            phases = {**{name: phases.get(name, 0.0) for name in GRADES}, **updates}
        if self.others:
            costs = [(role, dict(t.train(load).phases_s)) for role, t in self.others]
            phases = beside(phases, costs)
        known = tuple((name, s) for name, s in phases.items() if s > 0)
        return TrainCost(known, self.peak_bytes(largest, prefix), count)

    @cached_property
    def _sharing(self) -> RooflineTrainer:
        """As it launches the passes of the layout with a shared prefix; itself where it does so."""
        own_s = self._launched_s_per_layer
        launch_s = max(own_s, self.shared_launch_s_per_layer)
        if (launch_s, "partial") == (own_s, self.launch_overlap):
            return self
        there = replace(self, launch_s_per_layer=launch_s, newer_host_share=1.0)
        return replace(there, launch_overlap="partial")

    @cached_property
    def _scorer(self) -> RooflineTrainer | None:
        """With the microbatches of its passes before the update; None where they are its own."""
        budget, rows = self.log_prob_microbatch_tokens, self.log_prob_microbatch_rollouts
        if self.batching == "one_sequence" or (budget is None and rows is None):
            return None
        return replace(
            self,
            microbatch_tokens=ANY_TOKENS if budget is None else budget,
            microbatch_rollouts=rows,
            log_prob_microbatch_tokens=None,
            log_prob_microbatch_rollouts=None,
        )

    def _slowest(self, per_gpu: Sequence[Sequence[Work]], *, by_length: bool) -> dict[str, float]:
        """Phases of the GPU that takes longest. GPUs that gather weights, or send each other tokens
        of experts, take their microbatches together, each as long as its slowest. by_length: each
        GPU begins with its longest, as where prefixes and the responses after them differ widely.
        """
        if len(per_gpu) > 1 and (self.layout.gather_s or self.expert_parallel > 1):
            if by_length:
                per_gpu = [sorted(mine, key=self._stage_s, reverse=True) for mine in per_gpu]
            rows = zip_longest(*per_gpu)
            return self._phases_s([max(filter(None, row), key=self._stage_s) for row in rows])
        every = [self._phases_s(microbatches) for microbatches in per_gpu]
        return max(every, key=lambda phases_s: math.fsum(phases_s.values()))

    def _updates(self, load: TrainLoad) -> tuple[dict[str, float], int, int, int]:
        """Phases of all optimiser steps, microbatches of one GPU, and as `_largest`."""
        total: dict[str, float] = {}
        count = largest = prefix = 0
        for part in shares(load, self.minibatches):
            per_gpu = self._microbatches(part)
            slowest = self._slowest(per_gpu, by_length=part.shared_prefix)
            for name, seconds in slowest.items():
                if name not in GRADES:
                    total[name] = total.get(name, 0.0) + seconds
            count += max(len(m) for m in per_gpu)
            tokens, beside = _largest(per_gpu, part.shared_prefix)
            largest, prefix = max(largest, tokens), max(prefix, beside)
        return total, count, largest, prefix


def _largest(per_gpu: Sequence[Sequence[Work]], shared: bool) -> tuple[int, int]:
    """Tokens of the largest microbatch, and of the largest pass over prefixes, which has no
    logits."""
    every = [work for microbatches in per_gpu for work in microbatches]
    prefixes = [work for work in every if shared and not work.head_tokens]
    others = [work for work in every if not shared or work.head_tokens]
    return _most(others), _most(prefixes)


def _most(microbatches: Sequence[Work]) -> int:
    return max((work.tokens for work in microbatches), default=0)


def _bare(microbatches: Sequence[Work]) -> list[Work]:
    """Without logits."""
    return [work._replace(head_tokens=0, padding=0) for work in microbatches]


def _seen(seconds: float, hidden: float, behind_s: float) -> float:
    """What is seen of communication of which a share may hide behind ``behind_s``."""
    return seconds - min(seconds * hidden, behind_s)
