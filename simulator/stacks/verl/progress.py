"""How a trajectory's tokens are spread over versions of the weights, of which verl tells the first
and the last: by the seconds that it was in flight under each."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.core.rollout import VersionTokens

KEPT = 1000
"""Versions whose seconds are remembered."""


def shares(tokens: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of ``tokens`` in proportion to weights, none of which is negative. The first and
    the last part have a token at least where there are enough: those versions made some."""
    total = sum(weights)
    wanted = [tokens * (w / total if total > 0 else 1 / len(weights)) for w in weights]
    parts = [int(part) for part in wanted]
    by_rest = sorted(range(len(parts)), key=lambda place: parts[place] - wanted[place])
    for place in by_rest[: tokens - sum(parts)]:
        parts[place] += 1
    for end in (0, -1):
        if parts[end] == 0 and max(parts) > 1:
            parts[parts.index(max(parts))] -= 1
            parts[end] = 1
    return parts


class Sampling:
    """When the trainer let its rollouts run: once under each version of the weights, in seconds of
    the world's clock."""

    def __init__(self) -> None:
        self._spells: dict[int, tuple[float, float | None]] = {}

    def begins(self, version: int, now_s: float) -> None:
        """Rollouts run from now on."""
        self._spells[version] = now_s, None
        if len(self._spells) > KEPT:
            del self._spells[min(self._spells)]

    def ends(self, version: int, now_s: float) -> None:
        """What still runs is interrupted."""
        self._spells[version] = self._spells[version][0], now_s

    def split(
        self, tokens: int, first: int, last: int, began_s: float, seen_s: float
    ) -> tuple[VersionTokens, ...]:
        """The tokens of a trajectory that was launched at ``began_s`` and seen whole at ``seen_s``,
        which versions ``first`` to ``last`` made."""
        if tokens <= 0:
            return ()
        versions = range(first, max(first, last) + 1)
        weights = [self._seconds(version, began_s, seen_s) for version in versions]
        parts = zip(versions, shares(tokens, weights), strict=True)
        return tuple(VersionTokens(version, part) for version, part in parts if part)

    def _seconds(self, version: int, began_s: float, seen_s: float) -> float:
        """Of an interval that lies in a spell; 0 for a version of which nothing is known."""
        if version not in self._spells:
            return 0.0
        start_s, end_s = self._spells[version]
        return max((seen_s if end_s is None else min(end_s, seen_s)) - max(start_s, began_s), 0.0)
