"""Ranges that parameters of several policies share."""

from __future__ import annotations

from rollcast.simulator.values import Between

MULTIPLE = Between(1, 1000)
"""How many times what the batch needs."""
