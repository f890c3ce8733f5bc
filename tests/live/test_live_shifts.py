"""A shift in a series is told where it is, soon, and seldom where there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.live.monitor import AFTER, ALPHA, BEFORE, shifts
from tests.laws import examples

RUNS, STEPS, SERIES = 60, 120, 4


def series(
    seed: int, steps: int = STEPS, alike: float = 0.0, heavy: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Logs of a phase that follows two figures of lengths which drift, and those; 7 % of noise."""
    rng = np.random.default_rng(seed)
    mean = 6 + 0.1 * rng.standard_normal(steps) + np.linspace(0, 0.5, steps)
    longest = mean + 1 + 0.2 * rng.standard_normal(steps)
    drawn = rng.standard_t(3, steps) / 1.7 if heavy else rng.standard_normal(steps)
    noise = np.zeros(steps)
    for i in range(steps):
        before = noise[i - 1] if i else 0.0
        noise[i] = alike * before + np.sqrt(1 - alike**2) * drawn[i]
    return 0.3 + 0.5 * mean + 0.4 * longest + 0.07 * noise, np.column_stack([mean, longest])


@pytest.mark.parametrize(("alike", "heavy"), [(0.0, False), (0.0, True), (0.6, False)])
def test_false_alarms_are_as_rare_as_said(alike: float, heavy: bool) -> None:
    told = sum(
        bool(shifts(*series(seed, alike=alike, heavy=heavy), least_ratio=1.1))
        for seed in range(RUNS)
    )
    # three standard deviations of a binomial above what was promised
    most = RUNS * ALPHA + 3 * np.sqrt(RUNS * ALPHA * (1 - ALPHA))
    assert told <= most


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_a_slow_engine_is_told_at_its_step_and_not_before(alike: float) -> None:
    late, places = [], []
    for seed in range(30):
        logs, beside = series(seed, 80, alike)
        logs[40:] += np.log(1.5)
        found = [each for each in shifts(logs, beside, 1.1, SERIES) if each.ratio > 1.3]
        assert found, seed
        first = found[0]
        assert first.noticed >= 40 + AFTER - 1
        late.append(first.noticed - 40)
        places.append(first.place)
        assert first.ratio == pytest.approx(1.5, rel=0.25)
    assert np.median(late) <= 4
    assert np.median(np.abs(np.array(places) - 40)) <= 1


def test_what_follows_its_figures_is_no_shift() -> None:
    for seed in range(20):
        logs, beside = series(seed, 80)
        beside[40:] += np.log(2.0)  # twice the tokens, and the time that they take
        logs[40:] += 0.9 * np.log(2.0)
        assert not shifts(logs, beside, 1.1)


def test_one_step_that_stands_out_is_no_shift() -> None:
    for place in range(BEFORE, 60, 7):
        logs, beside = series(3, 60)
        logs[place] += np.log(4.0)
        assert not shifts(logs, beside, 1.1)
    logs, beside = series(3, 150)  # after many steps their scatter is known, and one tells in it
    logs[140] += np.log(4.0)
    assert not shifts(logs, beside, 1.1)


def test_small_shifts_are_not_told_but_counted_from_their_size() -> None:
    logs = np.zeros(60)
    logs[30:] = np.log(1.09)
    nothing = np.zeros((60, 0))
    assert not shifts(logs, nothing, 1.1)
    logs[30:] = np.log(1.12)
    (found,) = shifts(logs, nothing, 1.1)
    assert (found.place, found.ratio) == (30, pytest.approx(1.12))


def test_there_and_back_are_two_shifts() -> None:
    rng = np.random.default_rng(1)
    logs = 0.03 * rng.standard_normal(90)
    logs[30:60] += np.log(2.0)
    found = shifts(logs, np.zeros((90, 0)), 1.1)
    assert [each.place for each in found] == [30, 60]
    assert [each.ratio for each in found] == [
        pytest.approx(2, rel=0.1),
        pytest.approx(0.5, rel=0.1),
    ]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(0, 40))
def test_what_comes_later_changes_nothing_that_was_told(seed: int, steps: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    logs = 0.05 * rng.standard_normal(steps)
    logs[steps // 2 :] += rng.choice([0.0, 0.7])
    nothing = np.zeros((steps, 0))
    part = max(steps - cut, 0)
    early = shifts(logs[:part], nothing[:part], 1.1)
    assert early == [each for each in shifts(logs, nothing, 1.1) if each.noticed < part]


def test_figures_that_never_move_are_no_figures() -> None:
    logs, _ = series(5, 40)
    same = np.ones((40, 2))
    assert shifts(logs, same, 1.1) == shifts(logs, np.zeros((40, 0)), 1.1)
