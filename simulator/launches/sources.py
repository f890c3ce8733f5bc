"""Files of a launch: found, bounded, read as text; and those that a script itself would write."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import Text, plain, shown
from rollcast.simulator.launches.python.notebook import SUFFIX, code_of
from rollcast.simulator.launches.values import Tree
from rollcast.simulator.stacks.settings import Place

MOST_BYTES = 16 * 2**20
_MOST_FILES = 500
_FORMS = {
    **{b"\xff\xfe": "text in UTF-16", b"\xfe\xff": "text in UTF-16"},
    **{b"\x1f\x8b": "compressed (gzip)", b"PK\x03\x04": "an archive (zip)"},
}
"""What files are that begin so."""
_LEVELS_UP = 5


@dataclass
class Sources:
    """What was read. first: the path that was named, whose folder others are looked for in. near:
    folders in which the launch's command is called. trees: what configurations say, by their text,
    name and suffix."""

    first: Path
    files: list[Path] = field(default_factory=list)
    written: dict[str, Text] = field(default_factory=dict)
    tokens: dict[str, Text] = field(default_factory=dict)
    near: tuple[Path, ...] = ()
    trees: dict[tuple[str, str, str], Tree] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the launch is."""
        return self.first if self.first.is_dir() else self.first.parent

    def name(self, path: Path) -> str:
        """A file as messages call it: below the launch's folder by its path from there."""
        if path == self.first:
            return path.name
        for folder in (self.folder.resolve(), *self.roots()):
            try:
                return str(path.resolve().relative_to(folder))
            except (ValueError, OSError):
                continue
        return str(path)

    def roots(self) -> Iterator[Path]:
        """Folders that a launch may start in: its own and those above, up to its repository's."""
        folder = self.folder.resolve()
        for level, path in enumerate((folder, *folder.parents)):
            if level > _LEVELS_UP or path == path.parent:
                return
            yield path
            if (path / ".git").exists():
                return

    def read(self, path: Path, at: Place | None = None) -> str:
        """The text of a file, of a notebook its code. at: what names it. Raises ScenarioError for
        what is no text file in UTF-8, no plain file, or too large."""
        where = str(at) if at else ""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ScenarioError(where, f"{path} is not a regular file")
            if status.st_size > MOST_BYTES:
                size = f"{MOST_BYTES // 2**20} MB"
                raise ScenarioError(where, f"{path} is more than {size}, too large for a launch")
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ScenarioError(where, f"cannot read {path}: {reason}") from None
        form = next((name for start, name in _FORMS.items() if content.startswith(start)), None)
        if form is not None:
            raise ScenarioError(path.name, f"is {form}; give the launch as text in UTF-8")
        if b"\0" in content:
            line = content.count(b"\n", 0, content.index(b"\0")) + 1
            raise ScenarioError(f"{path.name}, line {line}", "is no text: it holds NUL bytes")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ScenarioError(f"{path.name}, line {line}", "is not text in UTF-8") from None
        if path not in self.files:
            self.files.append(path)
        if len(self.files) > _MOST_FILES:
            raise ScenarioError(where, f"more than {_MOST_FILES} files are called")
        text = text.replace("\r\n", "\n")
        return code_of(text, path.name) if path.suffix == SUFFIX else text

    def find(self, text: Text, *folders: Path) -> Path | None:
        """The file that a text names: from the folders, then from those that the launch may be
        started in. Of a path whose start is not known here, the rest is looked for."""
        return next(self._finds(text, folders, _is_file), None)

    def find_folders(self, text: Text, *folders: Path) -> tuple[Path, ...]:
        """As `find`, each folder that may be meant."""
        return tuple(dict.fromkeys(self._finds(text, folders, _is_folder)))

    def _finds(
        self, text: Text, folders: Sequence[Path], there: Callable[[Path], bool]
    ) -> Iterator[Path]:
        name, tail = plain(text), shown(text)
        if name is None:
            last = max(at for at, piece in enumerate(text) if piece.why)
            tail = "".join(piece.text for piece in text[last + 1 :])
        if not tail.strip("/") or len(tail) > 4_000 or "\0" in tail:
            return
        if name is not None:
            for folder in (*folders, Path()) if name.startswith("/") else folders:
                if there(path := folder / name):
                    yield path
        parts = [part for part in tail.split("/") if part not in ("", ".")]
        starts = range(len(parts)) if name is None or name.startswith("/") else [0]
        for start in starts if name is None or name.startswith("/") else (0,):
            rest = Path(*parts[start:]) if parts[start:] else None
            if rest is None or (len(parts) - start < 2 and start > 0):
                continue
            for root in self.roots():
                if there(path := root / rest):
                    yield path

    # Files that a script would write

    def write(self, path: str, text: Text, append: bool) -> None:
        """Keeps what a script would write to a file."""
        had = self.written.get(path, ()) if append else ()
        self.written[path] = (*had, *text)

    def as_text(self, text: Text) -> str:
        """A text in which names stand for what is not known; `resolved` gives it back."""
        result = ""
        for piece in text:
            if not piece.why:
                result += piece.text
                continue
            token = f"rollcast_unknown_{len(self.tokens)}_"
            self.tokens[token] = (piece,)
            result += token
        return result

    def resolved(self, text: str) -> Text | None:
        """The text that was meant, where names stand for what is not known; else None."""
        if "rollcast_unknown_" not in text or not self.tokens:
            return None
        found: list[Text] = []
        place = next(iter(self.tokens.values()))[0].place
        for part in re.split(r"(rollcast_unknown_\d+_)", text):
            found.append(self.tokens[part] if part in self.tokens else _plain(part, place))
        return tuple(piece for one in found for piece in one)


def _plain(text: str, place: Place) -> Text:
    from rollcast.simulator.launches.pieces import known

    return known(text, place) if text else ()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
