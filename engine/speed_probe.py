"""When the trainer runs its speed probe (`engine.trainer.pulse`), and the log of what it found."""

from __future__ import annotations

from rollcast.engine.actors.transport import ActorLostError
from rollcast.engine.actors.updates import Updates
from rollcast.engine.log import EngineLog
from rollcast.engine.world_clock import WorldClock

PULSE_SHARE = 0.02
"""Largest share of a run's time that its trainer spends on the speed probe."""
_SHORT_PASSES = 5  # of the speed probe


class SpeedProbe:
    """apart: whether the trainer has a process of its own. next_s: when it may run again, on the
    world's clock; the share holds only there."""

    def __init__(self, updates: Updates, clock: WorldClock, apart: bool) -> None:
        self._updates, self._clock, self._apart = updates, clock, apart
        self.next_s = 0.0
        self._rests = False  # nothing was under way between the last two steps

    def between_steps(self, quiet: bool, log: EngineLog) -> None:
        """Runs it if nothing is under way, within `PULSE_SHARE` of the time."""
        self._rests = quiet
        early = self._apart and self._clock.now_s < self.next_s
        if not self._rests or early:
            return
        try:
            self._updates.pulses.append(self._updates.pulse())
        except ActorLostError:
            return  # the next update reports it
        self.note(log)

    def trainer_idles(self) -> None:
        """Runs it where something always is under way, when at least the trainer is idle."""
        overlaps = self._apart and not self._rests
        if overlaps and self._clock.now_s >= self.next_s:
            self._updates.ask_for_pulse()

    def note(self, log: EngineLog) -> None:
        """Logs what came, and decides by its duration when it may run again."""
        for beat in self._updates.pulses:
            log.pulses.append((self._updates.version, beat))
            took_s = beat.long_s + _SHORT_PASSES * beat.short_s
            self.next_s = self._clock.now_s + took_s / PULSE_SHARE
        self._updates.pulses.clear()
