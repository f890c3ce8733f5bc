"""Files of ``torch.save``: a zip file of a pickle and of tensors' bytes. torch is not needed.

A pickle can run code, and torch's reader that runs none takes every token id in Python. Here all
opcodes are looked at first, by a regular expression; those of data alone are then left to Python's
reader in C, which finds nothing to call but what makes containers, arrays and `_Unmade` objects.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from rollcast.simulator.results.parquet import CannotReadError

PICKLE = b"\x80"
ZIP = b"PK\x03\x04"

_SHORT = re.compile(
    rb"""(?:
    [()\]}\x8f.aesulbtRNQ0\x81\x85-\x89\x90\x94]  # containers, constants, objects of `_FOUND`
    |K.|M..|J.{4}|G.{8}                           # numbers
    |[qh].|[rj].{3}\x00                           # places of the memo, below 16 million
    |\x80[\x02-\x05]|\x95.{8}
    )*+""",
    re.DOTALL | re.VERBOSE,
)
_LENGTH_BYTES = {b"\x8a": 1, b"U": 1, b"C": 1, b"\x8c": 1, b"X": 4, b"T": 4, b"B": 4}
"""Of opcodes that are followed by as many bytes as they say."""
_NAMED = re.compile(rb"c[\w.]+\n[\w.]+\n")
_CODE = "it holds more than data, and is not run"
_DTYPES = {
    **{"Byte": "u1", "Char": "i1", "Short": "<i2", "Int": "<i4", "Long": "<i8", "Bool": "?"},
    **{"Half": "<f2", "Float": "<f4", "Double": "<f8"},
}


class _Storage(NamedTuple):
    dtype: np.dtype[Any]


class _Unmade:
    """Stands for an object that nobody reads, whatever is given to it."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


def _array(values: object, offset: int, shape: tuple[int, ...], *_: object) -> Any:
    """A tensor whose values lie one after another, or all its values."""
    if not isinstance(values, np.ndarray):
        return _Unmade()
    size = math.prod(shape)
    if not (offset >= 0 and size >= 0 and offset + size <= len(values)):
        raise CannotReadError("a tensor is larger than its bytes")
    return values[offset : offset + size].reshape(shape)


_FOUND: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _array,
    ("torch", "BFloat16Storage"): _Unmade,
    ("_codecs", "encode"): _Unmade,  # the bytes of an array
    **{("torch", f"{name}Storage"): _Storage(np.dtype(code)) for name, code in _DTYPES.items()},
    **{
        (module, name): _Unmade
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
        for name in ("dtype", "ndarray", "_reconstruct", "scalar")
    },
}


class _Reader(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        """What `_FOUND` has of that name."""
        try:
            return _FOUND[module, name]
        except KeyError:
            raise CannotReadError(_CODE) from None

    def persistent_load(self, pid: Any) -> Any:
        """The values of a storage."""
        _, kind, key, *_ = pid
        if not isinstance(kind, _Storage):
            return None
        return np.frombuffer(_member(self._archive, f"{self._folder}/data/{key}"), kind.dtype)


def load(content: bytes) -> Any:
    """What the file holds: plain containers, numbers, texts, and tensors as arrays; of other arrays
    nothing. Raises CannotReadError for a file that holds anything else, none of which is run."""
    if not content.startswith(ZIP):
        raise CannotReadError("a bare pickle can run code, and is not loaded")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if not names:
                raise CannotReadError("no file of torch.save")
            data = _member(archive, names[0])
            _check(data)
            return _Reader(archive, names[0].rpartition("/")[0], data).load()
    except CannotReadError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        reason = str(error).splitlines()
        raise CannotReadError(
            f"no file of torch.save: {reason[0][:200] if reason else error!r}"
        ) from None


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Bytes of a part of the file, which torch does not pack."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise CannotReadError("no file of torch.save: its parts are packed")
    return archive.read(name)


def _check(data: bytes) -> None:
    """Raises CannotReadError where a pickle has opcodes that no data needs, or ends early."""
    at = 0
    while (at := _SHORT.match(data, at).end()) < len(data):  # type: ignore[union-attr]
        if named := _NAMED.match(data, at):
            at = named.end()
        elif wide := _LENGTH_BYTES.get(data[at : at + 1]):
            at += 1 + wide + int.from_bytes(data[at + 1 : at + 1 + wide], "little")
        else:
            raise CannotReadError(_CODE)
