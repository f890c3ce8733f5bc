"""The committed real runs, which are kept packed: one archive a campaign.

``python -m benchmarks.measured`` unpacks all of them; ``... pack DIR FILE`` packs the run folders
in DIR (and their probe), as `benchmarks.measure` keeps them, into FILE. Tests and notebooks call
`runs`, which unpacks an archive once, into ``data/.unpacked``.
"""

import argparse
import gzip
import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from rollcast.simulator.results.schema import PACKED
from rollcast.simulator.results.write import write_bytes

DATA = Path(__file__).parent / "data"
SUFFIX = ".tar.xz"
UNPACKED = ".unpacked"
_DIGEST = ".archive"  # in an unpacked folder: which archive it is of
HISTORY = "165e613634260e953a7d313279356411c2025889"
"""A commit whose ``calibration/data`` has every run that was ever measured, 20 MB."""


class AbsentError(Exception):
    """Runs are not at hand; the message says where they are."""


def runs(name: str) -> Path:
    """The folder of the run folders of ``data/NAME.tar.xz``, such as ``real/runs``.

    Unpacked where that was not done before, whole or not at all. Raises FileNotFoundError for a
    name that has no archive.
    """
    packed = (DATA / f"{name}{SUFFIX}").read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    return _unpacked(name, digest, lambda: lzma.decompress(packed))


def past(name: str) -> Path:
    """The folder of all run folders of a campaign of which ``data/NAME.tar.xz`` has a part or none.

    They are in the repository's history, at `HISTORY`. Raises AbsentError for a copy of the
    repository that lacks it.
    """
    return _unpacked(f"past/{name}", HISTORY, lambda: _of_history(name))


def _of_history(name: str) -> bytes:
    """The run folders of a campaign at `HISTORY`, as a tar."""
    command = ["git", "archive", f"{HISTORY}:calibration/data/{name}"]
    try:
        done = subprocess.run(command, cwd=DATA.parents[1], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        where = f"in the repository's history, at {HISTORY[:7]}, which this copy lacks"
        raise AbsentError(f"the runs of {name} are {where}") from None
    return done.stdout


def _unpacked(name: str, digest: str, tar: Callable[[], bytes]) -> Path:
    """The folder of an archive's files, unpacked where that was not done before."""
    folder = DATA / UNPACKED / name
    if _digest_of(folder) != digest:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as temporary:
            draft = Path(temporary) / folder.name
            with tarfile.open(fileobj=io.BytesIO(tar())) as tape:
                tape.extractall(draft, filter="data")
            (draft / _DIGEST).write_text(digest, "utf-8")
            _replace(draft, folder, digest)
    return folder


def _digest_of(folder: Path) -> str:
    try:
        return (folder / _DIGEST).read_text("utf-8")
    except OSError:
        return ""


def _replace(draft: Path, folder: Path, digest: str) -> None:
    """Moves ``draft`` to ``folder``; another process may have done the same meanwhile."""
    if folder.exists() and _digest_of(folder) != digest:
        folder.rename(draft.with_name("old"))
    try:
        draft.rename(folder)
    except OSError:
        if _digest_of(folder) != digest:
            raise


def pack(folder: Path, archive: Path) -> int:
    """Packs the files of the run folders in ``folder``, its probe included; the archive's bytes.

    Tables are packed as they are without compression of their own, those of one kind side by side:
    together they take a third less.
    """
    files = [f for f in folder.rglob("*") if f.is_file() and f.name != _DIGEST]
    tape = io.BytesIO()
    with tarfile.open(fileobj=tape, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for file in sorted(files, key=lambda f: (f.name, f.as_posix())):
            content, name = file.read_bytes(), file.relative_to(folder).as_posix()
            if name.endswith(PACKED):
                content, name = gzip.decompress(content), name.removesuffix(PACKED)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    packed = lzma.compress(tape.getvalue(), preset=9)
    write_bytes(archive, packed)
    return len(packed)


def archives() -> list[str]:
    """Names of all that is committed."""
    paths = sorted(DATA.rglob(f"*{SUFFIX}"))
    return [f.relative_to(DATA).as_posix().removesuffix(SUFFIX) for f in paths]


def main(arguments: list[str] | None = None) -> int:
    """Unpacks what is committed, or packs a folder of runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured", description=__doc__)
    parser.add_argument("pack", nargs="*", help="pack DIR FILE")
    options = parser.parse_args(arguments)
    if not options.pack:
        for name in archives():
            print(runs(name))
        return 0
    if len(options.pack) != 3 or options.pack[0] != "pack" or not Path(options.pack[1]).is_dir():
        parser.error("give nothing, or: pack, the folder of the runs, and the archive to write")
    print(f"{pack(Path(options.pack[1]), Path(options.pack[2])):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
