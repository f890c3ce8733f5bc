"""TensorBoard event files, without TensorFlow: TFRecords of `Event` messages.

A record is its length (u64, little endian), that length's CRC-32C masked, the data, and the data's
(tensorflow/core/lib/io/record_writer.h). Of a message only scalars and texts are taken
(tensorflow/core/util/event.proto, framework/summary.proto and tensor.proto):

    Event    1 wall_time (double)  2 step (varint)  5 summary
    Summary  1 value, repeated:    1 tag  2 simple_value (float)  8 tensor
    Tensor   1 dtype  4 content  5 float_val  6 double_val  7 int_val  8 string_val  10 int64_val

The CRC of the length is checked: it tells event files from others, and where one is damaged. That
of the data is not: it would take longer than all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

LONGEST_RECORD = 64 * 2**20
_HEADER = struct.Struct("<QI")
_VARINT, _64, _BYTES, _32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Event:
    """A value of a tag. record: its number in the file, from 1. value: a number, or text."""

    record: int
    wall_s: float
    step: int
    tag: str
    value: float | str


class DamagedError(ValueError):
    """The file breaks off or is damaged; the message is the end of a sentence."""

    def __init__(self, record: int, why: str) -> None:
        super().__init__(why)
        self.record = record


def is_events(start: bytes) -> bool:
    """Whether a file that begins so holds TFRecords."""
    if len(start) < _HEADER.size:
        return False
    length, check = _HEADER.unpack_from(start)
    return bool(length <= LONGEST_RECORD and check == _masked(start[:8]))


def events(file: IO[bytes], record: int = 0) -> Iterator[Event]:
    """Scalars and texts after the first ``record`` records. Raises DamagedError at a break."""
    while True:
        header = file.read(_HEADER.size)
        if not header:
            return
        record += 1
        if len(header) < _HEADER.size:
            raise DamagedError(record, "it breaks off within a record")
        length, check = _HEADER.unpack(header)
        if check != _masked(header[:8]):
            raise DamagedError(record, "it is damaged: the check of a record's length fails")
        if length > LONGEST_RECORD:
            raise DamagedError(record, f"a record is longer than {LONGEST_RECORD // 2**20} MiB")
        data = file.read(length)
        if len(data) < length or len(file.read(4)) < 4:
            raise DamagedError(record, "it breaks off within a record")
        try:
            yield from _event(data, record)
        except (IndexError, struct.error, UnicodeDecodeError):
            raise DamagedError(record, "a record is no event") from None


def _event(data: bytes, record: int) -> Iterator[Event]:
    wall_s, step, summaries = 0.0, 0, []
    for number, kind, value in fields(data):
        if number == 1 and kind == _64:
            wall_s = struct.unpack("<d", value)[0]
        elif number == 2 and kind == _VARINT:
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and kind == _BYTES:
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in fields(summary):
            if number == 1 and kind == _BYTES:
                tag, scalar = _value(value)
                if scalar is not None:
                    yield Event(record, wall_s, step, tag, scalar)


def _value(data: bytes) -> tuple[str, float | str | None]:
    tag, scalar = "", None
    for number, kind, value in fields(data):
        if number == 1 and kind == _BYTES:
            tag = value.decode("utf-8")
        elif number == 2 and kind == _32:
            scalar = struct.unpack("<f", value)[0]
        elif number == 8 and kind == _BYTES and scalar is None:
            scalar = _tensor(value)
    return tag, scalar


_CONTENT = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""Of one entry, by type: float, double, int32, int64."""


def _tensor(data: bytes) -> float | str | None:
    """A tensor of one number or one text; None for others."""
    dtype, content, single = 0, b"", None
    for number, kind, value in fields(data):
        if number == 1 and kind == _VARINT:
            dtype = value
        elif number == 4 and kind == _BYTES:
            content = value
        elif number in (5, 6) and single is None:
            form, size = ("<f", 4) if number == 5 else ("<d", 8)
            if len(value if isinstance(value, bytes) else b"") == size:
                single = struct.unpack(form, value)[0]
        elif number in (7, 10) and kind == _VARINT and single is None:
            single = float(value)
        elif number == 8 and kind == _BYTES and single is None:
            return str(value.decode("utf-8", "replace"))
    if single is None and dtype in _CONTENT and len(content) == struct.calcsize(_CONTENT[dtype]):
        single = float(struct.unpack(_CONTENT[dtype], content)[0])
    return single


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field. Raises IndexError for what is no message."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_64, _32):
            size = 8 if kind == _64 else 4
        else:
            raise IndexError(kind)
        if at + size > end:
            raise IndexError(at)
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError(at)


def _table() -> tuple[int, ...]:
    cells = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # CRC-32C, RFC 3720 appendix B
        cells.append(value)
    return tuple(cells)


_CRC = _table()


def _masked(data: bytes) -> int:
    """The masked CRC-32C of a TFRecord (core/lib/hash/crc32c.h)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
