"""Commands that are not the shell's own: scripts are followed, programs collected."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from functools import partial

from rollcast.simulator.launches.pieces import Text, joined, known, place_of, plain, shown, unknown
from rollcast.simulator.launches.shell import pure
from rollcast.simulator.launches.shell.found import Called, Lost
from rollcast.simulator.launches.shell.session import Session, Status
from rollcast.simulator.launches.shell.syntax import Simple
from rollcast.simulator.stacks.settings import Place

_MOST_CALLS = 500
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_REMOTE = {"ssh", "pdsh", "tmux", "screen"}
_LAUNCHED = r"\s.*\b(?:python3?|torchrun|accelerate|deepspeed|ray)\s|^(?:python3?|torchrun)\s"
_LAUNCHERS = {
    "srun",
    "ssh",
    "docker",
    "ray",
    "apptainer",
    "singularity",
    "mpirun",
    "env",
    "timeout",
}


def other(
    session: Session,
    name: str,
    fields: list[Text],
    read: Text | None,
    command: Simple,
    missing: frozenset[str],
) -> Status:
    """Follows a command that is not the shell's own. missing: variables that had no value."""
    words = [plain(text) for text in fields]
    place = Place(session.file, command.line)
    printed = _printed(session, name, fields, words, read, place)
    if printed is not None:
        session.print(printed)
        return Status.YES
    for at, word in enumerate(words[:-1]):
        option = words[at + 1] or ""
        shell = posixpath.basename(word or "") in _SHELLS and at + 2 < len(words)
        if shell and re.fullmatch(r"-[a-z]*c", option):
            text = fields[at + 2]
            line = place_of(text, place).line
            session.apart(partial(session.inner, shown(text), line, fields[at + 4 :]))
            return Status.RAN
    for at, word in enumerate(words):
        if word and re.search(r"\.(sh|bash|slurm|sbatch)$", word) and _calls(words, at):
            return _script(session, fields, at, place)
    if name in _REMOTE and len(fields) > 1 and re.search(_LAUNCHED, shown(fields[-1])):
        line = place_of(fields[-1], place).line
        session.apart(partial(session.inner, shown(fields[-1]), line))
        return Status.RAN
    return external(session, fields, command, missing)


def _calls(words: Sequence[str | None], at: int) -> bool:
    """Whether a word that names a script is what is called, not an argument of a program."""
    before = {posixpath.basename(word or "") for word in words[:at]}
    return at == 0 or bool(before & (_SHELLS | {"sbatch"})) or bool(before & _LAUNCHERS)


def _script(session: Session, fields: list[Text], at: int, place: Place) -> Status:
    path = session.sources.find(fields[at], *session.folders())
    if path is None:
        session.found.lost.append(Lost(shown(fields[at]), place, False))
        return Status.RAN

    def run() -> None:
        session.state.positional = fields[at + 1 :]
        before, session.zero = session.zero, path
        try:
            session.script(path, place)
        finally:
            session.zero = before

    session.apart(run)
    return Status.RAN


def _printed(
    session: Session,
    name: str,
    fields: list[Text],
    words: Sequence[str | None],
    read: Text | None,
    place: Place,
) -> Text | None:
    """What a command prints, if it follows from its words and input."""
    if name == "cat" and len(fields) == 1 and read is not None:
        return read
    if name == "cat" and len(fields) == 2 and (words[1] or "") in session.sources.written:
        return session.sources.written[words[1] or ""]
    if name == "tee" and len(fields) == 2 and read is not None:
        session.sources.write(shown(fields[1]), read, False)
        return read
    if name in ("realpath", "readlink") and words[-1] and len(fields) > 1:
        folder = session.state.folder
        if words[-1].startswith("/") or folder is not None:
            return known(posixpath.normpath(posixpath.join(folder or "/", words[-1])), place)
    if name == "echo" and None in words and not shown(fields[1]).startswith("-"):
        return (*joined(fields[1:], " ", place), *known("\n", place))
    if name == "basename" and None in words and len(fields) == 2 and not fields[1][-1].why:
        last = fields[1][-1].text.rpartition("/")
        return known(last[2], place) if last[1] and last[2] else None
    if None in words[1:]:
        return None
    text = None if read is None else plain(read)
    printed = pure.output(name, [word or "" for word in words[1:]], text)
    return None if printed is None else known(printed, place)


def external(
    session: Session, fields: list[Text], command: Simple, missing: frozenset[str]
) -> Status:
    """Collects a program that is started."""
    place = Place(session.file, command.line)
    name = shown(fields[0])
    session.print(unknown(name, place, f"{posixpath.basename(name)} is not run"))
    key = (place, tuple(map(shown, fields)))
    if len(session.found.calls) < _MOST_CALLS and len(fields) > 1 and key not in session.seen:
        session.seen.add(key)
        variables = dict(session.state.variables)
        folders = tuple(session.folders())
        call = Called(tuple(fields), place, missing, session.maybe, variables, folders)
        session.found.calls.append(call)
    return Status.RAN
