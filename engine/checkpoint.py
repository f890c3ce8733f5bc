"""The checkpoint of a real run, in a folder beside its results.

``state-N.json`` (small data), ``trainer-N.safetensors`` and ``tokens-N.safetensors`` (large),
``journal.jsonl`` (a line of additions for each save), and ``checkpoint.json``, which names N and
each file's length and checksum. That one is written last and renamed into place: until then the
save before is the checkpoint, and a longer journal is read only so far. Nothing read is ever
executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.results.locks import locked
from rollcast.simulator.values.plain import from_plain

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Arrays = Mapping[str, np.ndarray[Any, Any]]

SCHEMA = "rollcast-checkpoint/5"
_EARLIER = ("rollcast-checkpoint/3", "rollcast-checkpoint/4")
_MANIFEST = "checkpoint.json"
_OLD = "checkpoint.pkl"
_JOURNAL = "journal.jsonl"
_NUMBERED = {
    "state": "state-{}.json",
    "trainer": "trainer-{}.safetensors",
    "tokens": "tokens-{}.safetensors",
}


def place(out: Path) -> Path:
    """The folder beside ``out`` that holds an unfinished run."""
    out = out.resolve()
    return out.with_name(out.name + ".running")


def exists(out: Path) -> bool:
    """Whether an unfinished run lies beside ``out``, one of an older version included."""
    return any((place(out) / name).is_file() for name in (_MANIFEST, _OLD))


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keeps other processes from running into ``out`` within. Raises ScenarioError (``--out``)
    where one does, or where nothing can be written there."""
    folder = place(out)
    message = f"another process is running into {out}; wait for it, or give another folder"
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder, ScenarioError("--out", message)))
        except OSError as error:
            reason = error.strerror or error
            raise ScenarioError("--out", f"cannot write beside {out}: {reason}") from None
        yield


def discard(out: Path) -> None:
    """Removes the checkpoint of a finished run."""
    shutil.rmtree(place(out), ignore_errors=True)


@dataclass(frozen=True)
class Part:
    """A file in the manifest."""

    bytes: int
    sha256: str


