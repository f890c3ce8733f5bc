"""Ranges and decisions that several policies share."""

from __future__ import annotations

from rollcast.simulator.values import Between

MULTIPLE = Between(1, 1000)
"""Of what the batch needs."""
LAUNCHES = frozenset({"launch.over_sampling", "stop", "unfinished", "surplus"})
"""How much is launched, when to stop, and what happens to the rest."""
BOUND = frozenset({"staleness.max_versions", "staleness.exceeded"})
