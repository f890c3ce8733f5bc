"""What `benchmarks.gpu_cases` measures, on a CPU: tiny models, and what is out of memory."""

from typing import Any

import torch

from benchmarks.gpu import updates
from benchmarks.gpu.cases import Case, all_cases
from benchmarks.gpu.child import _one

CPU = torch.device("cpu")


def _case(name: str) -> Case:
    return next(case for case in all_cases(tiny=True) if case.name == name)


def test_an_update_computes_a_shared_prompt_once() -> None:
    dense, shared = (_case(f"0.5b 2048x16 {layout}") for layout in ("dense", "shared"))
    told = [updates.update(case, CPU) for case in (dense, shared)]
    prefix, rest = shared.prompt - 1, shared.rollouts * shared.response
    assert [one["computed_tokens"] for one in told] == [
        shared.rollouts * prefix + rest,
        prefix + rest,
    ]
    assert all(one["update_s"] > 0 for one in told)


def test_gradients_of_both_layouts_agree() -> None:
    told = updates.gradients(_case("gradients"), CPU)
    assert told["shared float32 apart"] < 1e-4
    assert told["shared bfloat16 apart"] < 0.05


def test_out_of_memory_is_a_result() -> None:
    def much() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    result, spent = _one(much, CPU)
    assert result["outcome"] == "out_of_memory"
    assert not spent
