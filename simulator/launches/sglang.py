"""SGLang's share of a GPU's memory, where a launch leaves it to the engine."""

from __future__ import annotations

from collections.abc import Iterator

from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.stacks import STACKS
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.stacks.settings import Settings, value, whole

_MIB, _GIB = 2**20, 2**10  # bytes, and MiB
_SIZES = (
    (20 * _GIB, 2048, 8, 8),
    (35 * _GIB, 2048, 24, 80),
    (60 * _GIB, 4096, 32, 160),
    (160 * _GIB, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
"""Memory below which they hold, in MiB; tokens of a prefill; the largest batch with a CUDA graph,
of engines of up to three GPUs and of larger ones."""
_DRAFT = {"STANDALONE": 6 * _GIB, "NGRAM": 0}


def static_share(memory_bytes: float, gpus: int, prefill: int | None, draft: str | None) -> float:
    """``mem_fraction_static`` of an engine on so many GPUs of so much memory, as
    _handle_gpu_memory_settings of sglang/srt/server_args.py has it since 0.5. prefill: tokens of a
    prefill, None where the launch does not say. draft: the speculative algorithm, if any."""
    memory = memory_bytes / _MIB
    _, tokens, few, many = next(row for row in _SIZES if memory < row[0])
    kept = 512 + 1.5 * max(prefill or tokens, 2048) + 2 * (few if gpus < 4 else many)
    kept += gpus / 8 * _GIB
    if memory > 60 * _GIB:
        kept = max(kept, 10 * _GIB)
    if draft is not None:
        kept += _DRAFT.get(draft.upper(), 2 * _GIB)
    return round(max((memory - kept) / memory, 0.0), 3)


def share_part(known: Settings, preset: str, gpu: object) -> Iterator[Part]:
    """The key of a scenario for it, of a stack whose engine is SGLang on a known GPU. preset: of
    the stack's costs."""
    if value(known, "run.gpu_memory_share") is not None or not isinstance(gpu, str):
        return
    if not str(STACKS[preset].engine).startswith("sglang"):
        return
    gpus = whole(known, "cluster.tensor_parallel") or 1
    draft = value(known, "run.speculation")
    share = static_share(
        load_gpu(gpu, "gpu").memory_bytes,
        gpus * (whole(known, "run.engine_pipeline_parallel") or 1),
        whole(known, "engine.max_batched_tokens"),
        draft if isinstance(draft, str) else None,
    )
    if share > 0:
        source = "SGLang's own, which the launch leaves to it"
        yield Part("cost.roofline.kv_memory_utilization", share, source)
