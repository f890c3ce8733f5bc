"""``rollcast import`` with its fits: what it prints, writes, escapes and refuses."""

import json
import pprint
import re
from pathlib import Path

import numpy as np
import pytest

from rollcast.calibration.fits.steps import changes, steps_of
from rollcast.calibration.importing import outcome
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.pages.import_page import page
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import given
from tests.imported import truth
from tests.logs import written
from tests.running import exit_code


def _rows(steps: int, **columns: float) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    found = []
    for step in range(1, steps + 1):
        mean = 300 * float(np.exp(0.1 * rng.standard_normal()))
        made, update = mean / 20, mean / 30
        found.append(
            {
                "step": step,
                "step_s": made + update + 1,
                "generation_s": made,
                "update_s": update,
                "mean_new_tokens": mean,
                "max_new_tokens": 4 * mean,
                "truncated_share": 0.0,
                "mean_prompt_tokens": 50.0,
                "rollouts": 64.0,
                **columns,
            }
        )
    return found


def test_the_whole_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "<b>run</b>.csv", tmp_path / "mine"
    written.table(log, _rows(30))
    assert exit_code("import", log, "--out", out) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "forecast of steps 21 to 30, predicted" in said
    assert "what would make it faster" in said
    assert "A step is bound by generation in all logged steps." in said
    assert "shares of a step: generation (generation_s) " in said
    content = json.loads((out / "fitted.json").read_text())
    assert content["schema"] == "rollcast-fitted/1"
    assert content["lengths"]["lengths"]["median_tokens"] > 100
    assert content["imported"]["hold_out"][0]["steps"] == list(range(21, 31))
    assert content["imported"]["hold_out"][0]["median_error"] < 0.2
    phases = content["imported"]["phases"]
    assert {name: phase["share"] for name, phase in phases.items()} == pytest.approx(
        {"generation": 0.576, "update": 0.384, "other": 0.04}, abs=0.01
    )
    assert content["imported"]["bound_by_share"] == {"generation": 1.0}
    text = (out / "report.html").read_text()
    assert "<b>run</b>" not in text
    assert "&lt;b&gt;run&lt;/b&gt;" in text
    assert not re.search(r"(src|href)=['\"](?!data:)", text)  # nothing from elsewhere
    assert text.count("<script") == 1  # the page's own
    assert exit_code("simulate", out / "scenario.yaml") == 0
    assert exit_code("compare", out / "scenario.yaml", "--policy", "sync", "--policy", "april") == 0


