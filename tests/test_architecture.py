"""Adding one of each is one place, as the last table of docs/architecture.md says, and the page is
true of the folders and of the contracts on imports.

A stack is added by tests/stacks/test_new_stack.py, an engine by tests/engine/test_engines.py.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import pytest
import yaml

from rollcast.simulator import policies
from rollcast.simulator.costs import CostModel, Curve, Iteration, TrainCost, TrainLoad
from rollcast.simulator.costs.presets import provenance
from rollcast.simulator.costs.presets.gpus import gpu_presets, load_gpu
from rollcast.simulator.costs.presets.models import load_model, model_presets
from rollcast.simulator.costs.section import CostSection, build_cost
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import registry
from rollcast.simulator.scenario.file import parse_scenario, read_scenario
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values import Between, Doc, Options
from tests.conftest import Cli
from tests.refusals import ran

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SCENARIO = """\
model: qwen3-0.6b
gpu: h100-sxm
cluster: {placement: colocated, replicas: 1}
workload:
  batch_groups: 2
  group_size: 2
  prompt_tokens: 16
  max_new_tokens: 64
  lengths: {family: lognormal, median_tokens: 32, between_sd: 0.3, within_sd: 0.3}
steps: 2
"""
POLICY = '''
"""The trainer computes a prompt once."""

from dataclasses import dataclass, replace

from rollcast.simulator.core.policy import Policy


@dataclass(frozen=True)
class Once(Policy):
    """Computes a prompt once."""

    NAME = "once"
    decides = frozenset({"layout"})

    def plan(self, plan, state):
        return replace(plan, layout="shared_prefix")
'''
FIGURE = """
import sys
from rollcast.simulator.results import figures
from rollcast.simulator.results.figure import Figure, Heading, Line

figures.FIGURES += (
    Figure(
        "versions_per_rollout_max", "most versions", str, "weight versions of one rollout",
        run=Line(), terminal=Heading(), page=True,
    ),
)
from rollcast.simulator.cli.app import main

for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as stop:
        assert not stop.code
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_policy_is_a_file(
    cli: Cli, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("simulate", scenario, "--policy", "once")[0] == 2
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "once.py").write_text(POLICY)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path / "added")])
    registry.built_in.cache_clear()
    try:
        printed = ran(cli("compare", scenario, "--policy", "once", "--draws", 0))
        assert "once" in printed
        listed = json.loads(cli("presets", "policies", "--json")[1])["policies"]
        assert "once" in [row["name"] for row in listed]
        assert "april" in [row["name"] for row in listed]
    finally:
        registry.built_in.cache_clear()
        sys.modules.pop("rollcast.simulator.policies.once", None)


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the presets' folder, which is read in place of it."""
    folder = tmp_path / "presets"
    shutil.copytree(Path(provenance.__file__).parent, folder)
    monkeypatch.setattr(provenance, "__file__", str(folder / "provenance.py"))
    caches = (provenance.read_presets, gpu_presets, model_presets)
    for cache in caches:
        cache.cache_clear()
    yield folder
    for cache in caches:
        cache.cache_clear()


def test_a_gpu_and_a_model_are_an_entry_each(cli: Cli, presets: Path, scenario: Path) -> None:
    gpus = yaml.safe_load((presets / "gpus.yaml").read_text())
    entry = gpus["gpus"]["h100-sxm"]
    gpus["gpus"]["x1"] = {**entry, "bandwidth_bytes_per_s": [6.7e12, "assumed", "nobody"]}
    (presets / "gpus.yaml").write_text(yaml.safe_dump(gpus))
    models = yaml.safe_load((presets / "models.yaml").read_text())
    models["tiny"] = {**models["qwen3-0.6b"], "layers": 2}
    (presets / "models.yaml").write_text(yaml.safe_dump(models))

    assert load_gpu("x1").bandwidth_bytes_per_s == 6.7e12
    assert load_model("tiny").layers == 2
    for kind, name in (("gpus", "x1"), ("models", "tiny")):
        rows = json.loads(cli("presets", kind, "--json")[1])[kind]
        assert name in [row["name"] for row in rows]
    steps = [
        json.loads(cli("simulate", scenario, *added, "--draws", 0, "--json")[1])["step_s"]
        for added in ((), ("--set", "gpu=x1"), ("--set", "gpu=x1", "--set", "model=tiny"))
    ]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 3


