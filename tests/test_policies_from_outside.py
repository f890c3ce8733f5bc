"""Policies of other people's modules: on the command line, in a scenario, by an entry point."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.loop.policy_state import load_state, save_state
from rollcast.simulator.policies import build_chain, check_policy, outside, parse_policy, spell
from rollcast.simulator.policies.outside import Outside
from rollcast.simulator.scenario.file import kept, kept_modules, named_modules, read_scenario
from rollcast.simulator.studies.simulate import load, simulate
from tests.conftest import Cli
from tests.refusals import ran, refused, refuses
from tests.scenarios import COST

pytestmark = pytest.mark.usefixtures("quick_intervals")

PLAN = StepPlan(Batch(4, 4))
SCENARIO = f"""
{COST}engine: {{kv_tokens: 100000}}
workload:
  batch_groups: 2
  group_size: 4
  prompt_tokens: 10
  max_new_tokens: 64
  lengths: {{family: lognormal, median_tokens: 20, between_sd: 0.5, within_sd: 0.5}}
steps: 3
"""
MODULE = '''
from __future__ import annotations
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal
from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy

if TYPE_CHECKING:
    from nowhere import Unknown

@dataclass(frozen=True)
class Share(Policy):
    """Launches a share more than it needs (my own paper, 2031).

    And so on.
    """
    decides = frozenset({"launch.over_sampling"})
    share: float = 0.5
    mode: Literal["fast", "slow"] = "fast"
    sizes: tuple[int, ...] = ()
    note: str = ""
    seed: int = 0

    def plan(self, plan, state):
        launch = replace(plan.launch, over_sampling=1 + self.share)
        return replace(plan, launch=launch, unfinished="resume")

class Structural:
    """No policy by its parents."""
    def __init__(
        self, share: float, mode: Literal["fast", "slow"] = "fast", *, limit: int | None = None
    ):
        if share > 5:
            raise ValueError("share is beyond me")
        self.share = share
        self.limit = limit
    def init(self):
        return 0
    def plan(self, plan, state):
        return replace(plan, launch=replace(plan.launch, over_sampling=1 + self.share))
    def observe(self, state, outcome):
        return state + 1

class Nested:
    class Inner(Policy):
        pass

class Loose(Policy):
    def __init__(self, seed: int, **rest):
        self.seed, self.rest = seed, rest

class Puzzling(Policy):
    def __init__(self, what: Unknown = None, other: dict[str, Any] = {}):
        pass

class Forgetful(Policy):
    def plan(self, plan, state):
        replace(plan, surplus="drop")

class Clumsy(Policy):
    def observe(self, state, outcome):
        return state.next

@dataclass(frozen=True)
class Memory:
    steps: int = 0

class Remembers(Policy):
    def init(self):
        return Memory()
    def observe(self, state, outcome):
        return Memory(state.steps + 1)

class Half:
    def init(self): ...
    def plan(self, plan, state): ...

def function(): ...
number = 7
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MODULE)
    outside.named.cache_clear()
    yield tmp_path
    outside.named.cache_clear()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) is None or str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def launched(policy: Policy) -> float:
    return policy.plan(PLAN, policy.init()).launch.over_sampling


def rejected(text: str, field: str, *words: str) -> str:
    with refuses(field) as caught:
        parse_policy(text)
    assert all(word in caught.value.message for word in words)
    return caught.value.message


# Spelling and parameters


@pytest.mark.parametrize(
    ("text", "over_sampling"),
    [
        ("mine:Share", 1.5),
        ("mine:Share(share=1)", 2.0),
        ("mine:Share(share='1e-1', mode=slow, sizes=[4, 8], note='a+b)=c')", 1.1),
        ("mine:Structural(share=2)+pods(keep=2)", 3.0),
        ("mine:Structural(share=2, limit=none)", 3.0),
        ("prefix_reuse + mine:Nested.Inner", 1.0),
        ("mine:Loose(anything=[a, 1], seed=3)", 1.0),
        ("mine:Puzzling(what=1, other={'a': 1})", 1.0),
    ],
)
def test_a_class_of_a_module_in_the_working_directory(
    place: Path, text: str, over_sampling: float
) -> None:
    built = parse_policy(text)
    assert launched(built) == pytest.approx(over_sampling)
    assert parse_policy(spell(built)) == built
    assert check_policy(built, PLAN) == []


def test_the_same_in_a_scenarios_list(place: Path) -> None:
    as_mapping = build_chain(["sagc", {"mine:Share": {"share": 0.25, "sizes": [1]}}])
    as_text = build_chain(["sagc", "mine:Share(share=0.25, sizes=[1])"])
    assert as_mapping == as_text
    assert spell(as_text) == "sagc+mine:Share(share=0.25, sizes=[1])"
    assert build_chain(["april(over_sampling=3)+prefix_reuse", "sync"]) == parse_policy(
        "april(over_sampling=3)+prefix_reuse"
    )


def test_the_runs_seed_reaches_it(place: Path) -> None:
    def seed(text: str) -> Any:
        [member] = parse_policy(text, seed=9).policies
        assert isinstance(member, Outside)
        return member.policy.seed

    assert (seed("mine:Share"), seed("mine:Share(seed=2)"), seed("mine:Loose")) == (9, 2, 9)
    assert spell(parse_policy("mine:Share", seed=9)) == "mine:Share"


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("mine:Share(share=half)", ".share", "must be a number, got 'half'"),
        ("mine:Share(mode=fats)", ".mode", "did you mean fast?"),
        ("mine:Share(sizes=3)", ".sizes", "must be a list, each entry a whole number"),
        ("mine:Share(shar=1)", ".shar", "unknown key; did you mean share?"),
        ("mine:Structural", ".share", "missing; give a number"),
        ("mine:Structural(share=x)", ".share", "must be a number"),
        ("mine:Structural(share=1, mode=1)", ".mode", "one of fast, slow"),
        ("mine:Structural(share=1, limit=1.5)", ".limit", "must be a whole number"),
        ("mine:Structural(sahre=1)", ".sahre", "did you mean share?"),
        ("mine:Structural(share=6)", "", "cannot be made: ValueError: share is beyond me"),
    ],
)
def test_a_wrong_parameter_is_named(place: Path, text: str, field: str, words: str) -> None:
    rejected(text, f"policy.{text.partition('(')[0]}{field}", words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:Share", "there is no module nowhere_at_all on the Python path"),
        ("mine.deeper:Share", "there is no module mine.deeper"),
        ("mine:Shares", "mine has no Shares"),
        ("mine:Nested.Outer", "mine has no Nested.Outer"),
        ("mine:number", "7 and not a class; derive it from rollcast.simulator.core.policy.Policy"),
        ("mine:function", "and not a class"),
        ("mine:Half", "is no policy, it has no observe"),
        ("mine:StepPlan", "is no policy, it has no init and no plan and no observe"),
        ("mine:Half.plan", "not a class"),
    ],
)
def test_a_class_that_will_not_do_is_named(place: Path, name: str, words: str) -> None:
    rejected(f"{name}(share=1)", f"policy.{name}", words)


def test_a_missing_class_offers_those_that_are_there(place: Path) -> None:
    said = rejected("mine:Shares", "policy.mine:Shares", f"({place / 'mine.py'})", "it has Clumsy")
    assert "Share," not in said.partition("it has")[0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import json\n\nnumber = unknown_name\n", "NameError: name 'unknown_name' is not defined"),
        ("import json\n\nimport not_installed\n", "ModuleNotFoundError: No module named"),
        ("import json\n\ndef (\n", "SyntaxError: invalid syntax"),
        ("import json\n\njson.loads('[')\n", "JSONDecodeError: Expecting value"),
        ("import sys\n\nsys.exit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_is_told_with_its_own_error(
    place: Path, cli: Cli, source: str, words: str
) -> None:
    (place / "broken.py").write_text(source)
    (place / "scenario.yaml").write_text(SCENARIO)
    line = refused(cli("compare", "scenario.yaml", "--policy", "broken:Mine"))
    assert line.startswith(f"policy.broken:Mine: importing broken failed: {words}")
    assert f"({place / 'broken.py'}, line 3)" in line


# Carried out


def test_a_scenario_finds_modules_beside_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = SCENARIO + "policy:\n  - mine:Share: {share: 1.0}\n  - pods(keep=2)\n"
    (place / "scenario.yaml").write_text(text)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    result = simulate(load(place / "scenario.yaml", trust_modules=True))
    assert result.summary["policy"] == "mine:Share(share=1)+pods(keep=2)"
    assert result.run.steps[0].launched_groups == 4
    checked = load(place / "scenario.yaml", trust_modules=True)
    under = checked.with_policy("more = mine:Structural(share=2)")
    assert (under.policy_name, launched(under.policy)) == ("more", 3.0)
    again = load(place / "scenario.yaml", "policy=mine:Share", seed=4, trust_modules=True)
    [member] = again.policy.policies
    assert isinstance(member, Outside)
    assert member.policy.seed == 4


STRANGE = """
open("was_run", "w")
raise RuntimeError("its code ran")
"""


@pytest.mark.parametrize(
    "spelt",
    [
        "policy: [{'evil:Evil': {}}]",
        "policy: evil:Evil(share=1)+sagc",
        "policy: [sagc, 'april+evil:Evil']",
        "policy: evil.within:Evil",
        "plan: {policies: ['evil:Evil']}",
        "plan: {policies: ['evil.within:april']}",
        "plan: {choose: {policy: ['evil:Evil']}}",
    ],
)
@pytest.mark.parametrize("command", ["simulate", "compare", "plan", "explore"])
def test_a_file_runs_no_code_of_its_own_unless_trusted(
    place: Path, cli: Cli, command: str, spelt: str
) -> None:
    (place / "evil.py").write_text(STRANGE)
    (place / "scenario.yaml").write_text(f"{SCENARIO}{spelt}\n")
    line = refused(cli(command, "scenario.yaml"))
    assert "whose code would run; add --trust-modules" in line
    assert not (place / "was_run").exists()


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("n", False)])
def test_a_terminal_is_asked(
    place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, runs: bool
) -> None:
    questions = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, **_: questions.append(text) or answer == "y")
    (place / "scenario.yaml").write_text(SCENARIO + "policy: [mine:Share]\n")
    code, _, _ = cli("simulate", "scenario.yaml", "--set", "steps=1", "--draws", "0", "--json")
    assert code == (0 if runs else 2)
    assert questions == ["This file names mine:Share; importing it runs its code. Do you trust it?"]


def test_what_the_user_says_needs_no_trust(place: Path) -> None:
    (place / "scenario.yaml").write_text(SCENARIO + "policy: ['april', 'sagc']\n")
    assert launched(load("scenario.yaml", "policy=mine:Share(share=2)").policy) == 3.0
    labelled = {"plan": {"policies": ["all:april", "everything = april+sagc"]}}
    assert named_modules(labelled) == []


def test_a_run_keeps_the_folder_of_its_modules(place: Path, cli: Cli) -> None:
    (place / "scenario.yaml").write_text(SCENARIO + "policy: [mine:Share]\n")
    options = ["--set", "steps=1", "--draws", "0", "--json", "--no-plot", "--out", "out"]
    assert cli("simulate", "scenario.yaml", "--trust-modules", *options)[0] == 0
    kept_data = json.loads((place / "out" / "scenario.json").read_text())["scenario"]
    assert kept_modules(kept_data) == place
    assert kept({"policy": ["april"]}, place) == {"policy": ["april"]}


def test_a_runs_folder_runs_no_code(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from rollcast.simulator.scenario.file import RawScenario
    from rollcast.simulator.scenario.scenario import build_scenario

    (place / "scenario.yaml").write_text(SCENARIO + "policy: [mine:Share]\n")
    data = read_scenario(place / "scenario.yaml", trust_modules=True).data
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(ScenarioError, match="there is no module mine"):
        build_scenario(RawScenario(data, folder=place))


def test_a_wrong_key_in_a_scenario_names_its_line(place: Path) -> None:
    text = SCENARIO + "policy:\n  - sagc\n  - mine:Share:\n      shear: 1.0\n"
    (place / "scenario.yaml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(place / "scenario.yaml", trust_modules=True)
    line = text[: text.index("shear")].count("\n") + 1
    assert str(caught.value).startswith("policy.mine:Share.shear: unknown key; did you mean share?")
    assert f"(scenario.yaml, line {line})" in str(caught.value)


def test_a_setting_reaches_its_parameter(place: Path) -> None:
    (place / "scenario.yaml").write_text(SCENARIO + "policy: [mine:Share]\n")
    under = load("scenario.yaml", "policy.mine:Share.share=2", trust_modules=True)
    assert launched(under.policy) == 3.0
    with pytest.raises(ScenarioError, match="must be a number"):
        load("scenario.yaml", "policy.mine:Share.share=much", trust_modules=True)


def test_the_command_line_compares_it_and_says_what_it_overrides(place: Path, cli: Cli) -> None:
    (place / "scenario.yaml").write_text(SCENARIO)
    chains = ["sync", "mine:Share(share=1)", "both = one_step_off+mine:Share"]
    arguments = ["compare", "scenario.yaml", "--set", "cluster.placement=disaggregated"]
    out = ran(cli(*arguments, *(f"--policy={text}" for text in chains), "--json"))
    assert [row["policy"] for row in json.loads(out)] == ["sync", "mine:Share(share=1)", "both"]
    overridden = "policy=dynamic_sampling(surplus=train)+tail_batching"
    said = " ".join(cli("simulate", "scenario.yaml", "--set", overridden)[1].split())
    assert "warning: in the policy, tail_batching overrides what dynamic_sampling decided" in said
    assert "surplus ('restart' in place of 'train')" in said


def test_what_fails_in_mid_run_names_its_file_and_line(place: Path) -> None:
    (place / "scenario.yaml").write_text(SCENARIO)
    with pytest.raises(RunError) as caught:
        simulate(load("scenario.yaml", "policy=mine:Clumsy"))
    line = MODULE[: MODULE.index("return state.next")].count("\n") + 1
    assert str(caught.value) == (
        "mine:Clumsy: its observe failed: AttributeError: 'NoneType' object has no attribute "
        f"'next' ({place / 'mine.py'}, line {line})"
    )
    with pytest.raises(RunError, match="mine:Forgetful: its plan returns None and not a StepPlan"):
        load("scenario.yaml", "policy=mine:Forgetful")


def test_a_state_of_its_own_class_is_saved_and_read_back(place: Path) -> None:
    policy = parse_policy("sagc+mine:Remembers")
    state = policy.observe(policy.init(), StepOutcome(policy.plan(PLAN, policy.init()), (), 0, 0))
    saved = json.loads(json.dumps(save_state(policy, state)))
    assert load_state(policy, saved) == state
    assert state[1] == type(state[1])(steps=1)


def test_everything_that_a_policy_may_say_is_asked_of_it() -> None:
    """A method that `Policy` gains must be handed on."""
    asked = {
        name
        for name, found in vars(Policy).items()
        if not name.startswith("_") and (callable(found) or isinstance(found, property))
    }
    assert asked <= set(vars(Outside))


# Entry points


@pytest.fixture
def installed(place: Path) -> Path:
    """Another distribution, with its metadata, on the Python path."""
    site = place / "site"
    metadata = site / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[rollcast.policies]\n"
        "generous = their_policies:Share\n"
        "lost = their_policies:Gone\n"
        "april = their_policies:Share\n"
    )
    (site / "their_policies.py").write_text(MODULE)
    sys.path.append(str(site))
    importlib.invalidate_caches()
    return place


def test_an_entry_point_names_a_policy(installed: Path) -> None:
    built = parse_policy("generous(share=3)+prefix_reuse")
    assert launched(built) == 4.0
    assert spell(built) == "generous(share=3)+prefix_reuse"
    assert build_chain([{"generous": {"share": 3}}, "prefix_reuse"]) == built
    rejected("generous(share=x)", "policy.generous.share", "must be a number")
    rejected("generos", "policy.generos", "unknown policy; did you mean generous")
    rejected("lost", "policy.lost", "their_policies has no Gone")
    assert launched(parse_policy("april")) == 2.0  # ours come first


def test_presets_list_and_explain_it(installed: Path, cli: Cli) -> None:
    def presets(*arguments: str) -> str:
        out = ran(cli("presets", "policies", *arguments))
        return out

    rows = {row["name"]: row for row in json.loads(presets("--json"))["policies"]}
    assert rows["generous"]["what it does"] == "Launches a share more than it needs."
    assert rows["generous"]["source"] == "my own paper, 2031"
    assert "their_policies has no Gone" in rows["lost"]["what it does"]
    assert "share: a number; default 0.5" in presets("generous")
    page = json.loads(presets("mine:Structural", "--json"))
    assert [each["name"] for each in page["parameters"]] == ["share", "mode", "limit"]
    assert "default" not in page["parameters"][0]


def test_entry_points_are_looked_up_only_where_a_name_is_unknown(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**_: Any) -> Any:
        raise AssertionError("looked up")

    monkeypatch.setattr(outside, "entry_points", asked)
    parse_policy("prefix_reuse+mine:Share+sync")
    with pytest.raises(AssertionError, match="looked up"):
        parse_policy("aprill")


def test_a_chain_reads_the_modules_of_its_own_policies_alone() -> None:
    """Nineteen policies are most of a short command's start."""
    code = (
        "import sys; from rollcast.simulator.policies import parse_policy as parse;"
        "parse('april+seer');"
        "print(*(m for m in sys.modules if m.startswith('rollcast.simulator.policies.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read = {name.rpartition(".")[2] for name in run.stdout.split()}
    assert {"april", "seer"} <= read
    assert not {"sagc", "difficulty", "pods", "tail_batching"} & read
