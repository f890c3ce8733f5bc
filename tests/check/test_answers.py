"""Answers: fits or not first, what would make it fit in the stack's words, and the contract."""

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from check.launches import VERL, asked, launched

from rollcast.simulator.check.answer import Answer, answer
from rollcast.simulator.check.forecast import over_lengths
from rollcast.simulator.check.layout import GROUPS, memory_lines
from rollcast.simulator.check.question import question
from rollcast.simulator.check.words import headline, sentences
from rollcast.simulator.check.write import write_check
from rollcast.simulator.costs.memory.ledger import MEMORY_PHASES
from rollcast.simulator.report.check_page import check_page
from rollcast.simulator.results.text import interval, number, seconds
from rollcast.simulator.scenario.ledger import ledger_of
from rollcast.simulator.studies.simulate import load, simulate

pytestmark = pytest.mark.usefixtures("quick_intervals")

LARGE = {**VERL, "actor_rollout_ref.model.path": "Qwen/Qwen2.5-32B-Instruct"}


def _answer(said: Mapping[str, Any] = VERL, gpu: str = "h100-sxm", **more: Any) -> Answer:
    return answer(question(launched(said), asked(gpu, **more)))


@pytest.fixture(scope="module")
def fitting() -> Answer:
    """A launch that fits easily."""
    return _answer(mean_tokens=800.0, prompt_tokens=200)


@pytest.fixture(scope="module")
def too_large() -> Answer:
    """One that does not."""
    return _answer(LARGE, "a100-80gb", mean_tokens=800.0, prompt_tokens=200)


def test_yes_comes_first_with_the_figure(fitting: Answer) -> None:
    assert fitting.fits
    peak = fitting.ledger.peak
    assert headline(fitting).startswith("Yes")
    assert f"{peak.bytes / 1e9:.0f} of {peak.capacity_bytes / 1e9:.0f} GB" in headline(fitting)
    assert not fitting.fixes


def test_no_comes_first_with_what_to_add(too_large: Answer) -> None:
    assert not too_large.fits
    text = headline(too_large)
    assert text.startswith("No")
    first = too_large.fixes[0]
    assert all(f"`{line}`" in text for line in first.change.lines)
    assert f"{first.change.ledger.fullest_gpu.bytes / 1e9:.0f} GB" in text


def test_what_is_said_to_fit_fits_when_it_is_said(too_large: Answer) -> None:
    """The lines, read as a launch of their own, give the ledger that was promised."""
    assert too_large.fixes
    for priced in too_large.fixes:
        change = priced.change
        lines = {
            line.partition("=")[0].lstrip("+"): yaml.safe_load(line.partition("=")[2])
            for line in change.lines
        }
        again = question(launched({**LARGE, **lines}), too_large.question.asked)
        ledger = ledger_of(again.scenario)
        assert ledger.fits
        assert ledger.peak.bytes == pytest.approx(change.ledger.peak.bytes)


def test_no_smaller_set_of_changes_was_left_out(too_large: Answer) -> None:
    """Where a fix has several changes, none of them fits alone."""
    for priced in too_large.fixes:
        change = priced.change
        if len(change.keys) < 2:
            continue
        for key, value in change.settings.items():
            alone = too_large.question.with_settings({key: value})
            ledger = ledger_of(alone.scenario)
            assert not ledger.fits


def test_the_time_of_what_does_not_fit_is_that_of_what_would(too_large: Answer) -> None:
    assert too_large.forecast.step.median > 0
    assert "if it fit" in " ".join(sentences(too_large))
    assert too_large.plain()["step_s"]["as_if_it_fit"]


def test_hours_and_cost_follow_from_the_step(fitting: Answer) -> None:
    found = fitting.forecast
    assert found.steps == 100
    assert found.hours.median == pytest.approx(found.step.median * 100 / 3600)
    assert found.usd.median == pytest.approx(found.hours.median * 8 * 2.5)
    assert found.step.low <= found.step.median <= found.step.high


def test_lengths_that_nobody_says_widen_the_interval(fitting: Answer) -> None:
    """By a factor of 1.8 and more of their own, beside whatever else is open (in quadrature)."""
    answer_of = _answer(prompt_tokens=200)
    unsaid, said = answer_of.forecast, fitting.forecast
    shown, (step_s, low_s, high_s) = check_page(answer_of), astuple(unsaid.step)
    assert f">{seconds(step_s, like=high_s)}<" in shown
    assert f"90 %: {interval((low_s, high_s))}" in shown
    update = unsaid.phases["update"]
    assert interval((update.low, update.high), lambda s: number(s, 2)).replace(" to ", "-") in shown
    for wide, known in (
        (unsaid.step, said.step),
        (unsaid.phases["generation"], said.phases["generation"]),
    ):
        widths = [math.log(each.high / each.low) for each in (wide, known)]
        assert widths[0] > math.hypot(widths[1], math.log(1.8))


