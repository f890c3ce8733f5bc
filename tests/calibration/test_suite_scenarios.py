"""What the validation suite forecasts is what a user can write: keys and presets by name."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.validation import phases, rl_scenario, rl_steps
from benchmarks.validation.files import read_table
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.studies.simulate import from_raw

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "data" / "published"
SCENARIOS: dict[str, dict[str, Any]] = {
    **{run.name: rl_scenario.scenario(run) for run in rl_steps.read(PUBLISHED / "rl_steps.csv")},
    **{
        f"phases, {row.name}": phases.keys_of(row)
        for row in read_table(PUBLISHED / "rl_phases.csv", phases.Row)
    },
}
MAKERS = (rl_scenario, rl_steps, phases)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_suite_is_one_that_a_user_can_write(name: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIOS[name]))
    assert from_raw(read_scenario(path)).cost == from_raw(RawScenario(SCENARIOS[name])).cost


def test_a_key_that_no_user_has_would_be_seen() -> None:
    keys = next(iter(SCENARIOS.values()))
    roofline = keys["cost"]["roofline"]
    more = {**roofline, "trainer": {**roofline["trainer"], "expert_share": 1.0}}
    with pytest.raises(ScenarioError, match="expert_share"):
        from_raw(RawScenario({**keys, "cost": {"roofline": more}}))


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: str(maker.__name__))
def test_makers_of_scenarios_take_no_figure_from_the_costs(maker: Any) -> None:
    tree = ast.parse(Path(maker.__file__).read_text("utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert not {name for name in imported if name.startswith("rollcast.simulator.costs")}


def test_a_scenario_gives_no_figure_of_the_costs_that_its_run_does_not_publish() -> None:
    """Numbers below ``cost`` are sizes and settings of the run, never coefficients."""
    published = {
        *("kv_memory_utilization", "log_prob_passes", "minibatches", "microbatch_tokens"),
        *("log_prob_microbatch_tokens", "gpus_per_node", *rl_scenario.SPLITS),
    }
    for keys in SCENARIOS.values():
        assert isinstance(keys["gpu"], str)
        assert isinstance(keys["model"], str)
        assert {key for key, _ in _numbers(keys["cost"])} <= published


def _numbers(keys: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value
