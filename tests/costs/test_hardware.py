"""GPU presets carry provenance; mappings are checked key by key."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs.base import Extremes
from rollcast.simulator.costs.presets.gpus import (
    EFFICIENCIES,
    Gpu,
    Kind,
    figure_names,
    gpu_presets,
    load_gpu,
)
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.costs.trainer.parallel import Layout
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses

NAMES = list(gpu_presets())
BARE = {"memory_bytes": 80e9, "bandwidth_bytes_per_s": 2e12, "bf16_flop_per_s": 3e14}


def test_presets_are_complete_and_every_figure_has_a_source() -> None:
    presets = gpu_presets()
    for gpu in presets.values():
        assert set(gpu.provenance) == set(figure_names())
        for name in figure_names():
            said = gpu.provenance[name]
            assert said.kind in get_args(Kind)
            assert len(said.source) > 10, (gpu.name, name, said)
        assert gpu.provenance["usd_per_hour"].kind == "assumed"
        assert gpu.usd_per_hour > 0
        shares = [getattr(gpu, name) for name in figure_names() if name.endswith("efficiency")]
        assert all(0.05 < share <= 1 for share in shares)


def test_only_gpus_whose_kernels_were_measured_claim_a_fit() -> None:
    fitted = {g.name for g in gpu_presets().values() if "fitted" in g.kinds(EFFICIENCIES)}
    tabled = {"b300", "gb300", "rtx-pro-6000-server"}
    grid = {"gh200"}  # the H100's chip, whose engines were measured (benchmarks/validation)
    assert fitted == {"h100-sxm", "h200-sxm", "a100-80gb", "l40s", "b200", *tabled, *grid}


@pytest.mark.parametrize("name", NAMES)
def test_fewer_bits_are_no_slower_and_peaks_are_dense(name: str) -> None:
    """Half the bits, twice the peak, where the GPU has the type at all; Blackwell Ultra traded int8
    for fp4."""
    gpu = load_gpu(name)
    if gpu.fp8_flop_per_s:
        assert gpu.fp8_flop_per_s / gpu.bf16_flop_per_s == pytest.approx(2.0, rel=0.02)
    ultra = name in ("b300", "gb300")
    if gpu.fp4_flop_per_s:
        geforce = name == "rtx-5090"  # its fp8 runs at half speed, fp4 does not
        times = 3.0 if ultra else 4.0 if geforce else 2.0
        assert gpu.fp4_flop_per_s / gpu.fp8_flop_per_s == pytest.approx(times, rel=0.02)
    if ultra:
        assert 0 < gpu.int8_flop_per_s < 0.1 * gpu.bf16_flop_per_s
    elif name.startswith("v100"):  # before tensor cores multiplied whole numbers
        assert gpu.int8_flop_per_s == 0
    else:
        assert gpu.int8_flop_per_s >= 1.95 * gpu.bf16_flop_per_s


def test_mapping_without_preset_marks_defaults_as_assumed() -> None:
    gpu = Gpu.from_mapping({**BARE, "name": "mine"})
    assert gpu.name == "mine"
    assert gpu.memory_bytes == 80e9
    assert gpu.kinds(figure_names()) == {"assumed"}


def test_mapping_over_a_preset_changes_only_what_it_names() -> None:
    entry = {"value": "2.0", "kind": "measured", "source": "our invoice of May"}
    gpu = load_gpu({"preset": "h100-sxm", "usd_per_hour": entry})
    base = load_gpu("h100-sxm")
    assert gpu.usd_per_hour == 2.0
    assert gpu.provenance["usd_per_hour"].source == "our invoice of May"
    assert gpu.provenance["memory_bytes"] == base.provenance["memory_bytes"]
    assert replace(gpu, usd_per_hour=base.usd_per_hour) == base


def test_unknown_names_offer_the_nearest() -> None:
    with refuses("gpu", r"did you mean .*h100-sxm"):
        load_gpu("H100-SMX")
    with pytest.raises(ScenarioError, match=r"cluster\.gpu: 7"):
        load_gpu(7, "cluster.gpu")  # type: ignore[arg-type]


@given(gpus=st.integers(1, 64))
def test_more_than_two_gpus_share_one_pcie_link_where_it_is_said(gpus: int) -> None:
    own, nvlink = load_gpu("l40s"), load_gpu("h100-sxm")
    assert nvlink.link_bytes_per_s(gpus) == nvlink.interconnect_bytes_per_s
    assert own.link_bytes_per_s(gpus) == own.interconnect_bytes_per_s
    pcie = replace(own, interconnect_shared=True)
    each = pcie.link_bytes_per_s(gpus)
    if gpus <= 2:
        assert each == pcie.interconnect_bytes_per_s
    else:
        assert each * gpus == pytest.approx(pcie.interconnect_bytes_per_s)


def test_gpus_of_a_mesh_use_the_links_among_them() -> None:
    """By hand, of 7 links at 64 GB/s each; layers split over four send as long as that takes."""
    mesh = load_gpu("mi300x")
    links = [mesh.link_bytes_per_s(gpus) / 64e9 for gpus in (2, 3, 4, 8, 16)]
    assert links == pytest.approx([1, 2, 3, 7, 7])
    switched = replace(mesh, mesh_gpus=0)
    assert {switched.link_bytes_per_s(gpus) for gpus in (2, 4, 8)} == {448e9}
    options = TrainerOptions(tensor_parallel=4)
    slow, fast = (
        Layout(load_model("qwen3-8b"), gpu, 8, options).talk_s(10_000).attention
        - 36 * gpu.all_reduce_floor_s
        for gpu in (mesh, switched)
    )
    assert slow == pytest.approx(7 / 3 * fast)


def test_a_gpu_without_bfloat16_is_priced_in_float16_and_says_so() -> None:
    cost = RooflineCost(load_model("qwen3-4b"), load_gpu("v100-32gb"))
    told = [text for text in cost.warnings(Extremes()) if "bfloat16" in text]
    assert len(told) == 1
    assert told[0].startswith("v100-32gb: has no bfloat16")
    assert "125 TFLOP/s" in told[0]
    assert not any(
        "bfloat16" in text for text in replace(cost, gpu=load_gpu("a40")).warnings(Extremes())
    )


@pytest.mark.parametrize(
    ("name", "like", "ratio"),
    [("a800", "a100-80gb", 2.0 / 3.0), ("h800-sxm", "h100-sxm", 4.0 / 9.0)],
)
def test_exported_boards_differ_from_their_like_in_links_and_price_alone(
    name: str, like: str, ratio: float
) -> None:
    cut, whole = load_gpu(name), load_gpu(like)
    assert cut.interconnect_bytes_per_s / whole.interconnect_bytes_per_s == pytest.approx(ratio)
    same = {"name", "provenance", "interconnect_bytes_per_s", "usd_per_hour"}
    for figure in set(figure_names()) - same:
        assert getattr(cut, figure) == getattr(whole, figure), figure
