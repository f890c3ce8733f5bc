"""What cannot be imported is refused in one sentence with file and line, and nothing is written."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.calibration.logs import console_lines, opened
from rollcast.calibration.logs.errors import LogError, Tally
from rollcast.calibration.logs.gather import read_log
from tests.laws import examples
from tests.logs import written


def _refused(*paths: Path, said: str) -> str:
    with pytest.raises(LogError, match=said) as caught:
        read_log(list(paths))
    assert "\n" not in caught.value.message
    return caught.value.message


def test_no_file_at_all(tmp_path: Path) -> None:
    _refused(said="none was given")
    _refused(tmp_path / "absent", said="absent does not exist")
    (tmp_path / "folder").mkdir()
    _refused(tmp_path / "folder", said="folder is an empty folder")
    os.mkfifo(tmp_path / "pipe")
    _refused(tmp_path / "pipe", said="pipe is neither a file nor a folder")
    _refused(tmp_path / ("x" * 400), said="does not exist|cannot read")


def test_logs_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text('10.0.0.1 - - [01/Aug/2026] "GET / HTTP/1.1" 200\n' * 30)
    _refused(
        path, said=r"access\.log, line 30: the file ends without a single step of areal, easyr1"
    )
    path = tmp_path / "data.jsonl"
    path.write_text('{"question": 1}\n' * 30)
    _refused(path, said=r"data\.jsonl, line 30: the file ends without a single step")
    path = tmp_path / "other_rl.jsonl"
    path.write_text('{"step": 1, "reward": 0.5, "loss": 0.1, "temperature": 1}\n' * 3)
    _refused(path, said=r"other_rl\.jsonl, line 3: the file ends without a single step")
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    _refused(path, said=r"data\.csv, line 2: the file ends without a single step")
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023,10,5\n2023,20,6\n")
    _refused(path, said=r"step of .*; it has the lengths of 2 responses: .* \{trace: .*data\.csv\}")
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(1000))
    _refused(path, said="is no log: neither text nor a kind of file")
    path = tmp_path / "table.json"
    path.write_text('{"columns": [[1], {}], "data": [[1, 2], 3, {}]}')
    _refused(path, said=r"table\.json, line 1: the file ends without a single step")
    path = tmp_path / "history.csv"
    path.write_text("Relative Time (Process),a - timing_s/gen\n1,2\n")
    _refused(path, said=r"first column is 'Relative Time \(Process\)'; export it over steps")
    for name, content, why in (
        ("run.log.zst", b"\x28\xb5\x2f\xfd123", "packed by zstd; unpack it"),
        ("run.tar", bytes(257) + b"ustar" + bytes(250), "a tar archive; unpack it"),
        ("run.xlsx", b"PK\x03\x04" + bytes(100), "a workbook; save it as CSV"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        _refused(path, said=rf"{name}: it is {why}")
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    _refused(path, said=r"empty\.log is no log|ends without a single step")


def test_a_negative_mean_without_a_longest_response(tmp_path: Path) -> None:
    key = "'rollout/response_length_mean': "
    lines = [written.openrlhf_console(t).replace(key, f"{key}-") for t in written.run()]
    (tmp_path / "console.log").write_text("\n".join(lines))
    _refused(tmp_path, said=r"line 1: mean_new_tokens of step 1 is -\S+; no response has so many")


def test_a_setting_beyond_all_floats_is_none(tmp_path: Path) -> None:
    path = written.trl_state(tmp_path / "trainer_state.json", written.run())
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "logging_steps": 10**400}))
    assert "run.logging_steps" not in read_log([path]).settings


def test_a_log_cut_off_in_mid_line(tmp_path: Path) -> None:
    truth = written.run()
    whole = "".join(f"{written.verl_line(t)}\n" for t in truth).encode()
    path = tmp_path / "console.log"
    path.write_bytes(whole[:300])
    _refused(path, said=r"console\.log, line 1: it is cut off in mid-line; no step could be read")
    path.write_bytes(whole[: len(whole) - 7])
    log = read_log([path])
    assert log.steps["step"].tolist() == [1, 2, 3, 4]  # half a number is none
    [tally] = log.tallies
    assert [(e.place.line, e.why) for e in tally.examples] == [(5, "it is cut off in mid-line")]
    path = tmp_path / "run.jsonl"
    content = written.verl_file(path, truth).read_bytes()
    path.write_bytes(content[:100])
    _refused(path, said=r"run\.jsonl, line 1: it is cut off in mid-line; no step")
    path.write_bytes(content[:-20])
    assert read_log([path]).unread == 1
    path.write_bytes(content[:-1])  # only its end of line is missing
    assert (len(read_log([path]).steps), read_log([path]).unread) == (5, 0)
    path = tmp_path / "steps.csv"
    path.write_text("step,step_s,update_s\n1,2.5,1.5\n2,3.25,1")
    log = read_log([path])
    assert log.steps["step"].tolist() == [1, 2]  # as many cells as it should have


def test_a_state_cut_off(tmp_path: Path) -> None:
    path = written.trl_state(tmp_path / "trainer_state.json", written.run())
    path.write_bytes(path.read_bytes()[:900])
    _refused(path, said=r"trainer_state\.json: no JSON: .*; no step could be read")


@pytest.mark.parametrize("bad", [-1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["timing_s/step", "timing_s/update_actor", "timing_s/gen"])
def test_seconds_that_are_none(tmp_path: Path, bad: float, key: str) -> None:
    truth = written.run()
    lines = [written.verl_line(t) for t in truth]
    lines[3] = re.sub(rf"{key}:[\d.]+", f"{key}:{bad}", lines[3])
    path = tmp_path / "console.log"
    path.write_text("hello\n" + "\n".join(lines) + "\n")
    _refused(path, said=rf"console\.log, line 5: \w+_s of step 4 is {bad:g}; seconds are numbers")
    rows = [{"step": t.step, "data": written.verl_values(t)} for t in truth]
    rows[3]["data"][key] = 10**400 if bad > 0 else bad  # type: ignore[index]
    path = written.lines(tmp_path / "run.jsonl", rows)
    _refused(path, said=r"run\.jsonl, line 4: \w+_s of step 4")


def _verl_rows(change: Callable[[int, dict[str, Any]], Any]) -> list[dict[str, Any]]:
    truth = written.run()
    return [
        {"step": t.step, "data": written.verl_values(t) | change(t.step, written.verl_values(t))}
        for t in truth
    ]


def test_a_configuration_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"# caf\xe9\nmodel: qwen3-8b\n")
    _refused(path, said=r"config\.yaml: not text in UTF-8 from byte 5 on; no step could be read")


def test_a_log_of_supervised_training(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    rows = [f"{{'loss': 2.{n}, 'grad_norm': 0.6, 'epoch': 0.0{n}}}\n" for n in range(1, 9)]
    bars = [f"{10 * n}%|#| {n}/8 [00:{7 * n:02d}<00:10,  7.00s/it]\n" for n in range(1, 9)]
    path.write_text("".join(bar + row for bar, row in zip(bars, rows, strict=True)))
    _refused(path, said=r"console\.log, line 4: no step has rollouts, lengths or rewards")
    path.write_text(path.read_text().replace("'epoch'", "'reward': 0.5, 'epoch'"))
    assert read_log([path]).steps["mean_reward"].eq(0.5).all()


def test_steps_that_all_took_no_time(tmp_path: Path) -> None:
    rows = _verl_rows(lambda _, values: {key: 0.0 for key in values if key.startswith("timing")})
    _refused(written.lines(tmp_path / "run.jsonl", rows), said=r"line 1: step_s is 0 in every step")


def test_rows_of_one_step_alone(tmp_path: Path) -> None:
    rows = [{"step": 5, "data": row["data"]} for row in _verl_rows(lambda step, _: {"x": step})]
    _refused(written.lines(tmp_path / "run.jsonl", rows), said="5 rows are all of step 5")
    assert len(read_log([written.lines(tmp_path / "one.jsonl", rows[:1])]).steps) == 1


def test_lists_for_figures_are_counted_as_unread(tmp_path: Path) -> None:
    rows = _verl_rows(lambda step, _: {"timing_s/step": [1.0, 2.0]} if step == 2 else {})
    log = read_log([written.lines(tmp_path / "run.jsonl", rows)])
    [tally] = log.tallies
    assert (tally.used, tally.unread, tally.other) == (len(rows) - 1, 1, 0)
    assert "timing_s/step is a list; a figure of a step is one number" in tally.examples[0].why
    rows = _verl_rows(lambda _, values: {key: [value, value] for key, value in values.items()})
    _refused(written.lines(tmp_path / "all.jsonl", rows), said="are lists; a figure of a step is")


def test_null_is_no_number_and_left_out(tmp_path: Path) -> None:
    """The file logger writes null for what is no number."""
    rows = [
        {"step": t.step, "data": {**written.verl_values(t), "timing_s/ref": None}}
        for t in written.run()
    ]
    assert read_log([written.lines(tmp_path / "a.jsonl", rows)]).steps["reference_s"].isna().all()


# Two runs, two stacks


def test_two_runs_in_one_file(tmp_path: Path) -> None:
    one, two = written.run(seed=0), written.run(seed=1)
    path = tmp_path / "console.log"
    path.write_text("\n".join([*map(written.verl_line, one), *map(written.verl_line, two)]) + "\n")
    _refused(path, said=r"console\.log, line 6: step 1 begins anew after step 5 .* two runs")


def test_two_runs_in_two_files(tmp_path: Path) -> None:
    one = written.verl_file(tmp_path / "a.jsonl", written.run(seed=0))
    two = written.verl_file(tmp_path / "b.jsonl", written.run(seed=1))
    said = r"a\.jsonl, line 1 and .*b\.jsonl, line 1 disagree about step 1: two runs are mixed"
    _refused(tmp_path, said=said)
    _refused(one, two, said=said)
    assert len(read_log([one, one]).steps) == 5  # the same file twice is one


def test_the_dumps_of_two_runs(tmp_path: Path) -> None:
    written.verl_dump(tmp_path / "a", written.run(seed=0))
    written.verl_dump(tmp_path / "b", written.run(seed=1))
    _refused(tmp_path, said=r"1\.jsonl and .*1\.jsonl both hold the rollouts of step 1: two runs")


def test_two_stacks(tmp_path: Path) -> None:
    written.verl_file(tmp_path / "a.jsonl", written.run())
    written.trl_state(tmp_path / "trainer_state.json", written.run())
    said = r"a\.jsonl, line 1 is of verl, and .*trainer_state\.json, line \d+ of trl: two runs"
    _refused(tmp_path, said=said)
    assert read_log([tmp_path], "trl").stack == "trl"
    with pytest.raises(
        LogError, match=r"no stack is called 'nemo'; known are areal, easyr1, nemo_rl"
    ):
        read_log([tmp_path], "nemo")


# Hostile files


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_pickle_with_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("global_step_1_training_input.pkl", "1.pt"):
        (tmp_path / name).write_bytes(pickle.dumps({"rollout_id": 1, "samples": _Code()}))
        said = _refused(tmp_path / name, said="no step could be read")
        assert name in said
    written.verl_file(tmp_path / "run.jsonl", written.run())
    log = read_log([tmp_path])
    assert log.unread == 2
    assert not (tmp_path / "executed").exists()


_HEAD, _END = b"\x80\x02}q\x00X\x0a\x00\x00\x00rollout_id", b"K\x01s."


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (pickle.dumps({"rollout_id": 1, "samples": [_Code()]}, protocol=2), "and is not run"),
        (pickle.dumps({"rollout_id": 1, "samples": [_Code()]}, protocol=5), "and is not run"),
        (pickle.dumps({"rollout_id": 1, "samples": [_Code()]}, protocol=0), "and is not run"),
        (b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x001 + \x85R.", "and is not run"),
        (_HEAD + b"r\xff\xff\xff\x7f" + _END, "and is not run"),  # a memo of 16 GB
        (_HEAD + b"i" + _END, "and is not run"),
        (_HEAD[:-4], "no file of torch.save"),
        (_HEAD, "no file of torch.save"),
        (b"", "no file of torch.save"),
    ],
)
def test_code_in_a_file_of_torch_is_not_run(
    pickled: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(tmp_path / "1.pt", "w") as archive:
        archive.writestr("1/data.pkl", pickled)
    _refused(tmp_path / "1.pt", said=said)
    assert not (tmp_path / "executed").exists()


def test_a_packed_file_of_torch_is_no_file_of_torch(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "1.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1/data.pkl", b"K" * 2**20)
    _refused(tmp_path / "1.pt", said="its parts are packed")
    (tmp_path / "1.pt").write_bytes(b"PK\x03\x04 whatever")
    _refused(tmp_path / "1.pt", said=r"1\.pt")


def test_bombs_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "ALWAYS_FINE", 2**18)
    text = b"step: of a bomb\n" * 2**16
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text))
    _refused(tmp_path / "a.log.gz", said=r"a\.log\.gz unpacks to more than 100 times its size")
    for end, pack in (("bz2", bz2.compress), ("xz", lzma.compress)):
        path = tmp_path / f"b.log.{end}"
        path.write_bytes(pack(text))
        _refused(path, said=rf"b\.log\.{end} unpacks to more than 100 times its size")
        path.write_bytes(pack(os.urandom(4096))[:-400])
        _refused(path, said=r"no log|not packed whole|breaks off|single step")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", text)
    _refused(tmp_path / "a.zip", said=r"a\.zip:a\.log unpacks to more than 100 times its size")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 nothing")
    _refused(tmp_path / "broken.zip", said=r"broken\.zip is not packed whole")


def test_a_packed_file_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = "".join(f"{written.verl_line(t)}\n" for t in written.run())
    packed = gzip.compress(lines.encode() + os.urandom(400_000).hex().encode())
    path = tmp_path / "console.log.gz"
    path.write_bytes(packed[: len(packed) - 50_000])
    log = read_log([path])
    assert len(log.steps) == 5
    assert "breaks off" in log.tallies[0].examples[-1].why


def test_a_line_longer_than_a_console_has_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_lines, "_LONGEST", 20_000)
    rows = [written.verl_line(t) for t in written.run()]
    path = tmp_path / "console.log"
    bar = "\r".join(["x" * 15_000, "y" * 15_000])  # overwrites itself
    long = "step:9 - a:2 " * 2_000
    path.write_text("\n".join([rows[0], long, bar + f"\r{rows[1]}", *rows[2:], ""]))
    log = read_log([path])
    assert len(log.steps) == 5
    [tally] = log.tallies
    assert [(e.place.line, e.why) for e in tally.examples] == [
        (2, "it has more than 0 MB: no line of a console")
    ]


def test_lines_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "LONGEST_LINE", 2**20)
    lines = [written.verl_line(t) for t in written.run()]
    path = tmp_path / "console.log"
    path.write_text("\n".join([lines[0], "x" * 3_000_000, *lines[1:], "y" * 3_000_000]))
    log = read_log([path])
    assert len(log.steps) == 5
    [tally] = log.tallies
    assert [(e.place.line, e.why) for e in tally.examples] == [
        (2, "longer than 1 MiB"),
        (7, "longer than 1 MiB"),
    ]
    assert (tally.lines, tally.used) == (7, 5)


@given(
    st.text("ab\n", min_size=1, max_size=40),
    st.sampled_from([(b"a",), (b"ab", b"bb"), (b"",)]),
    st.lists(st.booleans(), min_size=41, max_size=41),
    st.integers(2, 50),
)
@settings(max_examples=examples(200))
def test_the_lines_that_hold_a_cue_and_those_of_an_open_block(
    text: str, cues: tuple[bytes, ...], opens: list[bool], block: int
) -> None:
    """As a plain reading line by line finds them. Whether a block is open changes at a line."""
    wanted, reached, is_open = [], 0, opens[0]
    for reached, line in enumerate(text.removesuffix("\n").encode().split(b"\n"), start=1):
        if is_open or any(cue in line for cue in cues):
            wanted.append((reached, line))
            is_open = opens[reached]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "_BLOCK", block)
        path = Path(folder, "log")
        path.write_text(text)
        tally = Tally("log")
        found: list[tuple[int, bytes]] = []
        lines = opened.LogFile(path).lines(tally, cues, lambda: opens[found[-1][0] if found else 0])
        for number, line, _ in lines:
            found.append((number, line))
    assert found == wanted
    assert tally.lines == reached


def test_a_large_console_needs_little_memory(tmp_path: Path) -> None:
    words = ("(W pid=3) loaded shard 12 of 30 in 3.4 s\n" * 5000).encode()
    path = tmp_path / "console.log"
    with path.open("wb") as file:
        for t in written.run():
            for _ in range(40):
                file.write(words)
            file.write(f"{written.verl_line(t)}\n".encode())
    size = path.stat().st_size
    read_log([path])  # what is imported once does not count
    tracemalloc.start()
    log = read_log([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.steps) == 5
    assert log.tallies[0].lines == 5 * (40 * 5000 + 1)
    assert size > 40_000_000
    assert peak < size / 8


def test_dumps_that_are_not_what_they_promise(tmp_path: Path) -> None:
    truth = written.run()
    written.verl_file(tmp_path / "run.jsonl", truth)
    good = {"input": "p", "output": "x", "score": 1.0, "step": 1, "gts": ""}
    rows: list[object] = [
        good,
        {**good, "output": 5},
        {**good, "step": "one"},
        {**good, "step": 1.5},
        {**good, "score": None},
        7,
        "text",
        [1],
    ]
    written.lines(tmp_path / "rollout_data" / "1.jsonl", rows)
    log = read_log([tmp_path])
    assert len(log.rollouts) == 2
    assert log.unread == 3
    [tally] = [t for t in log.tallies if t.file.endswith("1.jsonl")]
    assert [(e.place.line, e.why) for e in tally.examples] == [
        (2, "input or output is no text"),
        (3, "step is no number"),
        (4, "step is no whole number"),
    ]
    assert tally.lines == tally.used + tally.other + tally.unread == len(rows)


KEYS = """
step data metrics timing_s/step timing_s/gen input output score uid rollout_id samples tokens
response_length loss_mask trace events traces calls nodes usage time start end task_id seqlen
prompt_len tail_version session_id submit_ts phases generate responses scores global_step
input_lengths rewards token_loss_mask token_ids group index turn start_s end_s new_tokens
log_history step_time completion prompt run work id
"""
KEY = st.sampled_from(KEYS.split())
RECORDS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=6),
    max_leaves=12,
)


def _names(error: LogError, path: Path) -> None:
    assert str(path.parent) in error.message
    assert "\n" not in error.message


def _survives(path: Path) -> None:
    """Either a run, whose counts balance, or one sentence."""
    try:
        log = read_log([path])
    except LogError as error:
        _names(error, path)
        return
    for tally in log.tallies:
        assert tally.lines == tally.used + tally.unread + tally.other
        assert min(tally.used, tally.unread, tally.other) >= 0
    assert log.steps["step"].is_unique
    assert not (log.steps[["step_s", "generation_s", "update_s"]] < 0).any().any()


@given(st.lists(RECORDS, max_size=6), st.sampled_from(["a.jsonl", "a.json", "step_3.jsonl"]))
@settings(max_examples=examples(200))
def test_any_json(rows: list[object], name: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        text = "\n".join(map(json.dumps, rows))
        path.write_text(json.dumps(rows) if name == "a.json" else text, errors="replace")
        _survives(path)


ENDS = ("log", "jsonl", "csv", "json", "yaml", "toml", "pt", "parquet", "zip", "gz", "db")
STARTS = [
    b"",
    b"PAR1",
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"SQLite format 3\0",
    b"\x80\x04",
    b"step:1 - timing_s/gen:",
    b"perf 3: {",
    b"{'loss': ",
    b"Step 4: ",
    b"{",
    b"[",
    b"step,step_s\n",
    b"metrics_tag: {",
    b"== Step 1/2 ==\nTiming:\n",
    b"Train step 1/2 done\n| timeperf/rollout | ",
]


@given(st.sampled_from(ENDS), st.sampled_from(STARTS), st.binary(max_size=200))
@settings(max_examples=examples(200))
def test_any_bytes(end: str, start: bytes, content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.{end}")
        path.write_bytes(start + content)
        _survives(path)


def test_natural_order() -> None:
    names = ["10.jsonl", "2.jsonl", "a1", "1.jsonl", "a"]
    assert sorted(names, key=opened.natural) == ["1.jsonl", "2.jsonl", "10.jsonl", "a", "a1"]
