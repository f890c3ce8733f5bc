"""vLLM on one GPU: ``python -m benchmarks.gpu_cases ... --suite engine``.

A case is a batch of rollouts of a model of real shape with random weights. The forecast is a
simulation from presets alone; it draws the length of each rollout, and the engine is asked for just
these lengths. So what may differ are the costs, and not the lengths. Cases of one engine share it.
"""

import fcntl
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.cases import tiny_model
from benchmarks.runner import ROOT, markdown_table, simulated
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.studies.uncertainty import add_intervals

MEASURED = ("h100/vllm", "h200-second/vllm", "h100-second/vllm")
"""In ``benchmarks/data/gpu``: forecasts and what was measured."""


@dataclass(frozen=True)
class Case:
    """A batch. eager: without CUDA graphs. ahead: asynchronous scheduling. layers: of a model that
    is cut to its first ones. kv_tokens: of the pool."""

    model: str
    groups: int
    prompt_tokens: int
    median_tokens: float
    max_new_tokens: int
    max_seqs: int = 256
    group_size: int = 8
    eager: bool = False
    ahead: bool | None = None
    layers: int | None = None
    kv_tokens: int = 262_144

    @property
    def spec(self) -> Model:
        """The model's shapes."""
        model = load_model(self.model)
        return model if self.layers is None else replace(model, layers=self.layers)

    @property
    def engine(self) -> tuple[Any, ...]:
        """What cases that share an engine have in common."""
        return (self.model, self.layers, self.max_seqs, self.eager, self.ahead, self.kv_tokens)


CASES = {
    "1.5b": Case("qwen2.5-1.5b", 32, 256, 400, 1024),
    "7b": Case("qwen2.5-7b", 32, 512, 400, 1024),
    "1.5b, queued": Case("qwen2.5-1.5b", 64, 256, 300, 768),
    "7b, few": Case("qwen2.5-7b", 2, 2048, 300, 512),
    "1.5b, one after the other": Case("qwen2.5-1.5b", 32, 256, 400, 1024, ahead=False),
    "1.5b, eager": Case("qwen2.5-1.5b", 16, 256, 150, 256, eager=True),
    "0.5b": Case("qwen2.5-0.5b", 32, 256, 400, 1024),
    "7b, long": Case("qwen2.5-7b", 4, 6144, 300, 512),
    "mixture": Case("qwen3-30b-a3b", 32, 256, 400, 1024, layers=24),
    "mixture, few": Case("qwen3-30b-a3b", 2, 256, 300, 512, layers=24),
}


