"""What prime-rl's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value


def implied(settings: Settings) -> Iterable[Setting]:
    """With a bound of one version, batches are made in turn, one ahead of the trainer."""
    if value(settings, "run.max_staleness") == 1:
        yield settings["run.max_staleness"].implies("policy", ["one_step_off"])
