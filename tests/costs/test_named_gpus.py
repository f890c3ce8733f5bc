"""GPUs by the names that drivers and people give them."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs.presets.gpus import gpu_presets, named_gpu

NAMES = yaml.safe_load((Path(__file__).parents[1] / "data" / "names.yaml").read_text("utf-8"))[
    "gpus"
]


@pytest.mark.parametrize("text", NAMES)
def test_names(text: str) -> None:
    assert named_gpu(text) == NAMES[text]


@pytest.mark.parametrize("name", gpu_presets())
def test_every_preset_is_its_own_name(name: str) -> None:
    assert named_gpu(name) == name
    assert named_gpu(name.upper()) == name


@given(st.text(max_size=60))
def test_any_text_has_a_preset_or_none(text: str) -> None:
    assert named_gpu(text) in {None, *gpu_presets()}
