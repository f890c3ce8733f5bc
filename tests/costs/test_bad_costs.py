"""Options of the roofline that cannot be: the error names the key and says what to give."""

from typing import Any

import pytest

from rollcast.simulator.costs import RooflineCost, RooflineTrainer
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses

MODEL, GPU = load_model("qwen3-8b"), load_gpu("h100-sxm")
MTP = {"method": "mtp", "tokens": 2}
DRAFT = {"method": "draft_model", "tokens": 2, "acceptance": 0.5}

ENGINE = [
    ({"host": 1}, "host", "host_s"),
    ({"host_s": -1}, "host_s", "from 0"),
    ({"rest_s": "long"}, "rest_s", "number"),
    ({"sync_bytes_per_s": 0}, "sync_bytes_per_s", "above 0"),
    ({"kv_rollout_tokens": 0}, "kv_rollout_tokens", "from 1"),
    ({"cuda_graphs": 0}, "cuda_graphs", "true or false, or unknown"),
    ({"cuda_graphs": "maybe"}, "cuda_graphs", "true or false, or unknown"),
    ({"network_floor_s": -1}, "network_floor_s", "from 0"),
    ({"reserve_bytes": "much"}, "reserve_bytes", "number"),
    ({"tensor_parallel": 2}, "tensor_parallel", "unknown"),
    ({"host_factor": 0}, "host_factor", "above 0"),
    ({"engine": "vllm-0.91"}, "engine", "vllm-0.19"),
    ({"engine": 7}, "engine", "one of vllm-0.5"),
    ({"engine_sleep": "level2"}, "engine_sleep", "offload, discard, none"),
    ({"stack": "nemo"}, "stack", "nemo-rl"),
    ({"stack": ["verl"]}, "stack", "did you mean verl"),
    ({"sync": "nccl"}, "sync.mechanism", "nccl_broadcast"),
    ({"sync": {"fixed_s": 1}}, "sync.mechanism", "missing"),
    ({"sync": {"mechanism": "disk", "fixed": 1}}, "sync.fixed", "fixed_s"),
    ({"sync": {"mechanism": "disk", "share": 2}}, "sync.share", "from 0 to 1"),
    ({"sync": 4}, "sync", "mapping"),
    ({"sync": "adapter"}, "sync", "weights to lora"),
]
SPECULATIVE: list[tuple[dict[str, Any], str, str]] = [
    ({"method": "medusa", "tokens": 2, "acceptance": 0.5}, "method", "one of"),
    ({**MTP, "tokens": 0, "acceptance": 0.5}, "tokens", "from 1"),
    (MTP, "acceptance", "tokens_per_step"),
    ({**MTP, "acceptance": 0.5, "tokens_per_step": 2}, "acceptance", "either"),
    ({**MTP, "acceptance": 1.5}, "acceptance", "from 0 to 1"),
    ({**MTP, "acceptance": "high"}, "acceptance", "a number"),
    ({**MTP, "acceptance": [0.5]}, "acceptance", "each of the 2"),
    ({**MTP, "acceptance": [0.5, 0.6]}, "acceptance", "not rise"),
    ({**MTP, "acceptance": [0.5, 2]}, "acceptance[1]", "from 0 to 1"),
    ({**MTP, "tokens_per_step": 3.5}, "tokens_per_step", "more than"),
    (DRAFT, "draft_model", "missing"),
    ({**MTP, "acceptance": 0.5, "draft_model": "qwen3-0.6b"}, "draft_model", "of its own"),
    ({**DRAFT, "draft_model": "qwen-0.6b"}, "draft_model", "unknown model"),
]
TRAINER = [
    ({"minibatches": 0}, "minibatches", "1"),
    ({"shards": 1}, "shards", "shard"),
    ({"recompute": "half"}, "recompute", "attention, mlp, selective, none"),
    ({"recompute_layers": 37}, "recompute_layers", "more than the 36 layers"),
    ({"recompute_layers": 2, "recompute": "none"}, "recompute_layers", "recompute is none"),
    ({"attention": "flash"}, "attention", "one of eager"),
    ({"attention": "flash_4"}, "attention", "known there: eager, flash_2, flash_3, cudnn"),
    ({"traffic_per_logit": float("nan")}, "traffic_per_logit", "number"),
    ({"tensor_parallel": 3}, "tensor_parallel", "does not divide 8 trainer GPUs"),
    ({"pipeline_parallel": 3}, "pipeline_parallel", "does not divide 8 trainer GPUs"),
    ({"context_parallel": 16}, "context_parallel", "does not divide 8 trainer GPUs"),
    ({"sequence_parallel": 16}, "sequence_parallel", "does not divide 8 trainer GPUs"),
    ({"shard_gpus": 2}, "shard_gpus", "give hybrid"),
    ({"states_on_host": True, "sharding": "zero1"}, "states_on_host", "give fsdp or hybrid"),
    ({"tensor_parallel": 2.5}, "tensor_parallel", "must be"),
    ({"virtual_stages": 2}, "virtual_stages", "set pipeline_parallel too"),
    ({"pipeline_parallel": 4, "virtual_stages": 10}, "virtual_stages", "the 36 layers"),
    ({"expert_parallel": 2}, "expert_parallel", "has no experts"),
    ({"sharding": "fsdp", "shard": False}, "sharding", "shard is false"),
    ({"microbatch_rollouts": 4, "batching": "one_sequence"}, "microbatch_rollouts", "give packed"),
    ({"padded_prompt_tokens": 4}, "padded_prompt_tokens", "give padded_to_batch"),
    ({"overlap": 1.5}, "overlap", "from 0 to 1"),
    ({"critic_model": "qwen3-0.6b"}, "critic_model", "set critic: true"),
    ({"critic_gpus": 4}, "critic_gpus", "set critic: true"),
    ({"reward_model": "qwen3-0.6b"}, "reward_model", "set reward_passes"),
    ({"reward_gpus": 4}, "reward_gpus", "set reward_passes"),
    ({"reward_passes": 1, "reward_with_critic": True}, "reward_with_critic", "set critic_gpus"),
    ({"reference_gpus": -1}, "reference_gpus", "from 0"),
    ({"reference_model": "qwen9"}, "reference_model", "unknown model"),
    ({"reference_model": 3}, "reference_model", "must be"),
    ({"expert_share": 1}, "expert_share", "unknown"),
]
CASES = [
    *ENGINE,
    *(({"speculative": given}, f"speculative.{key}", word) for given, key, word in SPECULATIVE),
    *(({"trainer": given}, f"trainer.{key}", word) for given, key, word in TRAINER),
    ({"trainer": 3}, "trainer", "mapping"),
]


