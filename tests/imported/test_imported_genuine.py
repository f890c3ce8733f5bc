"""Genuine logs: their own last third, and that all of each becomes a scenario that runs."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rollcast.calibration import importing as outcomes
from rollcast.calibration.importing import Outcome
from rollcast.calibration.judge.hold_out import forecast
from rollcast.calibration.logs import write
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.pages.import_file import to_json
from rollcast.calibration.pages.import_page import page
from rollcast.simulator.launches.parts import given
from rollcast.simulator.studies.simulate import load, simulate
from tests.imported.whole import simulated_step_s
from tests.logs import genuine

SAID = ("qwen2.5-7b", "a100-80gb")
GENUINE = [
    *((name, ()) for name in ("public_verl", "public/verl_drift_3b")),
    ("public_verl", SAID),
    *((name, ()) for name in ("public/nemo_gemma_b200", "public/trl_hotpot")),
    *((f"verl_files/{name}", ()) for name in ("legacy_v0", "sync_g8", "colocate_async")),
    ("trl_grpo_cpu/vllm_two_updates", ()),
]
ADVISED = (
    *("verl_files/legacy_v0", "verl_files/colocate_async", "trl_grpo_cpu/vllm_two_updates"),
    *("trl_grpo_cpu/hf_logging5", "trl_grpo_cpu/vllm_groups16_loaded"),
)


@cache
def _found(name: str, *said: str) -> tuple[RunLog, Outcome]:
    log = read_log([genuine.log(name)])
    advised = name in ADVISED
    return log, outcomes.outcome(log, draft(log, given(*said)), advised=advised)


@pytest.mark.parametrize(("name", "said"), GENUINE)
def test_of_genuine_logs_too(name: str, said: tuple[str, ...], tmp_path: Path) -> None:
    log, found = _found(name, *said)
    assert found.fit is not None
    simulated_s = simulated_step_s(log, found, tmp_path / "mine")
    assert found.step.seconds == pytest.approx(simulated_s, rel=0.01)
    if said:  # a whole run of a fitted roofline, against the fit's own arithmetic
        ahead = list(range(1, found.step.steps + 1))
        likely_s = float(np.median(forecast(found.fit, ahead, "auto").mean(axis=1)))
        assert simulated_s == pytest.approx(likely_s, rel=0.03)  # it was 14 % off


@pytest.mark.parametrize("said", [(), SAID], ids=["lines", "roofline"])
def test_the_last_third_of_a_run_on_eight_gpus(said: tuple[str, ...]) -> None:
    _, found = _found("public_verl", *said)
    assert found.fit.shape == ("roofline" if said else "linear")
    [judged] = found.judged
    assert (judged.number[0], judged.number[-1], judged.fitted_on) == (71, 105, 55)
    assert judged.median_error <= 0.10
    assert abs(judged.total_error) <= 0.05  # -0.7 and -2.9 % when this was written
    assert judged.total_covered
    # the figure that the log times apart tells the engine from what surrounds it
    assert found.fit.levels.seen["decode"] == "engine_s"
    assert found.fit.levels.seen["switch"] == "generation_s - engine_s"


@pytest.mark.parametrize(
    ("name", "within"),
    [("verl_files/legacy_v0", 0.1), ("verl_files/sync_n16", 0.1), ("verl_files/sync_g8", 0.25)],
)
def test_replays_of_a_busy_cpu(name: str, within: float) -> None:
    """V1 times generation in multiples of two seconds, beside steps of four: sync_g8 shows it."""
    _, found = _found(name)
    [replayed] = [each for each in found.judged if each.mode == "replay"]
    assert replayed.median_error <= within
    assert replayed.total_covered


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_written_runs_and_takes_as_long(name: str, tmp_path: Path) -> None:
    log, found = _found(name)
    out = tmp_path / "mine"
    write.write(out, log, found.parts, False, to_json(log, found), page(log, found))
    result = simulate(load(out / "scenario.yaml", "steps=24"))
    measured = found.used.whole_s[found.used.quiet]
    assert result.summary["step_s"] == pytest.approx(float(np.median(measured)), rel=0.35)
    assert not any(each.why_not for each in found.advice.answers)


def test_waiting_is_not_generation() -> None:
    log, found = _found("verl_files/colocate_async")
    assert log.overlapped
    assert found.fit.levels.seen["decode"].startswith("step_s")
    assert not any("decode" in figure.phases for figure in found.fit.figures)
    [judged] = found.judged
    # Of 4 steps under a load of 8, gen in multiples of 2 s; 16.4 s were measured, and the interval
    # ended at 16.2 when this was written.
    assert judged.median_error < 0.35
    assert abs(judged.total_error) < 0.35


def test_lengths_of_dumps_and_of_their_steps_alone_agree() -> None:
    """The same run, once with its dumps and once without."""
    log, found = _found("verl_files/legacy_v0")
    bare = replace(log, rollouts=log.rollouts.iloc[:0])
    alone = outcomes.outcome(bare, draft(bare), "freeze", advised=False)
    own, few = found.fit.rollouts.lengths["lengths"], alone.fit.few.lengths()
    for spread in ("between_sd", "within_sd"):
        assert few[spread] == pytest.approx(own[spread], abs=0.25)
    assert np.hypot(few["between_sd"], few["within_sd"]) == pytest.approx(
        np.hypot(own["between_sd"], own["within_sd"]), abs=0.15
    )
