"""What a call or a command says: that it refuses something, in one sentence, or what it found."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollcast.simulator.errors import ScenarioError


@contextmanager
def refuses(
    field: str, match: str = "", word: str = ""
) -> Iterator[pytest.ExceptionInfo[ScenarioError]]:
    """The enclosed code raises a ScenarioError of this field, in one line that matches the pattern
    and whose message holds the word."""
    with pytest.raises(ScenarioError, match=match or None) as caught:
        yield caught
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert word in caught.value.message


def refused(result: tuple[int, str, str]) -> str:
    """The one sentence of a refused command."""
    code, out, err = result
    assert code == 2, (out, err)
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert out == ""
    return err.removeprefix("error: ").strip()


def ran(result: tuple[int, str, str]) -> str:
    """What a command printed that was carried out."""
    code, out, err = result
    assert code == 0, err
    return out
