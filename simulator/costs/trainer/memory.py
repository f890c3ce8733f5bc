"""What a trainer's GPUs hold, and what does not fit."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from rollcast.simulator.costs.memory.training import (
    activation_bytes_per_token,
    kept_bytes_per_token,
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
    STATE_BYTES,
    TrainerOptions,
)
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES, Layout
from rollcast.simulator.costs.trainer.roles import ALONE, JUDGES, Role, roles_apart
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import AtLeast, whole

MOMENT_BYTES = 8  # Adam's two, in fp32
LOGIT_BYTES: int = figures(
    "trainer"
).logit_bytes  # held of a chunk: 16 and 32 bit, softmax, gradients


@dataclass(frozen=True)
class TrainerMemory(TrainerOptions):
    """A trainer of ``model`` on ``gpus`` GPUs: its layout, the models beside it, and their memory.

    ``attention`` is resolved into ``gpu``. logits: whether the LM head runs. copies_scale: factor
    on the speed of pageable copies. expert_share: efficiency of routed experts' products over that
    of dense ones. frozen_bytes: of a parameter that is not trained. padded_tokens: of a rollout
    padded to its caps; 0: the batch's longest.
    """

    model: Model
    gpu: Gpu
    gpus: int = 1
    logits: bool = True
    copies_scale: float = 1.0
    expert_share: float = figures("trainer").expert_share
    frozen_bytes: int = FROZEN_BYTES
    padded_tokens: int = 0
    FIXED = (
        *("model", "gpu", "gpus", "logits", "copies_scale", "expert_share", "frozen_bytes"),
        "padded_tokens",
    )

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
    def others(self) -> tuple[tuple[Role, Self], ...]:
        """The models beside the policy that are priced on their own, each with its trainer."""
        return tuple((role, self._of(role)) for role in roles_apart(self))

    def _of(self, role: Role) -> Self:
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
        if self.states_on_host:
            return self._unreduced_bytes
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
        return math.fsum(weights for weights, _ in self.layout.parts)

    @cached_property
    def state_bytes_per_gpu(self) -> float:
        """Bytes of weights, gradients and optimiser states that one GPU keeps between steps."""
        held = self._policy_bytes
        if self.critic and self._shares("critic"):
            held *= 2
        if self.reward_passes and self._shares("reward"):
            held += self.layout.state_bytes(COMPUTE_BYTES, trained=False)
        return held + math.fsum(t.state_bytes_per_gpu for role, t in self.others if not role.gpus)

    @cached_property
    def trained_bytes_per_gpu(self) -> float:
        """Of these, what lasts to the next update and changes in it: all but gradients and the
        weights of reference and reward models. With adapters none (their states are small)."""
        if self.weights != "full" or self.states_on_host:
            return 0.0
        sharded = self.kept in ("fsdp", "hybrid") and not self._unreduced_bytes
        gradients = self.layout.owned_parameters if sharded else self._whole_parameters
        policy_bytes = max(0.0, self._policy_bytes - GRADIENT_BYTES * gradients)
        if self.critic and self._shares("critic"):
            policy_bytes *= 2
        here = [trainer for role, trainer in self.others if not role.gpus]
        return policy_bytes + math.fsum(trainer.trained_bytes_per_gpu for trainer in here)

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
            return COMPUTE_BYTES * math.fsum(weights for weights, _ in layout.parts)
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

        def fits(**changes: int | str) -> bool:
            with suppress(ScenarioError):  # a split that does not divide
                changed = replace(self, **changes)  # type: ignore[arg-type]
                return changed.peak_bytes(tokens, prefix) <= self._budget_bytes
            return False

        enough = [n for n in (2, 4, 8) if fits(gpus=n * self.gpus)]
        remedies = [f"{enough[0] * self.gpus} trainer GPUs"] if enough else []
        if self.recompute != "full" and fits(recompute="full"):
            remedies.append(f"{FIELD}.recompute: full")
        split = 2 * self.tensor_parallel
        if fits(tensor_parallel=split):
            remedies.append(f"{FIELD}.tensor_parallel: {split} on these")
        remedies.append("fewer tokens (workload.max_new_tokens)")
        return f"what would fit: {', or '.join(remedies)}"
