"""Notes for the user on the error stream."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollcast.simulator.errors import OldName


@contextmanager
def old_names_as_notes() -> Iterator[None]:
    """Says once, in a line, what has another name now; other warnings are shown as Python does."""
    told: set[str] = set()
    with warnings.catch_warnings():
        as_python_does = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, OldName):
                as_python_does(message, category, *place, **more)
            elif str(message) not in told:
                told.add(str(message))
                print(f"note: {message}", file=sys.stderr)

        warnings.showwarning = show
        warnings.simplefilter("always", OldName)
        yield
