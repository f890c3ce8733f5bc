"""The policy of a run by the plan beside the sampler that it was exported with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.export.write import export
from rollcast.simulator.launches.run_parts import policy_part
from rollcast.simulator.stacks.exported import PLAN_FILE
from rollcast.simulator.stacks.settings import Place, Setting, Settings
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
