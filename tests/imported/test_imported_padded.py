"""TRL pads its updates to the longest completion: fitted so, another cap is forecast as it runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollcast.calibration.fits.steps import steps_of
from rollcast.calibration.judge.advice import what_ifs
from rollcast.calibration.logs.gather import pads_by, read_log
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.stacks.settings import Place, Setting
from tests.logs import genuine
from tests.running import exit_code


def _forecast(
    source: Path, target: Path, out: Path, sets: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], float]:
    """What the scenario of one log says of another's run, and what that took, in seconds."""
    assert exit_code("import", source, "--out", out, "--no-advise", "--json") == 0
    steps = steps_of(read_log([target]))
    quiet = steps.quiet
    overrides = [word for each in (f"steps={quiet.sum()}", *sets) for word in ("--set", each)]
    capsys.readouterr()
    assert exit_code("simulate", out / "scenario.yaml", *overrides, "--draws", 10, "--json") == 0
    return json.loads(capsys.readouterr().out), float(np.nansum(steps.whole_s[quiet]))


@pytest.mark.parametrize(
    ("name", "other", "setting"),
    [
        ("vllm_g8", "vllm_cap96", "workload.max_new_tokens=96"),
        ("vllm_groups16", "vllm_g8", "workload.batch_groups=8"),
    ],
)
def test_another_setting_of_trl(
    name: str, other: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = genuine.log("trl_grpo_cpu")
    said, took = _forecast(root / name, root / other, tmp_path / "mine", [setting], capsys)
    assert abs(said["makespan_s"] / took - 1) <= 0.15


@pytest.mark.parametrize("packs", [False, True, None])
@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("unsaid", [False, True])
def test_passes_that_are_filled_by_tokens_may_be_padded(
    dynamic: bool | None, packs: bool | None, unsaid: bool
) -> None:
    """Others hold a few rollouts, whose longest are not the batch's; a default says nothing."""
    said = {"run.packing": packs, "run.dynamic_batches": dynamic}
    settings = {
        key: Setting(key, its, key, Place("console.log"), unsaid=unsaid)
        for key, its in said.items()
        if its is not None
    }
    assert pads_by(settings) == (dynamic is True and packs is False and not unsaid)


def test_another_group_size_of_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """V1 sees the end of a generation every two seconds, half of what a step takes here: on which
    side of a look it ends is luck."""
    root = genuine.log("verl_files")
    said, took = _forecast(
        root / "sync_g8", root / "sync_n16", tmp_path / "mine", ["workload.group_size=16"], capsys
    )
    assert abs(said["makespan_s"] / took - 1) <= 0.35


def test_packing_that_is_advised_leaves_what_rows_alone_have() -> None:
    padded = {
        "batching": "padded_to_cap",
        "microbatch_rollouts": 4,
        "padded_prompt_tokens": 512,
        "recompute": "none",
    }
    known = SimpleNamespace(parts=[], shape="roofline", cost={"roofline": {"trainer": padded}})
    (packing,) = (
        change
        for change in what_ifs(known, None)  # type: ignore[arg-type]
        if change.key == "packing"
    )
    assert packing.trainer == {"batching": "packed", "recompute": "none"}
    TrainerOptions(**packing.trainer)
