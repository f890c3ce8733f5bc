"""``rollcast calibrate --learning``: it finds the law that made the curves, and refuses what says
nothing of learning."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning import pages, tables, validation
from benchmarks.learning.matched import alike
from benchmarks.runner import RESULTS
from rollcast.calibration.fits.learning import LearningRun, fit, law_of
from rollcast.calibration.judge.learning import Judged, judge, rising, time_to
from rollcast.calibration.learning import calibrate_learning, read_run
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.data import load, prior
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.signals import signals_of
from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_run, write_table
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from tests.conftest import Cli
from tests.refusals import ran, refused
from tests.scenarios import FREE

EVERY, PROMPTS = 4, 2000


def true_law() -> Law:
    """Not the prior, by about a standard deviation in speed and staleness."""
    own = {"log_speed": -2.3, "slowing": 0.3, "log_staleness": 1.2}
    return replace(
        prior(), parameters={**prior().parameters, **own}, run_sd=0.0, policy_sd=0.0, level_sd=0.0
    )


@cache
def simulated(policy: str, seed: int) -> Result:
    keys: dict[str, Any] = {
        "cluster": {"placement": "disaggregated", "replicas": 1, "trainer_gpus": 1},
        "engine": {
            "max_seqs": 256,
            "max_batched_tokens": 2048,
            "kv_tokens": 65536,
            "task": {"name": "collatz"},
            "trainer": {"learning_rate": 1e-4},
        },
        "workload": {
            "batch_groups": 12,
            "group_size": 8,
            "prompt_tokens": 6,
            "max_new_tokens": 64,
            "lengths": {"family": "lognormal", "median_tokens": 9, "between_sd": 0, "within_sd": 0},
            "rewards": {"family": "beta_bernoulli", "mean": 0.4},
        },
        "policy": policy,
        "cost": {"linear": {**FREE, "iteration_s": 0.01, "train_fixed_s": 1.0, "sync_s": 0.1}},
        "steps": 60,
        "seed": seed,
    }
    return simulate(from_raw(RawScenario(keys)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of four runs whose curves follow `true_law`, but for the evaluations' noise."""
    home = tmp_path_factory.mktemp("runs")
    for number, (policy, seed) in enumerate(
        [("sync", 0), ("sync", 1), ("fully_async(max_staleness=6)", 0), ("pods(keep=4)", 1)]
    ):
        result, folder = simulated(policy, seed), home / str(number)
        folder.mkdir()
        scenario = {"name": "test", "scenario": dict(result.scenario.raw.data)}
        write_run(folder, result.run, result.summary, scenario, False)
        write_evaluations(folder, true_law().best(signals_of(result.run), 0.3), number)
    return home


