"""Runs of verl V1, whose trainer sees an end of generation two seconds late at worst."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.calibration.fits import phases
from rollcast.calibration.fits.log_scenario import built, mapping
from rollcast.calibration.importing import outcome
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.studies.simulate import from_raw, simulate
from tests.imported import truth
from tests.logs import written
from tests.logs.written import Truth
from tests.scenarios import FREE

POLL_S = 2.0


def scenario(iteration_s: float, *settings: str) -> RawScenario:
    """The truth, whose trainer looks every two seconds, without a word on the GPU."""
    seconds = {"per_rollout_s": 2e-6, "train_per_token_s": 9e-6, "sync_s": 0.3}
    linear = {**FREE, "iteration_s": iteration_s, **seconds}
    plain = {key: value for key, value in truth.SCENARIO.items() if key not in ("gpu", "model")}
    engine = {**truth.SCENARIO["engine"], "kv_tokens": 1 << 30}
    data = {**plain, "engine": engine, "cost": {"linear": linear}, "poll_s": POLL_S}
    return override(RawScenario(data), settings)


def mean_step_s(raw: RawScenario) -> float:
    return float(np.mean([each.step_s for each in simulate(from_raw(raw)).run.steps]))


def logged(folder: Path, raw: RawScenario, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as V1 logs it."""
    for name in ("GROUPS", "SIZE", "CAP", "PROMPT"):
        monkeypatch.setattr(written, name, getattr(truth, name))
    found, workload = simulate(from_raw(raw)).run, from_raw(raw).workload
    rows = []
    for i, each in enumerate(found.steps):
        groups = [
            workload.draw(i * truth.GROUPS + g, truth.SIZE, version=i) for g in range(truth.GROUPS)
        ]
        made = each.step_s - each.train_s - each.sync_s
        rows.append(
            Truth(
                i + 1,
                tuple(tuple(g.new_tokens) for g in groups),
                tuple(tuple(g.rewards) for g in groups),
                made,
                0.0,
                each.train_s,
                each.sync_s,
                each.step_s,
            )
        )
        assert made / POLL_S == pytest.approx(round(made / POLL_S))
    more = {"training/off_policy/trajectory_spans/max": 1.0}
    written.verl_file(folder / "metrics.jsonl", rows, **more)
    written.verl_dump(folder / "dump", rows)
    truth.config("verl", folder)
    return folder


@pytest.mark.parametrize("iteration_s", [0.0007, 0.003])
def test_other_sizes_of_a_polled_run(
    iteration_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = read_log([logged(tmp_path, scenario(iteration_s), monkeypatch)])
    found = outcome(log, draft(log), advised=False)
    data: dict[str, Any] = mapping(found.parts)
    assert data["poll_s"] == POLL_S
    lengths = dict(truth.SCENARIO["workload"]["lengths"])
    for settings in ((), ("workload.group_size=16",), ("workload.max_new_tokens=1024",)):
        theirs = override(RawScenario({**data, "steps": truth.STEPS}), settings)
        mine = built_like(theirs, found.fit.cost, lengths)
        took = mean_step_s(scenario(iteration_s, *settings))
        assert mine == pytest.approx(took, rel=0.05), settings
    [predicted, replayed] = found.judged
    assert abs(replayed.total_error) < 0.03
    assert predicted.total_covered  # its lengths are drawn


def built_like(raw: RawScenario, cost: dict[str, Any], lengths: dict[str, Any]) -> float:
    """Mean step under the fitted costs, of lengths as they truly are."""
    from rollcast.simulator.launches.parts import Part

    parts = [Part(key, value, "") for key, value in raw.data.items() if key != "cost"]
    workload = {**raw.data["workload"], "prompt_tokens": truth.PROMPT}
    parts = [p for p in parts if p.key != "workload"] + [
        Part(f"workload.{key}", value, "") for key, value in workload.items() if key != "lengths"
    ]
    found = built([*parts, Part("seed", truth.SCENARIO["seed"], "")], cost, lengths)
    return float(np.mean([each.step_s for each in simulate(found).run.steps]))


def test_seen_late() -> None:
    assert phases.seen(np.array([0.0, 0.1, 2.0, 2.1]), 2.0).tolist() == [0.0, 2.0, 2.0, 4.0]
    assert phases.seen(np.array([0.3]), 0.0).tolist() == [0.3]


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.2])
def test_the_level_is_that_of_the_mean(factor: float) -> None:
    rng = np.random.default_rng(0)
    forecast = 2.5 * rng.lognormal(0, 0.3, 200)
    measured = phases.seen(factor * forecast * rng.lognormal(0, 0.05, 200), 2.0)
    found, sd = phases.level(forecast, measured, 2.0)
    assert abs(math.log(found / factor)) < 2 * sd
    assert sd < 0.1 or factor == 0.3  # where all end before the first look
