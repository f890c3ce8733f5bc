"""Python's garbage collector beside libraries of hundreds of thousands of objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported(library: str) -> Iterator[None]:
    """For the first import of a large library in this process: the garbage collector rests
    meanwhile, and never searches what was there at its end. Else it would search all modules again
    and again, a fifth of the processor time of a start of vLLM."""
    if library in sys.modules:
        yield
        return
    gc.collect()  # what is garbage now would be kept
    at_work = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if at_work:
            gc.enable()
