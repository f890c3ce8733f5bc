"""What the page of ``rollcast explore`` is made of, without a page: knobs, outcomes, what is asked
next, and what is said of it."""

import asyncio
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.explore import start
from rollcast.simulator.explore.knobs import chosen, described, knobs, starts, tried
from rollcast.simulator.explore.questions import Memory, Questions, workers
from rollcast.simulator.explore.view import Asked, view
from rollcast.simulator.explore.work import Choice, Outcome, outcome, steps_for
from rollcast.simulator.planner.whole_run import Work
from rollcast.simulator.report.timeline import timelines
from rollcast.simulator.results.text import hours, interval
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.simulate import from_raw, load, simulate
from tests.conftest import Cli
from tests.refusals import refused
from tests.scenarios import TINY

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture
def tiny() -> Scenario:
    return from_raw(parse_scenario(TINY))


def example(name: str = "april") -> Scenario:
    return load(ROOT / "examples" / f"{name}.yaml")


# Knobs


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_starts_as_it_is_and_can_be_moved(path: Path) -> None:
    """Each knob at its ends makes a scenario, or a sentence that names a key."""
    scenario = load(path)
    found = knobs(scenario)
    values = starts(found)
    assert chosen(scenario, values).data == scenario.raw.data
    assert values["policy"] in tried(scenario, values)
    for knob in found:
        assert knob.values[knob.position] == knob.start
        assert len(set(knob.values)) == len(knob.values)
        assert all(knob.write(value) for value in knob.values)
        for value in (knob.values[0], knob.values[-1]):
            values = {**starts(found), knob.name: value}
            assert refused_field(scenario, values) != ""
            assert set(tried(scenario, values).values())


def refused_field(scenario: Scenario, values: dict[str, Any]) -> str | None:
    """The key that is said to be wrong; None where all is well."""
    try:
        from_raw(chosen(scenario, values))
    except ScenarioError as error:
        return error.field
    return None


@pytest.mark.parametrize("gpus", [3, 16])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("share", [0.125, 0.875])
def test_a_split_holds_all_gpus(gpus: int, tensor: int, share: float) -> None:
    scenario = example()
    values = {
        **starts(knobs(scenario)),
        "gpus": gpus,
        "placement": "disaggregated",
        "tensor_parallel": tensor,
        "trainer_share": share,
    }
    cluster = chosen(scenario, values).data["cluster"]
    held = cluster["replicas"] * tensor + cluster["trainer_gpus"]
    assert held == gpus
    assert cluster["replicas"] >= 1
    assert cluster["trainer_gpus"] >= 1
    wanted = share * gpus
    assert abs(cluster["trainer_gpus"] - wanted) <= max(tensor, 1)


def test_what_cannot_be_split_is_said() -> None:
    scenario = example()
    values = {**starts(knobs(scenario)), "gpus": 4, "tensor_parallel": 8}
    with pytest.raises(ScenarioError, match="4 GPUs cannot be divided into replicas of 8"):
        chosen(scenario, values)
    values["placement"] = "disaggregated"
    with pytest.raises(ScenarioError, match="do not hold a replica of 8 and a trainer"):
        chosen(scenario, values)


def test_gpus_are_halved_and_doubled() -> None:
    scenario = example()
    values = starts(knobs(scenario))
    for scale in (0.5, 2.0):
        cluster = chosen(scenario, values, scale).data["cluster"]
        assert cluster["replicas"] == 8 * scale
        assert cluster["trainer_gpus"] == 8 * scale


def test_sliders_set_the_policies_parameters() -> None:
    scenario = load(
        ROOT / "examples" / "april.yaml", "policy=april(over_sampling=1.5)+pods(keep=4)"
    )
    values = starts(knobs(scenario))
    assert values["over_sampling"] == 1.5
    found = tried(scenario, {**values, "over_sampling": 1.2, "max_staleness": 3})
    assert found["april(over_sampling=1.5)+pods(keep=4)"] == "april(over_sampling=1.2)+pods(keep=4)"
    assert found["april"] == "april(over_sampling=1.2)"
    assert found["fully_async"] == "fully_async(max_staleness=3)"
    assert tried(scenario, {**values, "over_sampling": 2.0})["april"] == "april"  # its default
    assert found["sync"] == "sync"