def test_the_contract(too_large: Answer) -> None:
    plain = json.loads(json.dumps(too_large.plain()))
    assert plain["stack"] == "verl"
    assert plain["stack_version"] == "0.7"
    assert plain["fits"] is False
    assert 0 <= plain["fits_probability"] < 0.5
    assert set(plain["peak"]) >= {"phase", "role", "bytes", "capacity_bytes"}
    for phase in plain["phases"]:
        assert phase["phase"] in MEMORY_PHASES
        assert all(isinstance(size, int) and size >= 0 for size in phase["bytes"].values())
    assert set(plain["step_s"]) >= {"median", "low", "high", "phases"}
    assert plain["hours"] == pytest.approx(plain["step_s"]["median"] * 100 / 3600)
    for change in plain["changes"]:
        assert change["lines"]
        assert change["peak_bytes"] > 0
    assert {entry["key"] for entry in plain["assumed"]} == set()
    assert plain["scenario"]["model"] == "qwen2.5-32b"
    for key in ("host_bytes", "usd", "bound_by", "unknown_keys"):
        assert key in plain


def test_the_ledgers_lines_add_up(fitting: Answer) -> None:
    for line in memory_lines(fitting.ledger):
        assert set(line.parts) <= set(GROUPS)
        assert sum(line.parts.values()) == pytest.approx(line.total)


def test_the_folder_holds_a_scenario_that_simulates_to_the_same(
    fitting: Answer, tmp_path: Path
) -> None:
    write_check(tmp_path, fitting, check_page(fitting))
    assert {path.name for path in tmp_path.iterdir()} == {
        *("check.json", "scenario.yaml", "report.html")
    }
    again = simulate(replace(load(tmp_path / "scenario.yaml"), steps=4))
    assert again.summary["step_s"] == pytest.approx(fitting.forecast.step.median, rel=1e-6)
    text = (tmp_path / "scenario.yaml").read_text("utf-8")
    assert "data.train_batch_size in run.sh, line" in text


def test_the_page_needs_nothing_else(too_large: Answer) -> None:
    page = check_page(too_large)
    assert headline(too_large).split(".")[0][:20] in page
    assert "http://" not in page
    assert "src=" not in page
    for priced in too_large.fixes:
        assert priced.change.lines[0].split("=")[0] in page


def test_a_share_to_fail_over(fitting: Answer) -> None:
    share = fitting.ledger.peak.bytes / fitting.ledger.peak.capacity_bytes
    assert fitting.over(share - 0.01)
    assert not fitting.over(min(share + 0.01, 1.0))


def test_a_long_tail_is_told_with_what_would_not_wait() -> None:
    said = {
        **VERL,
        "data.train_batch_size": 32,
        "data.max_response_length": 16384,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 20000,
    }
    found = answer(question(launched(said), asked(mean_tokens=1500.0, prompt_tokens=200)))
    [tail] = [one for one in found.oddities if "for its last" in one.sentence]
    assert "APRIL" in tail.sentence
    assert tail.speedup[1] <= tail.speedup[0] <= tail.speedup[2]


def test_large_batches_are_not_simulated_four_times() -> None:
    large = {**VERL, "data.train_batch_size": 512}

    def steps(said: Mapping[str, Any], *settings: str) -> int:
        return question(launched(said), asked(), settings).scenario.steps

    assert [steps(VERL), steps(large)] == [4, 2]
    assert steps(large, "steps=4") == 4
    assert steps(large, 'policy=["april"]') == 4


def test_a_length_that_nobody_said_makes_no_answer_certain() -> None:
    actor = "actor_rollout_ref.actor"
    rows = {
        **VERL,
        f"{actor}.use_dynamic_bsz": False,
        f"{actor}.ppo_mini_batch_size": 64,
        f"{actor}.entropy_coeff": 0.01,
        "actor_rollout_ref.model.use_remove_padding": True,
    }
    for each, fits in ((24, True), (40, False), (64, False)):
        launch = launched({**rows, f"{actor}.ppo_micro_batch_size_per_gpu": each})
        asks = question(launch, asked("a100-80gb"))
        own = asks.scenario.ledger
        over = over_lengths(asks, own)
        assert own.fits == over.fits == fits
        if fits:  # long responses do not
            assert 0.5 <= over.fits_probability < own.fits_probability
        elif each == 40:  # short ones do, so one is as likely as not to fit, at most
            assert own.fits_probability < 0.4 < over.fits_probability == 0.5
        else:
            assert own.fits_probability < 0.1 < over.fits_probability <= 0.5
        said = question(launch, asked("a100-80gb", mean_tokens=1024.0))
        assert over_lengths(said, own) is own