def scenario(case: Case, gpu: str) -> dict[str, Any]:
    """What is simulated: our loop, and the trainer on GPUs of its own, so that it is not in the
    way."""
    roofline: dict[str, Any] = {"stack": "rollcast", "cuda_graphs": not case.eager}
    if case.ahead is not None:
        roofline["host_overlaps"] = case.ahead
    return {
        "model": case.model
        if case.layers is None
        else {"preset": case.model, "layers": case.layers},
        "gpu": gpu,
        "cluster": {"placement": "disaggregated", "replicas": 1, "trainer_gpus": 8},
        "engine": {
            "max_seqs": case.max_seqs,
            "max_batched_tokens": 8192,
            "kv_tokens": case.kv_tokens,
        },
        "cost": {"roofline": roofline},
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


@cache
def forecast(case: Case, gpu: str) -> dict[str, Any]:
    """Seconds of generation with their 90 % interval, and the length of each rollout by group."""
    result = simulated(**scenario(case, gpu))
    add_intervals(result, sources=False)
    told = result.summary["phases"]["generation"]
    groups: dict[int, list[int]] = defaultdict(list)
    rows = result.run.segments
    for group, _, tokens in sorted(
        zip(*(rows[key].tolist() for key in ("group", "index", "new_tokens")), strict=True)
    ):
        groups[group].append(tokens)
    seconds = {f"generation_{key}": told[key] for key in ("s", "low_s", "high_s") if key in told}
    return {"values": seconds, "lengths": [groups[group] for group in sorted(groups)]}


@cache
def judged() -> list[tuple[str, str, dict[str, float], float]]:
    """Of what was measured: GPU and which of its kind, case, today's forecast (`forecast`) and
    measured seconds."""
    rows = []
    for name in MEASURED:
        file = ROOT / "benchmarks" / "data" / "gpu" / name
        gpu = json.loads(file.with_name("vllm-forecast.json").read_text("utf-8"))["gpu"]
        machine = f"{gpu}, second" if "second" in name else gpu
        cases = json.loads(file.with_suffix(".json").read_text("utf-8"))["cases"]
        for which, row in cases.items():
            if row["outcome"] == "ok":
                said = forecast(CASES[which], gpu)["values"]
                rows.append((machine, which, said, row["values"]["generation_s"]))
    return rows


def table(_: Path) -> str:
    """Those as Markdown."""
    cells = []
    for gpu, name, said, seconds in judged():
        low, middle, high = (said[f"generation_{key}"] for key in ("low_s", "s", "high_s"))
        said_s = f"{middle:.1f} ({low:.1f} to {high:.1f})"
        cells.append((name, gpu, said_s, f"{seconds:.1f}", f"{seconds / middle:.2f}"))
    return markdown_table(
        ("batch", "GPU", "forecast, s (90 %)", "measured, s", "measured / forecast"), cells
    )


class Measured:
    """The engine of some cases, started for the first that is asked for. asked: the file of their
    forecasts, which processes that run at once also take turns by: none measures while another
    starts or measures."""

    def __init__(self, asked: Path, tiny: bool) -> None:
        self.asked, self.tiny = asked, tiny
        self._cases = json.loads(asked.read_text("utf-8"))["cases"]
        self._replica: Any = None
        self._start_s = 0.0

    def case(self, name: str) -> dict[str, Any]:
        """What was measured. iterations: number and median seconds of those that prefill nothing,
        by the number of rollouts to the next lower power of two."""
        if self._replica is None:
            with _held(self.asked, fcntl.LOCK_SH):
                began = time.perf_counter()
                self._replica = _started(CASES[name], self.tiny)
                self._start_s = time.perf_counter() - began
        with _held(self.asked, fcntl.LOCK_EX):
            return {"start_s": self._start_s, **self._measured(name)}

    def _measured(self, name: str) -> dict[str, Any]:
        case, lengths = CASES[name], self._cases[name]["lengths"]
        if self.tiny:
            lengths = [[min(length, 12) for length in group[:2]] for group in lengths[:2]]
        self._run(case, [[4] * 4], f"{name} 0")  # the first batches load kernels
        self._run(case, [[8] * case.group_size] * min(8, len(lengths)), f"{name} 1")
        generation_s, seconds, made = self._run(case, lengths, f"{name} 2")
        if made != sum(map(sum, lengths)):
            raise RuntimeError(f"{made} tokens were made, and not {sum(map(sum, lengths))}")
        return {
            "generation_s": generation_s,
            "tokens": made,
            "kv_tokens": self._replica.limits.kv_tokens,
            "ahead": self._replica.ahead,
            "iterations": {str(n): [len(s), median(s)] for n, s in sorted(seconds.items())},
        }

    def _run(
        self, case: Case, lengths: list[list[int]], salt: str
    ) -> tuple[float, dict[int, list[float]], int]:
        """Seconds, seconds of iterations, and the tokens that were made."""
        draw, replica, count = random.Random(salt), self._replica, 0
        vocabulary = _spec(case, self.tiny).vocab
        for group, its in enumerate(lengths):
            prompt = [draw.randrange(2, vocabulary - 2) for _ in range(case.prompt_tokens)]
            for index, length in enumerate(its):
                rollout = f"{salt}-{group}-{index}"
                replica.submit(rollout, prompt, max_new_tokens=length, seed=count, ignore_eos=True)
                count += 1
        began, made = time.perf_counter(), 0
        seconds: dict[int, list[float]] = defaultdict(list)
        while replica.unfinished:
            made += sum(len(response.token_ids) for response in replica.step())
            done = replica.last_iteration
            if done is not None and not done.work.prefill_tokens and done.work.rollouts:
                seconds[1 << (done.work.rollouts.bit_length() - 1)].append(done.seconds)
        return time.perf_counter() - began, seconds, made


@contextmanager
def _held(file: Path, how: int) -> Iterator[None]:
    with file.open() as held:
        fcntl.flock(held, how)
        yield


def _spec(case: Case, tiny: bool) -> Model:
    return tiny_model(case.spec) if tiny else case.spec


def _started(case: Case, tiny: bool) -> Any:
    """An engine for the case and all that share it, of random weights."""
    from benchmarks.gpu.models import config_of
    from rollcast.engine.vllm.environment import prepare
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    on_cpu = prepare()

    class Made(ReplicaOptions):
        """With random weights and a pool of so many tokens: engines may start side by side."""

        def arguments(self, model: str, on_cpu: bool) -> dict[str, Any]:
            more = {"load_format": "dummy", "enforce_eager": case.eager or on_cpu}
            more["kv_cache_memory_bytes"] = 1 << 28  # the number of blocks decides
            return super().arguments(model, on_cpu) | more

    sharing = [one for one in CASES.values() if one.engine == case.engine]
    config = config_of(case.model, _spec(case, tiny))
    config.eos_token_id, config.max_position_embeddings = 1, 16384
    options = Made(
        dtype="float32" if on_cpu else "bfloat16",
        max_seqs=case.max_seqs,
        max_batched_tokens=8192,
        kv_tokens=8192 if tiny else case.kv_tokens,
        max_model_len=max(one.prompt_tokens + one.max_new_tokens for one in sharing),
        block_tokens=32 if on_cpu else 16,
        memory_fraction=0.3 if on_cpu else 0.05,
        async_scheduling=case.ahead,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return VllmReplica(folder, options)
