"""Scaled real time, for engines that other processes ask.

Virtual time passes `speed` times as fast as real time while this process waits, and stands still
while it has requests to read or answers to write: such work is not the engines'. A clock that went
on meanwhile would make each request late by the work on all those before it, times the speed.
"""

from __future__ import annotations

from collections.abc import Callable

from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.virtual import real

BURST_S = 0.005
"""Requests that come less than this apart, in real seconds, are of one instant."""
LATE_S = 0.02
"""Virtual seconds by which the clock may be behind, and makes up for it, before it stands still."""
LONGEST_BURST_S = 10.0
"""Real seconds for which one burst holds the clock at most."""
LEAST_TOLD_S = 1.0
"""Real seconds for which the clock stands before anybody is told."""


class Pace:
    """How the virtual clock follows the real one.

    speed: virtual seconds in a real one. burst_s: see `BURST_S`; 0: requests never hold the clock
    once they are read. stood_s: real seconds for which the clock stood still, of which held_s
    waiting for the rest of a burst. told: called each time that stood_s has doubled.
    """

    def __init__(self, speed: float, burst_s: float = BURST_S) -> None:
        self.speed, self.burst_s = speed, burst_s
        self.stood_s = self.held_s = 0.0
        self.told: Callable[[], None] | None = None
        self._tell_at_s = LEAST_TOLD_S
        self._began = self._at_s = real.perf_counter()  # when the clock showed self._tick
        self._tick = 0
        self._reads = False
        self._quiet_s: float | None = None  # since when nothing came
        self._burst_s = 0.0  # when the burst under way began

    @property
    def real_s(self) -> float:
        """Real seconds since the run began."""
        return real.perf_counter() - self._began

    def figures(self, virtual_s: float) -> dict[str, float]:
        """Seconds of a run that has come to ``virtual_s``: virtual, real, and of these those in
        which the clock stood still; and the speeds that were asked for and reached."""
        real_s = max(self.real_s, 1e-9)
        return {
            "virtual_s": virtual_s,
            "real_s": real_s,
            "stood_s": self.stood_s,
            "held_s": self.held_s,
            "speed": self.speed,
            "reached_speed": virtual_s / real_s,
        }

    def now(self) -> int:
        """The tick that the clock should show."""
        return self._tick + to_ticks((real.perf_counter() - self._at_s) * self.speed)

    def stand(self, tick: int, held: bool = False) -> None:
        """The clock has shown ``tick`` up to now: what it should show beyond, by more than
        `LATE_S`, is time in which it stood still. held: waiting for the rest of a burst."""
        now_s = real.perf_counter()
        should_s = to_seconds(self._tick - tick) + (now_s - self._at_s) * self.speed
        late_s = min(max(should_s, 0.0), LATE_S)
        stood_s = max(should_s - late_s, 0.0) / self.speed
        self._at_s, self._tick = now_s, tick + to_ticks(late_s)
        if self._reads:
            self._reads, self._quiet_s = False, now_s
        self.stood_s += stood_s
        if held:
            self.held_s += stood_s
        if self.told is not None and self.stood_s >= self._tell_at_s:
            self._tell_at_s = 2 * self.stood_s
            self.told()

    def came(self) -> None:
        """Something has come that is to be read."""
        now_s, quiet_s = real.perf_counter(), self._quiet_s
        if not self._reads and (quiet_s is None or now_s - quiet_s >= self.burst_s):
            self._burst_s = now_s
        self._reads = True

    def hold_s(self) -> float:
        """Real seconds for which the clock is yet to stand still, unless more comes."""
        if self._quiet_s is None:
            return 0.0
        now_s = real.perf_counter()
        left_s = self._quiet_s + self.burst_s - now_s
        return 0.0 if now_s - self._burst_s > LONGEST_BURST_S else max(left_s, 0.0)
