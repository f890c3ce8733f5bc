"""The newest whole save of a real run (`engine.checkpoint`), checked. Nothing read is executed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.engine.checkpoint import (
    EARLIER,
    JOURNAL,
    MANIFEST,
    REPLICAS,
    SAVE,
    SCHEMA,
    STATE,
    TOKENS,
    Writer,
    digest,
    exists,
    hash_file,
    numbers,
    place,
)
from rollcast.engine.edges import SavedFile, TrainerSave
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.plain import from_plain

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class Saved:
    """A save that was read, and its writer. trainer: None is how it starts. older: why a newer one
    was not gone on from; empty where this is the newest."""

    state: Mapping[str, Any]
    journal: Sequence[Mapping[str, Any]]
    writer: Writer
    number: int
    trainer: TrainerSave | None
    replicated: bool
    older: str = ""

    def replicas(self) -> dict[str, Tensor] | None:
        """The replicas' weights, where they are older than the trainer's. Raises ScenarioError
        where they cannot be read."""
        from safetensors.torch import load_file

        if not self.replicated:
            return None
        tensors: dict[str, Tensor] = self._read(REPLICAS, load_file)
        return tensors

    def tokens(self) -> dict[str, np.ndarray[Any, Any]]:
        """The world's arrays. Raises ScenarioError where they cannot be read."""
        from safetensors.numpy import load_file

        arrays: dict[str, np.ndarray[Any, Any]] = self._read(TOKENS, load_file)
        return arrays

    def _read(self, name: str, read: Any) -> Any:
        try:
            return read(place(self.writer.out) / name.format(self.number))
        except Exception as error:  # safetensors has errors of its own
            raise damaged(self.writer.out, error) from None


def load(
    out: Path,
    scenario: Mapping[str, Any],
    keep: int = 1,
    refused: tuple[int, Exception] | None = None,
) -> Saved:
    """The newest whole save beside ``out``; checksums are compared but for the trainer's, which the
    ranks compare when they read. keep: of the writer that goes on. refused: a save that the ranks
    could not read, and why; only older ones count. Raises ScenarioError (``--resume``) where there
    is none, it is damaged or of another version, or of another scenario (more steps and other
    saving are no other scenario)."""
    folder = place(out)
    if not exists(out):
        raise ScenarioError("--resume", f"there is no unfinished run beside {out}")
    if not (known := numbers(folder)):
        raise _earlier(folder)
    saved, failed, newest = None, None, known[-1]
    if refused is not None:
        newest, failed = refused
        known = [number for number in known if number < newest]
    for number in reversed(known):
        try:
            saved = _load(out, folder, number, keep)
            break
        except _EarlierVersionError:
            raise _earlier(folder) from None
        except (OSError, ValueError, RecursionError) as error:
            failed = failed or error
    if saved is None:
        assert failed is not None
        raise damaged(out, failed) from None
    if failed is not None:
        done = saved.state.get("steps")
        older = f"save {newest} is damaged ({_reason(failed)}): the run goes on from save "
        saved = replace(saved, older=f"{older}{saved.number} (steps done: {done})")
    key = _difference(saved.state["scenario"], scenario)
    if key is not None:
        raise ScenarioError(
            "--resume", f"the unfinished run beside {out} had another {key}; give it the same"
        )
    return saved


class _EarlierVersionError(Exception):
    """The save is of an earlier version's form."""


def _earlier(folder: Path) -> ScenarioError:
    message = (
        f"the unfinished run in {folder} was saved by an earlier version, in a form that is not "
        "read any more; finish it with that version, or start anew with --force"
    )
    return ScenarioError("--resume", message)


def damaged(out: Path, error: BaseException) -> ScenarioError:
    """The error for a save that cannot be continued."""
    message = f"what was saved of {out} is damaged: {_reason(error)}; start anew with --force"
    return ScenarioError("--resume", message)


