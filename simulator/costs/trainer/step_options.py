"""What a scenario may say of the work of a trainer's step: passes, microbatches, optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rollcast.simulator.costs.backends import Backend
from rollcast.simulator.costs.backends import listed as listed_backends
from rollcast.simulator.costs.memory.training import Recompute
from rollcast.simulator.costs.presets.provenance import figures, sources
from rollcast.simulator.costs.ranges import Gpus, PositiveShare, Rate, Seconds, Tokens
from rollcast.simulator.costs.trainer.attention_kernels import AttentionKernel
from rollcast.simulator.values import Above, Between, Doc, Options

Weights = Literal["full", "lora"]
Optimizer = Literal["adamw", "adamw_bf16", "adamw_kahan", "adamw_8bit", "muon", "sgd"]
MasterDtype = Literal["fp32", "bf16"]
Kernels = Literal["eager", "fused_mlps", "fused"]
LaunchOverlap = Literal["full", "partial"]
LinearAttention = Literal["fused", "torch"]
Batching = Literal["packed", "padded", "padded_to_batch", "padded_to_cap", "one_sequence"]

TowerScores = Literal["none", "image", "microbatch"]
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
ALL_MATRICES = "all"

Traffic = Annotated[float, Between(0, 1e6)]
Passes = Annotated[int, Between(0, 1000)]

FIELD = "cost.roofline.trainer"
STEP_BYTES_PER_PARAMETER = 28  # Adam reads weight, gradient, two moments; writes three (fp32)
_F = figures("trainer")
FUSED_SHARE: float = _F.fused_share  # of what elementwise kernels move, by fused ones
MOVED_SHARES = {"eager": 1.0, "fused_mlps": float(_F.fused_mlps_share), "fused": FUSED_SHARE}
"""Of what elementwise kernels move, by `Kernels`."""


def matrices_of(adapted: str) -> tuple[str, ...]:
    """Of ``lora_matrices``. Raises ValueError for a name that there is not."""
    names = MATRICES if adapted == ALL_MATRICES else tuple(adapted.split("+"))
    if unknown := set(names) - set(MATRICES):
        raise ValueError(f"{min(unknown) or 'nothing'} is none of {', '.join(MATRICES)}")
    return tuple(name for name in MATRICES if name in names)


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The work of a step, under ``cost.roofline.trainer``: the first of `TrainerOptions`."""

    FIELD = FIELD
    SOURCES = sources("trainer")

    backend: Annotated[
        Backend | None,
        Doc(
            "training backend; keys of the trainer that are not given are those of the stack with "
            "this backend (stack unknown if none is given); null: the first backend of the stack "
            "that supports the given parallelism",
            source=f"backends by stack, the first is its own default: {listed_backends()}",
        ),
    ] = None
    weights: Annotated[Weights, Doc("weights that are trained: full (all) or lora (adapters)")] = (
        "full"
    )
    recompute: Annotated[
        Recompute,
        Doc(
            "activation checkpointing: full, attention, mlp, selective (every second product is "
            "kept, and attention's output) or none"
        ),
    ] = "full"
    recompute_layers: Annotated[
        int | None,
        Between(1, 100_000),
        Doc("number of layers with activation checkpointing; null: all", unit="layers"),
    ] = None
    attention: Annotated[
        AttentionKernel | None,
        Doc(
            "attention kernel; it sets gpu.trainer_attention_flop_efficiency; null: that "
            "key's value",
            source="rollcast presets kernels",
        ),
    ] = None
    linear_attention: Annotated[
        LinearAttention,
        Doc(
            "what computes gated delta nets: fused kernels (flash-linear-attention, Megatron's) or "
            "torch, as transformers does where flash-linear-attention is not installed"
        ),
    ] = "fused"
    shard: Annotated[
        bool, Doc("whether states are sharded over the GPUs (fully sharded data parallel)")
    ] = True
    log_prob_passes: Annotated[
        Passes,
        Doc(
            "forward passes for log-probabilities before the update; a reference model adds"
            " one, and those after the first are its; 0: taken from the engine",
            unit="passes",
        ),
    ] = 1
    minibatches: Annotated[
        int, Between(1, 1_000_000), Doc("optimiser steps per update", unit="steps")
    ] = 1
    microbatch_tokens: Annotated[
        Tokens | None,
        Doc(
            "tokens of a microbatch per GPU; null: the largest that fits, at most 32,768 "
            "unless a rollout is longer"
        ),
    ] = None
    prefix_microbatch_tokens: Annotated[
        Tokens | None,
        Doc(
            "tokens of shared prefixes that one pass computes (a longer one is computed by "
            "itself); 1: each by itself; null: half of a microbatch"
        ),
    ] = None
    logits_chunk_tokens: Annotated[
        Tokens | None,
        Doc("number of tokens whose logits are in memory at once; null: those of a microbatch"),
    ] = 1024
    logit_bytes: Annotated[
        float,
        Between(0, 1000),
        Doc(
            "memory per logit that is in memory at the loss (16 and 32 bit copies, softmax, "
            "gradients)",
            unit="bytes",
        ),
    ] = _F.logit_bytes
    ungraded_logit_bytes: Annotated[
        float | None,
        Between(0, 1000),
        Doc(
            "logit_bytes of a pass without gradients; null: logit_bytes less a gradient in 32 bit, "
            "and 4 more where the policy's entropy is computed",
            unit="bytes",
        ),
    ] = None
    logits_of_prompts: Annotated[
        bool,
        Doc(
            "whether the LM head computes logits of prompts (and padding) too; false: of responses "
            "alone"
        ),
    ] = True
    scores_prompts: Annotated[
        bool,
        Doc(
            "whether log-probabilities (and entropy) are computed of all packed tokens, of which "
            "those of responses are chosen afterwards; rows with padding never are. It changes "
            "time alone"
        ),
    ] = False
    gathers_to_score: Annotated[
        bool,
        Doc(
            "whether passes for log-probabilities gather all weights at once, rather than a layer "
            "after the other. It changes memory alone"
        ),
    ] = False
    checkpointed_inputs: Annotated[
        int,
        Between(1, 4),
        Doc(
            "inputs of a layer that stay with recompute: full; 4 where its norms, its attention "
            "and its MLP are computed again one by one. It changes memory alone",
            unit="inputs",
        ),
    ] = 1
    expandable_segments: Annotated[
        bool,
        Doc(
            "whether PyTorch's allocator extends its segments (expandable_segments:True), of which "
            "fewer parts are left that nothing fits into. It changes memory alone"
        ),
    ] = False
    repeats_kv: Annotated[
        bool,
        Doc(
            "whether keys and values are copied for each head before flash attention, as "
            "transformers did before 4.53 for Qwen2-VL and Qwen2.5-VL. It changes memory alone"
        ),
    ] = False
    fp32_norms: Annotated[
        bool,
        Doc(
            "whether norms beside a quantised base are in fp32, and so is the residual stream, as "
            "peft's prepare_model_for_kbit_training leaves them. It changes memory alone"
        ),
    ] = False
    reentrant_checkpoints: Annotated[
        bool,
        Doc(
            "whether layers are checkpointed with use_reentrant, as transformers' Trainer does "
            "unless told otherwise: FSDP1 then keeps the input of each frozen layer, and that "
            "input's gradient, until the backward ends. It changes memory alone"
        ),
    ] = False
    gathers_to_merge: Annotated[
        bool,
        Doc(
            "whether all weights are gathered at once before a sync, to merge adapters into them "
            "or to read adapters out of them"
        ),
    ] = False
    gathers_to_send: Annotated[
        bool,
        Doc(
            "whether a sync gathers all weights at once (weights: full), as ms-swift 3.12 does "
            "with ZeRO-3 whatever move_model_batches says"
        ),
    ] = False
    gathered_copies: Annotated[
        int,
        Between(1, 2),
        Doc(
            "copies of these gathered weights on a GPU; 2 where they are copied to the host and "
            "back for an engine that started without weights (verl's first sync)",
            unit="copies",
        ),
    ] = 1
    copies_to_send: Annotated[
        bool,
        Doc(
            "whether a sync sends a copy of what a GPU has of the weights (FSDP1's sharded state "
            "dict). It changes memory alone"
        ),
    ] = False
    exchange_bytes_per_parameter: Annotated[
        float,
        Above(0, 1e6),
        Doc("bytes per parameter of exchanged gradients", unit="bytes", source="fp32"),
    ] = 4.0
    collective_efficiency: Annotated[
        PositiveShare, Doc("share of a link's bandwidth that collectives reach")
    ] = _F.collective_efficiency
    network_bytes_per_s: Annotated[Rate, Doc("network bandwidth per GPU between nodes")] = (
        _F.network_bytes_per_s
    )
    gpus_per_node: Annotated[Gpus, Doc("GPUs per node", unit="GPUs")] = 8
    memory_utilization: Annotated[
        PositiveShare, Doc("share of a GPU's memory that the trainer may use", unit="share")
    ] = _F.memory_utilization
    optimizer: Annotated[
        Optimizer,
        Doc(
            "optimiser by the states it keeps: adamw (two moments as wide as the weight that it "
            "updates), adamw_bf16 (in 16 bit), adamw_kahan (in 16 bit, with what rounding left of "
            "each weight beside them), adamw_8bit, muon (one) or sgd (none)"
        ),
    ] = "adamw"
    master_dtype: Annotated[
        MasterDtype,
        Doc(
            "precision of the weights that the optimiser updates; bf16: weights, gradients and "
            "moments are in 16 bit alone; sharding zero1 and zero2 keep whole weights beside them"
        ),
    ] = "fp32"
    working_copy: Annotated[
        bool,
        Doc(
            "whether 16 bit weights are kept beside fp32 ones (DeepSpeed, Megatron), rather than "
            "made from them when they are gathered (FSDP); sharding zero1 and zero2 keep them"
        ),
    ] = False
    gradient_dtype: Annotated[
        MasterDtype, Doc("precision in which gradients are summed; bf16 where master_dtype is")
    ] = "fp32"
    step_in_backward: Annotated[
        bool,
        Doc("whether the optimiser steps a layer in its backward and frees its gradients there"),
    ] = False
    pages_moments: Annotated[
        bool,
        Doc(
            "whether moments are in CUDA's unified memory (bitsandbytes' paged optimisers): they "
            "leave a GPU that is full for the host, so they take no room there; needs more host "
            "memory, which is not counted"
        ),
    ] = False
    foreach_optimizer: Annotated[
        bool,
        Doc(
            "whether the optimiser step makes a temporary copy as large as a GPU's shard of the "
            "weights (PyTorch's default, foreach); false: its kernels are fused, or it steps a "
            "weight after the other"
        ),
    ] = True
    base_bits: Annotated[
        int,
        Between(1, 32),
        Doc("bits of a frozen weight (weights: lora); 4: QLoRA, 32: fp32", unit="bits"),
    ] = 16
    nested_scales: Annotated[
        bool,
        Doc(
            "whether scales of a base in 4 bit are quantised too (bitsandbytes' double "
            "quantisation): 0.13 bits a weight, else 0.5. It changes memory alone"
        ),
    ] = True
    lora_rank: Annotated[
        int, Between(1, 100_000), Doc("rank of adapters (weights: lora)", unit="elements")
    ] = 32
    lora_matrices: Annotated[
        str,
        Doc(
            "matrices of a layer that have adapters (weights: lora): all, or some of "
            f"{', '.join(MATRICES)} with + between them"
        ),
    ] = ALL_MATRICES
    traffic_per_activation_byte: Annotated[
        Traffic,
        Doc(
            "memory traffic of elementwise kernels per byte of activations kept; 0: none",
            unit="bytes",
        ),
    ] = _F.traffic_per_activation_byte
    kernels: Annotated[
        Kernels,
        Doc(
            "eager: elementwise kernels run one by one, as in PyTorch; fused_mlps: an MLP's "
            "activation and product are one (Megatron's bias_activation_fusion); fused: all are "
            "fused and move less memory (Transformer Engine). A fused cross-entropy is "
            "set by traffic_per_logit: 8.7",
            source=str(sources("trainer")["fused_share"]),
        ),
    ] = "eager"
    traffic_per_adapted_byte: Annotated[
        Traffic,
        Doc(
            "memory traffic that adapters (weights: lora) add to traffic_per_activation_byte",
            unit="bytes",
        ),
    ] = _F.traffic_per_adapted_byte
    kernel_bytes_per_s: Annotated[
        Rate,
        Doc(
            "rate limit of elementwise kernels beside the memory bandwidth: a byte takes "
            "1 / bandwidth + 1 / this; 1e30: memory alone limits them"
        ),
    ] = _F.kernel_bytes_per_s
    traffic_per_logit: Annotated[
        Traffic,
        Doc("bytes moved for each logit by a chunked fp32 log-softmax", unit="bytes"),
    ] = _F.traffic_per_logit
    graded_traffic_per_logit: Annotated[
        Traffic | None,
        Doc(
            "traffic_per_logit of passes without gradients; null: the same",
            unit="bytes",
        ),
    ] = None
    entropy_traffic_per_logit: Annotated[
        Traffic,
        Doc(
            "bytes moved for each logit to compute the policy's entropy beside its "
            "log-probabilities before the update; 0: no entropy",
            unit="bytes",
        ),
    ] = 0.0
    packed_entropy_traffic_per_logit: Annotated[
        Traffic | None,
        Doc("entropy_traffic_per_logit of rows without padding; null: the same", unit="bytes"),
    ] = None
    padded_logits: Annotated[
        bool,
        Doc(
            "whether logits of packed sequences are padded to the batch's longest prompt and "
            "response before log-probabilities are computed from them"
        ),
    ] = False
    expert_launch_s: Annotated[
        Seconds,
        Doc("time per routed expert beside its flop, where experts run one by one"),
    ] = _F.expert_launch_s
    slice_launch_s: Annotated[
        Seconds,
        Doc("time per operation on slices of a chunk, with linear_attention: torch"),
    ] = _F.slice_launch_s
    patch_launch_s: Annotated[
        Seconds,
        Doc(
            "time per patch of an image beside its flop, where patches are embedded one by one; "
            "2e-3 with PyTorch 2.9 and cuDNN before 9.15, whose Conv3d has no other kernel in 16 "
            "bit"
        ),
    ] = _F.patch_launch_s
    freeze_tower: Annotated[
        bool,
        Doc(
            "whether the vision tower is not trained, so that it has no backward (weights: lora "
            "never trains it). It changes time and its activations alone"
        ),
    ] = False
    tower_scores: Annotated[
        TowerScores,
        Doc(
            "pairs of patches whose scores the vision tower's attention has in memory: none with "
            "flash attention; without it transformers 4.45 to 4.51 has those of a whole "
            "microbatch (Qwen2-VL, Qwen2.5-VL), 4.52 those of each image. It changes memory alone"
        ),
    ] = "none"
    batching: Annotated[
        Batching,
        Doc(
            "contents of a microbatch: packed (sequences end to end), padded (rows padded "
            "to its longest prompt and response), padded_to_batch (rows padded to the "
            "batch's longest), padded_to_cap (rows padded to padded_prompt_tokens and "
            "workload.max_new_tokens) or one_sequence"
        ),
    ] = "packed"
    static_pipeline: Annotated[
        bool,
        Doc(
            "whether packed microbatches are padded to the longest of them where "
            "pipeline_parallel is more than 1, as a pipeline of one static shape needs it"
        ),
    ] = False
    critic_batching: Annotated[
        Batching | None,
        Doc("contents of a critic's microbatch; null: as of the policy"),
    ] = None
    critic_recompute: Annotated[
        Recompute | None,
        Doc("activation checkpointing of a critic; null: as of the policy"),
    ] = None
    critic_microbatch_tokens: Annotated[
        Tokens | None,
        Doc(
            "tokens of a critic's microbatch on the GPUs that share its sequences, in its values "
            "and its update; null: as of the policy, unless critic_microbatch_rollouts is given"
        ),
    ] = None
    critic_microbatch_rollouts: Annotated[
        int | None,
        Between(1, 10**6),
        Doc("rows of a critic's microbatch; null: as critic_microbatch_tokens", unit="rollouts"),
    ] = None
    critic_sequence_parallel: Annotated[
        Gpus | None,
        Doc("Ulysses degree of a critic; null: that of the policy", unit="GPUs"),
    ] = None
    microbatch_rollouts: Annotated[
        int | None, Between(1, 10**6), Doc("maximum rows of a microbatch", unit="rollouts")
    ] = None
    log_prob_microbatch_tokens: Annotated[
        Tokens | None,
        Doc("tokens of a microbatch of passes for log-probabilities; null: those of an update's"),
    ] = None
    log_prob_microbatch_rollouts: Annotated[
        int | None,
        Between(1, 10**6),
        Doc(
            "rows of a microbatch of passes for log-probabilities; null: those of an update's",
            unit="rollouts",
        ),
    ] = None
    padded_prompt_tokens: Annotated[
        Tokens | None,
        Doc(
            "tokens of a prompt in padded rows at least, where the stack pads prompts to a cap "
            "(verl's data.max_prompt_length); null: those of the longest"
        ),
    ] = None
    balanced: Annotated[
        bool,
        Doc(
            "whether rollouts are dealt to data-parallel GPUs by length; false: in the order in "
            "which they come"
        ),
    ] = True
    launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "minimum forward time per layer and microbatch (kernel-launch bound); the "
            "backward takes twice this",
            unit="seconds",
        ),
    ] = _F.launch_s_per_layer
    newer_host_share: Annotated[
        PositiveShare,
        Doc(
            "share of launch_s_per_layer that layers without experts take beside hosts with PCIe 5 "
            "or NVLink, where it is of a host with PCIe 4",
            unit="share",
        ),
    ] = 1.0
    host_factor: Annotated[
        float | None,
        Between(0.01, 1000),
        Doc(
            "factor on what the host launches, whose figures are of x86 with PCIe 5 "
            "(launch_s_per_layer after newer_host_share, "
            "gather_launch_s_per_layer, expert_launch_s); null: 2.6 beside a Grace (1.3 for "
            "expert_launch_s of Megatron), else 1",
            unit="times",
        ),
    ] = None
    launch_overlap: Annotated[
        LaunchOverlap,
        Doc(
            "whether launches hide behind the kernels of their pass: full (the longer of both is "
            "the pass's time) or partial (the root of the sum of their squares: some kernels wait "
            "for their launches, and some launches for the kernels before them)"
        ),
    ] = "full"
    shared_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "launch_s_per_layer, where that is less, of each pass of the layout with shared "
            "prefixes (over prefixes, and over every microbatch of what follows them), whose "
            "launches overlap in part",
            unit="seconds",
        ),
    ] = _F.shared_launch_s_per_layer
    gather_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "time that gathering a layer's sharded weights adds to launch_s_per_layer: hooks and "
            "collectives that the host launches",
            unit="seconds",
        ),
    ] = _F.gather_launch_s_per_layer
    adapter_gather_launch_s_per_layer: Annotated[
        Seconds,
        Doc(
            "gather_launch_s_per_layer of a layer's adapters (weights: lora), gathered one by one; "
            "0: they are gathered with their layer",
            unit="seconds",
        ),
    ] = 0.0
    attention_build_s: Annotated[
        Seconds,
        Doc(
            "time per microbatch, in log-probabilities and in the update, in which the host builds "
            "an attention kernel for a length that it has not seen; some 1 s where cuDNN's "
            "attention gets rows that are not packed (verl's Megatron with "
            "use_remove_padding: false)"
        ),
    ] = 0.0
    driver_per_token_s: Annotated[
        Seconds,
        Doc(
            "time of the driver process that sends each pass its batch, per token of the batch "
            "padded to workload.max_new_tokens"
        ),
    ] = 0.0
    pixel_bytes_per_s: Annotated[
        Rate | None,
        Doc(
            "rate at which the driver process sends each pass the pixels of the batch's images; "
            "null: workers cut the images themselves"
        ),
    ] = None
    collected_per_token_s: Annotated[
        Seconds,
        Doc(
            "time of the driver process that puts the rollouts of a batch together, per token of "
            "the batch padded to workload.max_new_tokens: of generation where engines and trainer "
            "take turns, else of the trainer's step"
        ),
    ] = 0.0
    step_fixed_s: Annotated[
        Seconds, Doc("fixed time of an optimiser step, such as gradient norms")
    ] = 0.0
