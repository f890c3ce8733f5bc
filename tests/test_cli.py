"""The command line from outside: every mistake is one sentence and exit code 2, every run is whole,
the same seed gives the same bytes, and a stopped run leaves nothing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rollcast import ScenarioError, load
from rollcast.simulator.cli.app import app, main
from tests.conftest import Cli
from tests.processes import ROLLCAST, on_a_terminal, processor_s, started
from tests.refusals import ran, refused
from tests.scenarios import TINY

pytestmark = pytest.mark.usefixtures("quick_intervals")

TABLES = ("spans.csv", "steps.csv", "rollouts.csv", "decisions.jsonl", "summary.json")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def settings(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


# What is wrong is said


TABLE = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))["tiny"]


@pytest.mark.parametrize(("old", "new", "said"), [(old, new, said) for old, new, *said in TABLE])
def test_a_wrong_scenario_names_the_key_the_line_and_what_would_be_right(
    cli: Cli, tiny: Path, old: str, new: str, said: list[str]
) -> None:
    assert old in TINY
    tiny.write_text(TINY.replace(old, new))
    out = tiny.parent / "out"
    message = refused(cli("simulate", tiny, "--no-plot", "--out", out))
    for part in said:
        assert part in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"just text", "not a mapping"),
        (bytes(range(256)), "not a text file"),
        (b"\na: \x00", "line 2: not valid YAML: the character U+0000 is no text"),
        (
            b'name: "\\ud800"',
            "name: holds the character U+D800, which is no text (tiny.yaml, line 1)",
        ),
        (b'gpu: {name: "\\0"}', "gpu.name: holds the character U+0000"),
        (b"seed: " + b"9" * 5000, "seed: is a number of 5000 digits"),
        (b"a: {b: 1, b: 2}", "a.b: given twice, in line 1 of"),
        (TINY.replace("steps: 3", "steps: 2024-01-31").encode(), "1000000, got 2024-01-31 (tiny"),
        (b"a: [" * 5000, "nested too deeply"),
        (
            b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10))
                for c in range(97, 106)
            ),
            "more than 100000 values",
        ),
        (b"steps: !!python/object:os.system x", "could not determine a constructor"),
        (b"steps: !!timestamp abc", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_scenario(cli: Cli, tiny: Path, content: bytes, said: str) -> None:
    tiny.write_bytes(content)
    assert said in refused(cli("simulate", tiny))


def test_a_scenario_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    assert "No such file" in refused(cli("simulate", tmp_path / "none.yaml"))
    assert "is a folder" in refused(cli("simulate", tmp_path))


@pytest.mark.parametrize(
    "argv", [("simulate",), ("check",), ("plan", "--gpus", "8"), ("compare", "--policy", "sync")]
)
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    cli: Cli, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    said = refused(cli(argv[0], tmp_path / "pipe.yaml", *argv[1:]))
    assert "pipe.yaml is a device or a pipe" in said or "is not a regular file" in said


LONG = "a" * 300


@pytest.mark.parametrize(
    "argv",
    [
        ("simulate", LONG),
        ("simulate", "examples/april.yaml", "--set", f"workload.lengths={{trace: {LONG}}}"),
        ("simulate", "examples/april.yaml", "--set", f"model={LONG}"),
        ("check", LONG, "--gpu", "h100-sxm"),
        ("check", "examples/launch/run.sh", "--gpu", "h100-sxm", "--model", LONG),
        ("plan", LONG, "--gpus", "8"),
    ],
)
def test_a_name_too_long_for_a_file_is_refused(cli: Cli, argv: tuple[str, ...]) -> None:
    said = refused(cli(*argv))
    assert "aaa" in said
    assert "cannot print" not in said
    with pytest.raises(ScenarioError, match="is no path of a file"):
        load("a\0b")


def test_a_pipe_is_no_fitted_file(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in refused(cli("validate", tmp_path / "pipe", tmp_path))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["simulate"], "SCENARIO.yaml"),
        (["simulate", "a.yaml", "--nope"], "--nope"),
        (["simulate", "a.yaml", "--seed", "x"], "--seed"),
        (["simulate", "a.yaml", "--policy", "x"], "No such option: --policy; give --set policy=V"),
        (["compare", "a.yaml", "--group-size=4"], "give --set workload.group_size=VALUE; see"),
        (
            ["presets", "--steps", "4"],
            "No such option: --steps (Possible options: --help); see rollcast p",
        ),
        (["simulate", "a.yaml", "--out"], "--out"),
        (["presets", "gpu"], "did you mean gpus"),
        (["presets", "gpus", "h100"], "h100-sxm"),
    ],
)
def test_wrong_usage(cli: Cli, argv: list[str], said: str) -> None:
    assert said in refused(cli(*argv))


def test_the_end_of_a_key_is_told_the_whole(cli: Cli, tiny: Path) -> None:
    said = refused(cli("simulate", tiny, "--set", "group_size=8"))
    assert said == (
        "group_size: unknown key; did you mean workload.group_size? (from --set group_size)"
    )


@pytest.mark.parametrize("name", ["run.sh", "rl.toml", "ppo.yaml"])
def test_a_launch_in_a_scenarios_place_is_sent_to_check(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("defaults: [ppo_trainer]\ncluster: {n_nodes: 1}\n")
    assert f"rollcast check {name} --out DIR" in refused(cli("compare", tmp_path / name))


TRACE = "group,index,prompt_tokens,new_tokens\n"


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("", "empty"),
        (TRACE, "no rows"),
        (TRACE + "0,0,10,-5\n", "new_tokens"),
        (TRACE + "0,0,10,x\n", "new_tokens"),
        (TRACE + "0,0,10\n", "line 2 has 3 cells"),
        ("a,b\n1,2\n", "no header that is known"),
        (TRACE + "".join(f"{g},{i},10,50\n" for g in range(8) for i in range(4)), "holds 8 groups"),
        (TRACE + "".join(f"{g},{i},10,50\n" for g in range(8) for i in range(3)), "holds 3 roll"),
    ],
)
def test_a_trace_that_does_not_serve(cli: Cli, tiny: Path, trace: str, said: str) -> None:
    (tiny.parent / "trace.csv").write_text(trace)
    tiny.write_text(
        TINY.replace("  prompt_tokens: 100\n", "").replace(
            "{family: lognormal, median_tokens: 200, between_sd: 0.65, within_sd: 0.30}",
            "{trace: trace.csv}",
        )
    )
    message = refused(cli("simulate", tiny, "--no-plot", "--out", tiny.parent / "out"))
    assert message.startswith("workload.lengths.trace: ")
    assert said in message
    assert "tiny.yaml, line 7" in message
    assert not (tiny.parent / "out").exists()


# --set, --seed


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (["workload.group_size=16"], ("workload", "group_size"), 16),
        (["workload.group_size=1e1"], ("workload", "group_size"), 1e1),
        (["cost.linear.sync_s=0"], ("cost", "linear", "sync_s"), 0),
        (["policy.april.over_sampling=1.5"], ("policy", 0, "april", "over_sampling"), 1.5),
        (["policy[0].april.over_sampling=1.5"], ("policy", 0, "april", "over_sampling"), 1.5),
        (
            ["policy=april", "policy.april.over_sampling=3"],
            ("policy", 0, "april", "over_sampling"),
            3,
        ),
        (["policy=[sync, sagc]", "policy.sagc.tau=2"], ("policy", 1, "sagc", "tau"), 2),
        (["model=qwen3-8b", "model.layers=4"], ("model", "layers"), 4),
    ],
)
def test_set_reaches_any_key(
    cli: Cli, tiny: Path, given: list[str], key: tuple[str | int, ...], value: float
) -> None:
    out = tiny.parent / "out"
    ran(cli("simulate", tiny, "--no-plot", "--out", out, *settings(*given)))
    place = json.loads((out / "scenario.json").read_text())["scenario"]
    for part in key:
        place = place[part]
    assert place == value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["lengths.family=1"], "lengths: unknown key"),
        (["workload.lengths.nonsense=1"], "workload.lengths.nonsense: unknown key"),
        (
            ["workload.group_size=0"],
            "must be a whole number from 1 to 4000000, got 0 (from --set workload.group_size)",
        ),
        (["workload={}"], "workload.batch_groups: missing; give a whole number from 1 to"),
        (["policy.sagc.tau=2"], "policy.sagc.tau: it has no entry sagc"),
        (["engine.kv_tokens.x=1"], "kv_tokens is 100000, which has no keys below it"),
        (["a"], "not of the form key=value"),
        (["a..b=1"], "not of the form key=value"),
        (["steps=[1"], "not valid YAML"),
        (["steps=&a [*a]"], "refers to itself"),
        (["cost=''"], "cost: must be one of roofline, tables, file, linear, got ''"),
        (["cost=roofline"], "model: missing"),
        (["cost={file: nope.json}"], "cost.file: cannot read nope.json"),
        (["model=" + "a" * 5000], "model: "),
        (["model='~nouser/x.json'"], "model: no file ~nouser/x.json"),
        (["a" + ".a" * 1000 + "=1"], "has 1001 parts"),
        (["workload.group_size=1:30"], "got '1:30' (from --set workload.group_size)"),
    ],
)
def test_set_nonsense(cli: Cli, tiny: Path, given: list[str], said: str) -> None:
    assert said in refused(cli("simulate", tiny, "--no-plot", *settings(*given)))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range(cli: Cli, tiny: Path, seed: int) -> None:
    message = refused(cli("simulate", tiny, "--seed", seed))
    assert message.startswith("seed: must be a whole number from 0")
    assert message.endswith("(from --seed)")


def test_a_seed_changes_the_run_but_not_the_policys_name(cli: Cli, tiny: Path) -> None:
    argv = ("simulate", tiny, "--json", "--draws", 0, *settings("policy=[sagc]"))
    runs = [json.loads(cli(*argv, "--seed", seed)[1]) for seed in (0, 7, 2**63 - 1)]
    assert len({run["makespan_s"] for run in runs}) == 3
    assert {run["policy"] for run in runs} == {"sagc"}


# The same seed, the same bytes


def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed(tiny: Path) -> None:
    folders = []
    for number in ("1", "2"):
        out = tiny.parent / number
        argv = [*ROLLCAST, "compare", str(tiny), "--policy", "april+sagc", "--policy", "sync"]
        environment = {**os.environ, "PYTHONHASHSEED": number}
        subprocess.run(
            [*argv, "--out", str(out), "--no-plot"],
            check=True,
            capture_output=True,
            env=environment,
        )
        folders.append(out)
    first, second = ({p.relative_to(f): p for f in [f] for p in f.rglob("*.*")} for f in folders)
    assert first.keys() == second.keys()
    assert len(first) > 2 * len(TABLES)
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes(), name


def _without_intervals(summary: bytes) -> bytes:
    """Nor sampling error: both are drawn alike for all policies that are compared."""
    added = ("interval", "sampling_error")
    kept = {k: v for k, v in json.loads(summary).items() if not k.startswith(added)}
    kept["warnings"] = [line for line in kept["warnings"] if "sampling error" not in line]
    return json.dumps(kept).encode()


def test_compare_equals_separate_runs(cli: Cli, tiny: Path) -> None:
    policies = {"sync": "[]", "pods(keep=2)": "[{pods: {keep: 2}}]"}
    both = tiny.parent / "both"
    chosen = [part for name in policies for part in ("--policy", name)]
    assert cli("compare", tiny, *chosen, "--out", both, "--no-plot")[0] == 0
    folders = sorted(path.name for path in both.iterdir() if path.is_dir())
    assert folders == ["pods-keep-2", "sync"]
    for name, (spelt, policy) in zip(("sync", "pods-keep-2"), policies.items(), strict=True):
        alone = tiny.parent / name
        ran(cli("simulate", tiny, *settings(f"policy={policy}"), "--out", alone, "--no-plot"))
        for table in TABLES:
            one, other = ((place / table).read_bytes() for place in (alone, both / name))
            if table == "summary.json":  # drawn alike for all policies, intervals may differ
                one, other = map(_without_intervals, (one, other))
            assert one == other, (spelt, table)


def test_compare_names_the_policy_that_cannot_go_on(cli: Cli, tiny: Path) -> None:
    constant = settings("workload.rewards={family: constant}")
    argv = ("--policy", "dynamic_sampling", *constant, "--out", tiny.parent / "out")
    message = refused(cli("compare", tiny, *argv))
    assert message.startswith("under dynamic_sampling, step 0 can never finish")
    assert not (tiny.parent / "out").exists()


def test_compare_holds_another_set_up_against_the_first(cli: Cli, tiny: Path) -> None:
    out = tiny.parent / "out"
    also = ["--also", "cluster.routing=round_robin", "--also", "workload.group_size=2"]
    argv = ("compare", tiny, "--policy", "sync", "--policy", "april", *also)
    shown = ran(cli(*argv, "--out", out, "--json", "--draws", 0, "--no-plot"))
    rows = json.loads(shown)
    names = ["sync", "april", "sync, cluster.routing=round_robin", "sync, workload.group_size=2"]
    assert [row["policy"] for row in rows] == names
    settings = ("cluster.routing=round_robin", "workload.group_size=2")
    for name, setting in zip(names[2:], settings, strict=True):
        _, alone, _ = cli(
            "simulate", tiny, "--set", "policy=[]", "--set", setting, "--json", "--draws", 0
        )
        [row] = [row for row in rows if row["policy"] == name]
        assert row["step_s"] == json.loads(alone)["step_s"]
    assert len({row["generated_tokens"] for row in rows}) > 1
    assert len(list(out.glob("*/summary.json"))) == 4


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cluster.routing=random", "from --also cluster.routing"),
        ("policy=april", "--also: takes other keys"),
        ("policy.april.over_sampling=3", "--also: takes other keys"),
        ("routing", "--also: 'routing' is not of the form key=value"),
    ],
)
def test_compare_refuses_another_set_up(cli: Cli, tiny: Path, setting: str, said: str) -> None:
    assert said in refused(cli("compare", tiny, "--also", setting))


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (["aprl"], "did you mean april"),
        (["april", "april(over_sampling=2)"], "april is given twice"),
        ([": april"], "empty label"),
        ([""], "names no policy"),
        (["april((("], "cannot read"),
        (["sync, april(over_sampling=2)"], "a --policy of its own"),
        (["pods(keep=9)"], "policy.pods.keep"),
        (["pods(keep=__import__('os').system('false'))"], "cannot read"),
    ],
)
def test_compare_refuses(cli: Cli, tiny: Path, policies: list[str], said: str) -> None:
    chosen = [part for policy in policies for part in ("--policy", policy)]
    assert said in refused(cli("compare", tiny, *chosen))


# --out


def test_out_refuses_what_it_must_not_touch(cli: Cli, tiny: Path) -> None:
    folder = tiny.parent

    def run(out: str, *more: str) -> tuple[int, str, str]:
        options = ("--no-plot", "--draws", "0", "--out", folder / out)
        return cli("simulate", tiny, *options, "--json", *more)

    assert run("a")[0] == 0
    before = (folder / "a" / "summary.json").read_bytes()
    assert "holds another run; add --force" in refused(run("a"))
    assert run("a", "--force", "--seed", "1")[0] == 0
    assert (folder / "a" / "summary.json").read_bytes() != before

    (folder / "a" / "notes.txt").write_text("mine")
    assert "holds files that no run wrote" in refused(run("a", "--force"))
    assert (folder / "a" / "notes.txt").read_text() == "mine"

    theirs = folder / "theirs"
    theirs.mkdir()
    (theirs / "summary.json").write_text("{}")  # our name, but another's file
    assert "holds files that no run wrote" in refused(run("theirs", "--force"))
    assert (theirs / "summary.json").read_text() == "{}"

    (folder / "file").write_text("x")
    assert "is a file" in refused(run("file", "--force"))
    assert "is a file" in refused(run("file/below"))
    assert run("new/parents/run")[0] == 0
    assert sorted(p.name for p in folder.iterdir()) == ["a", "file", "new", "theirs", "tiny.yaml"]


def test_an_empty_folder_is_filled_and_not_replaced(cli: Cli, tiny: Path) -> None:
    out = tiny.parent / "out"
    out.mkdir()
    inode = out.stat().st_ino
    assert cli("simulate", tiny, "--no-plot", "--out", out)[0] == 0
    assert out.stat().st_ino == inode
    assert {path.name for path in out.iterdir()} == {*TABLES, "scenario.json", "trace.json.gz"}


def test_labels_cannot_leave_the_folder_or_collide(cli: Cli, tiny: Path) -> None:
    labels = ["../up", "..", "/", "a/b", "a-b", "summary.json"]
    policies = ["sync", "april", "sagc", "prefix_reuse", "pods(keep=2)", "dapo_filter"]
    chosen = [
        part
        for pair in zip(labels, policies, strict=True)
        for part in ("--policy", ": ".join(pair))
    ]
    out = tiny.parent / "out"
    ran(cli("compare", tiny, *chosen, "--no-plot", "--draws", 0, "--out", out))
    assert len([path for path in out.iterdir() if path.is_dir()]) == len(labels)
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["out", "tiny.yaml"]
    assert cli("compare", tiny, "--no-plot", "--draws", 0, "--out", out, "--force")[0] == 0


# Streams, terminals, signals: from outside


def outside(*argv: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = " ".join([*ROLLCAST, *argv, shell])
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_reader_that_goes_away_and_letters_that_are_missing(tiny: Path) -> None:
    gone = outside("simulate", str(tiny), shell="| true")
    assert gone.stderr == ""
    full = outside("simulate", str(tiny), "--json", shell="> /dev/full")
    assert (full.returncode, full.stderr) == (2, "error: cannot print: No space left on device\n")
    plain = outside(
        "compare", str(tiny), "--policy", "'é: april'", COLUMNS="80", PYTHONIOENCODING="ascii"
    )
    assert (plain.returncode, plain.stderr) == (0, "")  # a pipe sees no progress
    assert plain.stdout.isascii()
    assert max(map(len, plain.stdout.splitlines())) <= 80
    assert "speed-" in plain.stdout


def test_a_terminal_sees_a_progress_bar(tiny: Path) -> None:
    shown = on_a_terminal([*ROLLCAST, "simulate", str(tiny)], columns=80)
    assert b"0/3" in shown
    assert b"step time" in shown


@pytest.mark.parametrize(
    ("number", "writing"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, True)]
)
def test_a_stopped_run_leaves_no_folder(tiny: Path, number: signal.Signals, writing: bool) -> None:
    out = tiny.parent / "new" / "out"
    argv = [*ROLLCAST, "simulate", str(tiny), "--no-plot", "--out", str(out)]
    argv += settings("steps=400" if writing else "steps=100000")
    process = started(argv)
    until = time.monotonic() + 60
    if writing:
        while not list(tiny.parent.glob("new/.out.partial")) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.001)
    else:  # well past its imports, on however busy a machine
        while processor_s(process.pid) < 1.0 and time.monotonic() < until:
            time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate()
    assert not out.exists()
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        said = "interrupted; no output folder was written\n"
        assert (process.returncode, err) == (128 + number, said)
        assert sorted(path.name for path in tiny.parent.iterdir()) == ["tiny.yaml"]


def test_a_disk_that_refuses_leaves_nothing(tiny: Path) -> None:
    out = tiny.parent / "new" / "out"
    script = 'ulimit -f 4; exec "$@"'  # no file above 4 KiB
    argv = [*ROLLCAST, "simulate", str(tiny), "--no-plot", "--out", str(out)]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *argv, *settings("steps=50")], capture_output=True, text=True
    )
    assert refused((done.returncode, done.stdout, done.stderr)).endswith("File too large")
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["tiny.yaml"]


# Help


def test_a_system_without_hangups_and_alarms(tiny: Path) -> None:
    """Windows has neither signal."""
    code = (
        "import signal, sys; del signal.SIGHUP, signal.SIGALRM, signal.setitimer\n"
        "import rollcast.engine.time_limit\n"
        "with rollcast.engine.time_limit.time_limit(5.0, 'late'): pass\n"
        "from rollcast.simulator.cli.app import main; main(['simulate', *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_help_and_version(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli("--version")[1].startswith("rollcast ")
    listed = cli("--help")[1].partition("Commands:\n")[2].splitlines()
    assert len(listed) >= 6
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    for command in ("simulate", "compare", "plan", "presets"):
        assert "Print JSON instead of a table." in cli(command, "--help")[1]
    assert cli()[0] == 2


@pytest.mark.parametrize("kind", ["gpus", "models", "lengths", "policies"])
def test_presets_are_listed_and_shown(cli: Cli, kind: str) -> None:
    out = ran(cli("presets", kind, "--json"))
    names = [row["name"] for row in json.loads(out)[kind]]
    assert len(names) == len(set(names)) > 3
    out = ran(cli("presets", kind, names[0]))
    assert names[0] in out


@pytest.mark.parametrize("became", [None, SystemError("returned a result with an exception set")])
def test_a_stop_whose_exception_a_library_loses_is_honoured(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    became: Exception | None,
) -> None:
    """As when a signal comes in the middle of an import that swallows every exception, or while
    Ray waits in C."""
    import rollcast.simulator.studies.simulate as module

    load = module.load

    def interrupted(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0)
        if became is not None:
            raise became
        return load(*arguments, **options)

    monkeypatch.setattr(module, "load", interrupted)
    out = tiny.parent / "out"
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(tiny), "--no-plot", "--out", str(out)])
    assert stopped.value.code == 128 + signal.SIGTERM
    assert "interrupted" in capsys.readouterr().err
    assert not out.exists()


def test_an_interrupt_while_modules_are_imported_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import rollcast.__main__ as door

    app = "rollcast.simulator.cli.app"

    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == app:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, app)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as stopped:
        door.main()
    assert stopped.value.code == 130


# Words


@pytest.mark.parametrize(
    "content", ["step:1 - reward:0.5 - time:3.2\n", '{"step": 1}\n{"step": 2}\n']
)
def test_a_log_in_the_place_of_a_fitted_file(cli: Cli, tiny: Path, content: str) -> None:
    (tiny.parent / "verl.log").write_text(content)
    said = refused(cli("simulate", tiny, *settings("workload.lengths={file: verl.log}")))
    assert said.startswith("workload.lengths.file: verl.log is not a file of JSON")
    for part in ("not a fitted file", "which rollcast calibrate writes", "trace: in place of file"):
        assert part in said


def test_the_share_at_the_cap_is_in_the_tables(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capped = settings("workload.max_new_tokens=50", "workload.lengths.between_sd=0")
    _, said, _ = cli("simulate", tiny, *capped)
    assert "100.0 %" in next(line for line in said.splitlines() if "at cap" in line)
    monkeypatch.setenv("COLUMNS", "200")
    _, said, _ = cli("compare", tiny, *capped)
    assert "at cap: responses cut at max_new_tokens" in said
    assert said.count("100.0 %") >= 2


def test_presets_break_no_name_and_no_heading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, listed, _ = cli("presets", "--json")
    for kind in ("gpus", "models", "lengths"):
        _, said, _ = cli("presets", kind)
        assert max(map(len, said.splitlines())) <= 80
        rows = json.loads(listed)[kind]
        for row in rows:
            assert re.search(rf"{re.escape(row['name'])}\s*\u2502", said)
        head = said.partition("\u2521")[0]
        for word in " ".join(rows[0]).split():
            assert word in head or f"{word}:" in said or f"shows {word}" in said


def test_commands_of_others_are_added_once(cli: Cli) -> None:
    """However often one process runs a command that is not the simulator's own."""
    counts = []
    for _ in range(3):
        assert cli("import", "--help")[0] == 0
        counts.append(len(app.registered_commands))
    assert counts[0] == counts[1] == counts[2]


def test_plain_words_need_no_pydantic(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which typer would ask about each, and which takes long to import."""
    monkeypatch.setitem(sys.modules, "typer._adapters", None)
    monkeypatch.delattr(typer, "_adapters", raising=False)
    plain = "--seed 3 --set steps=2 --set steps=1 --draws 0 --json --out"
    said = ran(cli("simulate", tiny, *plain.split(), tmp_path / "out"))
    assert (json.loads(said)["seed"], json.loads(said)["steps"]) == (3, 1)
