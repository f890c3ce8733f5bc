"""Parquet files, where pyarrow is installed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

MAGIC = b"PAR1"


class CannotReadError(Exception):
    """Why not, as the end of a sentence."""


def rows(content: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, one mapping each. Raises CannotReadError."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise CannotReadError("parquet needs pyarrow: pip install 'rollcast[logs]'") from None
    try:
        file = ParquetFile(io.BytesIO(content))
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise CannotReadError(f"no parquet file: {str(error).splitlines()[0][:200]}") from None
