"""vLLM on one GPU: ``python -m benchmarks.gpu_cases ... --suite engine``.

A case is a batch of rollouts of a model of real shape with random weights. The forecast is a
simulation from presets alone; it draws the length of each rollout, and the engine is asked for just
these lengths. So what may differ are the costs, and not the lengths.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.gpu.cases import shape
from benchmarks.runner import simulated
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.studies.uncertainty import add_intervals

ENGINE_PRESET = "vllm-0.26"
"""The newest of vLLM's presets."""

SHAPES: dict[str, dict[str, Any]] = {
    name: shape(load_model(name)) for name in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b")
}
"""Keys of transformers' Qwen2Config, of presets."""


@dataclass(frozen=True)
class Case:
    """A batch. eager: without CUDA graphs. ahead: asynchronous scheduling."""

    model: str
    groups: int
    prompt_tokens: int
    median_tokens: float
    max_new_tokens: int
    max_seqs: int = 256
    group_size: int = 8
    eager: bool = False
    ahead: bool | None = None


CASES = {
    "1.5b": Case("qwen2.5-1.5b", 32, 256, 400, 1024),
    "7b": Case("qwen2.5-7b", 32, 512, 400, 1024),
    "1.5b, queued": Case("qwen2.5-1.5b", 64, 256, 300, 768),
    "7b, few": Case("qwen2.5-7b", 2, 2048, 300, 512),
    "1.5b, one after the other": Case("qwen2.5-1.5b", 32, 256, 400, 1024, ahead=False),
    "1.5b, eager": Case("qwen2.5-1.5b", 16, 256, 150, 256, eager=True),
    "0.5b": Case("qwen2.5-0.5b", 32, 256, 400, 1024),
    "7b, long": Case("qwen2.5-7b", 8, 6144, 300, 512),
}


def scenario(case: Case, gpu: str) -> dict[str, Any]:
    """What is simulated: the trainer is on GPUs of its own, so that it is not in the way."""
    return {
        "model": case.model,
        "gpu": gpu,
        "cluster": {"placement": "disaggregated", "replicas": 1, "trainer_gpus": 8},
        "engine": {"max_seqs": case.max_seqs, "max_batched_tokens": 8192},
        "cost": {"roofline": {"engine": ENGINE_PRESET, "cuda_graphs": not case.eager}},
        "workload": {
            "batch_groups": case.groups,
            "group_size": case.group_size,
            "prompt_tokens": case.prompt_tokens,
            "max_new_tokens": case.max_new_tokens,
            "lengths": {
                "family": "lognormal",
                "median_tokens": case.median_tokens,
                "between_sd": 0.4,
                "within_sd": 0.6,
            },
        },
        "steps": 1,
        "seed": 0,
    }


def forecast(case: Case, gpu: str) -> dict[str, Any]:
    """Seconds of generation with their 90 % interval, and the length of each rollout by group."""
    result = simulated(**scenario(case, gpu))
    add_intervals(result)
    told = result.summary["phases"]["generation"]
    groups: dict[int, list[int]] = defaultdict(list)
    rows = result.run.segments
    for group, _, tokens in sorted(
        zip(*(rows[key].tolist() for key in ("group", "index", "new_tokens")), strict=True)
    ):
        groups[group].append(tokens)
    seconds = {f"generation_{key}": told[key] for key in ("s", "low_s", "high_s") if key in told}
    return {"values": seconds, "lengths": [groups[group] for group in sorted(groups)]}


def measure(name: str, lengths: list[list[int]], tiny: bool) -> dict[str, Any]:
    """In a process of its own. iterations: number and median seconds of those that prefill nothing,
    by the number of rollouts to the next lower power of two."""
    import torch

    from rollcast.engine.vllm.environment import prepare
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    case = CASES[name]
    on_cpu = prepare()

    class Made(ReplicaOptions):
        """With random weights."""

        def arguments(self, model: str, on_cpu: bool) -> dict[str, Any]:
            more = {"load_format": "dummy", "enforce_eager": case.eager or on_cpu}
            return super().arguments(model, on_cpu) | more

    from transformers import Qwen2Config

    keys = dict(SHAPES[case.model])
    if tiny:
        keys |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        keys |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512}
        lengths = [[min(length, 12) for length in group[:2]] for group in lengths[:2]]
    config = Qwen2Config(**keys, max_position_embeddings=16384, bos_token_id=None, eos_token_id=1)
    config.architectures = ["Qwen2ForCausalLM"]
    options = Made(
        dtype="float32" if on_cpu else "bfloat16",
        max_seqs=case.max_seqs,
        max_batched_tokens=8192,
        kv_tokens=4096 if tiny else None,
        max_model_len=case.prompt_tokens + case.max_new_tokens,
        block_tokens=32 if on_cpu else 16,
        memory_fraction=0.3 if on_cpu else 0.9,
        async_scheduling=case.ahead,
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        replica = VllmReplica(folder, options)
    start_s = time.perf_counter() - began
    vocabulary = keys["vocab_size"] - 2
    draw = torch.Generator().manual_seed(0)

    def run(lengths: list[list[int]], salt: int) -> tuple[float, dict[int, list[float]], int]:
        asked = 0
        for group, its in enumerate(lengths):
            shape = (case.prompt_tokens,)
            prompt = torch.randint(2, vocabulary, shape, generator=draw).tolist()
            for index, length in enumerate(its):
                name = f"{salt}-{group}-{index}"
                replica.submit(name, prompt, max_new_tokens=length, seed=asked, ignore_eos=True)
                asked += 1
        began, made = time.perf_counter(), 0
        seconds: dict[int, list[float]] = defaultdict(list)
        while replica.unfinished:
            made += sum(len(response.token_ids) for response in replica.step())
            done = replica.last_iteration
            if done is not None and not done.work.prefill_tokens and done.work.rollouts:
                seconds[1 << (done.work.rollouts.bit_length() - 1)].append(done.seconds)
        return time.perf_counter() - began, seconds, made

    try:
        run([[4] * 4], 0)  # the first batches load kernels
        run([[8] * case.group_size] * min(8, len(lengths)), 1)
        generation_s, seconds, made = run(lengths, 2)
    finally:
        replica.shutdown()
    if made != sum(map(sum, lengths)):
        raise RuntimeError(f"{made} tokens were made, and not {sum(map(sum, lengths))}")
    return {
        "start_s": start_s,
        "generation_s": generation_s,
        "tokens": made,
        "kv_tokens": replica.limits.kv_tokens,
        "ahead": replica.ahead,
        "iterations": {str(n): [len(s), median(s)] for n, s in sorted(seconds.items())},
    }