def test_a_figure_is_an_entry(scenario: Path, tmp_path: Path) -> None:
    script = tmp_path / "added.py"
    script.write_text(FIGURE)

    out = tmp_path / "out"
    quick = f"{scenario} --draws 0 --no-plot"
    commands = (f"simulate {quick}", f"compare {quick} --policy april --out {out}")
    asked = [sys.executable, str(script), *commands]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"most versions\W+1\W+weight versions of one rollout", done.stdout)
    assert done.stdout.count("most versions") == 2
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "most versions" in page
    assert "weight versions of one rollout" in page
    with (out / "comparison.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["versions_per_rollout_max"] == "1"


@dataclass(frozen=True, slots=True)
class Flat(Options, CostModel):
    """Every iteration and every update takes the same time."""

    FIELD = "cost.flat"

    iteration_s: Annotated[float, Between(0, 1), Doc("an iteration")]
    update_s: Annotated[float, Between(0, 1e3), Doc("an update")] = 1.0

    def decode_curve(self, rollouts: int) -> Curve:
        return Curve.affine(self.iteration_s, 0.0)

    def mixed_iteration_s(self, work: Iteration) -> float:
        return self.iteration_s

    def train(self, load: TrainLoad) -> TrainCost:
        return TrainCost((("train", self.update_s),))


@dataclass(frozen=True, slots=True)
class WithFlat(CostSection):
    """The section with one more field."""

    flat: Annotated[Flat | None, Doc("the same time for all")] = None


def test_a_cost_is_a_class_and_a_field(tmp_path: Path) -> None:
    scenario = from_raw(parse_scenario(SCENARIO))
    section = WithFlat.from_mapping({"flat": {"iteration_s": 0.25, "update_s": 3.0}}, "cost")
    cost = build_cost(section, None, None, scenario.shape, tmp_path)
    assert cost == Flat(0.25, 3.0)
    result = simulate(replace(scenario, cost=cost))
    assert [step.train_s for step in result.run.steps] == [3.0, 3.0]
    assert all((4 * step.rollout_s).is_integer() for step in result.run.steps)
    with pytest.raises(ScenarioError, match=r"cost\.flat\.iteration_s"):
        WithFlat.from_mapping({"flat": {"iteration_s": -1}}, "cost")
    with pytest.raises(ScenarioError, match=r"exactly one of roofline, .*, flat"):
        WithFlat.from_mapping({"flat": {"iteration_s": 1}, "roofline": None}, "cost")


def test_the_page_names_what_there_is() -> None:
    """Every path in backticks, from the top, from simulator/ or from the presets' folder."""
    names = {name.rstrip("/") for name in re.findall(r"`([\w./]+(?:/|/[\w.]+|\.\w+))`", PAGE)}
    paths = {name for name in names if "/" in name or name.endswith((".py", ".yaml", ".toml"))}
    assert len(paths) > 20
    tops = [ROOT, ROOT / "simulator", ROOT / "simulator" / "costs" / "presets"]
    assert [name for name in sorted(paths) if not any((top / name).exists() for top in tops)] == []


def test_the_rooms_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        contract["layers"]
        for contract in contracts["contracts"]
        if contract["name"] == "No import runs up in the simulator"
    )
    modules = [
        module.strip().removeprefix("rollcast.simulator.")
        for layer in layers
        for module in layer.split("|")
    ]
    table = PAGE.partition("| room | content |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == modules
    there = {
        path.stem
        for path in (ROOT / "simulator").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there - {"__init__"} == set(modules)
    assert len(modules) <= 22


def test_the_way_of_a_scenario_is_no_longer_than_the_page_says() -> None:
    """Files of `simulator` with a function that runs, in a process that has built one already."""
    [most] = map(int, re.findall(r"passes (\d+) files of `simulator`", PAGE))
    path, seen = ROOT / "examples" / "april.yaml", set()

    def called(frame: FrameType, event: str, _: object) -> None:
        _, _, file = frame.f_code.co_filename.partition("/simulator/")
        if event == "call" and file:
            seen.add(file)

    build_scenario(read_scenario(path))
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        build_scenario(read_scenario(path))
    finally:
        sys.setprofile(before)
    assert len(seen) <= most, sorted(seen)