@dataclass
class Writer:
    """Saves a run repeatedly. number: of the last save. journal: as of then."""

    out: Path
    number: int = 0
    journal: Part = field(default_factory=lambda: Part(0, hashlib.sha256().hexdigest()))
    _hash: Any = field(default_factory=hashlib.sha256)

    def save(
        self,
        state: Mapping[str, Any],
        added: Mapping[str, Any],
        trainer: Mapping[str, Tensor],
        tokens: Arrays,
    ) -> None:
        """Writes a save, whole or not at all. state: plain data. added: plain data for the journal.
        Raises RunError where the disk refuses."""
        from safetensors import SafetensorError

        folder, number = place(self.out), self.number + 1
        names = {part: name.format(number) for part, name in _NUMBERED.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            parts = {
                "journal": self._append(folder / _JOURNAL, added),
                "state": _write_json(folder / names["state"], state),
                "trainer": _write_tensors(folder / names["trainer"], trainer),
                "tokens": _write_arrays(folder / names["tokens"], tokens),
            }
            described = {name: vars(part) for name, part in parts.items()}
            manifest = {"schema": SCHEMA, "number": number, "parts": described}
            draft = folder / f"{_MANIFEST}.new"
            names["draft"] = draft.name
            _write_json(draft, {**manifest, "sha256": _digest(manifest)})
            draft.replace(folder / _MANIFEST)
            _sync_folder(folder)
        except (OSError, SafetensorError) as error:
            for name in names.values():
                with suppress(OSError):
                    (folder / name).unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or str(error)
            raise RunError(f"cannot save the run to {folder}: {reason}; make room there") from None
        for part in _NUMBERED.values():
            with suppress(OSError):
                (folder / part.format(self.number)).unlink(missing_ok=True)
        self.number, self.journal = number, parts["journal"]

    def _append(self, path: Path, added: Mapping[str, Any]) -> Part:
        """Adds a line to the journal, after the last save's."""
        line = json.dumps(added, separators=(",", ":")).encode() + b"\n"
        with path.open("r+b" if path.exists() else "xb") as file:
            file.truncate(self.journal.bytes)
            file.seek(self.journal.bytes)
            file.write(line)
            _sync(file)
        self._hash.update(line)
        return Part(self.journal.bytes + len(line), self._hash.hexdigest())


@dataclass(frozen=True)
class Saved:
    """A save that was read, and its writer."""

    state: Mapping[str, Any]
    journal: Sequence[Mapping[str, Any]]
    writer: Writer

    def trainer(self) -> dict[str, Tensor]:
        """The trainer's tensors. Raises ScenarioError where they cannot be read."""
        from safetensors.torch import load_file

        tensors: dict[str, Tensor] = _read_tensors(self.writer, "trainer", load_file)
        return tensors

    def tokens(self) -> dict[str, np.ndarray[Any, Any]]:
        """The world's arrays. Raises ScenarioError where they cannot be read."""
        from safetensors.numpy import load_file

        arrays: dict[str, np.ndarray[Any, Any]] = _read_tensors(self.writer, "tokens", load_file)
        return arrays


def load(out: Path, scenario: Mapping[str, Any]) -> Saved:
    """The last save beside ``out``, its checksums compared. Raises ScenarioError (``--resume``)
    where there is none, it is damaged or of another version, or of another scenario (more steps are
    no other scenario)."""
    folder = place(out)
    if not exists(out):
        raise ScenarioError("--resume", f"there is no unfinished run beside {out}")
    try:
        if not (folder / _MANIFEST).is_file():
            raise _EarlierVersionError
        saved = _load(out, folder)
    except _EarlierVersionError:
        message = (
            f"the unfinished run in {folder} was saved by an earlier version, in a form that is "
            "not read any more; finish it with that version, or start anew with --force"
        )
        raise ScenarioError("--resume", message) from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(out, error) from None
    key = _difference(saved.state["scenario"], scenario)
    if key is not None:
        raise ScenarioError(
            "--resume", f"the unfinished run beside {out} had another {key}; give it the same"
        )
    return saved


class _EarlierVersionError(Exception):
    """The save is of an earlier version's form."""


def damaged(out: Path, error: BaseException) -> ScenarioError:
    """The error for a save that cannot be continued."""
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
    reason = reason or type(error).__name__
    message = f"the unfinished run in {place(out)} is damaged: {reason}; start anew with --force"
    return ScenarioError("--resume", message)


def _load(out: Path, folder: Path) -> Saved:
    manifest = _read_json((folder / _MANIFEST).read_bytes(), _MANIFEST)
    claimed = manifest.pop("sha256", None)
    if manifest.get("schema") in _EARLIER:
        raise _EarlierVersionError
    if manifest.get("schema") != SCHEMA:
        raise ValueError(f"{_MANIFEST} is not of this version")
    if claimed != _digest(manifest):
        raise ValueError(f"{_MANIFEST} does not match its checksum")
    number, given = manifest.get("number"), manifest.get("parts")
    if type(number) is not int or not isinstance(given, dict):
        raise ValueError(f"{_MANIFEST} names no files")
    parts = {name: from_plain(given.get(name), Part, name) for name in ("journal", *_NUMBERED)}
    contents = {"journal": _read(folder / _JOURNAL, parts["journal"])}
    for name in ("trainer", "tokens"):
        _check(folder / _NUMBERED[name].format(number), parts[name])
    name = _NUMBERED["state"].format(number)
    state = _read_json(_read(folder / name, parts["state"]), name)
    if not isinstance(state.get("scenario"), dict):
        raise ValueError(f"{name} holds no scenario")
    lines = [_read_json(line, _JOURNAL) for line in contents["journal"].splitlines()]
    writer = Writer(out, number, parts["journal"], hashlib.sha256(contents["journal"]))
    return Saved(state, lines, writer)


def _read(path: Path, part: Part) -> bytes:
    """A file up to the manifest's length. Raises ValueError where it differs."""
    content = path.read_bytes()[: part.bytes]
    if len(content) != part.bytes or hashlib.sha256(content).hexdigest() != part.sha256:
        raise ValueError(f"{path.name} does not match its checksum")
    return content


def _check(path: Path, part: Part) -> None:
    """As `_read` for a whole large file, without keeping it."""
    if path.stat().st_size != part.bytes or _hash_file(path) != part.sha256:
        raise ValueError(f"{path.name} does not match its checksum")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:  # not text, or not JSON
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{name} holds no mapping")
    return document


def _read_tensors(writer: Writer, part: str, read: Any) -> Any:
    path = place(writer.out) / _NUMBERED[part].format(writer.number)
    try:
        return read(path)
    except Exception as error:  # safetensors has errors of its own
        raise damaged(writer.out, error) from None


def _write_json(path: Path, content: Mapping[str, Any]) -> Part:
    data = json.dumps(content, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(data)
        _sync(file)
    return Part(len(data), hashlib.sha256(data).hexdigest())


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Part:
    from safetensors.torch import save_file

    apart: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        # The format has no views of one another's memory.
        apart[name] = tensor.clone() if place in places else tensor.contiguous()
        places.add(place)
    save_file(apart, path)
    return _written(path)


def _write_arrays(path: Path, arrays: Arrays) -> Part:
    from safetensors.numpy import save_file

    save_file(dict(arrays), path)
    return _written(path)


def _written(path: Path) -> Part:
    with path.open("rb") as file:
        _sync(file)
    return Part(path.stat().st_size, _hash_file(path))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(file: BinaryIO | Any) -> None:
    if file.writable():
        file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes the renaming durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _difference(saved: Any, asked: Any, field: str = "") -> str | None:
    """The dotted key of the first difference between two scenarios, except their steps."""
    if isinstance(saved, dict) and isinstance(asked, dict):
        for key in (*saved, *(key for key in asked if key not in saved)):
            if not field and key == "steps":
                continue
            dotted = f"{field}.{key}" if field else str(key)
            if (differs := _difference(saved.get(key), asked.get(key), dotted)) is not None:
                return differs
        return None
    return None if json.dumps(saved) == json.dumps(asked) else field
