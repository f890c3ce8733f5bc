"""GPUs by the names that drivers and people give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs.presets.gpus import gpu_presets, named_gpu


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA A800-SXM4-40GB", None),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX 5880 Ada Generation", None),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("a6000", "rtx-a6000"),
        ("rtx4090", "rtx-4090"),
        ("h100", "h100-sxm"),
        ("H100-80GB", "h100-sxm"),
        ("h100 80 GB", "h100-sxm"),
        ("a100", "a100-80gb"),
        ("H100 and A100", None),
        ("Quadro", None),
        ("", None),
    ],
)
def test_names(text: str, preset: str | None) -> None:
    assert named_gpu(text) == preset


@pytest.mark.parametrize("name", gpu_presets())
def test_every_preset_is_its_own_name(name: str) -> None:
    assert named_gpu(name) == name
    assert named_gpu(name.upper()) == name


@given(st.text(max_size=60))
def test_any_text_has_a_preset_or_none(text: str) -> None:
    assert named_gpu(text) in {None, *gpu_presets()}
