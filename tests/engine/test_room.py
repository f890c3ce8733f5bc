"""A model that cannot fit its devices is refused by arithmetic, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.room import Devices, parameters, require_room
from rollcast.simulator.errors import ScenarioError

GPU = 80_000_000_000


@pytest.mark.parametrize(
    ("count", "dtype", "devices", "field"),
    [
        (8_000_000_000, "bfloat16", Devices(GPU, 0.9), None),  # 16 of 72, 64 of 80
        (8_000_000_000, "float32", Devices(GPU, 0.9), "cluster.trainer_gpus"),  # 128 of 80
        (8_000_000_000, "float32", Devices(GPU, 0.9, ranks=2), None),
        (8_000_000_000, "bfloat16", Devices(GPU, 0.3, shared=True), "cluster.trainer_gpus"),
        (70_000_000_000, "bfloat16", Devices(GPU, 0.9), "cluster.tensor_parallel"),  # 140 of 72
        (70_000_000_000, "bfloat16", Devices(GPU, 0.9, width=2, ranks=8), None),
    ],
)
def test_what_cannot_fit_is_refused(
    count: int, dtype: str, devices: Devices, field: str | None
) -> None:
    if field is None:
        require_room(count, dtype, devices)
        return
    with pytest.raises(ScenarioError) as caught:
        require_room(count, dtype, devices)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_parameters_are_those_of_the_files(tiny_path: Path, tiny_model: Any) -> None:
    assert parameters(tiny_path) == sum(p.numel() for p in tiny_model.parameters())


def test_files_that_cannot_be_read_forbid_nothing(tmp_path: Path) -> None:
    assert parameters(tmp_path) == 0
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert parameters(tmp_path) == 0
