"""The file ``run-ID.wandb`` that Weights & Biases keeps of each run, online and offline.

After seven bytes, blocks of 32 KiB hold records as LevelDB's log does: a check (u32), a length
(u16), a kind (1 whole, 2 first, 3 middle, 4 last part), the data. The records are messages
(wandb/proto/wandb_internal.proto), of which these are taken:

    Record   2 history  5 config  17 run
    History  1 item, repeated:  1 key or 2 nested_key, repeated  16 value_json
    Run      4 config
    Config   1 update, repeated: as an item of history

Checks are not compared: a file that breaks off is read up to there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from rollcast.calibration.logs.formats.events import LONGEST_RECORD, DamagedError, fields
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse

MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
_HISTORY, _CONFIG, _RUN, _CONFIG_OF_RUN = 2, 5, 17, 4
_KEY, _NESTED, _VALUE = 1, 2, 16


def read(content: bytes) -> Iterator[tuple[int, bool, dict[str, Any]]]:
    """Of each record with figures or settings: its number from 1, whether it is settings, and its
    values by key. Raises DamagedError at a break."""
    for number, data in _records(content):
        try:
            for kind, _, value in fields(data):
                if kind == _HISTORY:
                    yield number, False, dict(_items(value, figures=True))
                elif kind == _CONFIG:
                    yield number, True, dict(_items(value, figures=False))
                elif kind == _RUN:
                    for part, _, config in fields(value):
                        if part == _CONFIG_OF_RUN:
                            yield number, True, dict(_items(config, figures=False))
        except (IndexError, TypeError, UnicodeDecodeError):
            raise DamagedError(number, "a record is no message of Weights & Biases") from None


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    at, number = len(MAGIC), 0
    parts: list[bytes] = []
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        if at + _HEADER.size > len(content):
            raise DamagedError(number + 1, "it breaks off within a record")
        _, length, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        data = content[at : at + length]
        if len(data) < length:
            raise DamagedError(number + 1, "it breaks off within a record")
        at += length
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data)
        if sum(map(len, parts)) > LONGEST_RECORD:
            raise DamagedError(number + 1, f"a record is longer than {LONGEST_RECORD // 2**20} MiB")
        if kind in (_WHOLE, _LAST):
            number += 1
            yield number, b"".join(parts)


def _items(message: bytes, figures: bool) -> Iterator[tuple[str, Any]]:
    """Keys and values. figures: numbers alone, without reading tables and texts."""
    for part, _, item in fields(message):
        if part != 1:
            continue
        keys, text = [], b""
        for kind, _, value in fields(item):
            if kind in (_KEY, _NESTED):
                keys.append(value.decode("utf-8"))
            elif kind == _VALUE:
                text = value
        try:
            yield "/".join(keys), float(text) if figures else parse(text)
        except (ValueError, NotJsonError):
            continue
