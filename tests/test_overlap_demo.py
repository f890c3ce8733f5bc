"""Table and picture of ``make demo-overlap``, on simulated runs in the place of real ones."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import actors, overlap
from rollcast.simulator.results.write import write_run
from rollcast.simulator.studies.simulate import load, simulate

STEPS = 10


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    for kind in ("measured", "forecast"):
        for name, policy in overlap.POLICIES.items():
            place = folder / kind / overlap.slug(name)
            place.mkdir(parents=True)
            checked = load(overlap.SCENARIO, f"policy={policy}", f"steps={STEPS}")
            result = simulate(checked)
            write_run(place, result.run, result.summary, {}, plot=False)
    return folder


def test_the_table_says_what_the_runs_do(out: Path) -> None:
    lines = overlap.table(out)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows] == list(overlap.POLICIES)
    for row, name in zip(rows, overlap.POLICIES, strict=True):
        steps = pd.read_csv(out / "measured" / overlap.slug(name) / "steps.csv")
        kept = steps[overlap.SETTLED : STEPS - overlap.DRAINED]
        error = kept["step_s"].std() / len(kept) ** 0.5
        assert row[1] == row[-2] == f"{kept['step_s'].mean():.2f} ± {error:.2f}"
        assert row[-1] == "+0%"  # the forecast of a simulation is itself
    sync, ahead, free = rows
    assert sync[2] == "1.00"
    assert float(free[2]) <= float(ahead[2]) < 0.9
    assert sync[7] == "0.00"


def test_idle_time_is_what_nobody_used(out: Path) -> None:
    ran = overlap.Ran(out / "measured" / overlap.slug("synchronous"))
    steps = ran.steps
    held = steps["end_s"].iloc[-1] - steps["end_s"].iloc[0] + steps["step_s"].iloc[0]
    trainer = 1 - steps["train_s"].sum() / held
    assert overlap.idle(ran, "trainer") == pytest.approx(trainer, abs=0.01)
    rollouts = 1 - steps["rollout_s"].sum() / held
    assert overlap.idle(ran, "replica 0") == pytest.approx(rollouts, abs=0.01)


def test_the_picture_is_drawn(out: Path) -> None:
    overlap.picture(out)
    assert (out / "overlap.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["overlap", "--steps", "5"])
        assert overlap.main() == 2
    assert "give at least 8" in capsys.readouterr().err


def test_rounds_of_the_benchmark_become_a_table() -> None:
    def ran(step: float, rollout: float, train: float, tokens: float = 1.0) -> dict[str, object]:
        return {
            "step_s": [step] * 3,
            "rollout_s": [rollout] * 3,
            "train_s": [train] * 3,
            "sync_s": [0.04],
            "tokens_per_s": tokens,
            "driver_s_per_rollout": 1e-3,
        }

    found = {
        "in process": ran(2.0, 1.0, 1.0),
        "actors": ran(2.04, 1.0, 1.0),
        "one step off": ran(1.2, 1.0, 1.1),
        "one replica": ran(4.0, 4.0, 1.0, 100.0),
        "two replicas": ran(3.0, 2.0, 1.0, 170.0),
    }
    lines = actors.table([json.loads(json.dumps(found))])
    said = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in lines if "|" in line}
    assert said["actors over one process, synchronous, one replica"].startswith("1.020 ")
    assert said["weight sync, ms"].startswith("40.0 ")
    assert said["driver's processor time a rollout, ms"].startswith("1.00 ")
    assert said["two replicas over one, rollout tokens/s, 1,024 rollouts a step"].startswith(
        "1.70 "
    )
    assert said["one step off: step over max(rollout, train)"].startswith("1.091 ")
    assert said["an update beside rollouts, over alone"].startswith("1.100 ")
