"""Rollouts with turns: the fast cluster and the plain reference agree to the instant."""

from __future__ import annotations

from hypothesis import given, settings

from rollcast.simulator.testing.strategies import Scenario, clusters, crowded, scenarios, with_turns
from tests.commands import commands, pauses, submits
from tests.laws import examples
from tests.reference.driver import Command, Submit
from tests.test_exactness import require_equal, require_equal_answers, run_both, thorough


@settings(thorough, max_examples=examples(60))
@given(with_turns(scenarios()))
def test_runs_agree(scenario: Scenario) -> None:
    fast, slow, _ = run_both(scenario)
    require_equal(fast, slow)


@thorough
@given(with_turns(clusters()), submits, commands)
def test_any_order_of_verbs_agrees(
    scenario: Scenario, first: Submit, others: list[Command]
) -> None:
    require_equal_answers(scenario, [first, *others])


@thorough
@given(with_turns(crowded()), submits, pauses)
def test_a_crowded_pool_agrees(scenario: Scenario, first: Submit, others: list[Command]) -> None:
    require_equal_answers(scenario, [first, *others])
