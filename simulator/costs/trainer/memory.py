"""What a trainer's GPUs hold, by phase."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Self

from rollcast.simulator.costs.memory.ledger import MemoryPhase
from rollcast.simulator.costs.memory.processes import communicator_bytes, usable_bytes
from rollcast.simulator.costs.memory.training import kept_bytes_per_token, shared_kv_bytes
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.sync.state_copies import copy_bytes_per_s
from rollcast.simulator.costs.trainer.activation_memory import ActivationMemory
from rollcast.simulator.costs.trainer.attention_kernels import with_kernel
from rollcast.simulator.costs.trainer.buckets import (
    bucket_bytes,
    fetched_parameters,
    has_buckets,
    keeps_buckets,
    reduced_bytes,
    sent_bytes,
    step_bytes,
    summed_bytes,
    waiting_layers,
)
from rollcast.simulator.costs.trainer.casts import Casts, casts_of
from rollcast.simulator.costs.trainer.options import (
    COMPUTE_BYTES,
    MASTER_BYTES,
    TrainerOptions,
    pads,
)
from rollcast.simulator.costs.trainer.parallel import Layout
from rollcast.simulator.costs.trainer.roles import (
    ALONE,
    JUDGES,
    TOGETHER,
    Role,
    critic_options,
    roles_apart,
)
from rollcast.simulator.costs.trainer.states import (
    adapter_parameters,
    base_bytes_each,
    frozen_parts,
    gradient_bytes,
    has_working_copy,
    master_bytes,
    resident_moment_bytes,
    state_parts,
)
from rollcast.simulator.costs.trainer.step_options import FIELD
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import AtLeast, whole

Parts = dict[str, float]
"""Bytes by `MemoryPart`."""
HEAD_LOGIT_BYTES = 6  # of a logit in the head's backward: its gradient in 32 and in 16 bit
ENTROPY_BYTES = 4  # of a logit: 16 bit logits, their probabilities and the product of both in fp32
DYNAMIC = frozenset({"activations", "logits", "gathered_weights", "communication"})
"""The parts that are allocated and freed within a phase."""
_WEIGHTS = ("weights", "master_weights")
STATES = frozenset({*_WEIGHTS, "gradients", "optimizer"})


class Use(NamedTuple):
    """What an update works on. tokens: of the largest microbatch. logit_tokens: of them, those with
    logits. prefix_tokens: of a prefix shared with it. accumulates: whether gradients of an earlier
    microbatch are there. image_share: of the tokens, those of images. scoring: a pass for
    log-probabilities over a microbatch, whose tokens are as many times as those of the update.
    row_tokens: of its longest row."""

    tokens: int
    logit_tokens: int
    prefix_tokens: int = 0
    accumulates: bool = True
    image_share: float = 0.0
    scoring: float = 1.0
    row_tokens: int = 0


def _bytes_of(roles: Mapping[str, Parts]) -> float:
    return math.fsum(size for parts in roles.values() for size in parts.values())


def _dynamic(roles: Mapping[str, Parts]) -> float:
    """Bytes of what is allocated and freed within a phase."""
    return math.fsum(
        size for parts in roles.values() for name, size in parts.items() if name in DYNAMIC
    )


@dataclass(frozen=True)
class TrainerMemory(TrainerOptions):
    """A trainer of ``model`` on ``gpus`` GPUs: its layout, the models beside it, and their memory.

    ``attention`` is resolved into ``gpu``. logits: whether the LM head runs. copies_scale: factor
    on the speed of pageable copies. expert_share: efficiency of routed experts' products over that
    of dense ones. adapted: whether frozen weights have adapters. padded_tokens: of a rollout
    padded to its caps; 0: the batch's longest. whole_scores: whether attention keeps the scores of
    all pairs of a row's tokens (``attention: eager``).
    """

    model: Model
    gpu: Gpu
    gpus: int = 1
    logits: bool = True
    copies_scale: float = 1.0
    expert_share: float = figures("trainer").expert_share
    adapted: bool = True
    padded_tokens: int = 0
    whole_scores: bool = False
    FIXED = (
        *("model", "gpu", "gpus", "logits", "copies_scale", "expert_share", "adapted"),
        *("padded_tokens", "whole_scores"),
    )

    def __post_init__(self) -> None:
        whole(self.gpus, "cluster.trainer_gpus", AtLeast(1))
        super().__post_init__()
        if self.attention is not None:  # once: a draw changes the figure afterwards
            gpu = with_kernel(self.gpu, self.attention, f"{FIELD}.attention")
            object.__setattr__(self, "gpu", gpu)
            object.__setattr__(self, "whole_scores", self.attention == "eager")
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
        options = dict(ALONE if role.model is not None or role.gpus else TOGETHER)
        if not role.trained:
            options |= {**JUDGES, "log_prob_passes": role.passes}
        if role.name == "critic":
            options |= critic_options(self)
        batching = options.get("batching", self.batching)
        if not pads(batching):
            options["padded_prompt_tokens"] = None
        if batching == "one_sequence":
            options["microbatch_rollouts"] = None
        gpus, logits = role.gpus or self.gpus, role.name == "reference"
        return replace(self, model=model, gpus=gpus, logits=logits, **options)

    def _shares(self, name: str) -> bool:
        """Whether that role is of the policy's model, on the policy's GPUs."""
        return name not in [role.name for role, _ in self.others]

    # --- memory of one GPU ---

    @cached_property
    def _states(self) -> Parts:
        """Weights, gradients and optimiser states of the model, with all gradients in place."""
        if self.weights == "full":
            parts = state_parts(self.layout, self)
            parts["gradients"] += sent_bytes(self, self._head_parameters)
            return parts
        parts = {"weights": frozen_parts(self.layout, self, self.base_bytes_each)}
        if self.adapted and not self.states_on_host:
            split = self.tensor_parallel * self.pipeline_parallel
            if self.kept in ("fsdp", "hybrid"):
                split *= self.layout.sharers(self.layout.parts[0][1])
            own = self._adapter_parameters / split
            parts["master_weights"] = master_bytes(self) * own
            parts["gradients"] = gradient_bytes(self) * own
            parts["optimizer"] = resident_moment_bytes(self) * own
        return parts

    @cached_property
    def base_bytes_each(self) -> float:
        """Mean bytes of a frozen weight below adapters."""
        return base_bytes_each(self.model, self.base_bits, self.nested_scales)

    @cached_property
    def _resting(self) -> Parts:
        """What stays between steps: gradients only in the buffers of those that keep them."""
        freed = not has_working_copy(self)
        kept = {n: size for n, size in self._states.items() if n != "gradients" or not freed}
        if keeps_buckets(self):
            kept["gradients"] = kept.get("gradients", 0.0) + self.bucket_bytes
        return kept

    @cached_property
    def bucket_bytes(self) -> float:
        """Of the buckets in which gradients are reduced, where their size is set."""
        return bucket_bytes(self, self.model)

    @property
    def _trained_parameters(self) -> float:
        if self.weights == "full":
            return self._whole_parameters
        return self._adapter_parameters if self.adapted else 0.0

    @property
    def _adapter_parameters(self) -> float:
        return adapter_parameters(self.model, self.lora_rank, self.lora_matrices)

    @property
    def _whole_parameters(self) -> float:
        return math.fsum(weights for weights, _ in self.layout.parts)

    @cached_property
    def _guests(self) -> tuple[tuple[str, Parts], ...]:
        """What models beside the policy keep on its GPUs, by role."""
        judged = {"weights": frozen_parts(self.layout, self, COMPUTE_BYTES)}
        guests: list[tuple[str, Parts]] = []
        if self.critic and self._shares("critic"):
            guests.append(("critic", self._resting))
        if self.reward_passes and self._shares("reward"):
            guests.append(("reward", judged))
        compared = self.compares and self.weights == "full"
        if compared and not self.reference_on_host and self._shares("reference"):
            guests.append(("reference", judged))
        here = [(role, trainer) for role, trainer in self.others if not role.gpus]
        for role, trainer in here:
            if role.name != "reference" or not self.reference_on_host:
                guests.append((role.name, trainer._resting))
        return tuple(guests)

    @cached_property
    def _trained_bytes(self) -> tuple[float, float]:
        """Of weights, gradients and optimiser states on one GPU, what lasts to the next update and
        changes in it: the weights that passes read, and all else but gradients. With adapters none
        (their states are small)."""
        if self.weights != "full" or self.states_on_host:
            return 0.0, 0.0
        read, own = self._read_bytes, math.fsum(self._states.values()) - self._states["gradients"]
        twice = 2 if self.critic and self._shares("critic") else 1
        here = [trainer._trained_bytes for role, trainer in self.others if not role.gpus]
        weights = twice * read + math.fsum(of for of, _ in here)
        return weights, twice * (own - read) + math.fsum(of for _, of in here)

    @property
    def _read_bytes(self) -> float:
        """Of the weights that the policy's passes read, in 16 bit where a copy of them is kept;
        with adapters the frozen ones."""
        if self.states_on_host:
            return 0.0
        return self._states["weights"] or self._states["master_weights"]

    def copies_s(self, pinned_bytes_per_s: float = math.inf) -> tuple[float, float]:
        """Seconds in which what lasts reaches host memory, and comes back, with the frozen weights
        of a trainer that parks them; pinned copies at ``pinned_bytes_per_s`` at most."""
        weights, rest = self._trained_bytes
        if self.parks_frozen and self.weights == "lora":
            weights += self._states["weights"]
        return self._copied_s(weights, rest, pinned_bytes_per_s)

    def read_copies_s(self, pinned_bytes_per_s: float = math.inf) -> tuple[float, float]:
        """The same of the weights that a pass of the policy reads."""
        return self._copied_s(self._read_bytes, 0.0, pinned_bytes_per_s)

    def _copied_s(
        self, weights: float, rest: float, pinned_bytes_per_s: float
    ) -> tuple[float, float]:
        """Of so many bytes: to host memory, and back."""
        pinned = copy_bytes_per_s(True, self.gpu, pinned_bytes_per_s)
        pageable = [self.copies_scale * rate for rate in copy_bytes_per_s(False, self.gpu)]
        of_weights = pinned if self.state_copies == "pinned" else pageable
        of_rest = pageable if self.state_copies == "pageable" else pinned
        down, up = (
            weights / fast + rest / other for fast, other in zip(of_weights, of_rest, strict=True)
        )
        return down, up

    # --- phases of one GPU ---

    @cached_property
    def _layer_parameters(self) -> float:
        """Weights of a mean layer on the GPUs that compute it."""
        model, layout = self.model, self.layout
        embeddings = model.head_parameters * (1 if model.tied_embeddings else 2)
        dense = model.parameters - model.routed_parameters - embeddings
        layers = dense / self.tensor_parallel + model.routed_parameters / layout.expert_split
        return layers / model.layers

    @cached_property
    def _fetched_parameters(self) -> float:
        """Of the next layer, those that are gathered while one is at work."""
        return fetched_parameters(self, self.model, self._layer_parameters)

    @property
    def _head_parameters(self) -> float:
        return self.model.head_parameters / self.layout.head_split

    @property
    def cached_bytes(self) -> float:
        """What FSDP1 leaves with PyTorch's allocator once its weights are shared: of a layer and of
        the root, which come one after the other, each weight as it was moved to the GPU and all of
        them as one flat tensor (torch/distributed/fsdp/_init_utils.py,
        _init_param_handle_from_module). 0 where another shares them."""
        if not self._root_parameters or self.weights != "full":
            return 0.0
        return 2 * master_bytes(self) * (self._root_parameters + self._layer_parameters)

    @property
    def _root_parameters(self) -> float:
        """Weights beside the layers where they are one unit, gathered until the backward ends
        (FSDP1, whose root module wraps what no layer does); 0 where they are not."""
        if self.backend != "fsdp" or self.kept not in ("fsdp", "hybrid"):
            return 0.0
        return self._head_parameters * (1 if self.model.tied_embeddings else 2)

    def _gathered(self, units: float, at_work: int = 1) -> float:
        """Bytes of weights beside the states while ``at_work`` layers (one more is prefetched) and
        ``units`` weights of embeddings and head are at work."""
        sharded = self.kept in ("fsdp", "hybrid")
        layers = at_work * self._layer_parameters + self._fetched_parameters
        wide = {"lora": self.base_bits == 16, "full": self.master_dtype == "bf16"}
        if wide[self.weights] and self._alone and not self.states_on_host:
            return 0.0
        quantised = self.weights == "lora" and self.base_bits < 16
        if sharded and not self.reshard_after_forward:
            each = self.base_bytes_each if quantised else self.compute_bytes
            return each * self._whole_parameters
        if quantised:  # layers are gathered as they are stored, embeddings and head in 16 bit
            stored = sharded * (self.base_bits / 8 * layers + self.compute_bytes * units)
            return stored + self._dequantised_bytes
        return sharded * self.compute_bytes * (layers + units)  # of autocast's casts see `_casts`

    @property
    def _dequantised_bytes(self) -> float:
        """Bytes of a quantised matrix at work, one after the other (bitsandbytes, MatMul4Bit)."""
        model = self.model
        widest = max(model.intermediate, model.moe_intermediate, model.heads * model.head_dim)
        return self.compute_bytes * model.hidden * widest / self.tensor_parallel

    @property
    def working_weights(self) -> float:
        """Bytes of 16 bit weights that a forward without gradients needs beside the states."""
        gathered = self._gathered(max(self._root_parameters, self._head_parameters))
        return gathered + self._casts.whole

    def _gathered_to_score(self, units: float) -> float:
        """The same in a pass for log-probabilities: of all weights where they are gathered at
        once."""
        sharded = self.kept in ("fsdp", "hybrid") and not self._alone
        if self.gathers_to_score and sharded:
            return max(self._gathered(units), self.compute_bytes * self._whole_parameters)
        return self._gathered(units)

    @cached_property
    def _casts(self) -> Casts:
        sizes = (self._whole_parameters, self._layer_parameters, self._head_parameters)
        return casts_of(self, self.model, *sizes)

    @property
    def _alone(self) -> bool:
        """Whether no other GPU holds a share of its weights."""
        return all(self.layout.sharers(copies) == 1 for _, copies in self.layout.parts)

    @cached_property
    def _activations(self) -> ActivationMemory:
        return ActivationMemory(self.model, self.layout, self)

    def _logit_bytes(self, use: Use, bytes_each: float) -> float:
        """Bytes of logits and of what the loss makes of them, on one GPU."""
        if not self.logits:
            return 0.0
        here = use.logit_tokens / self.sequence_split
        if self.logits_chunk_tokens is not None:
            here = min(here, self.logits_chunk_tokens)
        return bytes_each * self.model.vocab * here / self.layout.head_split

    def _update(self, use: Use, beside_bytes: float) -> Parts:
        """The parts of an update where they are most: at the loss, at the first layer's backward,
        at the last one's, when all gradients are there, or at the end, when those of FSDP1's root
        are reduced. beside_bytes: of a shared prefix."""
        full, sharded = self.weights == "full", self.kept in ("fsdp", "hybrid")
        states, gradients = dict(self._states), self._states.get("gradients", 0.0)
        if self.step_in_backward:
            states["gradients"] = gradients = 0.0
        if not (use.accumulates or has_working_copy(self)):
            gradients = 0.0
        made, images = self._activations, use.image_share * use.tokens
        pairs = use.tokens * use.row_tokens * self.whole_scores
        kept = made.kept * use.tokens + beside_bytes + made.image_kept * images
        seen = made.tower_scores(images)
        kept += made.scores_kept * pairs + seen.kept
        working = made.working * use.tokens + made.scores_working * pairs
        layer, head = self._layer_parameters, self._head_parameters if self.logits else 0.0
        root, waits = self._root_parameters, head * bool(self._root_parameters)
        graded = COMPUTE_BYTES * full
        by_layer = sharded and not self._alone and not has_buckets(self)
        reduced = gradient_bytes(self) * full * by_layer
        casts = self._casts
        beside = (casts.graph - casts.head) * bool(use.prefix_tokens)  # the prefix's, of its graph
        made_bytes = float(COMPUTE_BYTES)  # before a loss outside autocast's context, or in it
        if self.logits_chunk_tokens is not None:
            made_bytes = max(0.0, self.logit_bytes - MASTER_BYTES)
        loss: Parts = {
            **states,
            "gradients": gradients,
            "activations": kept / self.pipeline_parallel,
            "logits": self._logit_bytes(use, self.logit_bytes),
            "gathered_weights": self._gathered(max(head, root), 0) + casts.graph + beside,
        }
        logits: Parts = {
            **loss,
            "logits": self._logit_bytes(use, made_bytes),
            "gathered_weights": loss["gathered_weights"] + casts.whole - casts.graph,
        }
        of_head: Parts = {
            **loss,
            "gradients": gradients + graded * head,
            "logits": self._logit_bytes(use, min(self.logit_bytes, HEAD_LOGIT_BYTES)),
        }
        widened: Parts = {
            **of_head,
            "gradients": gradients + casts.graded * full * head,
            "logits": 0.0,
        }
        first: Parts = {
            **states,
            "gradients": gradients + graded * (layer + waits),
            "activations": kept + working,
            "gathered_weights": self._gathered(root)
            + max(casts.graph - casts.head, casts.layer)
            + beside,
            "communication": reduced * (layer if root else max(head, layer)),
        }
        last: Parts = {
            **states,
            "gradients": states.get("gradients", 0.0) + graded * (layer + waits),
            "activations": max(
                working,
                (made.image_kept + made.image_working) * images + seen.kept + seen.working,
            )
            + beside_bytes
            + self._held_inputs * made.kept * use.tokens,
            "gathered_weights": self._gathered(root) + casts.layer + beside,
            "communication": reduced * layer,
        }
        full_queue = waiting_layers(self, self.model, layer)
        queued: Parts = {  # gradients of the last layers wait, whose activations are gone
            **first,
            "activations": kept * (1 - full_queue / self.model.layers) + working,
            "communication": reduced * layer * full_queue,
        }
        last["communication"] = queued["communication"]
        end: Parts = {
            **states,
            "gradients": states.get("gradients", 0.0) + graded * root + self._embedded(use) * head,
            "activations": beside_bytes,
            "communication": reduced * root,
        }
        before, after = [logits, loss, of_head, widened], [first, queued, last, end]
        if has_buckets(self):
            owned, largest = self.layout.owned_parameters, self._head_parameters
            if not full:  # adapters, all of which a bucket holds
                owned = largest = self._trained_parameters
            copied = reduced_bytes(self, self.model, self._trained_parameters, owned, largest)
            if use.accumulates and full:
                own = summed_bytes(self, self.layout.owned_parameters)
                last["gradients"] += own
            for parts in before + after:
                parts["gradients"] += self.bucket_bytes
            for parts in after:
                parts["communication"] = copied
        return max(before + after, key=lambda parts: math.fsum(parts.values()))

    @property
    def _held_inputs(self) -> int:
        """Copies of what checkpoints keep that are still there when the last layer's backward runs:
        inputs and their gradients, where FSDP1 waits for these to reshard a frozen layer
        (_runtime_utils.py, _register_post_backward_reshard_only_hook) and each is a leaf."""
        frozen = self.weights == "lora" and self.recompute == "full"
        sharded = self.backend == "fsdp" and self.kept in ("fsdp", "hybrid")
        return 2 * (frozen and sharded and self.reentrant_checkpoints)

    def _embedded(self, use: Use) -> int:
        """Bytes of a weight that a dense gradient of the embeddings takes before it is added to
        what is there, of the head or of an earlier microbatch, where nothing is shared."""
        adds = use.accumulates or self.model.tied_embeddings
        kept = self.kept != "none" or has_working_copy(self) or self.weights != "full"
        return 0 if kept or not adds else gradient_bytes(self)

    @cached_property
    def _read(self) -> Parts:
        """Of what stays between steps, the weights that a forward reads."""
        names = {"weights"}
        if self.weights != "full" or not has_working_copy(self):
            names.add("master_weights")
        return {name: size for name, size in self._resting.items() if name in names}

    def _own(self, use: Use, away: bool = False) -> dict[MemoryPhase, Parts]:
        """Parts of the model's own phases. away: as in `phases`."""
        prefix = use.prefix_tokens
        shared = shared_kv_bytes(self.model, prefix) / self.layout.share
        update = self._update(use, shared + self._activations.kept * prefix)
        if prefix:  # phases A and C: the prefix as a microbatch, K/V among its activations
            ended = use._replace(tokens=prefix, logit_tokens=0, prefix_tokens=0, accumulates=True)
            alone = self._update(ended, shared / 2)
            update = max(update, alone, key=lambda parts: math.fsum(parts.values()))
        step = dict(self._states)
        if not self.reduce_every_microbatch and self.kept in ("fsdp", "hybrid"):
            own = 0.0 if self.states_on_host else self.layout.owned_parameters
            step["gradients"] = gradient_bytes(self) * own
        if not (self.optimizer_on_host or self.states_on_host or self.step_in_backward):
            step["optimizer"] = step.get("optimizer", 0.0) + self._step_bytes
        if self.step_in_backward:
            step["gradients"] = 0.0
        if keeps_buckets(self):
            step["gradients"] = step.get("gradients", 0.0) + self.bucket_bytes
        scored = use._replace(
            tokens=math.ceil(use.scoring * use.tokens),
            logit_tokens=math.ceil(use.scoring * use.logit_tokens),
        )
        made, ungraded = self._activations, self.ungraded_logit_bytes
        if ungraded is None:
            ungraded = max(0.0, self.logit_bytes - MASTER_BYTES)
            ungraded += ENTROPY_BYTES if self.entropy_traffic_per_logit else 0
        head = max(self._root_parameters, self._head_parameters if self.logits else 0.0)
        held = self._resting if self.states_in_log_probs or not away else self._read
        images = use.image_share * scored.tokens
        seen = made.image_working * images + made.tower_scores(images).forward
        forward = held | {
            "activations": max(made.forward * scored.tokens, seen)
            + made.scores_forward * scored.tokens * use.row_tokens * self.whole_scores,
            "logits": self._logit_bytes(scored, ungraded),
            "gathered_weights": self._gathered_to_score(head) + self._casts.whole,
        }
        phases: dict[MemoryPhase, Parts] = {}
        if self.log_prob_passes:
            phases["log_prob"] = forward
        phases["update"], phases["optimizer_step"] = update, step
        return phases

    @cached_property
    def _step_bytes(self) -> float:
        """What the optimiser's kernels make for a while: a copy of the shard that they update, and
        gradients in the precision of its weights where they are narrower."""
        updated = self._states.get("gradients", 0.0) / gradient_bytes(self)
        if self.weights == "full":
            updated = self.layout.owned_parameters
        if has_buckets(self):
            return step_bytes(self, updated, min(updated, self._head_parameters))
        wider = max(0, master_bytes(self) - gradient_bytes(self))
        return updated * (wider + (master_bytes(self) if self.foreach_optimizer else 0))

    def phases(
        self,
        use: Use,
        beside_bytes: float = 0.0,
        away: bool = False,
        uses: Mapping[str, Use] = MappingProxyType({}),
    ) -> dict[MemoryPhase, dict[str, Parts]]:
        """Parts by role and phase on each GPU, at a microbatch: in every phase of training the
        model that needs most is at work, and the others rest. beside_bytes: that others hold on
        the same GPUs. away: whether trained models are in host memory but while they work. uses:
        what other roles work on, where it is not the same."""
        guests, context = self._guests, self._context
        trained = [(role.name, t) for role, t in self.others if role.trained and not role.gpus]
        asleep: dict[str, Parts] = {"trainer": self._resting, **dict(guests)}
        if away:
            parked = self._parked
            asleep |= {n: parked.get(n, {}) for n in ("trainer", "critic") if n in asleep}
        phases: dict[MemoryPhase, dict[str, Parts]] = {}
        for phase, own in self._own(use, away).items():
            worked = [{**asleep, "trainer": own}]
            worked += [
                {**asleep, name: t._own(uses.get(name, use), away).get(phase, t._resting)}
                for name, t in trained
            ]
            most = max(worked, key=_bytes_of)
            phases[phase] = most | {"trainer": most["trainer"] | context}
            left = self._budget_bytes - beside_bytes - _bytes_of(phases[phase])
            phases[phase]["trainer"]["fragmentation"] = self._fragmentation(most, left)
            if phase == "optimizer_step" and not has_working_copy(self):
                phases[phase]["trainer"]["fragmentation"] += self._left_by(phases["update"])
            copies = self.weights == "full" and self.foreach_optimizer
            if self.backend == "deepspeed" and copies:
                phases[phase]["trainer"]["fragmentation"] += self._stuck(most)
        return phases

    def resting(self, states: bool = True) -> dict[str, Parts]:
        """Parts by role between the phases of training: with ``states`` on the GPU or without."""
        if not states:
            parked = self._parked
            return {**parked, "trainer": parked["trainer"] | self._context}
        return {"trainer": self._resting | self._context, **dict(self._guests)}

    @property
    def loaded_bytes(self) -> float:
        """Bytes on each GPU of a trainer that is loaded, and has no gradients or moments yet."""
        held = self.resting()["trainer"]
        return math.fsum(held.get(name, 0.0) for name in (*_WEIGHTS, "context"))

    @cached_property
    def _parked(self) -> dict[str, Parts]:
        """Parts by role that stay on the GPU while the policy's states are in host memory."""
        stay: dict[str, Parts] = {"trainer": {}}
        if self.keeps_weights:
            stay["trainer"] = self._read
            stay |= {name: parts for name, parts in self._guests if name != "critic"}
        critic = next((t for role, t in self.others if role.name == "critic"), self)
        for name, parts in self._guests:
            if name == "critic" and self.critic_stays:
                stay[name] = parts
            elif name == "critic" and self._critic_keeps_weights:
                stay[name] = critic._read
        return stay

    @property
    def _critic_keeps_weights(self) -> bool:
        own = self.critic_keeps_weights
        return self.keeps_weights if own is None else own

    @cached_property
    def unshared(self) -> Parts:
        """Parts on each GPU before weights are shared, where they are whole there; none where they
        are not. DeepSpeed casts them first (engine.py, _configure_distributed_model), FSDP shares
        them as they are loaded, in the precision of its shards."""
        if not self.whole_at_start or self.kept not in ("fsdp", "hybrid"):
            return {}
        narrow = self.working_copy or self.backend == "deepspeed"
        each = float(COMPUTE_BYTES if narrow else master_bytes(self))
        if self.weights == "lora":
            each = self.base_bytes_each
        return {"weights": each * self._whole_parameters, **self._context}

    @cached_property
    def sync_bytes(self) -> float:
        """Bytes of the largest weight, gathered in fp32 and cast, while weights are sent; of all
        where they are gathered at once, of those of the base for their adapters."""
        if self.kept not in ("fsdp", "hybrid"):
            return 0.0
        if self.weights == "lora":
            whole = self.base_bytes_each * self._whole_parameters
            return self.gathered_copies * whole if self.gathers_to_merge else 0.0
        if self.gathers_to_send:
            return COMPUTE_BYTES * self._whole_parameters
        return (master_bytes(self) + COMPUTE_BYTES) * max(
            float(self.model.head_parameters), self._layer_parameters
        )

    @property
    def sent_copy_bytes(self) -> float:
        """Bytes of the copy of a GPU's part of the weights that a sync sends, if it makes one."""
        sends = self.copies_to_send and self.weights == "full" and self.kept in ("fsdp", "hybrid")
        return sends * master_bytes(self) * self.layout.owned_parameters

    @cached_property
    def _context(self) -> Parts:
        """Of the process: CUDA's, and buffers of collectives."""
        known = figures("memory")
        groups = self.layout.communicators * communicator_bytes(self.gpu)
        process = {"context": known.context_bytes + groups}
        return process | ({"communication": buckets} if (buckets := self._copied_gradients) else {})

    @property
    def _copied_gradients(self) -> float:
        """Bytes of the buckets in which DDP reduces gradients, all of them, beside the gradients
        themselves: torch's gradient_as_bucket_view is false, and accelerate leaves it so."""
        if self.backend != "ddp" or self.layout.data_parallel == 1:
            return 0.0
        return gradient_bytes(self) * self._trained_parameters

    def _fragmentation(self, roles: Mapping[str, Parts], left_bytes: float) -> float:
        """What the allocator holds and nobody uses: a share of what comes and goes. Most of it is
        given back before an allocation fails: it takes no more than half of what is left, but for
        parts of segments that are in use."""
        known = figures("memory")
        dynamic = _dynamic(roles)
        most: float = known.fragmentation_share * dynamic
        return max(min(self.stuck_bytes, dynamic), min(most, left_bytes / 2))

    def _left_by(self, update: Mapping[str, Parts]) -> float:
        """What the allocator cannot give back of an update while the optimiser steps: gradients
        that a backward has made lie in the segments of its activations."""
        return min(self.stuck_bytes, _dynamic(update))

    @property
    def stuck_bytes(self) -> float:
        """Of what came and went, what the allocator cannot give back."""
        known = figures("memory")
        stuck: float = known.stuck_bytes
        return known.expandable_stuck_bytes if self.expandable_segments else stuck

    @staticmethod
    def _stuck(roles: Mapping[str, Parts]) -> float:
        """What DeepSpeed's flat buffers, and the copies that its step makes of them, leave with the
        allocator that no other allocation of that size can use."""
        share: float = figures("memory").stuck_share_of_states
        return share * math.fsum(
            size for parts in roles.values() for name, size in parts.items() if name in STATES
        )

    def peak_bytes(self, microbatch_tokens: int, prefix_tokens: int = 0) -> int:
        """Peak memory of one GPU at a microbatch of that many tokens, with the K/V and gK/gV of a
        shared prefix (and its recomputation's checkpoints) beside it."""
        use = Use(microbatch_tokens, microbatch_tokens, prefix_tokens)
        return math.ceil(max(_bytes_of(roles) for roles in self.phases(use).values()))

    @cached_property
    def _budget_bytes(self) -> float:
        return usable_bytes(self.gpu) * self.memory_utilization

    @cached_property
    def _kept_bytes(self) -> float:
        """Bytes of one token that offloaded activations move, of one GPU. A pipeline's first stage
        holds as many microbatches as stages, of its share of the layers, and (p - 1) / (p v) more
        where they are interleaved (arXiv 2104.04473, section 2.2)."""
        kept = kept_bytes_per_token(self.model, self.recompute, self.recompute_layers)
        if self.virtual_stages > 1:
            stages = self.pipeline_parallel
            kept *= 1 + (stages - 1) / (stages * self.virtual_stages)
        return kept / self.layout.share
