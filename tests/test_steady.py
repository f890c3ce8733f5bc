"""Start-up and steady state told apart: on series made by hand, and on runs of every policy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.results.figures import FIGURES
from rollcast.simulator.results.metrics import run_summary, summarise
from rollcast.simulator.results.steady import LEAST_STEPS, steady_of, steady_state
from rollcast.simulator.testing import Trial, try_policy

NOISE = np.random.default_rng(3).normal(0.0, 1.0, 500)
seconds = st.lists(st.floats(0.0, 1e4), min_size=1, max_size=30)


def test_a_run_that_carries_nothing_is_steady_from_its_first_step() -> None:
    times = [90.0, 10.0, 11.0, 9.0, 10.0, 12.0]  # the first is long by chance
    found = steady_state(times, [[0.0] * 6], [0.0] * 6, carries=False)
    assert found == (0, 6, pytest.approx(np.mean(times)), 0.0, 0.0, True)


@pytest.mark.parametrize("count", [10, 60])
@pytest.mark.parametrize("fill", [0, 1, 3])
def test_a_pipeline_that_fills(count: int, fill: int) -> None:
    """Ages rise while it fills, by one a step; its first steps are twice as long."""
    ages = [float(min(step, fill)) for step in range(count)]
    times = [100.0 + NOISE[step] + (100.0 if step < fill else 0.0) for step in range(count)]
    found = steady_state(times, [ages])
    assert found.step_s == pytest.approx(100.0, abs=1.0)
    assert fill <= found.start <= 2 * fill
    assert found.startup_s == pytest.approx(100.0 * (fill + found.start), abs=5.0)
    assert found.known


def test_steps_may_settle_a_while_after_the_state() -> None:
    times = [200.0, 150.0, 150.0, 120.0] + [100.0] * 8
    assert steady_state(times, [[0.0, 1.0] + [2.0] * 10]).start == 4


def test_a_state_that_moves_is_no_steady_one_whatever_the_times_say() -> None:
    """Alike as they are, the first steps are a pipeline's that fills; and one that still does is
    not known."""
    times = [100.0] * 12
    assert steady_state(times, [[0.0, 1.0, 2.0] + [3.0] * 9]).start == 3
    assert steady_state(times, [[0.0, 1.0, 2.0] + [3.0] * 9]).known
    rising = [0.0, 0.9, 1.4, 1.8, 2.1, 1.8, 2.0, 2.6, 3.0, 3.0]
    assert not steady_state(times[:10], [rising]).known
    assert not steady_state(times[:10], [[0.0] * 10, rising]).known
    assert steady_state(times[:10], [rising], carries=False).known


def test_no_more_than_half_is_start_up() -> None:
    falling = [200.0 - 10 * step for step in range(12)]
    found = steady_state(falling, [[float(step) for step in range(12)]])
    assert found.start == 6
    assert not found.known


def test_the_last_steps_wait_for_nothing() -> None:
    found = steady_state([300.0] + [100.0] * 8 + [40.0], [[0.0] + [1.0] * 9], drain=1)
    assert (found.start, found.stop, found.step_s) == (1, 9, 100.0)
    assert (found.startup_s, found.drain_s) == (300.0, 40.0)


@pytest.mark.parametrize("count", [10, 11, 12, 13])
def test_a_cycle_is_counted_whole(count: int) -> None:
    """Three short steps that put work away, and a long one that does it."""
    cycle, left = [70.0, 70.0, 70.0, 130.0], [1.0, 2.0, 3.0, 0.0]
    times = [cycle[step % 4] for step in range(count)]
    found = steady_state(times, waiting=[left[step % 4] for step in range(count)])
    assert (found.stop - found.start) % 4 == 0
    assert found.step_s == 85.0


@given(seconds, st.data())
def test_the_parts_make_the_whole(times: list[float], data: st.DataObject) -> None:
    levels = st.lists(st.floats(0, 9), min_size=len(times), max_size=len(times))
    drain = data.draw(st.integers(0, 40))
    found = steady_state(times, [data.draw(levels)], data.draw(levels), 0.5, drain)
    assert 0 <= found.start < found.stop <= len(times)
    steady_s = (found.stop - found.start) * found.step_s
    whole = found.startup_s + steady_s + found.drain_s
    assert whole == pytest.approx(math.fsum(times), abs=1e-6)
    assert (found.startup_s > 0) <= (found.start > 0)
    assert (found.drain_s > 0) <= (found.stop < len(times))
    assert found.startup_s >= 0 <= found.drain_s
    assert not found.known or found.stop - found.start >= LEAST_STEPS


def test_nothing_has_no_steady_state() -> None:
    assert math.isnan(steady_state(()).step_s)


def tried(policy: str, steps: int) -> Trial:
    """On many groups of like lengths, so that steps differ by the policy and not by chance."""
    lengths = [[20 + (7 * group + 5 * i) % 40 for i in range(4)] for group in range(41)]
    return try_policy(
        policy,
        lengths,
        batch_groups=24,
        group_size=4,
        steps=steps,
        replicas=2,
        max_seqs=48,
        train_s=30.0,
    )


@pytest.mark.parametrize(
    "policy",
    [
        "sync",
        "april",
        "one_step_off",
        "partial_rollout",
        "fully_async(max_staleness=2, in_flight=2)",
        "colocate_async",
        "tail_batching",
        "token_budget(tokens=30)",
    ],
)
def test_ten_steps_say_what_sixty_do(policy: str) -> None:
    short, long = (tried(policy, steps).summary for steps in (10, 60))
    assert short["step_s"] == pytest.approx(long["step_s"], rel=0.02)
    for summary in (short, long):
        start, stop = summary["steady_steps"]
        beside_s = summary["startup_s"] + summary["drain_s"]
        assert (stop - start) * summary["step_s"] + beside_s == pytest.approx(summary["makespan_s"])
    if policy == "sync":
        assert (short["startup_s"], short["drain_s"]) == (0, 0)
    if "async" in policy and "colocate" not in policy:
        extra, long_extra = (
            summary["startup_s"] - summary["steady_steps"][0] * summary["step_s"]
            for summary in (short, long)
        )
        assert extra > 0.2 * short["step_s"]
        assert extra == pytest.approx(long_extra, abs=0.25 * long["step_s"])


@pytest.mark.parametrize(
    ("policy", "steps", "told"),
    [
        ("sync", 1, False),
        ("sync", 10, False),
        ("fully_async", 10, False),
        ("one_step_off", 3, True),
        ("one_step_off", 1, True),
        ("april", 2, True),
        ("tail_batching", 3, True),
    ],
)
def test_a_run_too_short_to_tell_says_so(policy: str, steps: int, told: bool) -> None:
    run = tried(policy, steps).run
    said = [w for w in run_summary(run, "s", policy, 0)["warnings"] if "too few to tell" in w]
    assert bool(said) == told
    assert steady_of(run).known != told
    assert summarise(run)["step_s"] > 0


def test_first_steps_shorter_than_the_steady_ones_take_their_time() -> None:
    """Nothing is resumed in a run's first steps, so they may be shorter."""
    found = steady_state([60.0, 80.0] + [100.0] * 8, [[0.0, 0.5] + [1.0] * 8])
    assert (found.start, found.step_s, found.startup_s) == (2, 100.0, 140.0)


@pytest.mark.parametrize(
    ("startup_s", "steady_steps", "note"),
    [
        (0.0, [0, 20], "mean of 20, p95 12.5 s"),
        (90.5, [6, 20], "mean of 14 steady after 90.5 s of start-up, p95 12.5 s"),
        (0.0, [0, 19], "mean of 19 steady, p95 12.5 s"),
    ],
)
def test_the_table_says_how_long_the_start_up_was(
    startup_s: float, steady_steps: list[int], note: str
) -> None:
    summary = {"steps": 20, "steady_steps": steady_steps, "startup_s": startup_s}
    (step_s,) = (figure for figure in FIGURES if figure.name == "step_s")
    line = step_s.line({**summary, "step_s": 11.5, "step_s_p95": 12.5})
    assert line == ("step time", "11.5 s", note)
