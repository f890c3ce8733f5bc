"""How files begin that are packed or are not UTF-8, and what unpacks them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import IO

UNPACKERS: Mapping[bytes, Callable[[IO[bytes]], object]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""What unpacks a file that begins so."""
WHILE_UNPACKING = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What these raise for a file that is not packed whole."""
ZIP = b"PK\x03\x04"
ZSTD = b"\x28\xb5\x2f\xfd"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
