"""The pages in docs/ do what they say."""

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rollcast.simulator.planner.planner import question
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.testing.conform import CASES
from tests.running import exit_code

pytestmark = pytest.mark.usefixtures("quick_intervals")

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "testing_policies.md").read_text("utf-8")
POLICY_PAGE = (ROOT / "docs" / "policies.md").read_text("utf-8")


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has examples/april.yaml with an eighth of its groups."""
    text = (ROOT / "examples" / "april.yaml").read_text("utf-8")
    assert "batch_groups: 32" in text
    (tmp_path / "examples").mkdir()
    less = text.replace("batch_groups: 32", "batch_groups: 4")
    (tmp_path / "examples" / "april.yaml").write_text(less, "utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files and an example, the working directory."""
    for code in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", code)
        assert name
        (tmp_path / name[1]).write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("steady", "test_steady"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_the_policy_keeps_its_tests(written: Path) -> None:
    module = import_module("test_steady")
    tests = [getattr(module, name) for name in dir(module) if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_the_command_runs(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = blocks("sh")
    program, *arguments = shlex.split(line)
    assert program == "rollcast"
    code, said = exit_code(*arguments), capsys.readouterr()
    assert code == 0, said.err
    assert "Steady" in said.out


def test_what_it_counts_is_so() -> None:
    assert len(CASES) == 12
    assert "twelve small and nasty cases" in TEXT


def test_the_policy_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("py", POLICY_PAGE)
    (tmp_path / "my_policies.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (text,) = blocks("yaml", (ROOT / "README.md").read_text("utf-8"))
    raw = parse_scenario(text)
    (chain,) = re.findall(r"'(my_policies:.*?)'", POLICY_PAGE)
    scenario = from_raw(raw, "steps=1").with_policy(chain)
    assert scenario.policy_name == chain
    assert scenario.warnings == ()
    assert simulate(scenario).run.steps[0].launched_groups == 40
    (entry,) = re.findall(r"`- (my_policies:.*?)`", POLICY_PAGE)
    assert from_raw(raw, f"policy=[{entry}]").policy_name == chain.partition("+")[0]
    del sys.modules["my_policies"]


@pytest.mark.usefixtures("small")
def test_a_page_is_made_from_python() -> None:
    (code,) = blocks("python", (ROOT / "docs" / "pages.md").read_text("utf-8"))
    made: dict[str, object] = {}
    exec(code, made)
    assert str(made["page"]).startswith("<!doctype html>")


def test_the_glossary_has_at_most_twenty_words_of_ours() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \|", page, re.M)
    assert rows[0] == "word"
    assert 10 < len(rows[1:]) <= 20


def test_every_policy_is_listed() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", POLICY_PAGE, re.MULTILINE))
    assert named == set(POLICIES) - {"dapo_filter"}


PLANNING = (ROOT / "docs" / "planning.md").read_text("utf-8")


def test_the_question_of_the_page_on_planning_is_one() -> None:
    (section,) = blocks("yaml", PLANNING)
    raw = parse_scenario((ROOT / "examples" / "april.yaml").read_text("utf-8") + section)
    asked = question(raw)
    assert asked.objective.name == "usd"
    assert asked.quality == {"april": 1.05}
    assert len(asked.policies) == 4


@pytest.mark.usefixtures("small")
def test_the_plan_from_python_on_its_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python", PLANNING)
    exec(compile(code, "docs/planning.md", "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert said.startswith("Run ")
    assert "break_even" in said


def test_the_scenarios_of_the_page_on_hardware_run() -> None:
    two, graphs = blocks("yaml", (ROOT / "docs" / "hardware.md").read_text("utf-8"))
    result = simulate(from_raw(parse_scenario(two)))
    assert result.summary["gpus_of"]["trainer"]["gpu"] == "h100-sxm"
    assert result.scenario.gpu_names == "8 h20 + 4 h100-sxm"
    workload = two[two.index("workload:") :]
    unknown = parse_scenario(f"model: qwen3-4b\ngpu: h100-sxm\n{workload}{graphs}")
    (said,) = [w for w in simulate(from_raw(unknown)).summary["warnings"] if "CUDA graphs" in w]
    assert "times as long without them at 1 rollout" in said


TURNS = (ROOT / "docs" / "turns.md").read_text("utf-8")


def test_the_environment_of_the_page_on_turns_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcast.engine.environments import Episode, Said
    from rollcast.engine.environments.sandbox import Patience, Sandbox
    from rollcast.engine.tasks.named import load_named

    (code,) = blocks("python", TURNS)
    (tmp_path / "guessing.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (section,) = [text for text in blocks("yaml", TURNS) if "guessing" in text]
    (named,) = re.findall(r'environment: "(.*?)"', section)
    made = load_named(named, "engine.task.environment", ("reset", "step", "close"))
    sandbox = Sandbox(made, Episode("?", (1,), 7, 0, 0), Patience(), lambda text: [9], 10)
    said = ["five", "5", "9", "7"]
    outcomes = [sandbox.work((), Said(turn, text, (1,))) for turn, text in enumerate(said)]
    answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    assert [answer.observation for answer in answers[1:3]] == ["higher: ", "lower: "]
    assert [answer.done for answer in answers] == [False, False, False, True]
    assert sum(answer.reward for answer in answers) == 0.9
    assert all(not outcome.reason for outcome in outcomes)
    del sys.modules["guessing"]


def test_the_scenario_of_ones_own_environment_is_read() -> None:
    from rollcast.engine.options import TaskSpec
    from rollcast.simulator.scenario.sections import validate
    from rollcast.simulator.values import read

    (text,) = [text for text in blocks("yaml", TURNS) if "guessing" in text]
    sections = validate(parse_scenario(text).data)
    assert sections.environment is not None
    assert sections.workload.turns.drawn.max_turns == 8
    assert sections.engine.task is not None
    assert read(TaskSpec, sections.engine.task, TaskSpec.FIELD).has_turns


LEARNING = (ROOT / "docs" / "learning.md").read_text("utf-8")


@pytest.mark.usefixtures("small")
def test_the_comparison_of_the_page_on_learning_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python", LEARNING)
    exec(compile(code, "docs/learning.md", "exec"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["sync", "april", "april"]
    assert lines[0].endswith("hours to accuracy 0.6")


def test_the_section_of_the_page_on_learning_is_read() -> None:
    (section,) = blocks("yaml", LEARNING)
    raw = parse_scenario((ROOT / "examples" / "april.yaml").read_text("utf-8") + section)
    learning = from_raw(raw).learning
    assert (learning.start, learning.target) == (0.3, 0.6)
