"""benchmarks.on_gpu: a stage that fails does not lose the rest; what it runs is a scenario."""

import io
import json
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks import on_gpu
from benchmarks.on_gpu import RUNS, Campaign, Line, StageError
from rollcast.engine.config import build_run
from rollcast.engine.doctor import child
from rollcast.engine.doctor.training import model_in
from rollcast.engine.run import run_scenario
from rollcast.engine.start import start_replica, start_task, start_trainer
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.studies.simulate import from_raw


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Campaign(tmp_path, tmp_path, "cpu", time.monotonic() + 60)


def test_a_stage_that_fails_does_not_lose_the_rest(campaign: Campaign) -> None:
    def fails() -> Line:
        raise StageError("it crashed")

    def breaks() -> Line:
        raise KeyError("runs")

    campaign.stage("a", fails)
    campaign.stage("b", breaks)
    campaign.stage("c", lambda: Line("", "off", 0.0, "wrong by half", {"error": 0.5}))
    campaign.stage("d", lambda: Line("", "ok", 0.0, "right"), after=("c",))
    campaign.stage("e", lambda: Line("", "ok", 0.0, "right"), after=("a", "c"))
    told = json.loads((campaign.out / "summary.json").read_text())
    assert [(line["stage"], line["verdict"]) for line in told] == [
        ("a", "failed"),
        ("b", "failed"),
        ("c", "off"),
        ("d", "ok"),
        ("e", "skipped"),
    ]
    assert [line["says"] for line in told][:2] == ["it crashed", "KeyError: 'runs'"]
    assert on_gpu.table(campaign.lines).count("\n") == 4


def test_a_stage_has_what_time_is_left(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def python(words: Any, limit_s: float, given: str = "", more: Any = None) -> child.Done:
        limits.append(limit_s)
        return child.Done(None, "", "", limit_s)

    monkeypatch.setattr(child, "python", python)
    with pytest.raises(StageError, match="did not end within 30 s"):
        campaign.rollcast("probe", limit_s=30)
    campaign.until = time.monotonic() + 20
    with pytest.raises(StageError, match="did not end within 20 s"):
        campaign.rollcast("probe", limit_s=30)
    campaign.until = time.monotonic() + 2
    with pytest.raises(StageError, match="no time was left"):
        campaign.rollcast("probe", limit_s=30)
    assert limits == pytest.approx([30, 20], abs=0.5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_it_runs_is_a_scenario(device: str, tmp_path: Path) -> None:
    model_in(tmp_path)
    raw = RawScenario(on_gpu.scenario(device, "transformers", str(tmp_path), quick=False))
    spec = build_run(raw, elsewhere=True)
    assert spec.in_process
    assert spec.engine.device == device
    for planned in RUNS.values() if device == "cpu" else ():
        assert from_raw(raw, *planned.words[::2]).policy is not None


def test_where_it_ran_is_told_without_names_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def python(words: list[str], *_: Any, **__: Any) -> child.Done:
        said = io.StringIO()
        with redirect_stdout(said):
            exec(words[1], {})
        return child.Done(0, said.getvalue(), "", 0.1)

    monkeypatch.setattr(child, "python", python)
    told = on_gpu.provenance("cpu")
    assert told["driver"] is None
    assert {"date", "versions", "processor", "gpu", "commit"} <= told.keys()
    assert "/" not in json.dumps(told).replace("\\/", "")


def test_asynchronous_scheduling_is_judged_by_the_responses(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"synchronous": (0.02, [1, 2, 3, 4]), "asynchronous": (0.015, [1, 2, 3, 5])}

    def python(words: list[str], *_: Any, **__: Any) -> child.Done:
        seconds, responses = told[words[2].removeprefix("--")]
        said = json.dumps({"iteration_s": seconds, "responses": responses})
        return child.Done(0, f"a word of vLLM\n{said}\n", "", 0.1)

    monkeypatch.setattr(child, "python", python)
    line = on_gpu.scheduling(campaign)
    assert (line.verdict, line.figures) == ("off", {"ratio": 0.75, "alike": 0.75})
    told["asynchronous"] = told["synchronous"]
    assert on_gpu.scheduling(campaign).verdict == "ok"


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "off"), (2.2, "ok"), (4.0, "off")])
def test_predictions_are_judged_at_the_speed_of_their_runs(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, slower: float, verdict: str
) -> None:
    runs = [{"name": "april", "total": {"error": -0.55}}, {"name": "pods", "total": {"error": 0.0}}]
    told = json.dumps({"runs": runs})
    monkeypatch.setattr(Campaign, "rollcast", lambda *_, **__: child.Done(0, told, "", 0.1))
    monkeypatch.setattr(Campaign, "kept", lambda _, names: [n for n in names if n != "all"])
    monkeypatch.setattr(on_gpu, "times_slower", lambda _, run: slower if run == "april" else 1.0)
    line = on_gpu.forecast(campaign, "predict")
    assert line.verdict == verdict
    assert [line.figures[name]["error"] for name in ("april", "pods")] == [-0.55, 0.0]
    assert line.says.count("at that speed") == (slower > 1)
    assert on_gpu.forecast(campaign, "replay").verdict == "off"  # it knows the speed


