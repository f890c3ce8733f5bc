"""Tokens that rollouts share, as far as the engine's prefix cache can notice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rollcast.simulator.core.rollout import UNSHARED, Shared

Key = tuple[int, int]


class CommonTokens:
    """The rollouts that ended since the engine's cache was emptied, sorted by their tokens.

    A cached block is found by all tokens up to its end. The simulator, which sees only counts,
    learns of each rollout with which earlier one it shares most tokens, and how many: its place in
    the tree of all tokens.
    """

    def __init__(self) -> None:
        self._tokens: list[tuple[int, ...]] = []
        self._keys: list[Key] = []  # of each
        self._attempts: dict[Key, int] = {}

    def add(self, key: Key, attempt: int, tokens: Sequence[int]) -> Shared:
        """Adds a rollout's prompt and response; returns what it shares with an earlier one (maybe
        itself, aborted). Earlier attempts of a restarted rollout are deleted."""
        if self._attempts.setdefault(key, attempt) != attempt:
            kept = [place for place, other in enumerate(self._keys) if other != key]
            self._tokens = [self._tokens[place] for place in kept]
            self._keys = [self._keys[place] for place in kept]
            self._attempts[key] = attempt
        mine = tuple(tokens)
        place = bisect_left(self._tokens, mine)
        # Those that share most with it are its neighbours.
        best = UNSHARED
        for near in (place - 1, place):
            if 0 <= near < len(self._tokens):
                count = common(self._tokens[near], mine)
                if count > best.tokens:
                    best = Shared(count, *self._keys[near])
        self._tokens.insert(place, mine)
        self._keys.insert(place, key)
        return best


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    for count, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return count
    return min(len(a), len(b))
