"""Which GPUs roll out and which train, from what each stack's settings say of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.policies.fully_async import FullyAsync
from rollcast.simulator.stacks.stack import all_stacks
from tests.logs import written
from tests.tables import cases

LAYOUTS, STALE = (Path(__file__).with_name(f"{name}.yaml") for name in ("layouts", "stale"))


@pytest.mark.parametrize(("stack", "settings", "layout"), cases(LAYOUTS, "given", "layout"))
def test_the_layout_of_a_run(
    stack: str, settings: dict[str, Any], layout: list[object], tmp_path: Path
) -> None:
    written.history(tmp_path / "h.jsonl", written.run(), stack)
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    log = read_log([tmp_path])
    assert log.stack == stack
    own = {part.key: part for part in draft(log)}
    keys = ("placement", "replicas", "tensor_parallel", "trainer_gpus")
    assert tuple(own[f"cluster.{key}"].value for key in keys) == tuple(layout)
    if layout[0] == "disaggregated":
        assert not own["cluster.placement"].assumed


def test_a_mapping_of_devices_is_never_run(tmp_path: Path) -> None:
    """ROLL hands it to Python."""
    code = "[__import__('pathlib').Path('run').touch()]"
    written.history(tmp_path / "h.jsonl", written.run(), "roll")
    (tmp_path / "config.yaml").write_text(
        json.dumps({"actor_train.device_mapping": code, "actor_infer.device_mapping": code})
    )
    own = {part.key: part for part in draft(read_log([tmp_path]))}
    assert own["cluster.replicas"].assumed


@pytest.mark.parametrize(("stack", "settings", "options"), cases(STALE, "given", "options"))
def test_what_becomes_of_the_too_old_is_the_rule_of_the_stack(
    stack: str, settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    if stack == "prime_rl":
        written.prime_metrics(tmp_path / "metrics.jsonl", written.run())
    else:
        written.history(tmp_path / "h.jsonl", written.run(), stack)
    keys = all_stacks()[stack].launch.keys
    usual = ("workload.group_size", "workload.max_new_tokens", "run.steps", "run.temperature")
    beside = {keys[each][0].key: 1 for each in usual if each in keys}
    (tmp_path / "config.yaml").write_text(json.dumps({**beside, **settings}))
    log = replace(read_log([tmp_path], stack), overlapped=True)
    [part] = [each for each in draft(log) if each.key == "policy"]
    assert part.value == [{"fully_async": options}]
    assert not part.assumed
    FullyAsync(**options)  # which refuses options that contradict each other
