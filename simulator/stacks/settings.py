"""A run's settings, by names of our own: keys of a scenario where there is one, else ``run.``..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEANINGS: Mapping[str, str] = {
    "model": "the policy's model: a name, or the folder it was loaded from",
    "gpu": "the kind of GPU",
    "workload.batch_groups": "prompts of a step",
    "workload.group_size": "rollouts of a prompt",
    "workload.max_new_tokens": "at which responses are cut",
    "cluster.placement": "colocated or disaggregated",
    "cluster.replicas": "inference engines side by side",
    "cluster.tensor_parallel": "GPUs of one replica",
    "cluster.trainer_gpus": "GPUs of the trainer",
    "engine.max_seqs": "rollouts that run at once, a replica",
    "engine.max_batched_tokens": "tokens of an iteration, a replica",
    "engine.kv_tokens": "what the KV pool of a replica holds",
    "engine.prefix_caching": "whether a group shares its prompt's blocks",
    "seed": "of every random draw",
    "cost.roofline.trainer.tensor_parallel": "GPUs of one tensor-parallel group of the trainer",
    "cost.roofline.trainer.pipeline_parallel": "pipeline stages of the trainer",
    "cost.roofline.trainer.context_parallel": "GPUs among which the trainer deals a sequence",
    "cost.roofline.trainer.sequence_parallel": "GPUs that split a sequence, and attention by heads",
    "cost.roofline.trainer.expert_parallel": "GPUs among which the trainer deals its experts",
    "cost.roofline.trainer.tensor_sequence_parallel": (
        "whether a tensor-parallel group shares the tokens of norms and of the residual stream"
    ),
    "policy": "the policy, as the command line spells it",
    "run.sampler": "file of the code that chooses what is trained on",
    "run.mode": "the trainer's mode, in its own words",
    "run.v1": "whether verl's V1 trainer ran, to which its mode belongs",
    "run.asynchronous": "whether rollouts overlap training",
    "run.colocated": "whether rollouts and training share the GPUs",
    "run.batch_rollouts": "rollouts of a step",
    "run.nodes": "machines",
    "run.gpus_per_node": "GPUs of a machine",
    "run.rollout_nodes": "machines for rollouts, where apart",
    "run.rollout_gpus_per_node": "GPUs of such a machine",
    "run.rollout_gpus": "GPUs for rollouts, where apart",
    "run.rollout_devices": "which GPUs the rollouts have",
    "run.trainer_devices": "which GPUs the trainer has",
    "run.data_parallel": "replicas of one engine process group",
    "run.max_prompt_tokens": "at which prompts are cut",
    "run.max_context_tokens": "at which the engine cuts prompt and response together",
    "run.max_total_tokens": "at which prompt and response together are cut",
    "run.mini_batch_groups": "prompts of one optimiser step",
    "run.mini_batch_rollouts": "rollouts of one optimiser step",
    "run.micro_batch_rollouts": "rollouts of one forward and backward pass, a GPU",
    "run.gradient_accumulation": "passes of one optimiser step",
    "run.generation_every": "passes between two generations",
    "run.minibatches": "optimiser steps of one update",
    "run.iterations": "updates on the same rollouts",
    "run.dynamic_batches": "whether passes are filled by tokens",
    "run.max_pass_tokens": "tokens of one pass, a GPU",
    "run.gpu_memory_share": "of the GPU's memory, what the engine takes",
    "run.enforce_eager": "whether the engine runs without CUDA graphs",
    "run.engine": "which inference engine",
    "run.strategy": "how the trainer is split",
    "run.algorithm": "of the advantage",
    "run.filter_groups": "whether groups without spread are replaced, or by which function",
    "run.over_sampling_groups": "prompts launched to get a batch",
    "run.partial_rollout": "whether what is unfinished is resumed",
    "run.max_staleness": "in versions, as the stack bounds it",
    "run.max_off_policy": "in versions, the one that a rollout began under counted as one",
    "run.exceeded": "what becomes of rollouts beyond the bound on staleness",
    "run.mask_off_policy": "whether tokens of earlier versions are left out of the loss",
    "run.staleness_share": "rollouts that may be started ahead, of those of a synchronisation",
    "run.sync_every": "updates after which the weights go to the engine",
    "run.in_flight_updates": "whether new weights reach rollouts that are running",
    "run.in_flight_groups": "prompts in flight at once, a replica",
    "run.in_flight_rollouts": "rollouts in flight at once",
    "run.warmup_batches": "batches launched ahead of the first update",
    "run.queued_batches": "batches that wait for the trainer at most",
    "run.planned_groups": "prompts planned, over the whole run",
    "run.max_turns": "of a rollout",
    "run.reference": "whether there is a reference model",
    "run.temperature": "of sampling",
    "run.logging_steps": "updates of one logged row",
    "run.steps": "updates planned",
    "run.epochs": "passes over the data that are planned",
    "run.samples": "prompts of the data that are used",
    "run.dataset": "of the prompts: names or files",
    "run.save_every": "updates between two checkpoints",
    "run.evaluate_every": "updates between two evaluations",
    # What training holds and moves
    "run.trainer_gpus_per_node": "GPUs of a machine that trains, where that is another number",
    "run.micro_batch_all": "rollouts of one pass, all GPUs together",
    "run.log_prob_pass_tokens": "tokens of one pass for log-probabilities, a GPU",
    "run.log_prob_micro_rollouts": "rollouts of such a pass, a GPU",
    "run.log_prob_micro_all": "rollouts of such a pass, all GPUs together",
    "run.log_probs": "whether the trainer computes log-probabilities anew before the update",
    "run.packing": "whether sequences are laid end to end, without padding",
    "run.offload_parameters": "whether the trainer's weights are on the host during rollouts",
    "run.offload_gradients": "whether its gradients are",
    "run.offload_optimizer": "whether its optimiser states are",
    "run.cpu_optimizer": "whether optimiser states are on the host, where the CPU steps",
    "run.cpu_optimizer_share": "of the optimiser states, what is there",
    "run.cpu_parameters": "whether weights are on the host during the update too",
    "run.cpu_offload": "whether weights, gradients and optimiser states are",
    "run.offload_reference": "whether the reference's weights are on the host when unused",
    "run.offload_activations": "whether activations are on the host until the backward",
    "run.recompute": "activations that the backward computes anew: full, selective or none",
    "run.recompute_modules": "parts of a layer that selective recomputation computes anew",
    "run.recompute_method": "Megatron's: uniform or block",
    "run.recompute_count": "layers of a chunk with the method uniform, of a stage with block",
    "run.recompute_layers": "layers computed anew, in all",
    "run.lora_rank": "of adapters, which alone are trained; 0: all weights are",
    "run.lora": "whether adapters alone are trained",
    "run.quantized_base": "of weights that are not trained: 4bit, 8bit or none",
    "run.trainer_dtype": "of the weights that the optimiser steps",
    "run.compute_dtype": "of the trainer's matrix products",
    "run.mixed_precision": "as accelerate or the trainer's arguments spell it",
    "run.precision": "of the trainer's matrix products: fp8, bf16, or in the stack's words",
    "run.optimizer": "by its name: adamw, adamw_8bit, muon, sgd...",
    "run.state_dtype": "of the optimiser's moments",
    "run.gradient_dtype": "of gradients between two passes",
    "run.zero_stage": "DeepSpeed's: 0 to 3",
    "run.zero_partition": "GPUs that share DeepSpeed's states (hpZ, MiCS)",
    "run.shard_gpus": "GPUs that share the states; not positive: all",
    "run.state_copies": "copies of the states, each sharded",
    "run.sharding": "FSDP's strategy, in its words",
    "run.reshard_after_forward": "whether gathered weights are freed after the forward",
    "run.distributed_optimizer": "whether Megatron shards its optimiser states",
    "run.virtual_stages": "model chunks of a pipeline stage",
    "run.expert_tensor_parallel": "GPUs that split an expert",
    "run.fused_head": "whether head and loss are computed without all logits in memory",
    "run.logits_chunk_tokens": "tokens whose logits are in memory at once",
    "run.chunked_entropy": "whether the entropy is computed by chunks of tokens",
    "run.entropy_coefficient": "of the entropy in the loss",
    "run.entropy": "whether the policy's entropy is computed",
    "run.attention": "which attention kernel the trainer has",
    "run.mtp_layers": "layers that predict further tokens",
    "run.train_mtp": "whether these are trained",
    # Models beside the policy
    "run.skip_reference": "whether the reference's log-probabilities are left out",
    "run.kl_in_loss": "whether the loss has a divergence from the reference",
    "run.kl_in_reward": "whether the reward has",
    "run.kl_coefficient": "of that divergence; 0: none",
    "run.kl_reward_coefficient": "of the divergence in the reward, where it has its own; 0: none",
    "run.reference_model": "which reference or teacher, if not the policy at its start",
    "run.reference_gpus": "GPUs of the reference, where apart",
    "run.reference_gpus_per_node": "of a machine, those of the reference",
    "run.share_reference": "whether the reference shares the trainer's GPUs",
    "run.reference_nodes": "its machines",
    "run.critic": "whether a critic is trained",
    "run.critic_model": "which",
    "run.critic_gpus": "GPUs of the critic, where apart",
    "run.critic_gpus_per_node": "of a machine, those of the critic",
    "run.critic_nodes": "its machines",
    "run.reward_models": "whether rewards are of a model on GPUs",
    "run.reward_model": "which",
    "run.reward_model_gpus": "GPUs of the reward model, where apart",
    "run.reward_model_gpus_per_node": "of a machine, those of the reward model",
    "run.reward_model_nodes": "its machines",
    "run.reward_model_apart": "whether it has GPUs of its own",
    "run.reward_devices": "which GPUs it has",
    "run.share_reward_model": "whether it shares the critic's GPUs",
    "run.reward_elsewhere": "by which address or function rewards come, without a model here",
    # The engine
    "run.free_engine": "whether the engine frees its memory while the trainer works",
    "run.sleep_level": "of vLLM's engine then: 1 keeps its weights on the host, 2 drops them",
    "run.engine_dtype": "of the engine's weights",
    "run.kv_dtype": "of its KV blocks",
    "run.quantization": "of the engine's weights, in its words",
    "run.engine_expert_parallel": "GPUs among which an engine deals experts; true: all it has",
    "run.engine_pipeline_parallel": "pipeline stages of an engine",
    "run.speculation": "by which method the engine drafts tokens",
    "run.draft_tokens": "tokens drafted at once",
    "run.engine_gpus": "GPUs of all engines, shared or not",
    "run.batch_tokens": "tokens of a step, in the place of rollouts",
    "run.step_rollouts_ahead": "steps' worth of rollouts in flight, in the stack's words",
    "run.over_sampling_share": "rollouts launched, of those that a batch needs",
    "run.rollout_copies": "groups of such machines, each of so many",
    "run.shared_devices": "which GPUs trainer and engines share",
    "run.reference_devices": "which GPUs the reference has",
    "run.critic_devices": "which GPUs the critic has",
    "run.engine_layout": "of the engines, in the stack's words",
    "run.trainer_layout": "of the trainer, in the stack's words",
    "run.shares": "how engines are placed, in the stack's words",
    "run.environment_groups": "groups of environments that run at once",
    "run.lora_targets": "which layers have adapters",
    "run.recompute_frequency": "every how many layers one is computed anew",
    "run.offload_inflight": "activations on their way to the host at once",
    "run.reduce_every_pass": "whether gradients are reduced after each pass",
    "run.processes": "of the trainer's launcher, a GPU each",
    "run.fsdp_version": "1 or 2",
    "run.offload_all": "whether engine and trainer are offloaded while the other works",
    "run.recompute_kind": "full or selective, where activations are computed anew",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; of a binary file, a record, and 0 for the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Setting:
    """A logged setting. key: of `MEANINGS`. theirs: the stack's key. implied: follows from it.
    unsaid: one of the stack's defaults, or follows from one."""

    key: str
    value: Any
    theirs: str
    place: Place
    implied: bool = False
    unsaid: bool = False

    @property
    def source(self) -> str:
        """Their key and where it stands."""
        return f"{self.theirs} in {self.place}"

    def implies(self, key: str, value: Any) -> Setting:
        """Another setting, of ours, that follows from this one."""
        return Setting(key, value, self.theirs, self.place, True, self.unsaid)


Settings = Mapping[str, Setting]
"""By our key."""


def value(settings: Settings, key: str) -> Any:
    """What a setting says; None where the log does not give it."""
    return settings[key].value if key in settings else None


def whole(settings: Settings, key: str) -> int | None:
    """A setting as a positive whole number; None for anything else."""
    number = value(settings, key)
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        return None
    return int(number) if 0 < number < 1e12 and number == int(number) else None
