"""A trainer's tensors in files, by torch.distributed.checkpoint: each rank writes its own shards as
safetensors, and any number of ranks reads them.

Nothing is gathered, and nothing read is ever executed: names, types and offsets stand in the
headers of the safetensors. Writing happens in a thread beside training, from a copy in host memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rollcast.engine.checkpoint import sync_folder
from rollcast.engine.edges import SavedFile
from rollcast.engine.errors import RankLostError, sentence
from rollcast.engine.trainer.ranks import Ranks
from rollcast.simulator.errors import RunError

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # said of one process


class ShardWriter:
    """Writes one save after another, each of this rank's shards."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._thread: threading.Thread | None = None
        self._files: Mapping[str, SavedFile] = {}
        self._failure: BaseException | None = None

    def begin(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Copies the tensors and begins to write them; a collective call. Raises RunError where the
        disk refuses at once."""
        self.wait()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(folder, error) from None
        self._files, self._failure = {}, None
        writer = HuggingFaceStorageWriter(path=str(folder), save_distributed=True)
        future = dcp.async_save(
            dict(tensors),
            storage_writer=writer,
            process_group=self._ranks.group,
            no_dist=self._ranks.group is None,
        )
        self._thread = threading.Thread(target=self._finish, args=(future, folder), daemon=True)
        self._thread.start()

    def wait(self, wait_s: float | None = None) -> bool:
        """Whether nothing is being written after ``wait_s``; None waits for it."""
        if self._thread is not None:
            self._thread.join(wait_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def ended(self, wait_s: float) -> Mapping[str, SavedFile] | None:
        """This rank's files; None where they are not all written. Raises RunError where the disk
        refused, RankLostError where another rank is gone."""
        if not self.wait(wait_s):
            return None
        if self._failure is not None:
            raise self._failure
        return self._files

    def _finish(self, future: Any, folder: Path) -> None:
        try:
            future.result()
            mine = sorted(folder.glob(f"shard-{self._ranks.number + 1:05}-*.safetensors"))
            self._files = {path.name: saved_file(path) for path in mine}
            sync_folder(folder)
            self._failure = None
        except BaseException as error:  # torch's own is no Exception
            self._failure = _named(folder, error)


def saved_file(path: Path) -> SavedFile:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        return SavedFile(
            os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
        )


def require_files(
    folder: Path, files: Mapping[str, SavedFile], rank: int = 0, ranks: int = 1
) -> None:
    """Compares this rank's share of the files with what was written. Raises ValueError where one is
    missing or another."""
    for name in sorted(files)[rank::ranks]:
        try:
            found = saved_file(folder / name)
        except OSError:
            raise ValueError(f"{name} is missing") from None
        if found != files[name]:
            raise ValueError(f"{name} does not match its checksum")
    if rank == 0 and (more := {path.name for path in folder.glob("*.safetensors")} - files.keys()):
        raise ValueError(f"{sorted(more)[0]} is of another save")


def described(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Shape and type of every tensor in a folder. Raises ValueError where they cannot be read."""
    try:
        found = HuggingFaceStorageReader(path=str(folder)).read_metadata().state_dict_metadata
    except (
        OSError,
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        json.JSONDecodeError,
    ) as error:
        raise ValueError(f"its tensors cannot be read: {sentence(error)}") from None
    return {
        name: entry for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)
    }


def read_into(tensors: Mapping[str, Tensor], folder: Path, group: Any = None) -> None:
    """Reads tensors, or this rank's shards of them, in place; a collective call. Raises ValueError
    where they cannot be read."""
    try:
        with torch.no_grad():
            dcp.load(
                dict(tensors),
                storage_reader=HuggingFaceStorageReader(path=str(folder)),
                process_group=group,
                no_dist=group is None,
            )
    except (
        CheckpointException,
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
    ) as error:
        raise ValueError(f"its tensors cannot be read: {_first(error)}") from None


def _causes(error: BaseException) -> list[BaseException]:
    """The errors of the ranks, where torch has them."""
    if isinstance(error, CheckpointException):
        return [failure[0] for failure in error.failures.values()]
    return [error]


def _first(error: BaseException) -> str:
    return sentence(_causes(error)[0])


def _named(folder: Path, error: BaseException) -> BaseException:
    causes = _causes(error)
    disk = [cause for cause in causes if isinstance(cause, OSError | SafetensorError)]
    disk = [cause for cause in disk if not isinstance(cause, ConnectionError)]
    if disk:
        return _refused(folder, disk[0])
    return RankLostError(f"the ranks cannot save together: {_first(error)}")


def _refused(folder: Path, error: BaseException) -> RunError:
    reason = getattr(error, "strerror", None) or sentence(error)
    return RunError(f"cannot save the run to {folder.parent}: {reason}; make room there")
