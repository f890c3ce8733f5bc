"""``rollcast replay``: the decisions of a run, from its record alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from running_actors import CAP, drive, make

from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_json, write_lines
from rollcast.simulator.scenario.file import kept
from tests.refusals import refused

Cli = Callable[..., tuple[int, str, str]]
POLICY = "fully_async(max_staleness=2)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that a replay reads."""
    folder = tmp_path_factory.mktemp("run")
    result, entries = drive(make(2), POLICY, steps=5)
    scenario = {
        "cluster": {"placement": "disaggregated", "replicas": 2, "trainer_gpus": 1},
        "engine": {"max_seqs": 8},
        "workload": {"batch_groups": 4, "group_size": 4, "max_new_tokens": CAP, "prompts": 10},
        "policy": POLICY,
        "steps": 5,
    }
    described = {"name": "here", "policy_spelt": POLICY, "scenario": scenario}
    write_json(folder / schema.SCENARIO.name, described)
    write_lines(folder, schema.DECISIONS, result.decisions)
    write_lines(folder, schema.EVENTS, (entry.to_plain() for entry in entries))
    return folder


@pytest.fixture
def own(recorded: Path, tmp_path: Path) -> Path:
    for file in recorded.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_the_same_decisions(cli: Cli, recorded: Path) -> None:
    assert cli("replay", recorded) == (
        0,
        "Replayed 5 steps: all decisions identical; token accounting balances.\n",
        "",
    )


def test_a_policy_of_ones_own_is_found_from_anywhere_where_it_is_trusted(
    cli: Cli, own: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "replayed_here.py").write_text(
        "from rollcast.simulator.policies import FullyAsync\nclass Same(FullyAsync): NAME = ''\n"
    )
    path = own / schema.SCENARIO.name
    described = json.loads(path.read_text())
    described["scenario"]["policy"] = POLICY.replace("fully_async", "replayed_here:Same")
    described["scenario"] = kept(described["scenario"], home)
    path.write_text(json.dumps(described))
    code, _, said = cli("replay", own)
    assert (code, "add --trust-modules" in said) == (2, True)
    code, out, _ = cli("replay", own, "--trust-modules")
    assert (code, "all decisions identical" in out) == (0, True)


def test_another_decision_is_found(cli: Cli, own: Path) -> None:
    path = own / schema.DECISIONS.name
    lines = path.read_text().splitlines()
    changed = json.loads(lines[3])
    changed["selected"][0][0] += 1
    path.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]) + "\n")
    code, out, _ = cli("replay", own)
    assert (code, out.partition(":")[0]) == (1, "Step 3 of 5")


def test_a_run_of_an_earlier_version_may_have_no_record(cli: Cli, own: Path) -> None:
    (own / schema.EVENTS.name).unlink()
    said = refused(cli("replay", own))
    assert "holds no events.jsonl" in said
    said = refused(cli("replay", own / "none"))
    assert "none is not a folder; give the folder of a run" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-3], "the record ends here"),
        (lambda lines: lines[1:], "does not follow its record: entry 0"),
        (lambda lines: ['{"verb":"wait","at_s":0.0,"segments":[[1]]}', *lines], "line 1"),
    ],
)
def test_a_damaged_record_is_refused(
    cli: Cli, own: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = own / schema.EVENTS.name
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    said = refused(cli("replay", own))
    assert message in said
