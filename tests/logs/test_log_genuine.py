"""Logs that verl and TRL wrote: every sink says the same, and dumps agree with what was logged.

One character of these runs is one token, and each response that was not cut has an end token more.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.stacks.settings import value
from tests.logs.genuine import log as genuine

VERL = ("legacy_v0", "sync_g8", "sync_n16", "colocate_async")
TRL = ("vllm_g8", "vllm_groups16", "vllm_two_updates", "vllm_cap96", "hf_g8")
STEPS = {
    "legacy_v0": 15,
    "sync_g8": 12,
    "sync_n16": 8,
    "colocate_async": 12,
    "vllm_g8": 30,
    "vllm_groups16": 20,
    "vllm_two_updates": 20,
    "vllm_cap96": 20,
    "hf_g8": 20,
}
CAP = {"vllm_cap96": 96, "hf_g8": 256}


def _same(one: RunLog, other: RunLog, close: float, *beside: str) -> None:
    left = one.steps.drop(columns=["file", "line", "logged_s", *beside])
    right = other.steps.drop(columns=["file", "line", "logged_s", *beside])
    pd.testing.assert_frame_equal(left, right, rtol=close, atol=close)


@pytest.mark.parametrize("name", VERL)
def test_verls_sinks_say_the_same(name: str) -> None:
    folder = genuine(f"verl_files/{name}")
    [file] = folder.glob("*.jsonl")
    hydra = folder / "hydra"
    exact = read_log([file, hydra])
    assert len(exact.steps) == STEPS[name]
    assert exact.unread == 0
    console = read_log([folder / "console.log.gz", hydra])
    assert console.unread == 0
    _same(exact, console, 1e-12)
    _same(exact, read_log([folder / "tensorboard_log", hydra]), 1e-6)
    assert exact.overlapped == (name == "colocate_async")


def _agree(log: RunLog, cap: int) -> None:
    """Dumped characters give the logged mean, maximum and minimum, and rewards their mean."""
    each = log.rollouts.assign(tokens=np.minimum(log.rollouts["characters"] + 1, cap))
    found = each.groupby("step")["tokens"].agg(["mean", "max", "min"])
    steps = log.steps[log.steps["generates"] != 0].set_index("step")
    for of in ("mean", "max", "min"):
        assert found[of].tolist() == pytest.approx(steps[f"{of}_new_tokens"].tolist())
    assert each.groupby("step")["reward"].mean().tolist() == pytest.approx(
        steps["mean_reward"].tolist()
    )
    sizes = each.groupby(["step", "group"]).size()
    assert set(sizes) == {value(log.settings, "workload.group_size")}


@pytest.mark.parametrize("name", VERL)
def test_verls_dumps_agree_with_its_metrics(name: str) -> None:
    log = read_log([genuine(f"verl_files/{name}")])
    assert (log.stack, log.level, log.unread) == ("verl", 2, 0)
    _agree(log, 512)
    assert log.steps["rollouts"].tolist() == [len(log.rollouts) / len(log.steps)] * len(log.steps)
    assert value(log.settings, "workload.batch_groups") == 8
    if name != "colocate_async":
        assert log.steps["rest_s"][1:].max() < 0.5  # the first step warms up
    assert value(log.settings, "run.gpus_per_node") == 1  # not the default of another section


@pytest.mark.parametrize("name", TRL)
def test_trls_completions_agree_with_its_metrics(name: str) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    log = read_log([genuine(f"trl_grpo_cpu/{name}")])
    assert (log.stack, log.level, log.unread) == ("trl", 2, 0)
    assert len(log.steps) == STEPS[name]
    _agree(log, CAP.get(name, 512))
    made = log.steps[log.steps["generates"] == 1]
    prompts = log.rollouts.groupby("step").size()
    assert made["rollouts"].tolist() == prompts.tolist()
    assert made["mean_prompt_tokens"].between(3, 7).all()
    if name in ("vllm_g8", "vllm_groups16", "hf_g8", "vllm_two_updates"):  # trackio was on
        assert made["generation_s"].notna().all()
        assert (made["rest_s"] < 1e-6).all()


def test_trls_sinks_say_the_same() -> None:
    folder = genuine("trl_grpo_cpu/hf_g8")
    board = read_log([folder / "runs"])
    state = read_log([folder / "trainer_state.json"])
    what_settings_give = ("rollouts", "mean_prompt_tokens")
    _same(state, board, 1e-6, *what_settings_give)
    phases = ("generation_s", "update_s", "reward_s", "log_prob_s", "rest_s")
    _same(board, read_log([folder / "trackio"]), 1e-6, *phases)
    console = read_log([folder / "console.log.gz"])
    _same(state, console, 2e-3, *what_settings_give, "logged_steps")


def test_what_a_user_of_trl_has_by_default() -> None:
    log = read_log([genuine("trl_grpo_cpu/hf_logging5")])
    assert log.steps["step"].tolist() == [5, 10, 15, 20]
    assert log.steps["logged_steps"].tolist() == [5] * 4
    assert log.level == 1
    assert log.steps["max_new_tokens"].tolist()[0] == pytest.approx(238.2)  # a mean of maxima


def test_two_genuine_runs_are_told_apart() -> None:
    one, other = (genuine(f"verl_files/{n}/console.log.gz") for n in ("sync_g8", "legacy_v0"))
    with pytest.raises(Exception, match="disagree about step 1: two runs are mixed"):
        read_log([one, other])
    same = [
        genuine(f"trl_grpo_cpu/{n}/trainer_state.json")
        for n in ("vllm_groups16", "vllm_groups16_loaded")
    ]
    with pytest.raises(Exception, match="disagree about step"):  # the same rollouts, other times
        read_log(same)


def test_an_old_public_log() -> None:
    """verl of June 2025, github diqiuzhuanzhuan/verldata (MIT)."""
    folder: Path = genuine("public_verl")
    log = read_log([folder])
    later = log.steps[1:]
    assert len(log.steps) == 105
    assert later["generation_s"].median() == pytest.approx(45.9, abs=0.1)
    assert later["log_prob_s"].median() == pytest.approx(52.4, abs=0.1)
    assert later["update_s"].median() == pytest.approx(109.0, abs=0.2)
    assert set(log.steps["rollouts"]) == {5120}
    assert log.steps["sync_inside_generation"].all()
    assert log.steps["rest_s"].max() < 1.0  # validation and checkpoints are told from it
    assert (log.steps["validation_s"] > 0).any()
    assert value(log.settings, "workload.group_size") == 5
    assert value(log.settings, "run.gpus_per_node") == 8
