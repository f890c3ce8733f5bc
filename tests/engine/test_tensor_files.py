"""Our writer of safetensors, read by the library."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from rollcast.engine import tensor_files
from tests.laws import examples

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(TYPES)),
        max_size=5,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, drawn: dict) -> None:
    path: Path = tmp_path_factory.mktemp("file") / "a.safetensors"
    tensors = {name: (torch.randn(shape) * 9).to(kind) for name, (shape, kind) in drawn.items()}
    tensors = {name: t.T if t.dim() == 2 else t for name, t in tensors.items()}
    described = {name: t.to("meta") for name, t in tensors.items()}
    tensor_files.write(path, tensors, described)
    for found in (load_file(path), tensor_files.read(path)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