def _reason(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
    return reason or type(error).__name__


def _load(out: Path, folder: Path, number: int, keep: int) -> Saved:
    name = MANIFEST.format(number)
    manifest = _read_json((folder / name).read_bytes(), name)
    claimed = manifest.pop("sha256", None)
    if manifest.get("schema") in EARLIER:
        raise _EarlierVersionError
    if manifest.get("schema") != SCHEMA:
        raise ValueError(f"{name} is not of this version")
    if claimed != digest(manifest):
        raise ValueError(f"{name} does not match its checksum")
    given = manifest.get("parts")
    if manifest.get("number") != number or not isinstance(given, dict):
        raise ValueError(f"{name} names no files")
    wanted = ("journal", "state", "tokens", *(["replicas"] if "replicas" in given else []))
    parts = {part: _file(given.get(part), part) for part in wanted}
    journal = _read(folder / JOURNAL, parts["journal"])
    for part, form in (("tokens", TOKENS), ("replicas", REPLICAS)):
        if part in parts:
            _check(folder / form.format(number), parts[part])
    trainer = _trainer(folder, manifest.get("trainer"))
    state_name = STATE.format(number)
    state = _read_json(_read(folder / state_name, parts["state"]), state_name)
    if not isinstance(state.get("scenario"), dict):
        raise ValueError(f"{state_name} holds no scenario")
    lines = [_read_json(line, JOURNAL) for line in journal.splitlines()]
    taken = max(_used(folder), default=0)
    whole = [one for one in numbers(folder) if one <= number][-keep:]
    hashed = hashlib.sha256(journal)
    writer = Writer(out, keep, taken, parts["journal"], whole, hashed)
    return Saved(state, lines, writer, number, trainer, "replicas" in parts)


def _file(data: Any, name: str) -> SavedFile:
    file: SavedFile = from_plain(data, SavedFile, name)
    return file


def _trainer(folder: Path, data: Any) -> TrainerSave | None:
    """The trainer's files, whose sizes are compared. Raises ValueError."""
    if data is None:
        return None
    name = data.get("folder") if isinstance(data, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"trainer-\d{1,9}", name):
        raise ValueError("the trainer's folder is not named")
    given = from_plain(data.get("files"), dict[str, SavedFile], "the trainer's files")
    for file_name, file in given.items():
        if not re.fullmatch(r"[\w-]+\.\w+", file_name):
            raise ValueError(f"{file_name!r} is no file of a trainer")
        path = folder / name / file_name
        if not path.is_file():
            raise ValueError(f"{name}/{file_name}, a shard of the trainer, is missing")
        if path.stat().st_size != file.bytes:
            raise ValueError(
                f"{name}/{file_name}, a shard of the trainer, is not as long as it was"
            )
    plain = from_plain(data.get("plain"), dict[str, Any], "the trainer's plain data")
    return TrainerSave(folder / name, given, plain)


def _used(folder: Path) -> list[int]:
    """Numbers that files of saves have, whole or not."""
    found = (SAVE.fullmatch(entry.name) for entry in folder.iterdir())
    return [int(match[1]) for match in found if match]


def _read(path: Path, part: SavedFile) -> bytes:
    """A file up to the manifest's length. Raises ValueError where it differs."""
    content = path.read_bytes()[: part.bytes]
    if len(content) != part.bytes or hashlib.sha256(content).hexdigest() != part.sha256:
        raise ValueError(f"{path.name} does not match its checksum")
    return content


def _check(path: Path, part: SavedFile) -> None:
    """As `_read` for a whole large file, without keeping it."""
    if path.stat().st_size != part.bytes or hash_file(path) != part.sha256:
        raise ValueError(f"{path.name} does not match its checksum")


def _read_json(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:  # not text, or not JSON
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{name} holds no mapping")
    return document


def _difference(saved: Any, asked: Any, field: str = "") -> str | None:
    """The dotted key of the first difference between two scenarios, except their steps, and how
    they are saved."""
    if isinstance(saved, dict) and isinstance(asked, dict):
        for key in (*saved, *(key for key in asked if key not in saved)):
            dotted = f"{field}.{key}" if field else str(key)
            if dotted in ("steps", "engine.save"):
                continue
            if (differs := _difference(saved.get(key), asked.get(key), dotted)) is not None:
                return differs
        return None
    return None if json.dumps(saved) == json.dumps(asked) else field