def write_evaluations(folder: Path, curve: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = []
    for done in range(0, len(curve), EVERY):
        reward = draw.binomial(PROMPTS, curve[done]) / PROMPTS
        rows.append((done, done, PROMPTS, PROMPTS, reward, 12.0, 0.0, 0, 1.0))
    write_table(folder, schema.EVALUATIONS, rows)


def runs_in(home: Path) -> list[Path]:
    return sorted(home.iterdir())


def test_the_law_behind_the_curves_is_found(folders: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "law.json"
    printed = ran(cli("calibrate", "--learning", *runs_in(folders), "-o", out))
    assert "law of progress" in printed
    law, truth = load(out), true_law()
    for at, name in enumerate(law.parameters):
        error = law.covariance[at][at] ** 0.5
        assert abs(law.parameters[name] - truth.parameters[name]) < 4 * error + 0.02, name
    staleness = list(law.parameters).index("log_staleness")
    assert law.covariance[staleness][staleness] < 0.5 * prior().covariance[staleness][staleness]
    assert law.domain.start[0] == pytest.approx(0.3, abs=0.05)
    signals = signals_of(simulated("sync", 0).run)
    assert law.best(signals, 0.3) == pytest.approx(truth.best(signals, 0.3), abs=0.02)
    assert law.domain_reason(signals, 0.3) is None


def test_what_the_runs_do_not_say_stays_as_the_prior_has_it(folders: Path) -> None:
    law = calibrate_learning(runs_in(folders)[:2])  # synchronous
    at = list(law.parameters).index("log_staleness")
    before = prior()
    assert law.parameters["log_staleness"] == pytest.approx(
        before.parameters["log_staleness"], abs=0.1
    )
    assert law.covariance[at][at] == pytest.approx(before.covariance[at][at], rel=0.1)
    assert law.policy_sd >= before.policy_sd


def test_intervals_hold_as_many_runs_as_they_say() -> None:
    """Of runs that deviate from a law, in speed and in level, as the law says."""
    none = ((0.0,) * 5,) * 5
    law = replace(true_law(), run_sd=0.06, level_sd=0.15, level_speed=1.5, covariance=none)
    runs = [deviating(law, seed) for seed in range(90)]
    known, unseen = runs[:40], runs[40:]
    fitted = law_of(fit(known), "", "", prior())
    assert fitted.level_sd == pytest.approx(0.15, abs=0.05)
    assert 0.84 <= held(fitted, unseen) <= 0.96
    # A level that were also taken for speed would count twice.
    assert held(replace(fitted, level_speed=0.0), unseen) > 0.97


def held(law: Law, runs: list[LearningRun]) -> float:
    """The share of times to targets in their intervals."""
    judged = [one for run in runs for one in judge(law, run, 0.3, 1.0, (0.5, 0.6, 0.7))]
    return float(np.mean([one.inside for one in judged if one.what == "time"]))


def deviating(law: Law, seed: int) -> LearningRun:
    """A run under one of four ages and two batches, evaluated on 320 prompts every five updates."""
    signals = alike(80, (48, 192)[seed % 2], 8, age=2.0 * (seed // 2 % 4))
    [curve] = law.curves(signals, 0.3, draws=1, seed=seed)
    updates = np.arange(0, 81, 5)
    unknown = np.full(len(updates), np.nan)
    right = np.random.default_rng(seed).binomial(320, curve[updates])
    policy = f"{seed % 8}"
    answers = np.full(len(updates), 320.0)
    return LearningRun(
        str(seed), "", policy, seed, 1.0, signals, updates, right / 320, answers, unknown, unknown
    )


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def without_evaluation(home: Path) -> None:
    (home / "1" / schema.EVALUATIONS.name).unlink()


def of_one_seed(home: Path) -> None:
    for folder in home.iterdir():
        edit(folder / "summary.json", lambda content: content.update(seed=7))


def of_two_tasks(home: Path) -> None:
    edit(
        home / "2" / "scenario.json",
        lambda content: content["scenario"]["engine"]["task"].update(name="calculator"),
    )


def never_moving(home: Path) -> None:
    for seed, folder in enumerate(runs_in(home)):
        write_evaluations(folder, np.full(61, 0.3), seed)


def of_scores(home: Path) -> None:
    path = home / "0" / schema.EVALUATIONS.name
    head, *rows = path.read_text().splitlines()
    rows[3] = rows[3].replace(rows[3].split(",")[4], "2.5")
    path.write_text("\n".join([head, *rows]) + "\n")


def too_few(home: Path) -> None:
    path = home / "0" / schema.EVALUATIONS.name
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (without_evaluation, "has no evaluation"),
        (of_one_seed, "all runs have seed 7"),
        (of_two_tasks, "2 tasks or models"),
        (never_moving, "no progress to fit"),
        (of_scores, "needs an accuracy, from 0 to 1"),
        (too_few, "at least 3"),
    ],
)
def test_runs_that_say_nothing_are_refused(
    harm: Callable[[Path], None], said: str, folders: Path, tmp_path: Path, cli: Cli
) -> None:
    home = shutil.copytree(folders, tmp_path / "runs")
    harm(home)
    told = refused(cli("calibrate", "--learning", *runs_in(home), "-o", tmp_path / "law.json"))
    assert said in " ".join(told.split())
    assert not (tmp_path / "law.json").exists()


def test_an_import_gives_its_rewards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    lines = ["step,mean_reward,rollouts,groups,step_s"]
    lines += [f"{step},{0.2 + 0.01 * step:.3f},128,16,30" for step in range(30)]
    (log / "steps.csv").write_text("\n".join(lines) + "\n")
    parts = [{"key": "workload.group_size", "value": 8}, {"key": "model", "value": "qwen3-8b"}]
    content = {"schema": "rollcast-log/1", "stack": "verl", "scenario": parts}
    (log / "import.json").write_text(json.dumps(content))
    run = read_run(log, 3)
    assert run.accuracy[0] == pytest.approx(0.2)
    assert (run.seed, run.updates[-1]) == (3, 29)
    assert (run.signals.group_size == 8).all()
    every = [f"{5 * step},{0.2 + 0.01 * step:.3f},,,30" for step in range(1, 30)]
    (log / "steps.csv").write_text("\n".join([lines[0], *every]) + "\n")
    seldom = read_run(log)
    assert seldom.updates[[0, 1, -1]].tolist() == [0, 5, 140]
    assert len(seldom.signals) == 141
    parts += [{"key": "workload.batch_groups", "value": 32, "assumed": True}]
    (log / "import.json").write_text(json.dumps(content))
    with pytest.raises(ScenarioError, match="how many rollouts an update is of"):
        read_run(log)
    (log / "steps.csv").write_text("step,step_s\n0,3\n")
    with pytest.raises(ScenarioError, match="names no reward"):
        read_run(log)


@cache
def committed() -> list[LearningRun]:
    return tables.curves(tables.rows())


def test_the_committed_runs_teach_what_the_prior_says() -> None:
    runs = [run for run in committed() if run.origin == "sum-w0"]
    assert len(committed()) >= 120
    assert {validation.task_of(run) for run in committed()} == {"sum", "walk", "ask"}
    fitted = fit(runs)
    law = law_of(fitted, "sum-w0", "", prior())
    sync = next(run for run in runs if run.policy == "sync")
    stale = next(run for run in runs if run.policy == "stale-8")
    start = float(sync.accuracy[0])
    for run in (sync, stale):
        curve = law.best(run.signals, start)[run.updates]
        assert float(np.abs(curve - run.accuracy).mean()) < 0.04
    assert abs(law.parameters["log_staleness"] - prior().parameters["log_staleness"]) < 1.5


def test_pairs_and_times_are_counted_as_the_page_says() -> None:
    updates, curve = np.array([0, 5, 10, 15]), np.array([0.2, 0.4, 0.3, 0.8])
    assert time_to(updates, curve, 0.35) == pytest.approx(5.0)
    assert time_to(updates, curve, 0.9) == float("inf")
    run = committed()[0]
    other = replace(run, policy="other")
    pair = [
        Judged(run, "time", 0.5, 10.0, 12.0, 8.0, 14.0, None),
        Judged(other, "time", 0.5, 20.0, 11.0, 8.0, 21.0, None),
    ]
    assert validation.ranking(pair, 0.01) == (0, 1)
    assert validation.ranking(pair, 1.0) == (0, 0)
    more = [replace(pair[0], what=what) for what in ("area", "last")]
    found = validation.figures([*pair, *more], 0.01)
    assert (found["coverage"], found["median_error"]) == (1.0, pytest.approx(0.325))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_nearest_rising_curve_is_that_of_scipy(curve: list[float]) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    if hasattr(optimize, "isotonic_regression"):
        assert rising(np.array(curve)) == pytest.approx(optimize.isotonic_regression(curve).x)


def test_validate_holds_a_law_against_runs(folders: Path, tmp_path: Path, cli: Cli) -> None:
    law = tmp_path / "law.json"
    assert cli("calibrate", "--learning", *runs_in(folders)[:3], "-o", law)[0] == 0
    printed = ran(cli("validate", law, runs_in(folders)[3], "--json"))
    [run] = json.loads(printed)["runs"]
    assert run["policy"] == "pods(keep=4)"
    figures = {figure["what"]: figure for figure in run["figures"]}
    assert {"time", "area", "last", "tokens"} == set(figures)
    lengths = figures["tokens"]
    assert lengths["low"] <= lengths["predicted"] <= lengths["high"]
    assert lengths["predicted"] == pytest.approx(lengths["measured"], rel=0.15)
    assert figures["last"]["predicted"] == pytest.approx(figures["last"]["measured"], abs=0.05)
    code, printed, _ = cli("validate", law, runs_in(folders)[3])
    assert (code, "updates to" in printed) == (0, True)
    code, _, told = cli("validate", law, runs_in(folders)[3], "--out", tmp_path / "report")
    assert (code, "--out" in told) == (2, True)


@pytest.mark.parametrize(
    "page",
    [
        *(pages.validated, pages.fitted, pages.policies, pages.papers, pages.real),
        *(pages.public, pages.lengths, pages.ends, pages.edges, pages.whole, pages.pods),
    ],
)
def test_tables_are_whole(page: Callable[[Path], str]) -> None:
    lines = page(RESULTS).splitlines()
    assert len(lines) > 3
    assert len({line.count(" | ") for line in lines}) == 1
