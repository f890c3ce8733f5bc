"""The numbers of the best choice's policies, refined after the race."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.planner import auto, search
from rollcast.simulator.planner.answer import Row
from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.measure import Failure, Measured, Setup, Task
from rollcast.simulator.planner.planner import plan, question
from rollcast.simulator.planner.refine import Refined, neighbours, refined
from rollcast.simulator.policies import parse_labelled
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.plan_section import PlanSection
from rollcast.simulator.values import given as options
from rollcast.simulator.values import read
from tests.planner.test_plan import SCENARIO
from tests.planner.test_race import measured

RAW = parse_scenario(SCENARIO)


@given(
    st.sampled_from(
        [
            "april(over_sampling=1.5)",
            "april(over_sampling=2)+pods(keep=4)",
            "fully_async(max_staleness=2, in_flight=1.5)",
            "one_step_off(steps=3)",
            "colocate_async(warmup=2)",
            "tail_batching",
            "sagc",
            "sync",
        ]
    )
)
def test_a_neighbour_differs_in_one_number(policy: str) -> None:
    before = parse_labelled(policy)[1].policies
    found = neighbours(policy)
    assert bool(found) == (policy != "sync")
    assert len(set(found)) == len(found)
    for text in found:
        after = parse_labelled(text)[1].policies
        assert [type(one) for one in after] == [type(one) for one in before]
        changed = [
            (key, old, options(other)[key])
            for one, other in zip(before, after, strict=True)
            for key, old in options(one).items()
            if options(other)[key] != old
        ]
        [(key, old, new)] = changed
        assert key != "seed"
        assert abs(new - old) <= max(1, 0.26 * old)
        whole = key not in ("over_sampling", "in_flight") and old == int(old)
        assert not whole or new == int(new)


class Known:
    """Simulations whose result is a function of the policy."""

    def __init__(self, result: Callable[[str], Measured | Failure]) -> None:
        self.result = result
        self.asked: list[str] = []

    def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
        self.asked += [task.choice.policy for task in tasks]
        return [self.result(task.choice.policy) for task in tasks]


def best(policy: str) -> Row:
    setup = Setup("h100-sxm", 8, "colocated", 8, 1, 8, 2.5)
    made = measured([10.0] * 40)
    asked = question(RAW, read(PlanSection, {"objective": "hours"}, "plan"), ["sync"])
    run_cost = made.run_cost(asked.work, 8, 2.5)
    return Row(Choice({}, {}, policy), setup, made, run_cost, 1.0, exact=True)


def over_sampled(policy: str) -> float:
    [april] = parse_labelled(policy)[1].policies
    return float(options(april)["over_sampling"])


def refine(policy: str, known: Known, limits: dict[str, float] | None = None):  # type: ignore[no-untyped-def]
    section = read(PlanSection, {"objective": "hours", "limits": limits or {}}, "plan")
    return refined(known, question(RAW, section, ["sync"]), best(policy))


def test_what_is_better_and_learns_alike_is_taken_step_by_step() -> None:
    known = Known(lambda policy: measured([10.0 - over_sampled(policy)] * 16))
    found = refine("april(over_sampling=2)", known)
    assert over_sampled(found.policy) == pytest.approx(3.1)  # twice a quarter more
    assert not found.sentences
    assert len(known.asked) == len(set(known.asked))


def test_what_is_faster_and_staler_is_said_and_not_taken() -> None:
    def result(policy: str) -> Measured:
        return measured([10.0 - over_sampled(policy)] * 16, staleness=int(2 * over_sampled(policy)))

    found = refine("april(over_sampling=2)", Known(result))
    assert found.policy is None
    [sentence] = found.sentences
    assert sentence == (
        "april(over_sampling=2.5) would take 6% less time on the same GPUs, "
        "but trains on tokens up to 5 versions old (now 4)."
    )


def test_fewer_rollouts_trained_on_are_another_training() -> None:
    def result(policy: str) -> Measured:
        keep = options(parse_labelled(policy)[1].policies[0])["keep"]
        return replace(measured([5.0 + keep] * 16), trained=8.0 * keep)

    found = refine("pods(keep=4)", Known(result))
    assert found.policy is None
    assert "trains on 24 rollouts an update (now 32)" in found.sentences[0]


def test_limits_hold_and_failures_are_left_out() -> None:
    def result(policy: str) -> Measured | Failure:
        if over_sampled(policy) < 2:
            return Failure("no")
        return measured(
            [10.0 - over_sampled(policy)] * 16, staleness=math.ceil(over_sampled(policy))
        )

    found = refine("april(over_sampling=2)", Known(result), {"staleness": 2})
    assert found == refine("sync", Known(result))
    assert found.policy is None
    assert not found.sentences


@pytest.mark.usefixtures("quick_intervals")
def test_a_plan_with_open_policies_refines_its_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refined is raced to the end with the others; chosen policies stay as they are."""
    monkeypatch.setattr(auto, "SCHEDULES", ("sync",))
    made = Refined("april(over_sampling=3)", ("A sentence.",))
    monkeypatch.setattr(search, "refined", lambda *_: made)
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    choose = {"gpus": [8], "placement": ["colocated"], "tensor_parallel": [1]}
    section = {"run": {"steps": 100}, "choose": choose, "objective": "hours"}
    found = plan(path, section, workers=1)
    assert found.changes[0] == "A sentence."
    assert {row.choice.policy for row in found.rows} == {"sync", "april(over_sampling=3)"}
    assert all(row.exact and row.measured.factors for row in found.rows)
    chosen = plan(path, section, ["sync"], workers=1, intervals=False)
    assert {row.choice.policy for row in chosen.rows} == {"sync"}
    assert "A sentence." not in chosen.changes