def test_runs_that_were_made_count_though_the_rest_failed(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python(*_: Any, **__: Any) -> child.Done:
        raise StageError("it crashed")

    monkeypatch.setattr(Campaign, "python", python)
    with pytest.raises(StageError, match="it crashed"):
        on_gpu.real_runs(campaign)
    with pytest.raises(StageError, match="no synchronous run"):
        on_gpu.calibrate(campaign)
    with pytest.raises(StageError, match="no run of an unseen policy"):
        on_gpu.forecast(campaign, "predict")
    (campaign.out / "sync-0").mkdir()
    told = {"makespan_s": 6.0, "steps": 3, "sync_log_prob_difference": 0.02}
    (campaign.out / "sync-0" / "summary.json").write_text(json.dumps(told))
    line = on_gpu.real_runs(campaign)
    assert line.verdict == "off"
    assert line.figures["sync-0"]["step_s"] == 2.0
    assert line.says.endswith("it crashed")
    assert campaign.kept(RUNS) == ["sync-0"]


def test_stages_by_name(campaign: Campaign) -> None:
    campaign.only = ["b"]
    for name in "ab":
        campaign.stage(name, lambda: Line("", "ok", 0.0, ""))
    assert [line.stage for line in campaign.lines] == ["b"]


def test_runs_with_a_lent_engine_are_those_with_an_engine_of_their_own(tmp_path: Path) -> None:
    """Whatever weights the engine had before."""
    model_in(tmp_path / "model")
    data = on_gpu.scenario("cpu", "transformers", str(tmp_path / "model"), quick=True)
    data["workload"]["max_new_tokens"], data["steps"] = 24, 2
    data["engine"] |= {"max_seqs": 16, "kv_tokens": 4096}
    spec = build_run(override(RawScenario(data), ["policy=april(over_sampling=2)"], None))
    _, path = start_task(spec)
    engine = start_replica(spec, path)
    told = []
    for number, lent in enumerate((None, engine, engine)):
        folder = tmp_path / str(number)
        run_scenario(spec, folder, plot=False, lent=lent)
        updates = [json.loads(line) for line in (folder / "updates.jsonl").read_text().splitlines()]
        kept = ("trained_tokens", "computed_tokens", "mismatch_mean", "entropy")
        told.append([update[key] for update in updates for key in kept])
        if lent is not None:
            assert not engine.unfinished
            weights = start_trainer(spec, path).weights()
            engine.load_weights({name: 2 * weights[name] for name in weights})
    engine.shutdown()
    assert told[1:] == [told[0], told[0]]


def test_every_stage_can_be_asked_for(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Campaign, "stage", lambda _, name, *__, **___: asked.append(name))
    on_gpu.run_all(campaign, "vllm", 1.0)
    assert tuple(asked) == on_gpu.STAGES
