"""Calibrations with a probe of trainer and engine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.calibrate import calibrate
from rollcast.calibration.fits.iterations import COUNTS
from rollcast.calibration.fits.updates import Updates, fit_updates
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.errors import ScenarioError
from tests.calibration.worlds import LINEAR, PULSE, edit_json, write_pulses, write_world
from tests.refusals import refuses

SHARED_TOKEN_S, MICROBATCH_S = 9e-5, 0.004
PREFILLING_S, PAIR_S = 2e-3, 3e-8
NAMES = ("start_s", "seconds", *COUNTS)


def write_probe(path: Path, run: Path, factor: float = 1.0, **changes: Any) -> Path:
    """A probe of a trainer with known costs, on a machine ``factor`` times as slow."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(40):
        computed, microbatches = int(rng.integers(1000, 12_000)), int(rng.integers(1, 20))
        shared = i % 2
        seconds = (SHARED_TOKEN_S if shared else LINEAR["train_per_token_s"]) * computed
        seconds += MICROBATCH_S * microbatches if shared else LINEAR["train_fixed_s"]
        rows.append(
            {
                "layout": "shared_prefix" if shared else "dense",
                "rollouts": int(rng.integers(8, 99)),
                "microbatches": microbatches,
                "computed_tokens": computed,
                "padding_tokens": 0,
                "groups": [[9, rng.integers(2, 90, size=9).tolist()]],
                "log_prob_s": 0.0,
                "total_s": factor * seconds * float(np.exp(0.03 * rng.normal())),
                "pulse": {name: factor * value for name, value in PULSE.items()},
            }
        )
    scenario = json.loads((run / "scenario.json").read_text())["scenario"]
    content = {
        "schema": "rollcast-probe/2",
        "provenance": json.loads((run / "provenance.json").read_text()),
        "engine": scenario["engine"],
        "updates": rows,
        "bursts": [
            burst(rng, prompt, count, factor)
            for prompt in (6, 40, 200, 700)
            for count in (1, 8, 40)
        ],
        **changes,
    }
    path.write_text(json.dumps(content))
    return path


def burst(rng: np.random.Generator, prompt: int, count: int, factor: float) -> dict[str, Any]:
    """Prompts prefilled in one iteration, and ten of decoding."""
    columns: dict[str, list[float]] = {name: [] for name in NAMES}
    now_s = 0.0
    for i in range(11):
        first, context = i == 0, count * (prompt + i)
        seconds = LINEAR["iteration_s"] + LINEAR["per_rollout_s"] * count
        seconds += LINEAR["per_context_token_s"] * context
        pairs = count * prompt * (prompt + 1) // 2
        if first:
            seconds += PREFILLING_S + LINEAR["per_prefill_token_s"] * count * prompt
            seconds += PAIR_S * pairs
        seconds *= factor * float(np.exp(0.03 * rng.normal()))
        row = (now_s, seconds, count, context, first * count * prompt, first * pairs, first * count)
        for values, value in zip(columns.values(), row, strict=True):
            values.append(value)
        now_s += seconds
    return {
        "rollouts": count,
        "prompt_tokens": prompt,
        "iterations": columns,
        "pulse": {name: factor * value for name, value in PULSE.items()},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("runs") / "sync", steps=12)


def test_a_probe_prices_a_layout_that_no_run_used(run: Path, tmp_path: Path) -> None:
    fitted = calibrate([run], write_probe(tmp_path / "probe.json", run))
    shared = fitted.content["cost"]["shared_prefix"]
    # this run does not tell its packing, so microbatches are part of the fixed time
    assert shared["per_token_s"] == pytest.approx(SHARED_TOKEN_S, rel=0.1)
    assert shared["fixed_s"] == pytest.approx(10 * MICROBATCH_S, rel=0.4)
    assert calibrate([run]).content["cost"]["shared_prefix"] is None


def made_up(count: int, seed: int, shared: bool, slow: float = 1.0, alike: bool = False) -> Updates:
    """Updates of known costs; ``alike`` ones are all of one shape, as those of a run are."""
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(8_000, 9_000, count) if alike else rng.uniform(1_000, 12_000, count)
    pairs = tokens * (rng.uniform(90, 110, count) if alike else rng.uniform(20, 600, count))
    microbatches = np.full(count, 5.0) if alike else rng.integers(1, 60, count).astype(float)
    seconds = slow * (6e-5 * tokens + 4e-8 * pairs + 0.005 * microbatches)
    seconds *= np.exp(0.03 * rng.normal(size=count))
    table = {
        "tokens": tokens,
        "computed": tokens,
        "pairs": pairs,
        "rollouts": 64.0,
        "microbatches": microbatches,
        "train_s": seconds,
        "log_prob_s": 0.0,
        "shared": shared,
    }
    return Updates(pd.DataFrame(table), skips_equal_rewards=False, padded=True)


