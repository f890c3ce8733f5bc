"""What each stack writes comes back as the run that it was."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.readers import readers
from rollcast.calibration.logs.run_log import RunLog
from tests.logs import written
from tests.logs.written import CAP, GROUPS, PROMPT, SIZE, Truth

Write = Callable[[Path, Sequence[Truth]], Path]


def _board(values: Callable[[Truth], dict[str, float]], prefix: str = "") -> Write:
    def write(folder: Path, truth: Sequence[Truth]) -> Path:
        pytest.importorskip("tensorboardX", reason="TensorBoard's writer is not installed")
        return written.tensorboard(
            folder, {t.step: {prefix + k: v for k, v in values(t).items()} for t in truth}
        )

    return write


def _roll(t: Truth) -> str:
    said = json.dumps({"step": t.step, "metrics": written.roll_values(t)})
    return f"[2026-08-01 10:00:00] [tracking.py (98)] [INFO] metrics_tag: {said}"


def _own(truth: Sequence[Truth]) -> list[dict[str, Any]]:
    return [written.table_values(t) for t in truth]


def _history(folder: Path, truth: Sequence[Truth]) -> Path:
    return written.table(folder / "wandb.csv", written.rows(written.openrlhf_values, truth))


def _charts(folder: Path, truth: Sequence[Truth]) -> Path:
    """A file of each key, as Weights & Biases exports a chart of one run."""
    for number, key in enumerate(written.verl_values(truth[0])):
        name = f"a run - of mine - {key}"
        rows = [
            {"Step": t.step, **dict.fromkeys((name, f"{name}__MIN"), written.verl_values(t)[key])}
            for t in truth
        ]
        written.table(folder / f"wandb_export_{number}.csv", rows)
    return folder


def _flat(folder: Path, truth: Sequence[Truth]) -> Path:
    """A history in the columns of a database, whose names have no ``/``."""
    rows = written.rows(written.verl_values, truth)
    flat = [{key.replace("/", "_"): value for key, value in row.items()} for row in rows]
    return written.table(folder / "metrics.csv", flat)


PHASES = ("generation_s", "log_prob_s", "update_s", "sync_s")
MIN, MAX, CUT, MADE = "min_new_tokens", "max_new_tokens", "truncated_share", "generation_s"
console = written.console
SINKS: list[tuple[str, str, Write, tuple[str, ...], float]] = [
    # stack, sink, writer, columns that it does not have, precision
    ("verl", "file", lambda p, t: written.verl_file(p / "a.jsonl", t), (), 1e-9),
    ("verl", "console", console(written.verl_line), (), 1e-9),
    ("verl", "tensorboard", _board(written.verl_values), (), 1e-6),
    ("verl", "exported charts", _charts, (), 1e-9),
    ("verl", "flat csv", _flat, (), 1e-9),
    ("easyr1", "file", lambda p, t: written.easyr1_file(p / "a.jsonl", t), ("sync_s",), 1e-9),
    ("trl", "state", lambda p, t: written.trl_state(p / "trainer_state.json", t), PHASES, 1e-9),
    ("trl", "tensorboard", _board(written.trl_entry, "train/"), PHASES, 1e-6),
    ("slime", "console", written.slime_console, (), 1e-9),
    ("nemo_rl", "tensorboard", _board(written.nemo_values), (MIN,), 1e-6),
    ("nemo_rl", "console", console(written.nemo_console), (MIN, MAX, CUT), 6e-3),
    ("areal", "console", console(written.areal_console), (MIN, MAX, CUT, MADE), 1e-4),
    ("areal", "tensorboard", _board(written.areal_values), (MIN, MAX, CUT, MADE), 1e-6),
    ("skyrl", "console", console(written.skyrl_console), (CUT,), 1e-4),
    ("skyrl", "tensorboard", _board(written.skyrl_values), (CUT,), 1e-6),
    ("openrlhf", "console", console(written.openrlhf_console), (MIN, MAX), 1e-9),
    ("openrlhf", "tensorboard", _board(written.openrlhf_values, "train/"), (MIN, MAX), 1e-6),
    ("openrlhf", "exported csv", _history, (MIN, MAX), 1e-9),
    ("roll", "console", console(_roll), (CUT,), 1e-9),
    ("roll", "tensorboard", _board(written.roll_values), (CUT,), 1e-6),
    ("table", "csv", lambda p, t: written.table(p / "a.csv", _own(t)), (), 1e-9),
    ("table", "jsonl", lambda p, t: written.lines(p / "a.jsonl", _own(t)), (), 1e-9),
]


@pytest.mark.parametrize(
    ("stack", "write", "absent", "close"),
    [pytest.param(s, w, a, c, id=f"{s}-{sink}") for s, sink, w, a, c in SINKS],
)
def test_metrics_come_back(
    tmp_path: Path, stack: str, write: Write, absent: tuple[str, ...], close: float
) -> None:
    truth = written.run(first=0 if stack == "areal" else 1)
    log = read_log([write(tmp_path, truth)])
    assert log.stack == stack
    assert log.unread == 0
    assert log.level == 1
    assert list(log.steps["step"]) == [t.step for t in truth]
    for t, row in zip(truth, log.steps.to_dict("records"), strict=True):
        for column, expected in written.table_values(t).items():
            if column in absent:
                assert pd.isna(row[column]), column
            elif column == "step_s" and stack in ("slime", "areal", "openrlhf"):
                continue  # each defines its own; below
            else:
                assert row[column] == pytest.approx(expected, rel=close, abs=close), column
    assert list(log.steps["first"]) == [1, 0, 0, 0, 0]


def test_a_chart_of_two_runs_is_refused(tmp_path: Path) -> None:
    row = {"Step": 1, "one - timing_s/step": 3.0, "two - timing_s/step": 4.0}
    with pytest.raises(LogError, match=r"2 runs \(one, two\); export the chart of one"):
        read_log([written.table(tmp_path / "chart.csv", [row])])


def test_no_stack_is_left_out() -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's writer is not installed")
    told = {stack for stack, *_ in SINKS} | {"prime_rl", "rollcast"}  # below; test_log_own_runs
    assert told == {stack.name for stack in readers()}


@pytest.mark.parametrize("stack", ["slime", "areal", "openrlhf"])
def test_what_a_step_is_where_the_stack_says_otherwise(tmp_path: Path, stack: str) -> None:
    truth = written.run()
    write = next(w for s, sink, w, *_ in SINKS if (s, sink) == (stack, "console"))
    log = read_log([write(tmp_path, truth)])
    t, row = truth[0], log.steps.iloc[0]
    phases = t.generation_s + t.log_prob_s + t.update_s
    expected = {"slime": phases + 0.25, "areal": phases + t.sync_s, "openrlhf": phases + t.sync_s}
    assert row["step_s"] == pytest.approx(expected[stack], rel=1e-3)
    assert ("sync_s" in log.outside) == (stack == "slime")
    assert row["rest_s"] == pytest.approx(0.25 if stack == "slime" else 0.0, abs=2e-3)


# Dumps of rollouts


def _lengths(log: RunLog, column: str = "new_tokens") -> dict[int, list[list[float]]]:
    """Lengths by step and group, both in order of length, since our numbers are our own."""
    return {
        int(step): sorted(sorted(group[column]) for _, group in rows.groupby("group"))
        for step, rows in log.rollouts.groupby("step")
    }


def _true(truth: Sequence[Truth]) -> dict[int, list[list[float]]]:
    return {t.step: sorted(sorted(map(float, group)) for group in t.lengths) for t in truth}


@pytest.mark.parametrize(("v1", "order"), [(True, 0), (True, None), (False, 1)])
def test_verl_dump_in_any_order(tmp_path: Path, v1: bool, order: int | None) -> None:
    truth = written.run()
    written.verl_file(tmp_path / "run.jsonl", truth)
    written.verl_dump(tmp_path / "rollout_data", truth, v1, order)
    log = read_log([tmp_path])
    assert (log.stack, log.level) == ("verl", 2)
    assert _lengths(log, "characters") == _true(truth)
    if v1:  # which names each rollout of a group
        found = log.rollouts.groupby(["step", "group"])["characters"].apply(tuple)
        assert sorted(found) == sorted(g for t in truth for g in t.lengths)
    assert log.rollouts["new_tokens"].isna().all()
    assert any("tokenizer" in gap.why for gap in log.gaps)
    assert log.rollouts.groupby("step")["reward"].mean().tolist() == pytest.approx(
        [t.reward for t in truth]
    )


def test_nemo_dump_of_length_one_lists(tmp_path: Path) -> None:
    truth = written.run()
    log = read_log([written.nemo_dump(tmp_path, truth, tool=7)])
    assert log.stack == "nemo_rl"
    assert _lengths(log) == _true(truth)
    assert set(log.rollouts["tool_tokens"]) == {7}
    assert set(log.rollouts["prompt_tokens"]) == {PROMPT}
    assert log.level == 0  # no seconds of steps
    assert log.steps["mean_new_tokens"].tolist() == pytest.approx([t.mean for t in truth])


def test_nemo_dump_before_masks_and_without_a_single_token(tmp_path: Path) -> None:
    masked = {"token_loss_mask": [[0] * 6], "token_ids": [[1] * 6]}
    written.lines(
        tmp_path / "b" / "train_data_step1.jsonl",
        [{"rewards": [0.0], "input_lengths": [6], **masked}],
    )
    row = read_log([tmp_path / "b"]).rollouts.iloc[0]
    assert (row["new_tokens"], row["prompt_tokens"], row["tool_tokens"]) == (0, 6, 0)
    probs = {"generation_logprobs": [[0.0] * 5 + [-0.5] * 3]}
    rows = [{"content": ["x"], "rewards": [1.0], "input_lengths": [8], **probs}]
    written.lines(tmp_path / "a" / "train_data_step3.jsonl", rows * 4)
    log = read_log([tmp_path / "a"])
    assert log.rollouts["new_tokens"].tolist() == [3] * 4
    assert set(log.rollouts["prompt_tokens"]) == {5}
    assert any(gap.column == "group" for gap in log.gaps)  # nothing tells one group from another


@pytest.mark.parametrize("episodes", [True, False])
def test_prime_rl(tmp_path: Path, episodes: bool) -> None:
    truth = written.run()
    written.prime_metrics(tmp_path / "metrics.jsonl", truth)
    written.prime_traces(tmp_path, truth, episodes)
    log = read_log([tmp_path])
    assert (log.stack, log.level, log.overlapped) == ("prime_rl", 3, True)
    steps = log.steps
    # two writers of one file with one key
    assert steps["step_s"].tolist() == pytest.approx([t.step_s for t in truth])
    assert steps["orchestrator_step_s"].tolist() == pytest.approx([t.step_s + 3 for t in truth])
    assert steps["wait_s"].tolist() == pytest.approx([t.generation_s for t in truth])
    assert steps["generation_s"].isna().all()
    assert steps["trainer_flop_share"].tolist() == [0.3] * 5
    rollouts = log.rollouts
    assert len(rollouts) == 5 * GROUPS * SIZE  # what is in all and effective counts once
    assert rollouts["trained"].isna().sum() == 5
    assert _lengths(log) == _true(truth)
    assert len(log.requests) == 2 * len(rollouts)
    second = log.requests[log.requests["turn"] == 1]
    assert set(second["environment_s"]) == {6.0}
    assert (rollouts["tool_tokens"] >= 4).all()
    assert rollouts["environment_s"].tolist() == [6.0] * len(rollouts)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Step 7 | Time: 73.77s | Reward: 0.4 | Throughput: 2408.9 tokens/s | Seq. Length: 345.6 "
         "tokens/sample | Async Level: 1 | Max. Off-Policy Level: 2",
         {"step_s": 73.77, "mean_reward": 0.4, "mean_new_tokens": 345.6, "max_staleness": 2}),
        ("Step 7 |  1m 20s | Reward 0.4 | Trainable 96/128 (75.0%) | Turns 1.5 | Max Off-Policy 2 "
         "| Truncation 12.5%",
         {"step_s": 80, "rollouts": 128, "mean_turns": 1.5, "truncated_share": 0.125}),
        ("Step 7 |  850ms | Reward 0.4", {"step_s": 0.85}),
        ("Step 7 |   1h 2m | Reward 0.4", {"step_s": 3720}),
        ("Step 7 |      2m | Loss 0.1 | Entropy 0.2 | Grad. Norm 0.3", {"step_s": 120}),
    ],
)  # fmt: skip
def test_consoles_of_prime_rl(tmp_path: Path, line: str, told: dict[str, float]) -> None:
    """Of 2025 and of 2026: the step of the process that writes it."""
    text = f"02:33:26 SUCCESS {line}\n02:34:38    INFO Starting orchestrator step 8\n"
    (tmp_path / "run.log").write_text(text)
    steps = read_log([tmp_path / "run.log"]).steps
    assert len(steps) == 1
    assert {name: steps[name].iloc[0] for name in told} == pytest.approx(told)


@pytest.mark.parametrize("count", ["global_step/max_steps", "iteration"])
@pytest.mark.parametrize("pace", ["train_speed(s/it)", "train_speed(iter/s)"])
def test_ms_swift_times_the_mean_of_its_updates_so_far(
    tmp_path: Path, count: str, pace: str
) -> None:
    """A row for the first update and for every fifth: logging_steps=5, logging_first_step."""
    rng = np.random.default_rng(0)
    each_s = rng.uniform(10, 30, 20)
    rows = []
    for step in (1, 5, 10, 15, 20):
        mean_s = each_s[:step].mean()
        speed = round(1 / mean_s if "iter" in pace else mean_s, 6)
        rows.append({"loss": 0.1, "completions/mean_length": 300.0, "reward": 0.5,
                     "kl": 0.1, count: f"{step}/20", pace: speed})  # fmt: skip
    log = read_log([written.lines(tmp_path / "logging.jsonl", rows)])
    assert (log.stack, log.steps["step"].tolist()) == ("trl", [1, 5, 10, 15, 20])
    true = [each_s[a:b].mean() for a, b in ((0, 1), (1, 5), (5, 10), (10, 15), (15, 20))]
    assert log.steps["step_s"].tolist() == pytest.approx(true, abs=0.05)
    assert log.steps["logged_steps"].tolist() == [1, 4, 5, 5, 5]


def test_the_bar_of_ms_swift_times_the_rows_of_its_console(tmp_path: Path) -> None:
    row = "{{'loss': 0.1, 'completions/mean_length': 300.0, 'reward': 0.5, 'kl': 0.1}}\n"
    bar = "Train: {0:3}%|#   | {0}/100 [00:{1:02}<33:00, 19.2s/it]\n"
    text = "".join(row.format() + bar.format(n, 4 * n) for n in range(1, 6))
    (tmp_path / "run.log").write_text(text)
    assert read_log([tmp_path / "run.log"]).steps["step_s"].dropna().tolist() == [4.0] * 4


def _mllog(key: str, said: object, **more: int) -> str:
    entry = {"namespace": "", "time_ms": 1000 * more.get("step", 0), "key": key, "value": said}
    return f"0: :::MLLOG {json.dumps({**entry, 'metadata': {'lineno': 1, **more}})}\n"


def test_mlperfs_log_of_nemo_rl(tmp_path: Path) -> None:
    """In the form of mlcommons/training's llm_post_training; GPUs follow from the throughput."""
    said = {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "global_batch_size": 32,
            "micro_batch_size": 1, "gradient_accumulation_steps": 4, "tensor_parallelism": 4,
            "pipeline_parallelism": 2, "context_parallelism": 1, "generation_backend": "vllm",
            "generation_tensor_parallelism": 8, "submission_benchmark": "qwen35_397b_grpo",
            "submission_platform": "64xa (@SIZE@x NVIDIA GB300 NVL72)"}  # fmt: skip
    text = "".join(_mllog(key, one) for key, one in said.items())
    for step in (1, 2):
        spent = {"train_step_time": 100.0, "policy_training_time": 30.0, "weight_sync_time": 5.0,
                 "exposed_generation_time": 60.0, "valid_tokens_per_sec_per_gpu": 1.25}  # fmt: skip
        lengths = {"global_valid_toks": 32000.0, "global_valid_seqs": 32.0, "reward": 0.5}
        text += _mllog("tracked_stats", lengths, step=step)
        text += _mllog("tracked_stats", spent, step=step)
    text += _mllog("tracked_stats", {"validation_time": 9.0}, step=3) + ":::MLLOG {\n"
    (tmp_path / "seed_1.out").write_text(text)
    log = read_log([tmp_path / "seed_1.out"])
    assert (log.stack, log.overlapped, len(log.steps)) == ("nemo_rl", True, 2)
    wanted = {"step_s": 100, "update_s": 30, "wait_s": 60, "sync_s": 5, "mean_new_tokens": 1000}
    assert {key: log.steps[key].iloc[0] for key in wanted} == pytest.approx(wanted)
    held = {key: one.value for key, one in log.settings.items()}
    assert (held["model"], held["gpu"]) == ("Qwen/Qwen3.5-397B-A17B", "gb300")
    assert (held["workload.batch_groups"], held["workload.group_size"]) == (4, 8)
    assert (held["run.nodes"], held["run.gpus_per_node"], held["run.rollout_nodes"]) == (64, 4, 48)


