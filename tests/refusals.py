"""What is refused: an error of a field, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollcast.simulator.errors import ScenarioError


@contextmanager
def refuses(field: str, match: str = "", word: str = "") -> Iterator[None]:
    """The enclosed code raises a ScenarioError of this field, in one line that matches the pattern
    and whose message holds the word."""
    with pytest.raises(ScenarioError, match=match or None) as caught:
        yield
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert word in caught.value.message
