"""The checkpoints of a real run, in a folder beside its results, and later in them.

Save N is ``state-N.json`` (small data), ``tokens-N.safetensors``, the trainer's folder
``trainer-N`` (each rank's shards), and ``checkpoint-N.json``, which names the length and checksum
of each file and of as much of ``journal.jsonl`` (a line of additions for each save) as belongs to
it. That one is written last and renamed into place: until then the save before is the newest. The
last few saves are kept; `engine.checkpoint_read` finds the newest that is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rollcast.engine.edges import SavedFile, TrainerSave
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.results.folder import locked
from rollcast.simulator.values.plain import to_plain

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Arrays = Mapping[str, np.ndarray[Any, Any]]

SCHEMA = "rollcast-checkpoint/6"
EARLIER = tuple(f"rollcast-checkpoint/{version}" for version in (3, 4, 5))
_OLD = ("checkpoint.pkl", "checkpoint.json")
JOURNAL = "journal.jsonl"
STATE, TOKENS, REPLICAS = "state-{}.json", "tokens-{}.safetensors", "replicas-{}.safetensors"
TRAINER, MANIFEST = "trainer-{}", "checkpoint-{}.json"
SAVE = re.compile(r"(?:state|tokens|replicas|trainer|checkpoint)-(\d+)(?:\.\w+)*")
KEPT = "checkpoint"
"""The folder of a finished run that holds its last save."""
MODEL = "model"
"""The folder of a finished run that holds its model."""


def place(out: Path) -> Path:
    """The folder beside ``out`` that holds an unfinished run."""
    out = out.resolve()
    return out.with_name(out.name + ".running")


def exists(out: Path) -> bool:
    """Whether an unfinished run lies beside ``out``, one of an older version included."""
    folder = place(out)
    return bool(numbers(folder)) or any((folder / name).is_file() for name in _OLD)


def finished(out: Path) -> bool:
    """Whether ``out`` is a finished run that can be gone on with."""
    return bool(numbers(out / KEPT))


def reopen(out: Path) -> None:
    """Puts the last save of a finished run beside it, as that of an unfinished one; the finished
    run stays as it is. Raises RunError where the disk refuses."""
    folder = place(out)
    draft = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        _copy(out / KEPT, draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        raise RunError(f"cannot go on beside {out}: {error.strerror or error}") from None


def keep(out: Path, folder: Path) -> None:
    """Puts the last save and the model of a run into the folder of its results."""
    running = place(out)
    if (running / MODEL).is_dir():
        _copy(running / MODEL, folder / MODEL)
    known = numbers(running)
    if not known:
        return
    (folder / KEPT).mkdir()
    last = str(known[-1])
    for entry in sorted(running.iterdir()):
        found = SAVE.fullmatch(entry.name)
        if entry.name == JOURNAL or (found and found[1] == last):
            _copy(entry, folder / KEPT / entry.name)


def _copy(source: Path, target: Path) -> None:
    """Large files as second names of the same, where the system has that: they never change."""
    if source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
        return
    if source.suffix == ".safetensors":
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


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
class Draft:
    """A save whose trainer is still being written."""

    number: int
    parts: dict[str, SavedFile]


@dataclass
class Writer:
    """Saves a run repeatedly. keep: the last saves that stay. number: of the newest file. journal:
    as it is now. whole: numbers of the saves that stay."""

    out: Path
    keep: int = 1
    number: int = 0
    journal: SavedFile = field(default_factory=lambda: _described(b""))
    whole: list[int] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)

    def place(self) -> Path:
        """A folder for the trainer of the next save, which `begin` then has the number of."""
        self.number += 1
        return place(self.out) / TRAINER.format(self.number)

    def begin(
        self,
        state: Mapping[str, Any],
        added: Mapping[str, Any],
        tokens: Arrays,
        replicas: Mapping[str, Tensor] | None = None,
        number: int | None = None,
    ) -> Draft:
        """Writes all but the trainer. state: plain data. added: plain data for the journal.
        replicas: their weights, where they are older than the trainer's. number: of `place`; None:
        the next one. Raises RunError where the disk refuses."""
        if number is None:
            number = self.number = self.number + 1
        folder = place(self.out)
        with self._refusals(number):
            folder.mkdir(parents=True, exist_ok=True)
            parts = {
                "journal": self._append(folder / JOURNAL, added),
                "state": _write_json(folder / STATE.format(number), state),
                "tokens": _write_arrays(folder / TOKENS.format(number), tokens),
            }
            if replicas:
                path = folder / REPLICAS.format(number)
                parts["replicas"] = _write_tensors(path, replicas)
        return Draft(number, parts)

    def finish(
        self, draft: Draft, trainer: TrainerSave | None, in_use: Collection[Path] = ()
    ) -> None:
        """Makes it the newest save and removes what is not kept, but the folders ``in_use``.
        trainer: None is how it starts. Raises RunError where the disk refuses, or where files of
        the trainer are not here."""
        folder, number = place(self.out), draft.number
        manifest: dict[str, Any] = {"schema": SCHEMA, "number": number}
        manifest["parts"] = to_plain(draft.parts)
        if trainer is not None:
            _require_here(trainer)
            manifest["trainer"] = {
                "folder": trainer.folder.name,
                "files": to_plain(dict(trainer.files)),
                "plain": dict(trainer.plain),
            }
        with self._refusals(number):
            path = folder / MANIFEST.format(number)
            draft_path = path.with_suffix(".json.new")
            _write_json(draft_path, {**manifest, "sha256": digest(manifest)})
            draft_path.replace(path)
            sync_folder(folder)
        self.whole = [*self.whole, number][-self.keep :]
        self.prune(in_use)

    def prune(self, in_use: Collection[Path] = ()) -> None:
        """Removes files of saves that are not kept. in_use: folders that stay."""
        folder = place(self.out)
        used = {path.name for path in in_use}
        for entry in [*folder.iterdir()] if folder.is_dir() else []:
            found = SAVE.fullmatch(entry.name)
            if found and int(found[1]) not in self.whole and entry.name not in used:
                _remove(entry)

    def _append(self, path: Path, added: Mapping[str, Any]) -> SavedFile:
        """Adds a line to the journal."""
        line = json.dumps(added, separators=(",", ":")).encode() + b"\n"
        with path.open("r+b" if path.exists() else "xb") as file:
            file.truncate(self.journal.bytes)
            file.seek(self.journal.bytes)
            file.write(line)
            _sync(file)
        self._hash.update(line)
        self.journal = SavedFile(self.journal.bytes + len(line), self._hash.hexdigest())
        return self.journal

    @contextmanager
    def _refusals(self, number: int) -> Iterator[None]:
        from safetensors import SafetensorError

        folder = place(self.out)
        try:
            yield
        except (OSError, SafetensorError) as error:
            for name in (STATE, TOKENS, REPLICAS, MANIFEST, f"{MANIFEST}.new"):
                with suppress(OSError):
                    (folder / name.format(number)).unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or str(error)
            raise RunError(f"cannot save the run to {folder}: {reason}; make room there") from None


def _require_here(trainer: TrainerSave) -> None:
    """Raises RunError where ranks on other machines wrote to disks that are not this one's."""
    for name, file in trainer.files.items():
        path = trainer.folder / name
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise RunError(
                f"a rank of the trainer wrote {name}, but it is not in {trainer.folder}: give "
                "--out a folder on a file system that all machines see"
            )


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink(missing_ok=True)


def numbers(folder: Path) -> list[int]:
    """Of the saves in a folder, oldest first."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    found = (re.fullmatch(r"checkpoint-(\d{1,9})\.json", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def hash_file(path: Path) -> str:
    """The SHA-256 of its content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, content: Mapping[str, Any]) -> SavedFile:
    data = json.dumps(content, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(data)
        _sync(file)
    return _described(data)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> SavedFile:
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


def _write_arrays(path: Path, arrays: Arrays) -> SavedFile:
    from safetensors.numpy import save_file

    save_file(dict(arrays), path)
    return _written(path)


def _written(path: Path) -> SavedFile:
    with path.open("rb") as file:
        _sync(file)
    return SavedFile(path.stat().st_size, hash_file(path))


def _described(content: bytes) -> SavedFile:
    return SavedFile(len(content), hashlib.sha256(content).hexdigest())


def digest(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(file: BinaryIO | Any) -> None:
    if file.writable():
        file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names of its files durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
