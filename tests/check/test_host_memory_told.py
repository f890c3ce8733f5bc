"""Host memory in the answer to a launch: asked for, read from Slurm's headers, told where it
decides, and lifted by the changes that are shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from check.launches import VERL, launched

from rollcast.simulator.check import search
from rollcast.simulator.check.answer import Answer, answer
from rollcast.simulator.check.question import question
from rollcast.simulator.check.words import headline, on_host
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch

pytestmark = pytest.mark.usefixtures("quick_intervals")

_ACTOR = "actor_rollout_ref.actor.fsdp_config"
OFFLOADED = {**VERL, f"{_ACTOR}.param_offload": True, f"{_ACTOR}.optimizer_offload": True}
TRL = (
    "from trl import GRPOConfig\n"
    "GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_completion_length=512,\n"
    '           max_steps=10, deepspeed="zero.json")\n'
)


def _answer(host_memory: str | None, changes: bool = False) -> Answer:
    parts = given(None, "h100-sxm", host_memory)
    asked = Asked(parts=parts, mean_tokens=800.0, prompt_tokens=200)
    return answer(question(launched(OFFLOADED), asked), changes)


@pytest.fixture(scope="module")
def short() -> Answer:
    """A launch that needs more host memory than its node has, and fits otherwise."""
    return _answer("200GB", changes=True)


def test_too_little_host_memory_is_the_first_answer(short: Answer) -> None:
    ledger = short.ledger
    assert not short.fits
    assert ledger.peak.left_bytes > 0
    text = headline(short)
    assert text.startswith("No")
    assert f"{ledger.host_total / 1e9:.0f} GB of host memory" in text
    assert "may use 190 GB, since Ray ends workers at 95% of 200 GB" in text
    assert not on_host(short)


def test_the_change_that_is_offered_lifts_it(short: Answer) -> None:
    assert short.fixes
    first = short.fixes[0].change
    assert first.ledger.host_total < (first.ledger.host_capacity_bytes or 0.0)
    assert first.ledger.fits
    assert "of host memory" in headline(short).partition("Add")[2]


def test_what_brings_a_node_nearer_to_its_host_memory_helps(short: Answer) -> None:
    """Sets of changes are made of those that leave less over, on GPUs and hosts together."""
    ledger = short.ledger
    over = ledger.host_total - (ledger.host_capacity_bytes or 0.0)
    assert search._excess(ledger) == pytest.approx(over)
    assert search._excess(replace(ledger, host_capacity_bytes=None)) == 0


def test_it_is_timed_as_if_it_fit(short: Answer) -> None:
    ample = _answer("10TB")
    assert ample.fits
    assert short.forecast.step.median == pytest.approx(ample.forecast.step.median, rel=1e-6)


def test_what_waits_there_is_told_without_being_asked_for() -> None:
    unknown = _answer(None)
    assert unknown.fits
    assert on_host(unknown).endswith("give --host-memory to have that checked.")
    assert unknown.plain()["host_capacity_bytes"] is None
    known = _answer("2TiB")
    assert on_host(known).startswith("A node needs ")
    assert known.plain()["host_capacity_bytes"] == round(0.95 * 2 * 2**40)


@pytest.mark.parametrize(
    ("text", "size"), [("512GB", 512e9), ("512", 512e9), ("1.5TiB", 1.5 * 2**40), ("2 tb", 2e12)]
)
def test_sizes_of_host_memory(text: str, size: float) -> None:
    assert given(None, None, text)[0].value == pytest.approx(size)


@pytest.mark.parametrize("text", ["", "0", "lots", "-3GB", "512MB", "1e3GB", "5 5GB", "٣GB"])
def test_what_is_no_size_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ScenarioError, match="--host-memory") as error:
        given(None, None, text)
    assert "512GB" in error.value.message


@pytest.mark.parametrize(
    ("header", "size"),
    [("--mem=480G", 480 * 2**30), ("--mem 512000", 512000 * 2**20), ("--mem=2T", 2 * 2**40)],
)
def test_slurm_says_what_a_node_has(header: str, size: float, tmp_path: Path) -> None:
    assert _read(header, tmp_path)["run.host_memory_bytes"].value == size


@pytest.mark.parametrize("header", ["--mem=0", "--mem=all", "--mem", "--mem-per-gpu=64G"])
def test_slurm_says_nothing_of_it(header: str, tmp_path: Path) -> None:
    assert "run.host_memory_bytes" not in _read(header, tmp_path)


def _read(header: str, folder: Path) -> Any:
    words = " ".join(f"{key}={value}" for key, value in VERL.items())
    path = folder / "run.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH {header}\npython3 -m verl.trainer.main_ppo {words}\n")
    return read_launch(path).settings


def test_python_names_the_configuration_of_deepspeed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRL)
    missing = read_launch(script)
    assert any("zero.json is not read" in note for note in missing.notes)
    (tmp_path / "zero.json").write_text(
        '{"zero_optimization": {"stage": 3, "offload_optimizer": '
        '{"device": "cpu", "pin_memory": false}}}'
    )
    found = read_launch(script).settings
    assert found["run.zero_stage"].value == 3
    assert found["run.cpu_optimizer"].value is True
    assert found["run.pinned_optimizer"].value is False