def test_without_advice_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.csv"
    written.table(log, _rows(20))
    assert exit_code("import", log, "--no-advise") == 0
    assert "what would make it faster" not in capsys.readouterr().out
    assert exit_code("import", log, "--no-advise", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["imported"]["shape"] == "linear"
    assert "advice" not in content["imported"]


def test_text_is_counted_with_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logged lengths hold the token that ends each, which a dump leaves out."""

    folder = truth.write("verl", tmp_path, monkeypatch)
    bare = read_log([folder])
    assert bare.rollouts["new_tokens"].isna().all()
    log = read_log([folder], tokens=lambda text: len(text) - 1)
    assert log.tokenized
    found = outcome(log, draft(log), "freeze", advised=False)
    assert found.fit.tokens_from == "tokenizer"
    assert "1.000 times the logged means" in " ".join(found.notes)
    lengths = sorted(n for t in truth.run() for group in t.lengths for n in group)
    kept = sorted(n for group in found.fit.rollouts.groups.new_tokens for n in group)
    assert kept == pytest.approx(lengths, abs=1)
    off = outcome(
        read_log([folder], tokens=lambda text: len(text) // 2), draft(log), "freeze", advised=False
    )
    assert "0.50" in " ".join(off.notes)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--tokenizer", "nowhere/tokenizer.json", "--tokenizer: "),
        ("--tokenizer", "run.csv", "--tokenizer: "),
        ("--drift", "sideways", "--drift: must be auto, freeze or extrapolate, got 'sideways'\n"),
    ],
)
def test_an_option_that_is_none_is_refused(
    option: str,
    value: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    written.table(tmp_path / "run.csv", _rows(10))
    assert exit_code("import", "run.csv", option, value, "--out", "mine") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1
    assert not (tmp_path / "mine").exists()


def test_drift_is_frozen_or_goes_on(tmp_path: Path) -> None:
    rows = _rows(40)
    for row in rows:
        for name in ("mean_new_tokens", "max_new_tokens"):
            row[name] *= float(np.exp(0.02 * row["step"]))
    written.table(tmp_path / "run.csv", rows)
    log = read_log([tmp_path / "run.csv"])
    frozen = outcome(log, draft(log), "freeze", advised=False)
    going = outcome(log, draft(log), "extrapolate", advised=False)
    values = [{p.key: p.value for p in each.parts} for each in (frozen, going)]
    key = "workload.lengths.drift_per_step"
    assert values[0][key] == 0.0
    assert values[1][key] == pytest.approx(0.02, abs=0.005)
    assert (
        values[0]["workload.lengths.median_tokens"] < (values[1]["workload.lengths.median_tokens"])
    )  # frozen is the last quarter, and lengths rise


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_few_steps_are_not_fitted_but_read(
    steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "run.csv", tmp_path / "mine"
    written.table(log, _rows(steps))
    assert exit_code("import", log, "--out", out) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("at least 3 are needed: nothing is fitted" in said) == (steps < 4)
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    "gone",
    [
        "generation_s",
        "update_s",
        "step_s",
        "mean_new_tokens",
        "max_new_tokens",
        "mean_prompt_tokens",
        "rollouts",
        "truncated_share",
    ],
)
def test_a_figure_less_is_a_fit_less(gone: str, tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != gone} for row in _rows(20)]
    written.table(tmp_path / "run.csv", rows)
    out = tmp_path / "mine"
    assert exit_code("import", tmp_path / "run.csv", "--out", out, "--no-advise") == 0
    content = json.loads((out / "fitted.json").read_text())
    if gone != "mean_new_tokens":  # without it no step's work is known
        assert content["lengths"]["lengths"]["median_tokens"] > 100
        assert content["imported"]["shape"] == "linear"
    else:
        assert content["imported"]["shape"] == "none"


def test_a_batch_that_nobody_says_is_one_batch_throughout(tmp_path: Path) -> None:
    """Lengths are fitted for as many rollouts as forecasts draw, so that the longest is right."""
    rng = np.random.default_rng(0)
    rows = []
    for row in _rows(40):
        tokens = rng.lognormal(np.log(300), 0.6, 64)
        made = tokens.max() / 40
        rows.append(
            {
                **row,
                "mean_new_tokens": tokens.mean(),
                "max_new_tokens": tokens.max(),
                "generation_s": made,
                "step_s": made + row["update_s"] + 1,
            }
        )
        del rows[-1]["rollouts"]
    written.table(tmp_path / "run.csv", rows)
    log = read_log([tmp_path / "run.csv"])
    found = outcome(log, draft(log), "freeze", advised=False)
    [judged] = found.judged
    assert judged.total_low_s < judged.measured_s.sum() * 1.1
    assert abs(judged.total_error) < 0.25  # 0.45 where one batch was fitted and another drawn


def test_a_run_that_changed_is_told_apart(tmp_path: Path) -> None:
    rows = _rows(40)
    for row in rows[20:]:
        row["rollouts"] = 128.0
        row["step_s"] += row["generation_s"]
    written.table(tmp_path / "run.csv", rows)
    [change] = changes(steps_of(read_log([tmp_path / "run.csv"])))
    assert (change.step, change.what) == (21, "a step trains on 128 rollouts, 64 before")
    scattered = _rows(40)  # as a filter leaves: one far from the step before, and no change
    for i, row in enumerate(scattered):
        row["rollouts"] = {19: 71.0, 20: 61.0}.get(i, 64.0 + 2.0 * (i % 3))
    written.table(tmp_path / "run.csv", scattered)
    assert changes(steps_of(read_log([tmp_path / "run.csv"]))) == ()
    slower = _rows(40)
    for row in slower[15:]:
        for name in ("step_s", "generation_s", "update_s"):
            row[name] *= 1.6
    written.table(tmp_path / "slower.csv", slower)
    [change] = changes(steps_of(read_log([tmp_path / "slower.csv"])))
    assert abs(change.step - 16) <= 1
    assert "times as long as before at equal tokens" in change.what
    written.table(tmp_path / "steady.csv", _rows(40))
    assert changes(steps_of(read_log([tmp_path / "steady.csv"]))) == ()


def test_validation_and_checkpoints_are_no_part_of_a_step(tmp_path: Path) -> None:
    rows = _rows(24)
    for row in rows:
        busy = row["step"] % 6 == 0
        row["validation_s"], row["validation_inside"] = (100.0 if busy else 0.0), 1.0
        row["step_s"] += row["validation_s"]
    written.table(tmp_path / "run.csv", rows)
    steps = steps_of(read_log([tmp_path / "run.csv"]))
    assert steps.whole_s.max() < 60
    assert not steps.quiet[[0, 5, 11, 17, 23]].any()
    assert steps.quiet.sum() == 19


def test_a_wait_is_not_taken_for_generation(tmp_path: Path) -> None:
    from rollcast.calibration.fits.levels import figures

    rows = _rows(20, overlapped=1.0, wait_s=3.0)
    written.table(tmp_path / "run.csv", rows)
    log = read_log([tmp_path / "run.csv"])
    assert log.overlapped
    timed = figures(steps_of(log), log.overlapped)
    assert "update" in {phase for figure in timed for phase in figure.phases}
    assert not any("decode" in figure.phases for figure in timed)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            "fits.fit",
            "the log's settings give no valid scenario (steps: too many): nothing was fitted",
        ),
        ("what_if.advise", "no change was simulated (steps: too many)"),
        ("hold_out", "the last third was not forecast (steps: too many)"),
    ],
)
def test_what_goes_wrong_is_named_and_the_rest_stands(
    broken: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ScenarioError("steps", "too many")

    written.table(tmp_path / "run.csv", _rows(20))
    log = read_log([tmp_path / "run.csv"])
    monkeypatch.setattr(f"rollcast.calibration.importing.{broken}", fails)
    found = outcome(log, draft(log), "freeze")
    assert said in found.notes
    assert (found.fit is None) is (broken == "fits.fit")
    assert (found.advice is None) is (broken != "hold_out")
    assert bool(found.judged) is (broken == "what_if.advise")
    assert page(log, found)  # is made of whatever there is


def test_what_a_log_says_of_its_costs_is_in_the_scenario(tmp_path: Path) -> None:
    """A critic, adapters, offload, the engine's memory, passes without padding, as of a launch."""
    model = {"path": "Qwen/Qwen2.5-7B-Instruct", "use_remove_padding": True, "lora_rank": 8}
    given_settings = {
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "strategy": "fsdp",
                "ppo_micro_batch_size_per_gpu": 4,
                "ppo_mini_batch_size": 16,
                "fsdp_config": {"optimizer_offload": True},
            },
            "rollout": {"n": 4, "gpu_memory_utilization": 0.6, "enforce_eager": True},
        },
        "data": {"train_batch_size": 16, "max_response_length": 1024},
        "reward_model": {"enable": False, "model": {"path": "a/b"}},
        "trainer": {"n_gpus_per_node": 8, "nnodes": 1},
    }
    row = (
        "step:{0} - response_length/mean:{1} - response_length/max:900.0 - prompt_length/mean:100.0"
        " - timing_s/gen:{2} - timing_s/reward:0.1 - timing_s/old_log_prob:1.0"
        " - timing_s/values:1.0 - timing_s/update_critic:3.0 - timing_s/update_actor:4.0"
        " - timing_s/step:{3}\n"
    )
    rows = [row.format(n, 400.0 + n % 3, 9.0 + n % 3 / 10, 19.0 + n % 3 / 10) for n in range(1, 13)]
    path = tmp_path / "train.log"
    path.write_text(pprint.pformat(given_settings) + "\n" + "".join(rows))
    log = read_log([path])
    found = outcome(log, draft(log, given(gpu="a100-80gb")), advised=False)
    assert found.fit.shape == "roofline"
    roofline = found.fit.cost["roofline"]
    assert roofline["cuda_graphs"] is False
    assert roofline["offload_optimizer"] is True
    assert roofline["kv_memory_utilization"] == 0.6
    trainer = roofline["trainer"]
    assert trainer["critic"] is True
    assert (trainer["weights"], trainer["lora_rank"]) == ("lora", 8)
    assert (trainer["batching"], trainer["microbatch_rollouts"]) == ("packed", 4)
    assert "reward_passes" not in trainer
    assert found.step.seconds == pytest.approx(19.1, rel=0.05)


def test_a_console_of_rollouts_alone_tells_their_pace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """prime-rl's orchestrator times its step, which the training overlaps, and nothing else."""
    line = "SUCCESS Step {0} | {1:>7} | Reward: 0.4 | Seq. Length: {2} tokens/sample\n"
    spelt = (line.format(n, f"1m {10 + n}s", 330 + 2 * (n % 3)) for n in range(1, 9))
    (tmp_path / "run.log").write_text("".join(spelt))
    given_ = ("--model", "qwen2.5-1.5b", "--gpu", "h100-sxm", "--out", tmp_path / "out")
    assert exit_code("import", tmp_path / "run.log", *given_, "--no-advise") == 0
    match = re.search(r"a step of the scenario takes ([\d.]+) s", capsys.readouterr().out)
    assert match is not None
    assert float(match[1]) == pytest.approx(75, rel=0.1)
    assert exit_code("import", tmp_path / "run.log", "--out", tmp_path / "unnamed") == 0
    assert "with --model and --gpu their pace can be fitted" in " ".join(
        capsys.readouterr().out.split()
    )
