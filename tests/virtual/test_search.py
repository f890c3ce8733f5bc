"""The smallest failing run of a control plane."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.faults import Fault
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.search import Case, Failure, Search, cases, smallest_failure
from rollcast.simulator.virtual.trial import keep, try_control
from tests.virtual.test_laws import SETTINGS
from tests.virtual.test_laws import scenario as small
from tests.virtual.test_pytest_plugin import ROOT, run_pytest

EXAMPLES = ROOT / "examples"


def smallest(breaks: Callable[[Case], bool], scenario: Scenario, search: Search) -> Failure | None:
    """Of runs that are only imagined."""

    def run(case: Case, failed: Callable[[Fleet], None]) -> None:
        failed(None)  # type: ignore[arg-type]
        assert not breaks(case), "it breaks"

    return smallest_failure(run, scenario, search)


@pytest.mark.parametrize(
    ("breaks", "expected"),
    [
        (lambda case: True, Case()),
        (lambda case: case.steps >= 5, Case(steps=5)),
        (lambda case: case.batch_groups * case.group_size >= 6, None),
        (lambda case: max(case.tokens) > 100, Case(tokens=(101,))),
        (lambda case: sum(case.arrives_s) >= 3, Case(arrives_s=(3,))),
        (
            lambda case: case.fault is not None and case.fault.kind == "hangs",
            Case(fault=Fault(0, "hangs", 0, 1)),
        ),
    ],
)
def test_the_smallest_is_found(breaks: Callable[[Case], bool], expected: Case | None) -> None:
    found = smallest(breaks, small(), Search(examples=200))
    assert isinstance(found.error, AssertionError)
    if expected is None:
        assert found.case.batch_groups * found.case.group_size in (6, 8)
        assert found.case.tokens == (1,)
    else:
        assert found.case == expected
    assert str(found.case).startswith(f"{found.case.steps} step")
    assert eval(repr(found.case)) == found.case


def test_none_is_found_where_none_fails() -> None:
    assert smallest(lambda case: False, small(), Search(examples=5)) is None


def test_only_what_the_search_allows_is_tried() -> None:
    search = Search(20, steps=2, batch_groups=3, group_size=1, tokens=7, late_s=0, faults=())

    def outside(case: Case) -> bool:
        return not (
            case.steps <= 2
            and case.batch_groups <= 3
            and case.group_size == 1
            and max(case.tokens) <= 7
            and not any(case.arrives_s)
            and case.fault is None
        )

    assert smallest(outside, small(), search) is None


def test_a_size_that_the_scenario_does_not_have_is_passed_over() -> None:
    def run(case: Case, failed: Callable[[Fleet], None]) -> None:
        if case.group_size == 1:
            raise RollcastError("groups have at least two")
        failed(None)  # type: ignore[arg-type]
        raise AssertionError

    found = smallest_failure(run, small(), Search(examples=20))
    assert found.case == Case(group_size=2)


def test_a_request_arrives_when_its_reply_says() -> None:
    case = Case(tokens=(9, 5), arrives_s=(0, 13, 2.5))

    async def main(fleet: Fleet) -> Any:
        return [await fleet.engines[0].generate(Prompt(number)) for number in range(6)]

    answers = try_control(main, small(*case.settings), **case.options).value
    assert [answer.new_tokens for answer in answers] == [9, 5, 9, 5, 9, 5]
    waited = [answer.start_s - answer.asked_s for answer in answers]
    assert waited == pytest.approx([0, 13, 2.5, 0, 13, 2.5])


def test_a_request_that_is_given_up_on_its_way_never_arrives() -> None:
    async def main(fleet: Fleet) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await fleet.engines[0].generate(Prompt(0))
        await asyncio.sleep(10)
        assert not fleet.engines[0].answered

    try_control(main, small(), **Case(arrives_s=(5,)).options)


TESTS = """
import asyncio
import pytest
from rollcast.virtual import Case, EngineError, Fault, Search, training_of

SCENARIO = {scenario!r}
SMALL = {settings!r}


@pytest.mark.rollcast(SCENARIO, *SMALL, search=40)
async def test_that_waits_for_what_failed(fleet):
    training = training_of(fleet)
    done = asyncio.Event()

    async def one(prompt):
        try:
            await training.engine.generate(prompt)
        except EngineError:
            return
        done.set()

    task = asyncio.create_task(one(next(training.prompts)))
    await done.wait()


@pytest.mark.rollcast(SCENARIO, *SMALL, search=Search(examples=3))
async def test_that_holds(fleet):
    assert (await training_of(fleet).engine.generate("x")).new_tokens


@pytest.mark.rollcast(SCENARIO, case=Case(tokens=(7,), fault=Fault(0, "errors")))
async def test_that_is_kept(fleet):
    with pytest.raises(EngineError):
        await training_of(fleet).engine.generate("x")
    assert (await fleet.engines[0].generate("y")).new_tokens == 7


@pytest.mark.rollcast(SCENARIO, serach=30)
async def test_that_is_misspelt(fleet):
    pass
"""


def test_the_plug_in_keeps_the_smallest(tmp_path: Path) -> None:
    scenario = str(EXAMPLES / "fully_async.yaml")
    (tmp_path / "test_mine.py").write_text(TESTS.format(scenario=scenario, settings=SETTINGS))
    said = run_pytest(tmp_path, "--rollcast")
    assert "2 failed, 2 passed" in said, said
    assert "everybody waits and nothing will ever happen" in said
    assert "1 step of 1 group of 1 rollout; answers of 1 token; requests arrive after 0 s;" in said
    assert re.search("replica [01] (dies|errors) at 0 s", said)
    assert "rollcast() has no option 'serach'; it has" in said
    folder = tmp_path / ".rollcast" / "test_mine.py-test_that_waits_for_what_failed"
    assert f"its timeline, picture and trace for Perfetto: {folder}" in said
    assert {path.name for path in folder.iterdir()} >= {"journal.txt", "smallest.txt"}
    again = re.search(r"case=(Case\(.*\))\)$", (folder / "smallest.txt").read_text(), re.MULTILINE)
    assert eval(again[1]).steps == 1


def test_a_run_that_stands_is_drawn_to_its_end(tmp_path: Path) -> None:
    """No step was completed, and requests are in flight."""
    fleets: list[Fleet] = []

    async def main(fleet: Fleet) -> None:
        first, _ = (await fleet.engines[0].generate("a", 5), fleet.ask("b", 4000))
        raise OSError(f"no disk for {first.new_tokens} tokens")

    with pytest.raises(OSError, match="no disk for 5 tokens"):
        try_control(main, small(), failed=fleets.append)
    files = keep(fleets[0], tmp_path)
    assert [path.name for path in files] == ["journal.txt", "trace.json.gz", "timeline.png"]
    run = fleets[0].show()
    assert len(run.steps) == 1
    assert run.steps[0].end_s == fleets[0].now_s


@given(st.data())
def test_cases_are_of_the_scenario(data: st.DataObject) -> None:
    scenario = small()
    case = data.draw(cases(scenario, Search()))
    assert case.steps <= scenario.steps
    assert case.fault is None or case.fault.replica < scenario.shape.replicas
    assert len(case.tokens) == len(case.arrives_s)
