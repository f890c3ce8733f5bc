"""How the clock of served engines follows real time, on a real clock that the test moves."""

import asyncio
import itertools

import pytest

from rollcast import virtual
from rollcast.simulator.costs.clock import to_ticks
from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.pace import LATE_S, LONGEST_BURST_S, Pace


class RealClock:
    """Stands for `time.perf_counter`."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> RealClock:
    clock = RealClock()
    monkeypatch.setattr(real, "perf_counter", clock)
    return clock


def test_virtual_time_passes_at_the_speed(clock: RealClock) -> None:
    pace = Pace(50.0)
    clock.now_s += 2
    assert pace.now() == to_ticks(100)
    assert pace.figures(100.0)["reached_speed"] == pytest.approx(50)


def test_work_stands_the_clock_still_and_small_delays_are_made_up_for(clock: RealClock) -> None:
    pace = Pace(50.0)
    clock.now_s += 1
    due = pace.now()
    clock.now_s += 0.2  # 10 virtual s of work
    pace.stand(due)
    assert pace.now() == due + to_ticks(LATE_S)
    assert pace.stood_s == pytest.approx(0.2 - LATE_S / 50)
    before = pace.now()
    clock.now_s += 0.1
    assert pace.now() - before == pytest.approx(to_ticks(5))
    pace.stand(pace.now())
    assert pace.stood_s == pytest.approx(0.2 - LATE_S / 50)  # it was not behind


def test_the_clock_is_never_further_behind_than_it_may_be(clock: RealClock) -> None:
    pace = Pace(1.0)
    for _ in range(100):  # work that never lets it make up
        tick = 0
        clock.now_s += 0.01
        pace.stand(tick)
        assert pace.now() <= tick + to_ticks(LATE_S)
    assert pace.stood_s == pytest.approx(1.0 - LATE_S)


def test_a_burst_holds_the_clock_until_nothing_has_come_for_a_while(clock: RealClock) -> None:
    pace = Pace(50.0, burst_s=0.002)
    assert pace.hold_s() == 0
    for _ in range(5):
        pace.came()
        clock.now_s += 0.001  # reads
        pace.stand(0)
        assert pace.hold_s() == pytest.approx(0.002)
        clock.now_s += 0.0015  # the client makes its next request
        assert pace.hold_s() == pytest.approx(0.0005)
        pace.stand(0, held=True)
    clock.now_s += 0.0005
    assert pace.hold_s() == 0
    assert pace.held_s == pytest.approx(5 * 0.0015)
    assert pace.stood_s == pytest.approx(5 * 0.0025 - LATE_S / 50)


def test_who_never_pauses_cannot_hold_the_clock_for_ever(clock: RealClock) -> None:
    pace = Pace(50.0, burst_s=0.002)
    began, held = clock.now_s, True
    while held:
        pace.came()
        pace.stand(0)
        held = pace.hold_s() > 0
        clock.now_s += 0.001
    assert clock.now_s - began == pytest.approx(LONGEST_BURST_S, abs=0.1)
    clock.now_s += 1
    pace.came()
    pace.stand(0)
    assert pace.hold_s() > 0  # another burst


def test_no_burst_no_hold(clock: RealClock) -> None:
    pace = Pace(50.0, burst_s=0)
    pace.came()
    pace.stand(0)
    assert pace.hold_s() == 0


def test_standing_is_told_each_time_that_it_has_doubled(clock: RealClock) -> None:
    told: list[float] = []
    pace = Pace(50.0)
    pace.told = lambda: told.append(pace.stood_s)
    for _ in range(1000):
        clock.now_s += 0.01
        pace.stand(0)
    assert len(told) == 4
    assert told[0] == pytest.approx(1, abs=0.011)
    for before, after in itertools.pairwise(told):
        assert after == pytest.approx(2 * before, abs=0.011)


def test_what_a_loop_computes_is_no_virtual_time() -> None:
    ends: list[float] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            real.sleep(0.05)  # 50 virtual s of work
            ends.append(asyncio.get_running_loop().time())

    pace = Pace(1000.0)
    with virtual.clock(pace=pace, unseen="keep"):
        asyncio.run(main())
    for number, end_s in enumerate(ends, 1):
        assert number <= end_s <= number * (1 + LATE_S) + 1e-6
    assert pace.stood_s >= 0.099
