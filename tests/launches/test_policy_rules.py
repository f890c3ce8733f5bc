"""The policy that a launch runs, in the rules that were read in each stack's code."""

from __future__ import annotations

from typing import Any

import pytest

from rollcast.simulator.launches.run_parts import policy_part
from rollcast.simulator.policies.fully_async import FullyAsync
from rollcast.simulator.stacks.settings import Place, Setting
from rollcast.simulator.stacks.stack import all_stacks

RULES = {
    "trl": {"exceeded": "window", "weights": "keep", "in_flight": 3.0},
    "prime_rl": {"exceeded": "window", "weights": "keep"},
    "skyrl": {"exceeded": "capacity", "refill": "group", "weights": "keep"},
    "areal": {"exceeded": "capacity", "refill": "group"},
    "nemo_rl": {"exceeded": "wait", "refill": "group", "weights": "keep"},
    "verl": {"exceeded": "capacity"},
    "roll": {"exceeded": "wait"},
}


def policy(stack: str, **more: Any) -> Any:
    log = all_stacks()[stack].log
    assert log is not None
    values = {"run.max_staleness": 3, **more}
    known = {key: Setting(key, said, key, Place("run.sh", 1)) for key, said in values.items()}
    part = policy_part(known, True, stack, log.fully_async)
    assert part.source.endswith(f"as in {stack}")
    [chosen] = part.value
    return chosen["fully_async"]


@pytest.mark.parametrize("stack", RULES)
def test_each_stack_runs_its_own_rule(stack: str) -> None:
    options = policy(stack)
    assert options == {"max_staleness": 3, **RULES[stack]}
    assert isinstance(FullyAsync(**options), FullyAsync)


@pytest.mark.parametrize(("flights", "expected"), [(320, 2.5), (16, 1.0), (0, 3.0)])
def test_what_is_in_flight_is_counted_in_batches(flights: int, expected: float) -> None:
    sizes = {"workload.batch_groups": 16, "workload.group_size": 8}
    assert policy("trl", **sizes, **{"run.in_flight_rollouts": flights})["in_flight"] == expected
    capacity = policy("areal", **sizes, **{"run.in_flight_rollouts": flights})
    assert "in_flight" not in capacity  # it counts something else there