def test_shapes_tell_apart_what_a_run_leaves_together() -> None:
    """Tokens, pairs and microbatches, at the level of the run; the other layout at that level."""
    run = made_up(60, 0, shared=False, slow=1.2, alike=True)
    both = [made_up(60, 1, shared=False).table, made_up(60, 2, shared=True).table]
    probe = replace(run, table=pd.concat(both))
    dense = fit_updates(run, False, probe)
    assert dense.ratio == pytest.approx(1.2, rel=0.03)
    shared = fit_updates(run, True, probe, dense.ratio)
    for found in (dense.cost(), shared.cost()):
        assert found["per_token_s"] == pytest.approx(1.2 * 6e-5, rel=0.1)
        assert found["per_pair_s"] == pytest.approx(1.2 * 4e-8, rel=0.15)
        assert found["per_microbatch_s"] == pytest.approx(1.2 * 0.005, rel=0.2)
    assert fit_updates(run, True) is None


def test_the_runs_give_the_level(run: Path, tmp_path: Path) -> None:
    """A machine that was slower while it was probed is not slower in the forecast."""
    load = TrainLoad([(20, [40] * 6)] * 8)
    plain = calibrate([run]).cost.train(load).total_s
    for factor in (1.0, 1.5):
        probe = write_probe(tmp_path / f"{factor}.json", run, factor)
        fitted = calibrate([run], probe)
        assert fitted.cost.train(load).total_s == pytest.approx(plain, rel=0.05)
        shared = fitted.content["cost"]["shared_prefix"]
        assert shared["per_token_s"] == pytest.approx(SHARED_TOKEN_S, rel=0.1)


def test_a_probe_prices_prompts_that_no_run_had(tmp_path: Path) -> None:
    """Prompts of one length cannot tell a token from an admission; the probe's can, also on a
    machine that was slower when it was probed."""
    run = write_world(tmp_path / "run", steps=12, prompts=9)
    write_pulses(run, 1.0)
    assert calibrate([run]).content["fits"]["iteration"]["assumed_prefill_token"]
    for factor in (1.0, 1.5):
        found = calibrate([run], write_probe(tmp_path / "probe.json", run, factor)).content
        assert not found["fits"]["iteration"]["assumed_prefill_token"]
        ratio = found["fits"]["iteration"]["step_ratio"]
        cost = {
            name: value
            for name, value in found["cost"]["iteration"].items()
            if name != "rollout_pieces"
        }
        token_s = LINEAR["per_prefill_token_s"]
        assert cost["per_prefill_token_s"] / ratio == pytest.approx(token_s, rel=0.1)
        assert cost["prefilling_s"] / ratio == pytest.approx(PREFILLING_S, rel=0.2)
        assert cost["per_prefill_pair_s"] / ratio == pytest.approx(PAIR_S, rel=0.2)
        assert found["range"]["prefill_tokens"][1] == 40 * 700


UNEVEN = {"iterations": {n: [1] * (1 + i) for i, n in enumerate(NAMES)}, "pulse": PULSE}
COUNTS = ("computed_tokens", "padding_tokens", "rollouts", "microbatches", "log_prob_s", "total_s")
FLAT = {"layout": "dense", **dict.fromkeys(COUNTS, 1), "groups": [3]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "rollcast-probe/9"}, "rollcast-probe/2"),
        ({"bursts": []}, "fewer than"),
        ({"bursts": [3] * 9}, r"bursts\[0\]: must be a mapping"),
        ({"bursts": [{}] * 9}, r"bursts\[0\].iterations: missing"),
        ({"bursts": [{"iterations": {n: [1] for n in NAMES}}] * 9}, r"bursts\[0\].pulse: missing"),
        (
            {"bursts": [{"iterations": {n: ["x"] for n in NAMES}}] * 9},
            r"bursts\[0\].iterations.start_s\[0\]: must be .* got 'x'",
        ),
        ({"bursts": [UNEVEN] * 9}, "columns differ in length"),
        ({"updates": []}, "fewer than"),
        ({"updates": [3] * 9}, r"updates\[0\]: must be a mapping"),
        ({"updates": [{"layout": "best"}] * 9}, r"updates\[0\].layout: must be .* got 'best'"),
        ({"updates": [{"layout": "dense"}] * 9}, r"updates\[0\].computed_tokens: missing"),
        ({"updates": [FLAT] * 9}, r"updates\[0\].groups\[0\]: must be a list of 2, a whole number"),
        ({"engine": {"trainer": {"microbatch_tokens": 1}}}, "engine.trainer"),
    ],
)
def test_bad_probes_are_named(
    run: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with refuses("--probe", said):
        calibrate([run], write_probe(tmp_path / "probe.json", run, **changes))


def test_a_probe_of_another_machine(run: Path, tmp_path: Path) -> None:
    probe = write_probe(tmp_path / "probe.json", run)
    content = json.loads(probe.read_text())
    edit_json(probe, provenance={**content["provenance"], "processor": "another"})
    with pytest.raises(ScenarioError, match="differ in processor"):
        calibrate([run], probe)


def test_a_file_that_is_none(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot read"):
        calibrate([run], tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(ScenarioError, match="not a file of JSON"):
        calibrate([run], tmp_path / "text.json")
