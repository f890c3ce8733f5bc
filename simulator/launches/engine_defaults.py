"""What engines choose by the GPU, where a launch leaves it to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

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
_VLLM_CHOOSES_FROM_BYTES = 70 * 2**30
_VLLM_SEQS = 1024
_CHOOSES_SEQS = (0, 9)
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


_VLLM = "vllm"
_ENGINES = {"sglang": "sglang", _VLLM: "vllm-0.11", "trtllm": "tensorrt-llm"}
"""Presets of engines by the letters with which the word of a launch for them begins."""
_LETTERS = re.compile(r"[a-z]*")
_V1, _V1_ALONE = (0, 8), (0, 11)
"""Releases of vLLM: the first that runs V1 unless told otherwise, and the first without V0."""
_RELEASES = {
    **{(0, 0): "vllm-0.5", (0, 6): "vllm-0.8-v0", _V1: "vllm-0.8", _V1_ALONE: "vllm-0.11"},
    **{(0, 19): "vllm-0.19", (0, 26): "vllm-0.26"},
}
"""Presets of vLLM by the first release that each stands for."""


def priced_engine(said: Any) -> str | None:
    """The preset of an engine that a launch names; None of one whose costs are not known."""
    return _ENGINES.get(_LETTERS.match(str(said).lower())[0])  # type: ignore[index]


def engine_part(known: Settings, preset: str) -> Iterator[Part]:
    """The engine that a launch asks for, where it is not the one of its stack's costs. preset: of
    these."""
    said, own = known.get("run.engine"), str(STACKS[preset].engine)
    wanted = None if said is None else priced_engine(said.value)
    if said is None or wanted is None or _kind(wanted) == _kind(own):
        wanted = own
    source = "" if said is None else said.source
    if _kind(wanted) == _VLLM and (released := _vllm(known, wanted)) != wanted:
        told = known.get("run.engine_release") or known["run.engine_v1"]
        wanted, source = released, told.source
    if wanted != own:
        yield Part("cost.roofline.engine", wanted, source)


def _kind(engine: str) -> str:
    return engine.partition("-")[0]


def _vllm(known: Settings, otherwise: str) -> str:
    """The preset of the release of vLLM that a launch tells. otherwise: where it tells none, or a
    lower bound that the one of its stack keeps."""
    told, at_least = _release(known)
    engine = str(value(known, "run.engine_v1"))
    if told is None or (at_least and told <= _ordered(otherwise)):
        return _RELEASES[0, 6] if engine == "0" else otherwise
    if (0, 7) <= told < _V1_ALONE and engine in ("0", "1"):
        return _RELEASES[_V1] if engine == "1" else _RELEASES[0, 6]
    return _RELEASES[max(first for first in _RELEASES if first <= told)]


def _release(known: Settings) -> tuple[tuple[int, ...] | None, bool]:
    """The release of vLLM that a launch tells, and whether it is the least alone."""
    said = str(value(known, "run.engine_release") or "")
    return (_ordered(said) if said else None), said.startswith(">=")


def _ordered(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name.partition("-v")[0])[:2]))


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


def shared_parts(known: Settings) -> Iterator[Part]:
    """Of Unsloth's engine, which computes with the trainer's weights below its adapters (load_vllm
    and get_vllm_state_dict of unsloth_zoo/vllm_utils.py), and gets these alone (load_lora)."""
    shares = value(known, "run.patched") is True and value(known, "run.engine") is True
    if shares and whole(known, "run.lora_rank"):
        source = f"{known['run.engine'].source}, in Unsloth"
        yield Part("cost.roofline.shares_weights", True, source)
        yield Part("cost.roofline.merges_adapters", False, source)


def seqs_part(known: Settings, preset: str, gpu: object) -> Iterator[Part]:
    """How many rollouts vLLM runs at once on large GPUs but the A100, of a stack that leaves it to
    vLLM: get_batch_defaults of vllm/engine/arg_utils.py, since 0.9; 256 on others, as scenarios
    have it. preset: of the stack's costs."""
    stack, key = STACKS[preset], "engine.max_seqs"
    if value(known, key) is not None or stack.max_seqs is not None or not isinstance(gpu, str):
        return
    own = str(stack.engine)
    if not str(value(known, "run.engine") or _kind(own)).lower().startswith(_VLLM):
        return
    engine, (told, _) = _vllm(known, own), _release(known)
    if engine == _RELEASES[0, 6] or (told or _ordered(engine)) < _CHOOSES_SEQS:
        return
    if gpu.startswith("a100"):
        return
    if load_gpu(gpu, "gpu").memory_bytes < _VLLM_CHOOSES_FROM_BYTES:
        return
    most = whole(known, "engine.max_batched_tokens") or _VLLM_SEQS
    source = "vLLM's own on this GPU, which the launch leaves to it"
    yield Part(key, min(_VLLM_SEQS, most), source)