def test_lengths_without_one_median_have_no_sliders() -> None:
    names = {knob.name for knob in knobs(example("trace"))}
    assert "workload.group_size" in names
    assert not any(name.startswith("workload.lengths") for name in names)


def test_a_scenario_without_a_gpu_has_no_price(tiny: Scenario) -> None:
    assert not {"gpu", "usd_per_hour"} & {knob.name for knob in knobs(tiny)}


# Outcomes


def test_an_outcome_is_the_simulators(tiny: Scenario) -> None:
    found = outcome(Choice(tiny.raw, "april"))
    steps = steps_for(tiny.raw.data)
    result = simulate(load_with_steps(tiny, steps).with_policy("april"))
    assert found.figures.step_s == result.summary["step_s"]
    assert found.gpus == result.summary["gpus"]
    assert found.timeline is not None
    assert sum(found.use.values()) == pytest.approx(1.0)


def load_with_steps(scenario: Scenario, steps: int) -> Scenario:
    return from_raw(scenario.raw, f"steps={steps}")


def test_what_cannot_run_is_a_sentence(tiny: Scenario) -> None:
    found = outcome(Choice(tiny.raw, "one_step_off"))
    assert found.figures is None
    assert "needs cluster.placement: disaggregated" in found.problem


def test_prices_and_steps_are_no_part_of_a_choice(tiny: Scenario) -> None:
    """They change what is said, and nothing is simulated again."""
    scenario = example()
    values = starts(knobs(scenario))
    key = Choice(chosen(scenario, values), "sync").key
    dearer = {**values, "usd_per_hour": 9.0, "steps": 5000}
    assert Choice(chosen(scenario, dearer), "sync").key == key
    smaller = {**values, "workload.group_size": 4}
    assert Choice(chosen(scenario, smaller), "sync").key != key


# The questions


def choice(name: str) -> Choice:
    return Choice(parse_scenario("workload: {}"), name)


def test_nothing_is_simulated_twice() -> None:
    done: list[str] = []

    def simulated(asked: Choice) -> Outcome:
        done.append(asked.chain)
        return Outcome(asked.chain)

    async def ask() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            questions = Questions(pool, Memory(), simulated)
            seen = []
            for _ in range(2):
                async for found in questions.ask([[choice("a"), choice("b")], [choice("c")]]):
                    seen.append(len(found))
            return seen

    assert asyncio.run(ask()) == [2, 3, 2, 3]
    assert sorted(done) == ["a", "b", "c"]


def test_the_newest_question_wins() -> None:
    """An old one ends in silence; what it had not begun is never simulated."""
    begun, go_on = Event(), Event()
    done: list[str] = []

    def simulated(asked: Choice) -> Outcome:
        done.append(asked.chain)
        if asked.chain.startswith("old"):
            begun.set()
            assert go_on.wait(60)
        return Outcome(asked.chain)

    async def ask() -> tuple[list[int], list[int]]:
        with ThreadPoolExecutor(4) as pool:
            questions = Questions(pool, Memory(), simulated)

            async def old() -> list[int]:
                waves = [[choice(f"old {i}") for i in range(4)], [choice("old 4")]]
                return [len(found) async for found in questions.ask(waves)]

            first = asyncio.create_task(old())
            while not begun.is_set():
                await asyncio.sleep(0.001)

            async def new() -> list[int]:
                return [len(found) async for found in questions.ask([[choice("new")]])]

            second = asyncio.create_task(new())
            await asyncio.sleep(0.01)
            go_on.set()
            return await first, await second

    first, second = asyncio.run(ask())
    assert first == []
    assert second == [1]
    assert "new" in done
    assert len([name for name in done if name.startswith("old")]) <= 2


def test_memory_forgets_what_nobody_asked_for_longest() -> None:
    memory = Memory(2)
    for name in "ab":
        memory.put(name, Outcome(name))
    assert memory.get("a") is not None
    memory.put("c", Outcome("c"))
    assert memory.get("b") is None
    assert memory.get("a") is not None
    assert len(memory) == 2


def test_workers_simulate_in_processes_of_their_own(tiny: Scenario) -> None:
    with workers(1) as pool:
        there = pool.submit(outcome, Choice(tiny.raw, "april")).result(120)
    here = outcome(Choice(tiny.raw, "april"))
    assert replace(there, timeline=None) == replace(here, timeline=None)
    assert timelines([there.timeline]) == timelines([here.timeline])


