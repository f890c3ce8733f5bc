"""Ranges that parameters of several policies share."""

from __future__ import annotations

from simulator.options import Between

MULTIPLE = Between(1, 1000)
"""How many times what the batch needs."""
