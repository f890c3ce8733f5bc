"""SQLite files, such as trackio's, read only and from a copy in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from rollcast.simulator.results.parquet import CannotReadError

MAGIC = b"SQLite format 3\x00"


def rows(content: bytes, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """A table's rows in order; none if it or a column is missing. Raises CannotReadError."""
    try:
        with closing(sqlite3.connect(":memory:")) as base:
            base.deserialize(_without_journal(content))
            known = {row[1] for row in base.execute(f"PRAGMA table_info('{table}')")}
            if known.issuperset(columns):
                names = ", ".join(f'"{column}"' for column in columns)
                yield from base.execute(f'SELECT {names} FROM "{table}" ORDER BY rowid')
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise CannotReadError(f"no SQLite file: {error}") from None


def _without_journal(content: bytes) -> bytes:
    """Marks a file as one without a write-ahead log (sqlite.org/fileformat.html, bytes 18, 19)."""
    return content[:18] + b"\x01\x01" + content[20:]
