"""Files of ``torch.save``, with ``weights_only=True`` or not at all: a pickle can run code."""

from __future__ import annotations

import io
import pickle
from typing import Any

from rollcast.calibration.logs.formats.parquet import CannotReadError

PICKLE = b"\x80"
ZIP = b"PK\x03\x04"


def load(content: bytes) -> Any:
    """What the file holds: plain containers, numbers, texts and tensors. Raises CannotReadError
    where torch is not installed, and for a file that holds anything else, none of which is run."""
    try:
        import torch
    except ImportError:
        raise CannotReadError(
            "a file of torch.save is read only where torch is installed (it is a pickle)"
        ) from None
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CannotReadError(
            "it holds more than data (weights_only=True refuses it), and is not run"
        ) from None
    except Exception as error:  # torch raises what it likes for a damaged file
        reason = str(error).splitlines()
        raise CannotReadError(
            f"no file of torch.save: {reason[0][:200] if reason else error!r}"
        ) from None
