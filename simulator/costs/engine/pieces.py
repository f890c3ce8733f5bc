"""Curves of seconds over context tokens, as pieces: sums, products and the larger of two."""

from __future__ import annotations

import math

Piece = tuple[int, float, float]
"""From so many context tokens on: the seconds there, and the seconds a token beyond."""


def at_least(pieces: list[Piece], least_s: float) -> list[Piece]:
    """The pieces of the larger of a rising curve and ``least_s``."""
    for number, (start, base_s, slope) in enumerate(pieces):
        until = pieces[number + 1][0] if number + 1 < len(pieces) else None
        flat_until = start
        if base_s < least_s:
            flat_until = start + math.ceil((least_s - base_s) / slope) if slope else start
            if not slope or (until is not None and flat_until >= until):
                continue
        if flat_until <= 0:
            return pieces
        rest = [(flat_until, base_s + slope * (flat_until - start), slope), *pieces[number + 1 :]]
        return [(0, least_s, 0.0), *rest]
    return [(0, least_s, 0.0)]


def plus(first: list[Piece], second: list[Piece]) -> list[Piece]:
    """The sum of two curves."""
    starts = sorted({start for start, _, _ in (*first, *second)})
    pieces = []
    for start in starts:
        (one_s, one), (other_s, other) = _at(first, start), _at(second, start)
        pieces.append((start, one_s + other_s, one + other))
    return pieces


def _at(pieces: list[Piece], context: int) -> tuple[float, float]:
    """A curve's value and slope from ``context`` on."""
    start, base_s, slope = next(p for p in reversed(pieces) if p[0] <= context)
    return base_s + slope * (context - start), slope


def scaled(pieces: list[Piece], factor: float, extra_s: float = 0.0) -> list[Piece]:
    """``extra_s`` more than a curve, ``factor`` times that."""
    return [(start, (base_s + extra_s) * factor, slope * factor) for start, base_s, slope in pieces]
