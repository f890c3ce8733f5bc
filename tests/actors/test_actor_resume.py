"""A run of actors whose driver dies: it goes on from its last save, and ends right."""

import csv
import json
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (engine/engine-cpu.lock)", allow_module_level=True)

from running_actors import Home, make, trained_on, weight_of

from rollcast.engine import checkpoint
from rollcast.engine.actors.trainer import Part
from rollcast.engine.actors.updates import Updates
from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.edges import Engine
from rollcast.engine.run import run_scenario
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.loop.recorded import RecordedWorld, read_entry
from rollcast.simulator.scenario.file import parse_scenario
from tests.refusals import refuses
from tests.running import run

STEPS = 5
SCENARIO = """\
cluster: {placement: disaggregated, replicas: 2, trainer_gpus: 1}
engine: {max_seqs: 8, max_batched_tokens: 512, kv_tokens: 65536, block_tokens: 32,
  task: {name: collatz}}
workload: {batch_groups: 4, group_size: 4, max_new_tokens: 24}
policy: "POLICY"
steps: 5
seed: 3
"""
POLICIES = [
    ("sync", 0),
    ("april(over_sampling=2)", 0),
    ("one_step_off", 1),
    ("fully_async(max_staleness=2)", 1),
    ("fully_async(max_staleness=3, sync_every=2)", 1),
    ("pipeline_rl", 0),
    ("streaming", 1),
]


class Died(BaseException):
    """As if the driver had been killed: nothing below `main` catches it."""


def spec_of(policy: str) -> RunSpec:
    return build_run(parse_scenario(SCENARIO.replace("POLICY", policy), name="scenario.yaml"))


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> list[Home]:
    """The worlds that runs were given, in order; without engines."""
    found: list[Home] = []

    def start(spec: RunSpec, address: str | None) -> Any:
        found.append(make(2, iteration_s=1e-3, tensors=True))
        return found[-1].world

    monkeypatch.setattr("rollcast.engine.start.start_actors", start)
    return found


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Part]]:
    """What the trainer was last given, by version."""
    given: dict[int, list[Part]] = {}
    begin = Updates.begin

    def noted(self: Updates, part: Part) -> None:
        begun = given.get(part.version, [])
        if not begun or begun[-1].final or part in begun:
            begun = []
        given[part.version] = [*begun, part]
        begin(self, part)

    monkeypatch.setattr(Updates, "begin", noted)
    return given


def die_at(patch: pytest.MonkeyPatch, verb: int) -> None:
    """Ends the driver when it waits for the so-manieth time."""
    wait, calls = RecordedWorld.wait, [0]

    def dying(self: RecordedWorld, until_s: float | None = None) -> Any:
        calls[0] += 1
        if calls[0] == verb:
            raise Died
        return wait(self, until_s)

    patch.setattr(RecordedWorld, "wait", dying)


def check(out: Path, spec: RunSpec, home: Home, parts: dict[int, list[Part]]) -> None:
    """The folder is of one whole run, whose record gives its decisions, and whose trainer was given
    every batch once."""
    lines = (out / "events.jsonl").read_text().splitlines()
    entries = [read_entry(json.loads(line), "events") for line in lines]
    world = RecordedWorld(entries, None, ClusterShape(2, 1, 1, False, 16), "engine")
    again = run(world, spec.policy, spec.plan, STEPS)
    told = [json.loads(line) for line in (out / "decisions.jsonl").read_text().splitlines()]
    assert json.loads(json.dumps(again.decisions)) == told
    assert again.ledger.balance == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["generated_tokens"] == again.ledger.generated_tokens
    assert summary["trained_tokens"] == again.ledger.trained_tokens > 0
    assert summary["actors_lost"] == 0
    assert home.world._updates.version == STEPS
    assert not home.world._updates._since  # what a save holds need not be repeated
    assert weight_of(home) == trained_on(
        part for version in range(STEPS) for part in parts[version]
    )
    with (out / "steps.csv").open() as file:
        ends = [float(row["end_s"]) for row in csv.DictReader(file)]
    assert len(ends) == STEPS
    assert ends == sorted(ends)
    assert not checkpoint.exists(out)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_driver_that_dies_goes_on(
    tmp_path: Path, homes: list[Home], parts: dict[int, list[Part]], policy: str, seed: int
) -> None:
    out, spec = tmp_path / "out", spec_of(policy)
    random = Random(f"{policy} {seed}")
    deaths = 0
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, random.randrange(5, 60))
        try:
            run_scenario(spec, out, plot=False)
        except Died:
            deaths += 1
    while deaths and checkpoint.exists(out):
        with pytest.MonkeyPatch.context() as patch:
            if deaths < 3:
                die_at(patch, random.randrange(20, 120))
            try:
                run_scenario(spec, out, plot=False, resume=True)
            except Died:
                deaths += 1
                continue
        check(out, spec, homes[-1], parts)
    if not out.exists():  # it died before there was anything to go on from
        run_scenario(spec, out, plot=False)
        check(out, spec, homes[-1], parts)


def test_a_synchronous_run_is_the_same_run(tmp_path: Path, homes: list[Home]) -> None:
    spec = spec_of("sync")
    run_scenario(spec, tmp_path / "whole", plot=False)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, 40)
        with pytest.raises(Died):
            run_scenario(spec, tmp_path / "out", plot=False)
    run_scenario(spec, tmp_path / "out", plot=False, resume=True)
    columns = ("step", "group", "index", "new_tokens", "finished", "trained_step", "reward")
    tables = []
    for folder in ("whole", "out"):
        with (tmp_path / folder / "rollouts.csv").open() as file:
            tables.append(sorted(tuple(row[c] for c in columns) for row in csv.DictReader(file)))
    assert tables[0] == tables[1]
    assert len(homes) == 3


def test_an_address_of_ray_is_for_actors_alone() -> None:
    text = SCENARIO.replace("POLICY", "sync").replace("disaggregated, replicas: 2", "colocated")
    with refuses("--ray", "runs in this process"):
        run_scenario(build_run(parse_scenario(text, name="s.yaml")), None, ray="auto")


def test_an_engine_is_lent_to_a_run_in_this_process_alone() -> None:
    with refuses("lent", "replicas of this run are actors"):
        run_scenario(spec_of("sync"), None, lent=cast(Engine, object()))
