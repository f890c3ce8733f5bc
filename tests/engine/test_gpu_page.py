"""docs/gpus.md: its scenario is sound, its script is one, and what it says of refusals is so."""

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

import torch

from rollcast.engine.actors.weights import ByFiles
from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.engines import EngineStart
from rollcast.engine.room import Devices, require_room
from rollcast.engine.start import channel
from rollcast.engine.vllm.handles import ByVllmHandles
from rollcast.engine.vllm.wire import ByVllm
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import override, parse_scenario
from tests.refusals import refuses

TEXT = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text("utf-8")


def spec(*settings: str) -> RunSpec:
    scenarios = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (text,) = [scenario for scenario in scenarios if "device: cuda" in scenario]
    task = [
        "engine.task={prompts: p.jsonl, reward: 'a:b'}",
        "workload.batch_groups=4",
        "workload.group_size=4",
        "workload.max_new_tokens=64",
    ]
    raw = override(parse_scenario(text + "workload: {}\n"), [*task, *settings])
    return build_run(raw, elsewhere=True)


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcast.engine.vllm.environment.vllm_version", lambda: ("0.32.0", False))


def test_the_scenario_takes_the_gpus_that_the_page_says() -> None:
    said = spec()
    assert said.shape.gpus == 7
    assert "takes seven GPUs" in TEXT
    assert (said.engine.dtype, said.memory_share) == ("bfloat16", 0.9)


def test_the_scenario_fits_its_gpus(tmp_path: Path) -> None:
    """By the ledger of `rollcast check`: Qwen3-1.7B on GPUs of 80 GB, whose update would not fit in
    microbatches of the whole batch."""
    from transformers import Qwen3Config

    said = spec()
    shape = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    config = Qwen3Config(**shape, **heads, vocab_size=151_936, tie_word_embeddings=True)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    devices = Devices(80 << 30, 0.9, said.shape.gpus_per_replica, said.shape.trainer_gpus)
    given = (1_720_000_000, said.engine.dtype)
    require_room(*given, said.trainer, devices, tmp_path)
    greedy = dataclasses.replace(said.trainer, checkpoint="none", microbatch_tokens=1 << 20)
    with pytest.raises(ScenarioError, match="at its peak"):
        require_room(*given, greedy, devices, tmp_path)


def test_devices_and_shares_reach_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "rollcast.engine.vllm.replica.VllmReplica", lambda path, given: asked.update(vars(given))
    )
    said = spec("engine.weights_by=nccl", "engine.gpu_memory_utilization=0.8")
    EngineStart(
        Path("m"), said.engine, said.sampling, 0, said.memory_share, said.shape.gpus_per_replica
    )()
    expected = {"device": "cuda", "dtype": "bfloat16", "memory_fraction": 0.8}
    expected |= {"tensor_parallel": 2, "transfer": "nccl", "kv_tokens": None}
    assert expected.items() <= asked.items()


def test_how_weights_leave_the_trainer(tmp_path: Path) -> None:
    assert channel(spec()) is None  # the store
    assert isinstance(channel(spec("engine.weights_by=nccl")), ByVllm)
    folder = spec(f"engine.weights_folder={tmp_path}")
    assert channel(folder) == ByFiles(tmp_path.resolve())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["engine.weights_folder=."], "files"),
        (["cluster.placement=colocated", "cluster.trainer_gpus=null"], "make it ipc"),
        (
            ["cluster.placement=colocated", "cluster.replicas=1", "cluster.tensor_parallel=1"],
            "needs no transport",
        ),
    ],
)
def test_nccl_where_it_cannot_be(settings: list[str], message: str) -> None:
    with refuses("engine.weights_by", message):
        spec("engine.weights_by=nccl", *settings)


def test_ipc_where_it_can_be_and_where_not() -> None:
    shared = ["engine.weights_by=ipc", "cluster.placement=colocated", "cluster.trainer_gpus=null"]
    assert isinstance(channel(spec(*shared)), ByVllmHandles)
    for settings, message in (
        (shared[:1], "GPUs of their own; make it nccl"),
        ([*shared[:2], "cluster.trainer_gpus=1"], r"1 of the replicas' \d+ GPUs have a rank"),
        ([*shared, "cluster.replicas=1", "cluster.tensor_parallel=1"], "share a process"),
        ([*shared, "engine.device=cpu"], "which IPC does not reach"),
    ):
        with refuses("engine.weights_by", message):
            spec(*settings)


def test_an_engine_that_no_trainer_wakes() -> None:
    with refuses("engine.sleep", "no trainer shares"):
        spec("engine.sleep=true")


def test_a_model_too_large_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rollcast.engine.start import require_fit

    device = type("Device", (), {"total_memory": 80_000_000_000})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device_: device)
    monkeypatch.setattr("rollcast.engine.start.parameters", lambda path: 100_000_000_000)
    with pytest.raises(ScenarioError, match=r"100\.0 GB of weights"):
        require_fit(spec(), tmp_path)


def test_the_script_is_one(tmp_path: Path) -> None:
    scripts = [code for code in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) if "SBATCH" in code]
    (script,) = scripts
    path = tmp_path / "job.sh"
    path.write_text(script)
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert script.count("#SBATCH") == 6
