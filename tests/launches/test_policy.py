"""The policy that a launch runs: by the plan beside the sampler that it was exported with, and in
the rules that were read in each stack's code."""

from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.export.write import export
from rollcast.simulator.launches.run_parts import policy_part
from rollcast.simulator.policies.fully_async import FullyAsync
from rollcast.simulator.stacks.exported import PLAN_FILE
from rollcast.simulator.stacks.settings import Place, Setting, Settings
from rollcast.simulator.stacks.stack import all_stacks
from tests.export.scenarios import scenario


def run(sampler: Any) -> Settings:
    theirs = "trainer.v1.sampler.custom_sampler.path"
    said = Setting("run.sampler", sampler, theirs, Place("console.log", 7))
    return {"run.sampler": said, "policy": said.implies("policy", ["colocate_async"])}


def test_an_exported_run_has_its_own_policy(tmp_path: Path) -> None:
    export(scenario("april+pods(keep=2)"), "verl", tmp_path / "out")
    part = policy_part(
        run(str(tmp_path / "out" / "rollcast_verl.py")), True, "verl", {"exceeded": "drop"}
    )
    assert part.value == "april+pods(keep=2, seed=3)"
    assert "console.log, line 7" in part.source
    plan = tmp_path / "out" / PLAN_FILE
    for damaged in ("{", plan.read_text().replace("april", "nowhere:Policy")):
        plan.write_text(damaged)
        part = policy_part(
            run(str(plan.with_name("rollcast_verl.py"))), True, "verl", {"exceeded": "drop"}
        )
        assert part.value == ["colocate_async"]


@pytest.mark.parametrize("sampler", ["/nowhere/sampler.py", "a\0b", "", 3, None, "x" * 5000])
def test_a_sampler_of_somebody_elses_says_nothing(sampler: object) -> None:
    assert policy_part(run(sampler), True, "verl", {"exceeded": "drop"}).value == ["colocate_async"]
    assert policy_part(run(sampler), False, "verl", {"exceeded": "drop"}).value == []


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
    capacity = policy("areal", **sizes, **{"run.in_flight_prompts": flights})
    assert capacity.get("in_flight") == (max(flights / 16, 1.0) if flights else None)
    counted = {**sizes, "run.in_flight_rollouts": flights, "run.staleness_share": 0.5}
    assert policy("verl", **counted).get("in_flight") == (expected if flights else None)