def test_areal(tmp_path: Path) -> None:
    truth = written.run(first=0)
    written.FILES["areal"](tmp_path, truth)
    log = read_log([tmp_path])
    assert (log.stack, log.level) == ("areal", 3)
    assert _lengths(log) == _true(truth)
    assert log.rollouts["first_version"].isna().all()  # head_version of the dump is -1
    made = log.requests.groupby(["step", "group", "index"])["end_s"].max()
    started = log.requests.groupby(["step", "group", "index"])["start_s"].min()
    assert sorted((made - started).round(6)) == sorted(n / 10 for t in truth for n in t.flat)
    assert log.rollouts["environment_s"].tolist() == [0.5] * len(log.rollouts)


def test_areal_says_what_the_log_does_not(tmp_path: Path) -> None:
    truth = written.run()
    written.console(written.areal_console)(tmp_path, truth)
    log = read_log([tmp_path])
    assert log.overlapped
    assert any("does not say" in note for note in log.notes)
    config = "gconfig: {n_samples: 2, max_new_tokens: 200}\nrollout: {max_head_offpolicyness: 0}\n"
    (tmp_path / "config.yaml").write_text(config)
    log = read_log([tmp_path])
    assert not log.overlapped
    assert log.steps["generation_s"].notna().all()
    assert log.steps["wait_s"].isna().all()


