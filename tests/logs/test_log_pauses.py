"""Steps that a pause made long: set aside with a word, and nothing else is."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.calibration.fits.steps import steps_of
from rollcast.calibration.logs.columns import SECONDS, STEPS
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.pauses import TIMES, without_pauses

TAKEN = st.lists(st.floats(1.0, 9.0), min_size=20, max_size=60)


def table(step_s: list[float], tokens: float | list[float] = np.nan) -> pd.DataFrame:
    """steps.csv of these times; every phase takes as long as the step."""
    made = pd.DataFrame({"step": range(1, len(step_s) + 1)}, columns=list(STEPS.names))
    for name in SECONDS:
        made[name] = step_s
    return made.assign(first=0.0, mean_new_tokens=tokens)


@given(TAKEN, st.sets(st.integers(0, 19), max_size=2), st.floats(10 * TIMES, 1e11))
def test_pauses_are_set_aside_and_nothing_else(
    step_s: list[float], places: set[int], long_s: float
) -> None:
    at = sorted(places)
    paused = [long_s if place in at else s for place, s in enumerate(step_s)]
    kept, said = without_pauses(table(paused))
    expected = table([np.nan if place in at else s for place, s in enumerate(step_s)])
    pd.testing.assert_frame_equal(kept, expected if at else table(step_s))
    assert bool(said) == bool(at)
    assert all(f"step {at[0] + 1} (" in said or f" {place + 1} (" in said for place in at)
    again, nothing = without_pauses(kept)
    assert not nothing
    assert again is kept


def test_the_note_counts_them_and_adds_them_up() -> None:
    step_s = [2.0] * 100
    for at in (10, 30, 50, 70, 90):
        step_s[at] = 720.0
    assert without_pauses(table(step_s))[1] == (
        "set aside: 5 of 100 steps, 60.0 min together, lasted more than 30 times those around "
        "them, as after a pause, a checkpoint or a restart: 11 (12.0 min), 31 (12.0 min), 51 (12.0 "
        "min) and 2 more; fits and forecasts do not count their time"
    )


@pytest.mark.parametrize("which", ["often", "tokens", "first", "few", "for good"])
def test_long_steps_of_the_run_itself_stay(which: str) -> None:
    """often: each seventh step validates. tokens: the responses are as much longer. first: a start
    warms up. few: nothing to compare with. for good: from a step on, all are."""
    step_s, tokens = [2.0] * 40, [100.0] * 40
    step_s[20], tokens[20] = 90.0, 100.0
    if which == "often":
        step_s = [90.0 if at % 7 == 3 else 2.0 for at in range(40)]
    elif which == "tokens":
        tokens[20] = 5_000.0
    elif which == "for good":
        step_s[20:] = [90.0] * 20
    made = table(step_s, tokens)
    made.loc[20, "first"] = float(which == "first")
    made = made.iloc[18:22] if which == "few" else made
    kept, said = without_pauses(made)
    assert kept is made
    assert not said


def test_a_log_with_a_pause_is_fitted_without_it(tmp_path: Path) -> None:
    rows = [
        {"step": n, "step_time": 3.0 + n % 3, "completions/mean_length": 50.0 + n % 5}
        for n in range(1, 31)
    ]
    rows[19]["step_time"] = 2936.0
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": rows}))
    log = read_log([file])
    assert [note for note in log.notes if note.startswith("set aside: step 20 (48.9 min)")]
    used = steps_of(log)
    assert len(used) == 30
    assert np.nanmax(used.whole_s) == 5.0
    assert used.median_s == 4.0
