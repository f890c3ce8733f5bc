"""``rollcast check`` as its users call it, and the pages that show it."""

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.running import exit_code

pytestmark = pytest.mark.usefixtures("quick_intervals")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "launch" / "run.sh"
SMALL = "examples/launch/run.sh"
PROMPTS, LESS = 256, 64
NO_SHARE = ("--", "actor_rollout_ref.rollout.gpu_memory_utilization=0")
Called = tuple[int, str, str]
Call = Callable[..., Called]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Calls rollcast where examples/ is, its launch with a 64th of the prompts;
    (exit code, standard output, standard error)."""
    (tmp_path / "examples" / "launch").mkdir(parents=True)
    for path in (ROOT / "examples").glob("*.yaml"):
        (tmp_path / "examples" / path.name).symlink_to(path)
    launch = EXAMPLE.read_text("utf-8")
    for size, less in ((PROMPTS, PROMPTS // LESS), (64, 2)):
        assert f"batch_size={size}" in launch
        launch = launch.replace(f"batch_size={size}", f"batch_size={less}")
    (tmp_path / SMALL).write_text(launch, "utf-8")
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Called:
        code, said = exit_code(*words), capsys.readouterr()
        return code, said.out, said.err

    return run


def commands(page: str) -> list[list[str]]:
    """The command lines of a page's sh blocks, without what a shell does with their exit codes."""
    text = (ROOT / page).read_text("utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [shlex.split(line.partition("||")[0]) for line in lines if line.startswith("rollcast")]


@pytest.mark.parametrize("page", ["docs/check.md", "SKILL.md"])
def test_what_the_pages_say_runs(page: str, call: Call) -> None:
    """A plan of one policy, and a small batch where the page has its own."""
    said = commands(page)
    assert len(said) >= 3
    for program, *words in said:
        assert program == "rollcast"
        words = [word.replace("batch_size=128", "batch_size=8") for word in words]
        words += ["--policy", "sync", "--no-intervals"] * (words[0] == "plan")
        code, out, error = call(*words)
        assert code in (0, 3), error
        assert out


def test_a_gate_fails_over_a_share(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--mean-tokens", 1200, "--no-changes")
    share = json.loads(call(*words, "--json")[1])["peak"]
    used = share["bytes"] / share["capacity_bytes"]
    assert used < 0.99
    assert call(*words, "--fail-over", round(used + 0.01, 3))[0] == 0
    assert call(*words, "--fail-over", round(used - 0.01, 3))[0] == 3


def test_every_response_may_reach_the_cap_but_none_is_longer(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--json", "--mean-tokens")
    error = refused(call(*words, 10**6))
    cap = int(re.findall(r"cut at ([\d,]+) tokens", error)[0].replace(",", ""))
    steps = []
    for tokens in (cap, cap // 2):
        code, out, error = call(*words, tokens)
        assert code in (0, 3), error
        steps.append(json.loads(out)["step_s"]["median"])
    assert steps[0] > steps[1]


def test_what_does_not_fit_exits_with_three_and_says_what_to_add(call: Call) -> None:
    launch = EXAMPLE.read_text("utf-8").replace(f"batch_size={PROMPTS}", "batch_size=64")
    Path("half.sh").write_text(launch, "utf-8")
    code, out, _ = call("check", "half.sh", "--gpu", "a100-40gb", "--mean-tokens", 1200)
    assert code == 3
    assert out.startswith("No")
    assert "Add `" in " ".join(out.split())


def test_json_has_the_answer_of_the_table(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes")
    plain = json.loads(call(*words, "--json")[1])
    assert plain["fits"] is True
    assert plain["stack"] == "verl"
    assert plain["scenario"]["workload"]["batch_groups"] == PROMPTS // LESS
    assert call(*words)[1].startswith("Yes")


def test_what_is_known_to_be_far_off_is_said(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "a100-80gb", "--no-changes")
    warnings = json.loads(call(*words, "--json")[1])["warnings"]
    (warning,) = (one for one in warnings if "trainer efficiencies are assumed" in one)
    assert f"warning: {warning}" in " ".join(call(*words)[1].split())


def test_the_written_scenario_is_the_one_that_was_checked(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "checked"
    settings = ("workload.group_size=4", "cost.roofline.trainer.minibatches=1")
    settings = (*settings, "workload.lengths={mean_tokens: 900}")
    given = [word for setting in settings for word in ("--set", setting)]
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", *given)
    plain = json.loads(call(*words, "--out", out, "--json")[1])
    again = json.loads(call("simulate", out / "scenario.yaml", "--json")[1])
    step = plain["step_s"]
    assert step["median"] == pytest.approx(again["step_s"])
    assert [step["low"], step["high"]] == pytest.approx(again["intervals"]["step_s"])
    assert plain["peak"]["bytes"] == again["peak_memory_bytes"]
    assert plain["scenario"]["workload"]["group_size"] == 4
    assert "workload.lengths.mean_tokens" not in [one["key"] for one in plain["assumed"]]
    assert "group_size: 4  # given by --set" in (out / "scenario.yaml").read_text()


def test_the_written_scenario_leaves_open_what_the_launch_does(call: Call, tmp_path: Path) -> None:
    """The mean length, by far the most of the interval, on both sides."""
    out = tmp_path / "checked"
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--out", out, "--json")
    step = json.loads(call(*words)[1])["step_s"]
    again = json.loads(call("simulate", out / "scenario.yaml", "--json")[1])
    low, high = again["intervals"]["step_s"]
    assert again["step_s"] == pytest.approx(step["median"])
    for mine, end in ((low, step["low"]), (high, step["high"])):
        logs = [math.log(seconds / step["median"]) for seconds in (mine, end)]
        assert logs[0] == pytest.approx(logs[1], rel=0.35)


def test_a_strategy_an_optimiser_and_an_engine_without_costs_are_told(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--json", "--")
    for key, value, told in (
        ("actor.strategy", "fsdp3", True),
        ("actor.strategy", "fsdp2", False),
        ("actor.optim.optimizer", "Lion", True),
        ("actor.optim.optimizer", "AdamW", False),
        ("rollout.name", "mlx", True),
        ("rollout.name", "sglang_async", False),
        ("rollout.name", "dynamo", True),
        ("rollout.engine_kwargs.dynamo.engine", "sglang", False),
    ):
        plain = json.loads(call(*words, f"actor_rollout_ref.{key}={value}")[1])
        note = f"actor_rollout_ref.{key} in the command line is {value}, of which no"
        assert any(one.startswith(note) for one in plain["notes"]) == told


def test_a_stack_is_told_without_case(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--json")
    plain = json.loads(call(*words, "--stack", "VERL-0.5")[1])
    assert (plain["stack"], plain["stack_version"]) == ("verl", "0.5")


def test_variables_come_from_outside(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--json")
    plain = json.loads(call(*words, "--env", "MODEL=Qwen/Qwen3-1.7B")[1])
    assert plain["scenario"]["model"] == "qwen3-1.7b"


def test_what_follows_two_dashes_holds_over_the_file(call: Call) -> None:
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--json")
    plain = json.loads(call(*words, "--", "data.train_batch_size=32")[1])
    assert plain["scenario"]["workload"]["batch_groups"] == 32


def test_the_folder_is_whole_or_absent(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "checked"
    words = ("check", SMALL, "--gpu", "h100-sxm", "--no-changes", "--out", out)
    assert call(*words)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("check.json", "report.html", "scenario.yaml")
    ]
    error = refused(call(*words))
    assert "--force" in error
    assert call(*words, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a launch"),
        (("nowhere.sh", "--gpu", "h100-sxm"), "nowhere.sh"),
        ((SMALL,), "does not say which GPU; give --gpu"),
        ((SMALL, "--gpu", "h1000"), "unknown GPU 'h1000'"),
        ((SMALL, "--gpu", "h100-sxm", "--gpus", "12"), "no whole nodes of 8"),
        ((SMALL, "--gpu", "h100-sxm", "--model", "nothing"), "--model"),
        ((SMALL, "--gpu", "h100-sxm", "--mean-tokens", "0"), "at least 1"),
        ((SMALL, "--gpu", "h100-sxm", "--mean-tokens", "999999999"), "is 999999999; give tokens"),
        ((SMALL, "--gpu", "h100-sxm", "--mean-tokens", "9000"), "error: --mean-tokens: is 9000"),
        ((SMALL, "--gpu", "h100-sxm", "--model", "examples"), "no file examples/config.json"),
        ((SMALL, "--gpu", "h100-sxm", "--fail-over", "90"), "a share above 0"),
        ((SMALL, "--gpu", "h100-sxm", "--stack", "verll"), "verl"),
        ((SMALL, "--gpu", "h100-sxm", "--env", "MODEL"), "NAME=VALUE"),
        ((SMALL, "--gpu", "h100-sxm", "--set", "steps=x"), "steps"),
        (
            (SMALL, "--gpu", "h100-sxm", "--", "actor_rollout_ref.rollout.n=many"),
            "actor_rollout_ref.rollout.n",
        ),
        (
            (SMALL, "--gpu", "h100-sxm", *NO_SHARE),
            "is 0; a share above 0 is wanted",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    words: tuple[object, ...], message: str, call: Call
) -> None:
    code, out, error = call("check", *words)
    assert code == 2
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_a_launch_that_is_none(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "hello.sh"
    path.write_text("echo hello\n", "utf-8")
    error = refused(call("check", path, "--gpu", "h100-sxm"))
    assert "hello.sh" in error


def test_a_reason_is_told_once(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(Path(SMALL).read_text("utf-8").replace("$MODEL", "$WHICH"), "utf-8")
    error = refused(call("check", path, "--gpu", "h100-sxm"))
    assert error.count("$WHICH in run.sh") == 1


def test_a_launch_is_planned_as_it_is(call: Call, tmp_path: Path) -> None:
    """The scenario of the launch, its steps as the run, the numbers of GPUs as choices."""
    out = tmp_path / "planned"
    code, _, error = call(
        *("plan", SMALL, "--gpus", "16xh100,8xh200", "--mean-tokens", 300),
        *("--policy", "sync", "--no-intervals"),
        *("--out", out),
    )
    assert code == 0, error
    plan = json.loads((out / "plan.json").read_text("utf-8"))
    held = {(row["gpus"], row["gpu"]) for row in plan["rows"]}
    assert held == {(16, "h100-sxm"), (8, "h200-sxm")}
    assert "300 steps" in json.dumps(plan)
    assert "note: the release of " in error  # which a check says, too


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((SMALL, "--gpu", "h100-sxm", "--gpus", "8,x"), "--gpus"),
        (("examples/april.yaml", "--gpu", "h100-sxm"), "--gpu: is of a launch"),
        (("examples/april.yaml", "--gpus", "8xnone"), "--gpus: unknown GPU 'none'"),
        (("examples/april.yaml", "--gpus", "h100=8"), "--gpus: must be a list of numbers"),
        (("examples/april.yaml", "--gpus", "8", "--choose", "gpus=4"), "--gpus: is the same"),
        ((SMALL,), "which GPU"),
    ],
)
def test_flags_of_a_launch_belong_to_one(
    words: tuple[object, ...], message: str, call: Call
) -> None:
    error = refused(call("plan", *words))
    assert message in error
