"""Which tokens rollouts have in common, as far as the engine's prefix cache can notice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rollcast.simulator.rollout import UNSHARED, Shared

Key = tuple[int, int]


class CommonTokens:
    """The rollouts that ended since the engine's cache was emptied, in the order of their tokens.

    A cached block is found by all the tokens before its end, whoever computed them. The
    simulator, which sees counts alone, is told of each rollout with which earlier one it shares
    most, and how much: that places it in the tree that all their tokens form.
    """

    def __init__(self) -> None:
        self._tokens: list[tuple[int, ...]] = []
        self._keys: list[Key] = []  # of each
        self._attempts: dict[Key, int] = {}

    def add(self, key: Key, attempt: int, tokens: Sequence[int]) -> Shared:
        """Notes a rollout that ends with these tokens, prompt and response; what it shares with an
        earlier one (which may be itself, stopped before). Of a rollout that was started again, the
        attempts before are forgotten."""
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
    """How many tokens both begin with."""
    for count, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return count
    return min(len(a), len(b))