@pytest.mark.parametrize(("options", "key", "word"), CASES)
def test_bad_options_name_their_key(options: dict[str, Any], key: str, word: str) -> None:
    with refuses(f"cost.roofline.{key}", word=word):
        RooflineCost.from_options(
            MODEL, GPU, RooflineSection.from_mapping(options, "cost.roofline"), trainer_gpus=8
        )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tensor_parallel": 3}, "cluster.tensor_parallel"),
        ({"tensor_parallel": 0}, "cluster.tensor_parallel"),
        ({"replicas": 1.5}, "cluster.replicas"),
        ({"placement": "shared"}, "cluster.placement"),
        ({"engine": "vllm"}, "cost.roofline.engine"),
        ({"stack": "nemo"}, "cost.roofline.stack"),
        ({"host_factor": "fast"}, "cost.roofline.host_factor"),
        ({"engine_sleep": True}, "cost.roofline.engine_sleep"),
    ],
)
def test_costs_built_in_python_are_checked_too(options: dict[str, Any], field: str) -> None:
    with refuses(field):
        RooflineCost(MODEL, GPU, **options)


def test_splits_of_a_model_that_cannot_be() -> None:
    mixture = load_model("qwen3-30b-a3b")
    for experts, word in ((3, "128 experts"), (16, "the 8 GPUs")):
        with refuses("cost.roofline.trainer.expert_parallel", word):
            RooflineTrainer(mixture, GPU, 8, expert_parallel=experts)
    with pytest.raises(ScenarioError, match="14 attention heads"):
        RooflineTrainer(load_model("qwen2.5-0.5b"), GPU, 8, tensor_parallel=4)
    with pytest.raises(ScenarioError, match=r"or give gpu\."):
        RooflineTrainer(MODEL, load_gpu("l40s"), attention="flash_2")
    with pytest.raises(ScenarioError, match="trainer_gpus"):
        RooflineTrainer(MODEL, GPU, 0)
