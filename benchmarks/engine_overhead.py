"""What driving vLLM step by step costs over ``LLM.generate`` of the same requests.

Both engines live in one process, with the same model, limits, sampling and seeds, and take turns;
the tokens they return are compared, so both really did the same work. ``LLM`` is measured as it
comes (its own choice of scheduling) and with the adapter's settings. CPU time is the steadier
measure on a shared machine: one thread does all the work.

    python -m benchmarks.engine_overhead [--requests 192] [--repeats 5]
"""

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS, machine, parser, progress, timed, write_json

MAX_SEQS, MAX_BATCHED_TOKENS, KV_TOKENS, BLOCK_TOKENS = 64, 4096, 65_536, 32
TARGET_RATIO = 1.03

Tokens = list[tuple[int, ...]]
Prompts = Sequence[tuple[int, ...]]


def bare_llm(model: Path, **options: Any) -> Any:
    from vllm import LLM

    from rollcast.engine.quiet import quiet

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


def generate(llm: Any, prompts: Prompts, end: int, cap: int) -> Tokens:
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


def drive(replica: Any, prompts: Prompts, cap: int) -> Tokens:
    for i, prompt in enumerate(prompts):
        replica.submit(str(i), prompt, max_new_tokens=cap, seed=i)
    results = {}
    while replica.unfinished:
        for response in replica.step():
            results[int(response.request_id)] = response.token_ids
    return [results[i] for i in range(len(prompts))]


def in_turns(
    contenders: dict[str, Callable[[], Tokens]], repeats: int
) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each, who begins changing from repeat to repeat."""
    names = list(contenders)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            _, wall_s, cpu_s = timed(contenders[name])
            times[name].append((wall_s, cpu_s))
            progress(f"{name:12} {wall_s:6.2f} s wall {cpu_s:6.2f} s CPU")
    return times


def ratios(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Ours over theirs: the median of the pairs, that of the fastest, and each pair."""
    made: dict[str, Any] = {}
    for i, clock in enumerate(("wall", "cpu")):
        pairs = [a[i] / b[i] for a, b in zip(ours, theirs, strict=True)]
        made[clock] = round(statistics.median(pairs), 4)
        fastest = min(row[i] for row in ours) / min(row[i] for row in theirs)
        made[f"{clock}_of_the_fastest"] = round(fastest, 4)
        made[f"{clock}_all"] = [round(ratio, 4) for ratio in pairs]
    return made


def measure(requests: int, repeats: int) -> dict[str, Any]:
    """The results. Raises SystemExit where the contenders draw different tokens."""
    from rollcast.engine.vllm.environment import prepare, vllm_version

    prepare()
    import torch
    import transformers

    from rollcast.engine.tasks.collatz import CollatzTask
    from rollcast.engine.tasks.tokenizer import END_ID
    from rollcast.engine.tasks.warm_start import warm_start
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    task, model = CollatzTask(), warm_start()
    cap, prompts = task.max_new_tokens, [task.prompt(i, 0).token_ids for i in range(requests)]
    options = ReplicaOptions(
        max_seqs=MAX_SEQS,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        kv_tokens=KV_TOKENS,
        block_tokens=BLOCK_TOKENS,
    )
    replica = VllmReplica(model, options)
    as_it_comes, matched = bare_llm(model), bare_llm(model, async_scheduling=False)
    contenders: dict[str, Callable[[], Tokens]] = {
        "adapter": partial(drive, replica, prompts, cap),
        "llm_default": partial(generate, as_it_comes, prompts, END_ID, cap),
        "llm_matched": partial(generate, matched, prompts, END_ID, cap),
    }
    expected = {name: call() for name, call in contenders.items()}  # warm-up, and the same work
    for name, tokens in expected.items():
        if tokens != expected["adapter"]:
            raise SystemExit(f"{name} drew other tokens than the adapter: nothing to compare.")
    times = in_turns(contenders, repeats)
    scheduler = as_it_comes.llm_engine.vllm_config.scheduler_config
    return {
        "what": "seconds of the adapter over seconds of LLM.generate, same requests",
        "target_ratio": TARGET_RATIO,
        "requests": requests,
        "generated_tokens": sum(map(len, expected["adapter"])),
        "max_seqs": MAX_SEQS,
        "async_scheduling_of_llm_default": bool(scheduler.async_scheduling),
        "median_s": {
            name: {
                "wall": round(statistics.median(wall for wall, _ in rows), 3),
                "cpu": round(statistics.median(cpu for _, cpu in rows), 3),
            }
            for name, rows in times.items()
        },
        "ratio": {n: ratios(times["adapter"], times[n]) for n in contenders if n != "adapter"},
        "provenance": {
            "vllm": vllm_version()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "model": "built-in, float32",
            "repeats": repeats,
        },
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=192)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    result = measure(given.requests, given.repeats)
    write_json(RESULTS / "engine_overhead.json", result)
    print(json.dumps(result["ratio"], indent=1))


if __name__ == "__main__":
    main()
