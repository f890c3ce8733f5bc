"""Turns of the engine of no size."""

import pytest

from tests.actors import actor_fakes


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends after a few tokens, wherever it begins."""
    token_at = actor_fakes.token_at

    def ends(seed: int, place: int) -> int:
        token = token_at(seed, place)
        return actor_fakes.END if token % 5 == 0 else token % 90 + 2

    monkeypatch.setattr(actor_fakes, "token_at", ends)