def test_skyrl_drops_whole_groups(tmp_path: Path) -> None:
    truth = written.run()
    values = {t.step: written.skyrl_values(t) | {"async/num_groups_dropped": t.step} for t in truth}
    rows = "".join(json.dumps({"step": step, **row}) + "\n" for step, row in values.items())
    (tmp_path / "run.jsonl").write_text(rows)
    trainer = {"train_batch_size": GROUPS, "seed": 1}
    given = {"generator": {"n_samples_per_prompt": SIZE}, "trainer": trainer}
    (tmp_path / "config.yaml").write_text(json.dumps(given))
    dropped = read_log([tmp_path]).steps["dropped_rollouts"]
    assert dropped.dropna().tolist() == [SIZE * t.step for t in truth]


def test_roll_dump_of_columns(tmp_path: Path) -> None:
    truth = written.run()
    log = read_log([written.roll_dump(tmp_path, truth)])
    assert log.stack == "roll"
    assert _lengths(log, "characters") == _true(truth)


def test_slime_dump(tmp_path: Path) -> None:
    truth = written.run()
    written.slime_console(tmp_path, truth)
    for t in truth:
        written.torch_file(tmp_path / f"{t.step}.pt", written.slime_samples(t, tool=3))
    written.torch_file(tmp_path / "eval_1.pt", written.slime_samples(truth[0]))
    log = read_log([tmp_path])
    assert (log.stack, log.level) == ("slime", 3)
    assert _lengths(log) == _true(truth)
    assert set(log.rollouts["tool_tokens"]) == {3}
    assert (log.rollouts["truncated"] == (log.rollouts["new_tokens"] == CAP)).all()
    assert set(log.requests["queue_s"]) == {0.5}
    seconds = (log.requests["end_s"] - log.requests["start_s"]).round(6)
    assert sorted(seconds) == sorted(n / 10 for t in truth for n in t.flat)
    assert log.requests["start_s"].min() == 0


