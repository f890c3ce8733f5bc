"""What a scenario may say of the trainer (``cost.roofline.trainer``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.ranges import Gpus, Rate, Share
from rollcast.simulator.costs.sync.state_copies import StateCopies
from rollcast.simulator.costs.sync.state_copies import listed as listed_copies
from rollcast.simulator.costs.trainer.step_options import (
    ALL_MATRICES,
    Batching,
    Passes,
    StepOptions,
    matrices_of,
)
from rollcast.simulator.values import Between, Doc

Sharding = Literal["fsdp", "hybrid", "zero2", "zero1", "none"]
Precision = Literal["bf16", "fp8", "fp32"]

MaybeGpus = Annotated[int, Between(0, 1_000_000)]

COMPUTE_BYTES = 2  # bf16 copies of the weights that the passes read
MASTER_BYTES = 4  # an fp32 weight
CRITIC = {
    "batching": "critic_batching",
    "recompute": "critic_recompute",
    "microbatch_tokens": "critic_microbatch_tokens",
    "microbatch_rollouts": "critic_microbatch_rollouts",
    "sequence_parallel": "critic_sequence_parallel",
}
"""Options that a critic may have of its own, by those of the policy."""
_F = figures("trainer")
LOADED_SHARE: float = _F.loaded_share  # of the host link, for weights loaded layer by layer


def pads(batching: Batching | None) -> bool:
    """Whether microbatches are rectangles."""
    return batching is not None and batching.startswith("padded")


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(StepOptions):
    """What a scenario may say of a :class:`RooflineTrainer`, under ``cost.roofline.trainer``: its
    step's work, and how it is split, the models beside it, and where their states are."""

    tensor_parallel: Annotated[Gpus, Doc("tensor-parallel degree", unit="GPUs")] = 1
    tensor_sequence_parallel: Annotated[
        bool,
        Doc(
            "whether GPUs of a tensor-parallel group share the tokens of norms and of the residual "
            "stream (Megatron's sequence parallelism); false: each computes and keeps all of them"
        ),
    ] = True
    split_recurrent: Annotated[
        bool,
        Doc(
            "whether GPUs of a tensor-parallel group split linear-attention and state-space "
            "layers; false: each computes them in whole (weights: full)"
        ),
    ] = True
    split_recurrent_context: Annotated[
        bool,
        Doc(
            "whether GPUs of a context-parallel group share the tokens of linear-attention and "
            "state-space layers; false: each computes all of them (weights: full)"
        ),
    ] = True
    split_tied_head: Annotated[
        bool,
        Doc(
            "whether GPUs of a tensor-parallel group split embeddings that are the LM head too; "
            "false: each has them, and the logits of its tokens, in whole"
        ),
    ] = True
    context_parallel: Annotated[
        Gpus, Doc("context-parallel degree (ring attention)", unit="GPUs")
    ] = 1
    sequence_parallel: Annotated[
        Gpus,
        Doc(
            "Ulysses degree: GPUs that split a sequence by tokens, and by heads in attention",
            unit="GPUs",
        ),
    ] = 1
    pipeline_parallel: Annotated[Gpus, Doc("pipeline-parallel degree", unit="stages")] = 1
    virtual_stages: Annotated[
        Gpus, Doc("number of model chunks per pipeline stage (interleaved schedule)", unit="parts")
    ] = 1
    expert_parallel: Annotated[Gpus, Doc("expert-parallel degree", unit="GPUs")] = 1
    sharding: Annotated[
        Sharding | None,
        Doc(
            "states that data-parallel GPUs shard: fsdp (all; ZeRO-3), hybrid (all, within a "
            "node), zero2 (gradients and the optimiser's), zero1 (the optimiser's) or none; "
            "null: fsdp, or none with shard: false"
        ),
    ] = None
    shard_gpus: Annotated[
        Gpus | None,
        Doc(
            "data-parallel GPUs that share states with sharding: hybrid (FSDP's fsdp_size); null: "
            "those of a node",
            unit="GPUs",
        ),
    ] = None
    reshard_after_forward: Annotated[
        bool,
        Doc(
            "whether gathered weights are freed after the forward and gathered again for "
            "the backward; false too for ZeRO-3 of DeepSpeed 0.16.0 to 0.16.7, which frees none "
            "where activations are checkpointed (deepspeed issue 7116)"
        ),
    ] = True
    whole_at_start: Annotated[
        bool,
        Doc(
            "whether each GPU holds all weights before it keeps its shard of them (ZeRO-3 of a "
            "model that zero.Init did not make, FSDP of one that each process loads on its GPU). "
            "It changes memory alone"
        ),
    ] = False
    reduce_every_microbatch: Annotated[
        bool,
        Doc(
            "true: gradients are reduced after each microbatch and stay sharded; false: "
            "they are kept whole and reduced once per step"
        ),
    ] = True
    overlap: Annotated[
        Share,
        Doc("share of data-parallel communication that can hide behind computation", unit="share"),
    ] = 0.0
    reference_model: Annotated[
        str | Model | None,
        Doc(
            "reference or teacher model of another size, which adds one forward to "
            "log_prob_passes: a preset, the path of a config.json or its folder, or a "
            "mapping of keys"
        ),
    ] = None
    reference: Annotated[
        bool | None,
        Doc(
            "whether there is a reference model of the policy's size; null: if log_prob_passes is "
            "more than one"
        ),
    ] = None
    reference_gpus: Annotated[
        MaybeGpus, Doc("GPUs of the reference model; 0: it shares the trainer's", unit="GPUs")
    ] = 0
    critic: Annotated[bool, Doc("whether a critic is trained too")] = False
    critic_model: Annotated[
        str | Model | None, Doc("model of the critic; null: the size of the policy's model")
    ] = None
    critic_gpus: Annotated[
        MaybeGpus, Doc("GPUs of the critic; 0: it shares the trainer's", unit="GPUs")
    ] = 0
    reward_passes: Annotated[
        Passes, Doc("number of forward passes of reward models over the batch", unit="passes")
    ] = 0
    reward_model: Annotated[
        str | Model | None, Doc("reward model; null: the size of the policy's model")
    ] = None
    reward_gpus: Annotated[
        MaybeGpus, Doc("GPUs of the reward models; 0: they share the trainer's", unit="GPUs")
    ] = 0
    reward_with_critic: Annotated[
        bool, Doc("whether reward models share the GPUs of the critic, which has its own")
    ] = False
    precision: Annotated[
        Precision,
        Doc(
            "precision of matrix products in the layers; fp32: without mixed precision, where "
            "activations and gathered weights are in 32 bit too"
        ),
    ] = "bf16"
    optimizer_on_host: Annotated[
        bool,
        Doc("whether optimiser states stay in host memory and the optimiser step runs on the CPU"),
    ] = False
    states_on_host: Annotated[
        bool,
        Doc(
            "whether parameters, gradients and optimiser states stay in host memory (FSDP2's CPU "
            "offload): each GPU loads its shard for every pass of every microbatch, and the "
            "optimiser step runs on the CPU"
        ),
    ] = False
    host_memory_bytes_per_s: Annotated[
        Rate, Doc("host memory bandwidth per node, for states on the host")
    ] = _F.host_memory_bytes_per_s
    state_copies: Annotated[
        StateCopies,
        Doc(
            "host memory to which a colocated trainer offloads its states: pinned, pageable, or "
            "pageable_weights (pageable for the weights that passes read, pinned for all else)",
            source=listed_copies(),
        ),
    ] = "pinned"
    rounded_copies: Annotated[
        bool | None,
        Doc(
            "whether those copies are pinned by torch, which rounds each block up to a power of "
            "two; null: where state_copies is pinned"
        ),
    ] = None
    keeps_weights: Annotated[
        bool,
        Doc(
            "whether the weights that passes read stay on the GPUs, with those of reference and "
            "reward models, when a colocated trainer's other states are offloaded"
        ),
    ] = False
    critic_stays: Annotated[
        bool,
        Doc("whether a critic's states stay on the GPUs when the policy's are offloaded"),
    ] = False
    critic_keeps_weights: Annotated[
        bool | None,
        Doc(
            "whether the weights that a critic's passes read stay when its other states are "
            "offloaded; null: as keeps_weights"
        ),
    ] = None
    drops_gradients: Annotated[
        bool,
        Doc("whether gradients are freed rather than copied when the other states are offloaded"),
    ] = False
    pinned_optimizer: Annotated[
        bool,
        Doc(
            "whether states that stay in host memory are pinned, which rounds blocks up to powers "
            "of two (offload_optimizer.pin_memory of DeepSpeed)"
        ),
    ] = True
    states_copied: Annotated[
        Literal["switches", "phases", "phases_but_last"],
        Doc(
            "when a colocated trainer that offloads its states copies them: in switches between "
            "rollout and training, or in every phase that needs them and in its time, weights "
            "(frozen ones too) before and after log-probabilities and all before and after the "
            "update (verl); phases_but_last: after the update in the switch to rollout (SkyRL)"
        ),
    ] = "switches"
    parks_frozen: Annotated[
        bool,
        Doc(
            "whether a colocated trainer of adapters offloads its frozen weights too, between its "
            "turns"
        ),
    ] = False
    offload_activations: Annotated[
        bool, Doc("whether activations are offloaded to host memory until the backward")
    ] = False
    reduce_bucket: Annotated[
        int,
        Between(0, 10**12),
        Doc(
            "gradients that DeepSpeed's ZeRO gathers before it reduces them (reduce_bucket_size); "
            "0: the hidden width squared, as transformers and accelerate fill auto in",
            unit="elements",
        ),
    ] = 500_000_000
    prefetch_bucket: Annotated[
        int,
        Between(0, 10**12),
        Doc(
            "weights that ZeRO-3 gathers ahead (stage3_prefetch_bucket_size); 0: 0.9 times the "
            "hidden width squared",
            unit="elements",
        ),
    ] = 50_000_000
    step_group: Annotated[
        int,
        Between(1, 10**15),
        Doc("weights of a GPU that ZeRO-3 steps at once (sub_group_size)", unit="elements"),
    ] = 1_000_000_000
    step_copies: Annotated[
        int,
        Between(1, 2),
        Doc(
            "fp32 copies of these weights that a step of torch's Adam makes under DeepSpeed; "
            "2: root and quotient of the second moment, before PyTorch 2.0",
            unit="copies",
        ),
    ] = 1
    overlap_comm: Annotated[
        bool, Doc("whether ZeRO-1 and 2 fill a second bucket while the first is reduced")
    ] = False
    states_in_log_probs: Annotated[
        bool,
        Doc(
            "whether a colocated trainer that offloads its states has all of them on the GPU in "
            "passes for log-probabilities; false: the weights alone"
        ),
    ] = True
    reference_on_host: Annotated[
        bool,
        Doc("whether weights of a reference model on the trainer's GPUs wait in host memory"),
    ] = False

    reference_loads: Annotated[
        Literal["pass", "microbatch"],
        Doc(
            "what a reference that waits in host memory is loaded for: a pass over the batch, in "
            "the time of switches, or every microbatch, each GPU its shard in 32 bit (FSDP's "
            "CPUOffload)"
        ),
    ] = "pass"

    @property
    def kept(self) -> Sharding:
        """What data-parallel GPUs share: ``sharding``, or what ``shard`` says."""
        return self.sharding or ("fsdp" if self.shard else "none")

    @property
    def compares(self) -> bool:
        """Whether a reference of the policy's size is there."""
        return self.log_prob_passes > 1 if self.reference is None else self.reference

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or an activation that the passes work with."""
        return MASTER_BYTES if self.precision == "fp32" else COMPUTE_BYTES

    @property
    def sequence_split(self) -> int:
        """GPUs that share a sequence's tokens, each with all weights that they use."""
        return self.context_parallel * self.sequence_parallel

    def agree(self) -> None:
        """Options that only make sense together."""
        try:
            if self.lora_matrices != ALL_MATRICES:
                matrices_of(self.lora_matrices)
        except ValueError as error:
            raise self.refuse("lora_matrices", f"is {self.lora_matrices}, but {error}") from None
        if not self.shard and self.sharding not in (None, "none"):
            raise self.refuse(
                "sharding", f"is {self.sharding}, but shard is false; leave shard out"
            )
        if self.recompute_layers is not None and self.recompute == "none":
            raise self.refuse(
                "recompute_layers",
                f"is {self.recompute_layers}, but recompute is none; give full, selective, "
                "attention or mlp",
            )
        for key in ("critic_model", "critic_gpus", *CRITIC.values()):
            if key != "critic_batching" and getattr(self, key) and not self.critic:
                raise self.refuse(key, "describes a critic, but critic is false; set critic: true")
        for key in ("reward_model", "reward_gpus", "reward_with_critic"):
            if getattr(self, key) and not self.reward_passes:
                raise self.refuse(
                    key, "describes reward models, but reward_passes is 0; set reward_passes"
                )
        if self.reward_with_critic and (self.reward_gpus or not self.critic_gpus):
            raise self.refuse(
                "reward_with_critic",
                "puts reward models on the critic's GPUs; set critic_gpus, and leave reward_gpus",
            )
        if self.shard_gpus is not None and self.kept != "hybrid":
            raise self.refuse(
                "shard_gpus", f"is a part of the GPUs, but sharding is {self.kept}; give hybrid"
            )
        if self.states_on_host and self.kept not in ("fsdp", "hybrid"):
            raise self.refuse(
                "states_on_host",
                f"loads shards of the weights, but sharding is {self.kept}; give fsdp or hybrid, "
                "or optimizer_on_host for the optimiser's states alone",
            )
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise self.refuse(
                "virtual_stages", "interleaves pipeline stages; set pipeline_parallel too"
            )
        if self.microbatch_rollouts and self.batching == "one_sequence":
            raise self.refuse(
                "microbatch_rollouts", "limits rows, but batching is one_sequence; give packed"
            )
        padded = pads(self.batching) or pads(self.critic_batching)
        if self.padded_prompt_tokens and not padded:
            raise self.refuse(
                "padded_prompt_tokens",
                f"is of padded rows, but batching is {self.batching}; give padded_to_batch",
            )
