"""What driving vLLM step by step costs over ``LLM.generate`` of the same requests.

Both engines live in one process, with the same model, limits, sampling and seeds, and take turns;
the tokens they return are compared, so both really did the same work. ``LLM`` is measured as it
comes (its own choice of scheduling) and with the adapter's settings. CPU time is the steadier
measure on a shared machine: one thread does all the work.

    python benchmarks/engine_overhead.py [--requests 192] [--repeats 5]

writes benchmarks/results/engine_overhead.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rollcast.engine.quiet import quiet  # noqa: E402
from rollcast.engine.vllm.environment import prepare  # noqa: E402

prepare()

MAX_SEQS, MAX_BATCHED_TOKENS, KV_TOKENS, BLOCK_TOKENS = 64, 4096, 65_536, 32
TARGET_RATIO = 1.03

Tokens = list[tuple[int, ...]]


def bare_llm(model: Path, **options: Any) -> Any:
    from vllm import LLM

    with quiet():
        return LLM(
            str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            block_size=BLOCK_TOKENS,
            num_gpu_blocks_override=KV_TOKENS // BLOCK_TOKENS + 1,
            kv_cache_memory_bytes=1 << 28,
            max_model_len=2048,
            logprobs_mode="processed_logprobs",
            use_tqdm_on_load=False,
            disable_log_stats=True,
            **options,
        )


def generate(llm: Any, prompts: list[tuple[int, ...]], end: int, cap: int) -> Tokens:
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    params = [
        SamplingParams(
            temperature=1.0,
            seed=i,
            max_tokens=cap,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=[end],
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for i in range(len(prompts))
    ]
    inputs = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def drive(replica: Any, prompts: list[tuple[int, ...]], cap: int) -> Tokens:
    for i, prompt in enumerate(prompts):
        replica.submit(str(i), prompt, max_new_tokens=cap, seed=i)
    results = {}
    while replica.unfinished:
        for response in replica.step():
            results[int(response.request_id)] = response.token_ids
    return [results[i] for i in range(len(prompts))]


def timed(call: Callable[[], Tokens]) -> tuple[Tokens, float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    tokens = call()
    return tokens, time.perf_counter() - wall_s, time.process_time() - cpu_s


def measure(requests: int, repeats: int) -> dict[str, Any]:
    import torch
    import transformers

    from rollcast.engine.tasks.collatz import CollatzTask
    from rollcast.engine.tasks.tokenizer import END_ID
    from rollcast.engine.tasks.warm_start import warm_start
    from rollcast.engine.vllm.environment import vllm_version
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    task, model = CollatzTask(), warm_start()
    prompts = [task.prompt(group, 0).token_ids for group in range(requests)]
    options = ReplicaOptions(
        max_seqs=MAX_SEQS,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        kv_tokens=KV_TOKENS,
        block_tokens=BLOCK_TOKENS,
    )
    replica = VllmReplica(model, options)
    as_it_comes, matched = bare_llm(model), bare_llm(model, async_scheduling=False)
    contenders: dict[str, Callable[[], Tokens]] = {
        "adapter": lambda: drive(replica, prompts, task.max_new_tokens),
        "llm_default": lambda: generate(as_it_comes, prompts, END_ID, task.max_new_tokens),
        "llm_matched": lambda: generate(matched, prompts, END_ID, task.max_new_tokens),
    }
    expected = {name: call() for name, call in contenders.items()}  # warm-up, and the same work
    for name, tokens in expected.items():
        if tokens != expected["adapter"]:
            raise SystemExit(f"{name} drew other tokens than the adapter: nothing to compare.")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    names = list(contenders)
    for repeat in range(repeats):
        for name in names[repeat % 3 :] + names[: repeat % 3]:
            _, wall_s, cpu_s = timed(contenders[name])
            times[name].append((wall_s, cpu_s))
            print(f"{name:12} {wall_s:6.2f} s wall {cpu_s:6.2f} s CPU", flush=True)
    generated = sum(map(len, expected["adapter"]))
    return {
        "what": "seconds of the adapter over seconds of LLM.generate, same requests",
        "target_ratio": TARGET_RATIO,
        "requests": requests,
        "generated_tokens": generated,
        "max_seqs": MAX_SEQS,
        "async_scheduling_of_llm_default": bool(
            as_it_comes.llm_engine.vllm_config.scheduler_config.async_scheduling
        ),
        "median_s": {
            name: {
                "wall": round(statistics.median(w for w, _ in rows), 3),
                "cpu": round(statistics.median(c for _, c in rows), 3),
            }
            for name, rows in times.items()
        },
        "ratio": {name: ratios(times, name) for name in names[1:]},
        "provenance": {
            "vllm": vllm_version()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "model": f"built-in, {sum(p.numel() for p in _parameters())} parameters, float32",
            "repeats": repeats,
        },
    }


def _parameters() -> Any:
    from rollcast.engine.tasks.model import build_model

    return build_model().parameters()


def ratios(times: dict[str, list[tuple[float, float]]], name: str) -> dict[str, Any]:
    pairs = list(zip(times["adapter"], times[name], strict=True))
    wall, cpu = [a[0] / b[0] for a, b in pairs], [a[1] / b[1] for a, b in pairs]
    least = [
        min(row[i] for row in times["adapter"]) / min(row[i] for row in times[name]) for i in (0, 1)
    ]
    return {
        "wall": round(statistics.median(wall), 4),
        "cpu": round(statistics.median(cpu), 4),
        "wall_of_the_fastest": round(least[0], 4),
        "cpu_of_the_fastest": round(least[1], 4),
        "cpu_all": [round(ratio, 4) for ratio in cpu],
        "wall_all": [round(ratio, 4) for ratio in wall],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    result = measure(arguments.requests, arguments.repeats)
    place = ROOT / "benchmarks" / "results" / "engine_overhead.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["ratio"], indent=1))


if __name__ == "__main__":
    main()
