"""Silence from the libraries below."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings from the libraries below, neither as Python's warnings nor through logging."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def no_bars() -> Iterator[None]:
    """No progress bars of transformers."""
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging  # untyped
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