# What is said


def asked(chain: str = "april", price: float = 0.0) -> Asked:
    work = Work("100 steps of 16 rollouts", rollouts=1600)
    return Asked(chain, work, price, "2 replicas of 1 GPU", "")


def test_the_view_says_hours_cost_and_what_is_impossible(tiny: Scenario) -> None:
    here = [outcome(Choice(tiny.raw, name)) for name in ("sync", "april", "one_step_off")]
    said, answers = view(asked(), here, [])
    figures = here[1].figures
    assert figures is not None
    assert "100 steps of 16 rollouts under april take" in said
    assert "GPU-hours" in said
    assert answers.count("<tr") == 6  # two tables
    assert "one_step_off: overlaps training with rollout" in answers
    assert answers.count('class="run"') == 2
    assert "$" in view(asked(price=2.0), here, [])[0]


def test_the_headline_has_the_interval_of_the_chosen_policy(tiny: Scenario) -> None:
    here = [outcome(Choice(tiny.raw, chain)) for chain in ("sync", "april")]
    drawn = outcome(Choice(tiny.raw, "april", drawn=True))
    assert drawn.figures.factors
    low, high = ends(drawn.figures.factors).tolist()
    took = drawn.figures.run_cost(asked().work, drawn.gpus, None).hours
    wanted = interval([by * took for by in (low, high)], partial(hours, like=took))
    said, _ = view(asked(), here, [], drawn)
    assert f"take {hours(took)} ({wanted}) and" in said
    assert "times as fast as sync" in said
    assert "(" not in view(asked(), here, [])[0].partition("take")[2].partition("and")[0]


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        ({"steps": 300}, 300),
        ({"prompts": 1000, "epochs": 2}, 500),
        ({"trained_rollouts": "4k"}, 500),
    ],
)
def test_the_whole_run_is_that_of_the_plan(run: dict[str, Any], steps: int) -> None:
    text = f"{TINY}plan: {{run: {json.dumps(run)}}}\n"
    scenario = from_raw(parse_scenario(text), "workload.batch_groups=4", "workload.group_size=2")
    assert starts(knobs(scenario))["steps"] == steps


def test_a_chosen_policy_that_cannot_run_is_said_first(tiny: Scenario) -> None:
    here = [outcome(Choice(tiny.raw, name)) for name in ("sync", "one_step_off")]
    said, _ = view(asked("one_step_off"), here, [])
    assert "one_step_off cannot run here: overlaps training" in said
    assert 'role="alert"' in said


def test_other_numbers_of_gpus_are_points(tiny: Scenario) -> None:
    here = [outcome(Choice(tiny.raw, "april"))]
    twice = chosen(tiny, starts(knobs(tiny)), 2.0)
    _, answers = view(asked(), here, [outcome(Choice(twice, "april"))])
    tips = re.findall(r'data-tip="april on (\d) GPUs', answers)
    assert sorted(tips) == ["2", "4"]
    assert answers.count('class="dot chosen"') == 1


def test_the_split_is_described(tiny: Scenario) -> None:
    assert described(tiny.shape) == "2 replicas of 1 GPU, the trainer on the same GPUs"
    apart = load(
        ROOT / "examples" / "fully_async.yaml", "cluster.replicas=1", "cluster.tensor_parallel=2"
    )
    assert described(apart.shape) == "1 replica of 2 GPUs, the trainer on 8 of its own"


# The command


def test_without_the_extra_one_sentence_says_what_to_install(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    err = refused(cli("explore", tmp_path / "tiny.yaml", "--no-browser"))
    assert err == "explore: needs a library: pip install 'rollcast[explore]'"


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("0", "--port: must be from 1 to 65535, got 0"),
        ("65536", "--port: must be from 1 to 65535, got 65536"),
        ("x", "--port"),
    ],
)
def test_a_wrong_port_is_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str, said: str
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(start, "find_spec", lambda name: True)
    err = refused(cli("explore", tmp_path / "tiny.yaml", "--port", port))
    assert said in err


def test_a_port_in_use_is_said(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(start, "find_spec", lambda name: True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("explore", tmp_path / "tiny.yaml", "--port", port)
    assert code == 2
    assert f"--port: cannot use {port}: " in err
