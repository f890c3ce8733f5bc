"""What goes wrong in a real run: it stops, says why in one sentence, and resumes.

Faults are injected at the seam between the engine and what it calls; vLLM and torch are real.
"""

import csv
import errno
import json
import os
import re
import resource
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

import run_rewards
import torch
from run_homes import STEPS, Home, Outcome, outcome, require_same, save_at_once

from rollcast.engine.config import build_run
from rollcast.engine.start import start_replica
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import override, parse_scenario, read_scenario
from tests.refusals import refuses

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine.yaml"
HINT = "add --resume to go on from the last step that was saved"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What the last run wrote on stderr: how to go on, and why it stopped in one sentence."""

    def read(*, saved: bool = True) -> str:
        text = capsys.readouterr().err
        assert "Traceback" not in text
        lines = text.splitlines()
        assert lines[:-1] == ([HINT] if saved else []), text
        assert lines[-1].startswith("error: ")
        return lines[-1]

    capsys.readouterr()
    return read


def test_vllm_raises_in_a_step(home: Home, whole: Outcome, said: Any) -> None:
    calls, step = count(), home.replica._engine.step

    def failing() -> Any:
        if home.replica.version == 2 and next(calls) == 5:
            raise RuntimeError("the KV cache is on fire\nand much more about it")
        return step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home.replica._engine, "step", failing)
        assert home.run() == 2
    expected = "vLLM failed in an iteration: RuntimeError: the KV cache is on fire"
    assert said() == f"error: {expected}"
    assert home.run("--resume") == 0
    require_same(outcome(home), whole, 2)


def test_vllm_hangs_in_a_step(home: Home, said: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls, step = count(), home.replica._engine.step

        def hanging() -> Any:
            number = next(calls) if home.replica.version == 1 else 0
            if number == 2:  # no sooner, as a busy machine takes long, too
                patch.setattr(home.replica, "_step_timeout_s", 0.5)
            if number == 3:
                time.sleep(30)
            return step()

        patch.setattr(home.replica._engine, "step", hanging)
        assert home.run() == 2
    assert "vLLM did not return from an iteration within 0.5 s" in said()


def test_vllm_finds_no_work(home: Home, said: Any) -> None:
    """Rollouts wait, but the scheduler schedules nothing."""
    manager = home.replica._scheduler.kv_cache_manager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "allocate_slots", lambda *args, **kwargs: None)  # the pool is full
        patch.setattr(home.replica, "_stall_iterations", 4)
        assert home.run() == 2
    assert "vLLM stalled: rollout 0/0 waits, but 4 iterations in a row scheduled" in said(
        saved=False
    )
    assert not home.running.exists()  # there is no step to go on from


def test_a_full_disk_while_saving(home: Home, whole: Outcome) -> None:
    """A shard may grow to half of what it needs; the saves before stay whole."""
    from rollcast.engine.trainer.shard_files import ShardWriter

    with pytest.MonkeyPatch.context() as patch:
        save_at_once(patch)
        begin, calls = ShardWriter.begin, count()

        def on_full_disk(self: ShardWriter, *arguments: Any) -> None:
            if next(calls) == 1:
                shard = next(home.running.glob("trainer-*/*.safetensors"))
                half = shard.stat().st_size // 2
                resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))
            begin(self, *arguments)

        patch.setattr(ShardWriter, "begin", on_full_disk)
        status, text = home.in_child()
    assert os.WEXITSTATUS(status) == 2
    assert text.splitlines()[:-1] == [HINT]
    assert text.splitlines()[-1].startswith("error: cannot save the run to ")
    assert sorted(path.name for path in home.running.iterdir()) == [
        "checkpoint-1.json",
        "checkpoint-2.json",
        "events.out.tfevents.rollcast",
        "journal.jsonl",
        "state-1.json",
        "state-2.json",
        "tokens-1.safetensors",
        "tokens-2.safetensors",
        "trainer-2",
    ]
    assert home.run("--resume") == 0
    require_same(outcome(home), whole, 1)


def test_a_full_disk_while_writing_the_results(home: Home, whole: Outcome, said: Any) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollcast.engine.run.write_json", full)
        assert home.run() == 2
    assert "No space left on device" in said()
    assert not home.out.exists()
    assert home.run("--resume") == 0
    require_same(outcome(home), whole, STEPS)


def test_a_loss_that_is_not_finite(home: Home, said: Any) -> None:
    from rollcast.engine.trainer.trainer import Trainer

    step = Trainer.step

    def poisoned(self: Trainer, groups: Any, **options: Any) -> Any:
        weight = next(self.model.parameters())
        if options["version"] == 2:
            with torch.no_grad():
                weight.fill_(float("nan"))
        return step(self, groups, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", poisoned)
        assert home.run() == 2
    assert "the loss of an update is nan" in (text := said())
    assert "is nan" in text


def test_the_trainer_runs_out_of_memory(home: Home, whole: Outcome, said: Any) -> None:
    from rollcast.engine.trainer.trainer import Trainer

    calls, apply = count(), Trainer._apply

    def starved(*arguments: Any) -> None:
        if next(calls) == 3:  # after the first of two minibatches
            raise torch.OutOfMemoryError("tried to allocate 20 GiB")
        apply(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_apply", starved)
        assert home.run() == 2
    text = said()
    assert "the update of step 1 failed: OutOfMemoryError: tried to allocate 20 GiB" in text
    assert home.run("--resume") == 0
    require_same(outcome(home), whole, 1)


def test_a_reward_function_that_fails(home: Home, said: Any) -> None:
    run_rewards.arm("raise", after=20)
    assert home.run() == 0
    warnings = json.loads((home.out / "summary.json").read_text())["warnings"]
    says = r"\d+ rewards failed and count as engine.task.reward_failed: the reward function "
    says += "run_rewards:even raised KeyError: 'the judge is out'"
    assert any(re.match(says, warning) for warning in warnings)
    with (home.out / "failures.csv").open() as file:
        failed = {(row["group"], row["index"]) for row in csv.DictReader(file)}
    with (home.out / "rollouts.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["finished"] == "1"]
    rewards = {(row["group"], row["index"]): row["reward"] for row in rows}
    assert len(rewards) - 20 == len(failed) > 20
    assert {rewards[key] for key in failed} == {"0.0"}


def test_a_prompt_longer_than_the_context(home: Home, said: Any) -> None:
    text = "x" * 300
    (home.folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{text}{i}"}) + "\n" for i in range(9))
    )
    assert home.run() == 2
    assert "needs 301 prompt and up to 24 response tokens, but" in said(saved=False)


# Scenarios that are wrong are refused before anything starts


WRONG = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))["faults"]


@pytest.mark.parametrize(("field", "message", "settings"), [(f, m, s) for f, m, *s in WRONG])
def test_a_wrong_scenario_names_its_key(settings: list[str], field: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        build_run(override(read_scenario(EXAMPLE), settings))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert (
        "--set" in str(caught.value)
        or "engine.yaml, line" in str(caught.value)
        or ("missing" in message)
    )


@pytest.mark.parametrize(
    ("on_cpu", "device", "message"),
    [
        (False, "cpu", "is cpu, but the vLLM here is built for GPUs; make it cuda"),
        (True, "cuda:1", "is cuda:1, but the vLLM here is built for CPUs"),
        (False, "cuda:2", "is cuda:2, but torch sees 2 GPUs here"),
        (False, "cuda:1", None),
        (True, "cpu", None),
    ],
)
def test_the_device_is_of_trainer_and_engine_alike(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool, device: str, message: str | None
) -> None:
    monkeypatch.setattr("rollcast.engine.vllm.environment.vllm_version", lambda: ("0.32.0", on_cpu))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = [f"engine.device={device}", "engine.gpu_memory_utilization=0.45"]
    raw = override(read_scenario(EXAMPLE), settings)
    if message is not None:
        with pytest.raises(ScenarioError, match=f"engine.device: {message}"):
            build_run(raw)
        return
    started: dict[str, Any] = {}
    monkeypatch.setattr(
        "rollcast.engine.vllm.replica.VllmReplica", lambda path, given: started.update(vars(given))
    )
    start_replica(build_run(raw), Path("model"))
    assert (started["device"], started["memory_fraction"]) == (device, 0.45)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (["cluster.replicas=2", "cluster.trainer_gpus=1"], 3),
        (["cluster.tensor_parallel=4", "cluster.trainer_gpus=1"], 5),
        (["cluster.replicas=1", "cluster.trainer_gpus=1"], None),
    ],
)
def test_more_gpus_than_there_are(
    monkeypatch: pytest.MonkeyPatch, settings: list[str], asked: int | None
) -> None:
    """Said before anything starts; those of a cluster elsewhere are counted there."""
    monkeypatch.setattr("rollcast.engine.vllm.environment.vllm_version", lambda: ("0.32.0", False))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    apart = ["engine.device=cuda", "cluster.placement=disaggregated"]
    raw = override(read_scenario(EXAMPLE), [*apart, *settings])
    spec = build_run(raw, elsewhere=True)
    assert spec.memory_share == 0.9  # a replica has its GPUs to itself
    if asked is None:
        assert build_run(raw).shape.gpus == 2
        return
    assert spec.shape.gpus == asked
    with refuses("cluster.replicas", f"takes {asked} GPUs, but torch sees 2 here"):
        build_run(raw)


def test_vllm_leaves_room_for_a_trainer_on_the_same_gpu() -> None:
    assert build_run(read_scenario(EXAMPLE)).memory_share == 0.3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ScenarioError, match=r"engine\.device: is cuda, but torch sees no GPU"):
        build_run(override(read_scenario(EXAMPLE), ["engine.device=cuda"]))


def test_the_line_of_a_wrong_key_is_named() -> None:
    text = EXAMPLE.read_text().replace("learning_rate: 1.0e-4", "learning_rate: fast")
    line = 1 + text[: text.index("learning_rate: fast")].count("\n")
    with pytest.raises(ScenarioError, match=f"scenario, line {line}"):
        build_run(parse_scenario(text))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["engine.task.reward=run_rewards:odd"], "has no function odd"),
        (["engine.task.reward=nowhere:odd"], "cannot be imported"),
        (["engine.task.prompts=none.jsonl"], "engine.task.prompts: "),
        (["engine.task.chat=true"], "has no chat template"),
        (["engine.trainer.learning_rate=fast"], "engine.trainer.learning_rate: "),
    ],
)
def test_what_is_wrong_with_a_task_is_said_before_the_engine_starts(
    home: Home, said: Any, monkeypatch: pytest.MonkeyPatch, settings: list[str], message: str
) -> None:
    monkeypatch.setattr("rollcast.engine.start.start_replica", None)
    assert home.run(*(part for setting in settings for part in ("--set", setting))) == 2
    assert message in said(saved=False)


def test_weights_that_cannot_be_read(home: Home, said: Any) -> None:
    (home.folder / "model" / "model.safetensors").write_bytes(b"not a model")
    assert home.run() == 2
    assert "engine.model: the model in model cannot be loaded: " in said(saved=False)


def test_the_defaults_are_those_of_the_trainer() -> None:
    spec = build_run(read_scenario(EXAMPLE))
    assert spec.trainer.loss.aggregation == "token_mean"
    assert spec.trainer.loss.clip_low == 0.2
    assert (spec.trainer.minibatches, spec.trainer.seed) == (2, spec.seed)
    hot = build_run(override(read_scenario(EXAMPLE), ["engine.sampling.temperature=0.7"]))
    assert hot.trainer.temperature == hot.sampling.temperature == 0.7
