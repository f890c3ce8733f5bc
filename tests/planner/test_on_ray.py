"""The planner's work on a Ray cluster that is started here."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rollcast.simulator.cli.app import _with_addresses
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.on_ray import OnRay
from rollcast.simulator.planner.planner import answer, question, work_for
from rollcast.simulator.planner.workers import Died
from rollcast.simulator.scenario.file import parse_scenario
from tests.planner.test_plan import SCENARIO
from tests.planner.test_workers import dies, fails_at_three
from tests.small_ray import small_ray


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ScenarioError, match=r"--ray: .*rollcast\[ray\]"):
        OnRay(abs)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One Ray for all tests: starting it takes seconds."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")
    root = Path(__file__).parents[2]
    with small_ray():
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(root)}},
        )
    yield
    ray.shutdown()


pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


@pytest.mark.usefixtures("cluster")
def test_a_plan_is_the_same_as_in_this_process() -> None:
    choose = {"gpus": [4, 8], "policy": ["sync", "one_step_off"]}
    raw = parse_scenario(f"{SCENARIO}plan: {{run: {{steps: 100}}, choose: {choose}}}\n")
    asked = replace(question(raw), intervals=False)
    here = answer(asked, 1)
    there = answer(asked, OnRay(work_for(asked)))
    assert there.rows == here.rows
    assert there.sentences == here.sentences


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    with OnRay(partial(dies, tmp_path, 1)) as crew:
        assert crew.count == 2
        assert dict(crew.results(range(6))) == {i: i * i for i in range(6)}


@pytest.mark.usefixtures("cluster")
def test_a_task_of_which_every_worker_dies_is_said_so(tmp_path: Path) -> None:
    with OnRay(partial(dies, tmp_path, 99)) as crew:
        found = dict(crew.results(range(4)))
    assert isinstance(found[2], Died)
    assert {i: found[i] for i in (0, 1, 3)} == {0: 0, 1: 1, 3: 9}


@pytest.mark.usefixtures("cluster")
def test_what_the_work_raises_is_raised() -> None:
    with OnRay(fails_at_three) as crew, pytest.raises(ValueError, match="three"):
        list(crew.results(list(range(6))))


@pytest.mark.parametrize("trouble", [ConnectionError("no one there"), RuntimeError("too old")])
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")

    def refuse(**_: object) -> None:
        raise trouble

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ScenarioError, match=r"--ray: no Ray cluster answers at 10\.0\.0\.1:6379"):
        OnRay(abs, "10.0.0.1:6379").__enter__()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["plan", "--ray", "s.yaml"], ["plan", "--ray", "local", "s.yaml"]),
        (["plan", "s.yaml", "--ray"], ["plan", "s.yaml", "--ray", "local"]),
        (["plan", "--ray", "--json"], ["plan", "--ray", "local", "--json"]),
        (["plan", "--ray", "auto", "s.yaml"], ["plan", "--ray", "auto", "s.yaml"]),
        (["plan", "--ray", "10.0.0.1:6379"], ["plan", "--ray", "10.0.0.1:6379"]),
        (["plan", "--ray=auto", "s.yaml"], ["plan", "--ray=auto", "s.yaml"]),
    ],
)
def test_the_address_may_be_left_out(given: list[str], meant: list[str]) -> None:
    assert _with_addresses(given) == meant