def test_a_dump_of_tensors_and_arrays_as_torch_writes_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    truth = written.run()[0]
    dump = written.slime_samples(truth, tool=3)
    for sample in dump["samples"]:
        sample["tokens"] = torch.tensor(sample["tokens"])
        sample["loss_mask"] = torch.tensor(sample["loss_mask"])
        sample["logits"] = torch.zeros(2, 2, dtype=torch.bfloat16)
        sample["rollout_routed_experts"] = np.ones((2, 3), dtype=np.uint8)
    torch.save(dump, tmp_path / "1.pt")
    assert sorted(read_log([tmp_path]).rollouts["new_tokens"]) == sorted(truth.flat)


def test_a_dump_whose_library_is_missing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    written.trl_state(tmp_path / "trainer_state.json", written.run())
    (tmp_path / "completions_00001.parquet").write_bytes(b"PAR1 whatever PAR1")
    log = read_log([tmp_path])
    assert (log.level, log.unread) == (1, 1)
    assert "needs pyarrow" in next(e.why for t in log.tallies for e in t.examples)


def test_trl_completions(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    truth = written.run()
    written.trl_state(tmp_path / "trainer_state.json", truth)
    written.trl_completions(tmp_path / "completions", truth)
    last = truth[-1].step  # two updates on the same rollouts: written again
    again = pd.read_parquet(tmp_path / "completions" / f"completions_{last:05d}.parquet")
    again["step"] += 1
    again.to_parquet(tmp_path / "completions" / f"completions_{last + 1:05d}.parquet")
    log = read_log([tmp_path])
    assert (log.stack, log.level) == ("trl", 2)
    assert _lengths(log, "characters") == _true(truth)
    assert any("repeat" in note for note in log.notes)
    prompts = log.steps["mean_prompt_tokens"].tolist()  # from num_tokens, summed over the run
    assert prompts == pytest.approx([PROMPT] * 5)
    assert log.steps["rollouts"].tolist() == [GROUPS * SIZE] * 5


def test_our_own_tables_come_back_as_they_were_written(tmp_path: Path) -> None:
    from rollcast.calibration.logs.draft import draft
    from rollcast.calibration.logs.write import write

    written.prime_metrics(tmp_path / "log" / "metrics.jsonl", written.run())
    written.prime_traces(tmp_path / "log", written.run())
    log = read_log([tmp_path / "log"])
    write(tmp_path / "mine", log, draft(log))
    names = ("steps.csv", "rollouts.csv", "requests.csv")
    again = read_log([tmp_path / "mine" / name for name in names])
    assert (again.stack, again.level, again.overlapped) == ("table", 3, True)
    beside = ["file", "line", "logged_s"]
    pd.testing.assert_frame_equal(again.steps.drop(columns=beside), log.steps.drop(columns=beside))
    pd.testing.assert_frame_equal(again.rollouts, log.rollouts)
    pd.testing.assert_frame_equal(again.requests, log.requests)
