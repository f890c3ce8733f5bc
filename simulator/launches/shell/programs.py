"""Commands that are not the shell's own: scripts are followed, programs collected."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from rollcast.simulator.launches.around import options
from rollcast.simulator.launches.pieces import (
    Text,
    cut,
    joined,
    known,
    place_of,
    plain,
    shown,
    unknown,
)
from rollcast.simulator.launches.shell.builtins import assign
from rollcast.simulator.launches.shell.expand import Value
from rollcast.simulator.launches.shell.session import Called, Lost, Session, Status
from rollcast.simulator.launches.shell.syntax import Simple
from rollcast.simulator.stacks.settings import Place

_MOST_CALLS = 500
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_REMOTE = {"ssh", "pdsh", "tmux", "screen"}
_LAUNCHED = r"\s.*\b(?:python3?|torchrun|accelerate|deepspeed|ray)\s|^(?:python3?|torchrun)\s"
_FED = re.compile(r"(?:^|[ /])(?:bash|sh|zsh|dash|ksh)(?: -(?:s|-|[eilux]+))*$")
"""A command that ends in a shell without a script, which reads its input."""
_SUBMITS = {"sbatch", "qsub", "bsub"}
_STARTED = (
    r"(?m)(?:^|[;&|])\s{0,99}(?:\w{1,99}=\S{1,999}\s{1,99})*"
    r"(?:uv\s+run|python3?|torchrun|accelerate|deepspeed|ray\s+job)\s"
)
_LONGEST = 100_000
_CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity"}
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

            def run(text: Text = text, line: int = line, at: int = at) -> None:
                session.state.variables = _environment(session, command, fields[:at])
                session.inner(shown(text), line, fields[at + 4 :])

            session.apart(run)
            return Status.RAN
    if read and _FED.search(" ".join(word or "?" for word in words)):
        line = place_of(read, place).line
        session.apart(partial(session.inner, shown(read), line, []))
        return Status.RAN
    if name == "tmux" and (typed := _typed(fields, place)) is not None:
        session.typed(*typed)
        return Status.RAN
    for at, word in enumerate(words):
        if word and re.search(r"\.(sh|bash|slurm|sbatch)$", word) and _calls(words, at):
            return _script(session, fields, at, command)
    if name in _REMOTE and len(fields) > 1 and re.search(_LAUNCHED, shown(fields[-1])):
        line = place_of(fields[-1], place).line
        session.apart(partial(session.inner, shown(fields[-1]), line))
        return Status.RAN
    if name == _NEBULA and (started := _entered(fields, place)):
        session.apart(partial(session.inner, started, command.line))
        return Status.RAN
    if name in _SUBMITS:
        for key, text, given_at in options(fields, place):
            if key == "wrap":
                session.apart(partial(session.inner, shown(text), given_at.line))
                return Status.RAN
        session.apart(partial(_submitted, session, command))
    return external(session, fields, command, missing)


_NEBULA = "nebulactl"


def _entered(fields: list[Text], place: Place) -> str:
    """The command of ``nebulactl run``, which ROLL's examples are submitted by; empty where it
    names none."""
    said = {key: shown(text) for key, text, _ in options(fields, place)}
    entry = said.get("entry", "")
    return f"python3 {entry} {said.get('user_params', '')}" if entry.endswith(".py") else ""


_KEYS = {"c-m", "c-j", "enter", "kpenter"}


def _typed(fields: list[Text], place: Place) -> tuple[str, Text] | None:
    """The pane and the text of ``tmux send-keys``; None where it sends keys alone."""
    at = next((at for at, text in enumerate(fields) if shown(text) in ("send-keys", "send")), None)
    if at is None:
        return None
    pane, keys, rest = "", list[Text](), iter(fields[at + 1 :])
    for text in rest:
        word = shown(text)
        if word == "-t":
            pane = shown(next(rest, ()))
        elif word.lower() not in _KEYS and not (word.startswith("-") and not keys):
            keys.append(text)
    return (pane, joined(keys, "", place)) if keys else None


def _submitted(session: Session, command: Simple) -> None:
    """Follows commands that a job's script finds in its variables, as NeMo-RL's ray.sub does."""
    for value in _environment(session, command).values():
        if isinstance(value, tuple) and re.search(_STARTED, shown(value)[:_LONGEST]):
            line = place_of(value, Place(session.file, command.line)).line
            session.inner(shown(value), line)


def _calls(words: Sequence[str | None], at: int) -> bool:
    """Whether a word that names a script is what is called, not an argument of a program."""
    before = {posixpath.basename(word or "") for word in words[:at]}
    return at == 0 or bool(before & (_SHELLS | _SUBMITS)) or bool(before & _LAUNCHERS)


def _script(session: Session, fields: list[Text], at: int, command: Simple) -> Status:
    place = Place(session.file, command.line)
    path = session.sources.find(fields[at], *session.folders())
    if path is None:
        if plain(fields[0]) in _SUBMITS:
            session.apart(partial(_submitted, session, command))
        session.found.lost.append(Lost(fields[at], place, False))
        return Status.RAN

    def run() -> None:
        session.state.variables = _environment(session, command, fields[:at])
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
    if name == "tr" and read is not None and plain(read) is None and None not in words:
        one_by_one = [
            piece if piece.why else replace(piece, text=printed)
            for piece in read
            if (printed := printed_by(name, [word or "" for word in words[1:]], piece.text))
            is not None
        ]
        return tuple(one_by_one) if len(one_by_one) == len(read) else None
    if name == "basename" and None in words and len(fields) == 2 and not fields[1][-1].why:
        last = fields[1][-1].text.rpartition("/")
        return known(last[2], place) if last[1] and last[2] else None
    if None in words[1:]:
        return None
    text = None if read is None else plain(read)
    printed = printed_by(name, [word or "" for word in words[1:]], text)
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
        variables = _environment(session, command)
        folders = tuple(session.folders())
        call = Called(tuple(fields), place, missing, session.maybe, variables, folders)
        session.found.calls.append(call)
    return Status.RAN


def _environment(session: Session, command: Simple, words: Sequence[Text] = ()) -> dict[str, Value]:
    """The variables of a program: those of the script, and those before its name. words: before it,
    of which those after ``env``, and those that a container or a job is given, are such, too."""
    before, here = session.state.variables, Place(session.file, command.line)
    session.state.variables = dict(before)
    for assignment in command.assignments:
        assign(session, assignment)
    if words and posixpath.basename(shown(words[0])) == "env":
        for text in words[1:]:
            if match := re.match(r"(\w+)=", shown(text)):
                session.state.variables[match[1]] = cut(text, match.end())[1]
    if any(posixpath.basename(shown(text)) in _CONTAINERS for text in words):
        for option, text in pairwise(words):
            match = re.match(r"(?:-e|--env)?=?(\w+)=", shown(text))
            if match and (shown(option) in ("-e", "--env") or shown(text).startswith("-")):
                session.state.variables[match[1]] = cut(text, match.end())[1]
    for option, text in pairwise(words):
        listed = plain(text) or ""
        if shown(option) == "-v" or listed.startswith("--export="):  # of PBS, of Slurm
            for name, value in re.findall(r"(?:^|[=,])(\w+)=([^,]*)", listed):
                session.state.variables[name] = known(value, place_of(text, here))
    variables, session.state.variables = session.state.variables, before
    return variables


_MOST = 10_000
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", "0": "\0", '"': '"', "a": "\a"}


def printed_by(name: str, words: Sequence[str], read: str | None) -> str | None:
    """What a command prints; None for one that is not known. words: after its name. read: its
    input, None where that is not known."""
    if words[:1] == ["--"] and name != "echo":
        words = words[1:]
    try:
        match name:
            case "echo":
                return _echo(words)
            case "printf":
                return _printf(words)
            case "dirname" if len(words) == 1:
                return (posixpath.dirname(words[0].rstrip("/") or "/") or ".") + "\n"
            case "basename" if 1 <= len(words) <= 2:
                last = words[0].rstrip("/").rpartition("/")[2]
                return last.removesuffix(words[1] if len(words) == 2 else "") + "\n"
            case "seq":
                return _seq([int(word) for word in words])
            case "cat" | "tee" if not words and read is not None:
                return read
            case "wc" if read is not None and len(words) == 1:
                counts = {"-l": read.count("\n"), "-w": len(read.split()), "-c": len(read)}
                return f"{counts[words[0]]}\n"
            case "tr" if read is not None and len(words) == 2:
                return _tr(words, read)
            case "xargs" if read is not None and not words:
                return " ".join(read.split()) + "\n"
            case "cut" if read is not None:
                return _cut(words, read)
            case "awk" if read is not None:
                return _awk(words, read)
            case "sed" if read is not None:
                return _sed(words, read)
            case "grep" if read is not None and len(words) == 2 and words[0] == "-o":
                if re.fullmatch(r"[\w,;:]+", words[1]):
                    return f"{words[1]}\n" * read.count(words[1])
            case _:
                pass
    except (ValueError, KeyError, IndexError, re.error):
        pass
    return None


def _echo(words: Sequence[str]) -> str:
    end, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        end = "" if "n" in words[0] else end
        escapes = "e" in words[0]
        words = words[1:]
    text = " ".join(words)
    return (_unescaped(text) if escapes else text) + end


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.DOTALL)


def _printf(words: Sequence[str]) -> str | None:
    if words and words[0] == "--":
        words = words[1:]
    form, left = _unescaped(words[0]), list(words[1:])
    if re.search(r"%[^sd%]", form):
        return None
    pieces = re.split(r"(%[sd%])", form)
    result, rounds = "", 0
    while rounds == 0 or (left and rounds < _MOST and "%s" in form + form.replace("%d", "%s")):
        for piece in pieces:
            if piece in ("%s", "%d"):
                result += left.pop(0) if left else "" if piece == "%s" else "0"
            else:
                result += "%" if piece == "%%" else piece
        rounds += 1
    return result


def _seq(numbers: Sequence[int]) -> str | None:
    first, step, last = (
        (*numbers[:1], 1, *numbers[1:])
        if len(numbers) == 2
        else ((1, 1, *numbers) if len(numbers) == 1 else numbers)
    )
    found = range(first, last + (1 if step > 0 else -1), step)
    return "".join(f"{n}\n" for n in found) if len(found) <= _MOST else None


def _tr(words: Sequence[str], read: str) -> str | None:
    if words[0] == "-d":
        letters = _unescaped(words[1])
        return "".join(c for c in read if c not in letters) if len(letters) < 20 else None
    names = {"[:lower:]": "abcdefghijklmnopqrstuvwxyz", "a-z": "abcdefghijklmnopqrstuvwxyz"}
    names |= {"[:upper:]": names["a-z"].upper(), "A-Z": names["a-z"].upper()}
    one, other = (names.get(word, _unescaped(word)) for word in words)
    if not one or not other or "-" in one[1:-1] or "[" in one:
        return None
    other = other.ljust(len(one), other[-1])
    return read.translate({ord(a): b for a, b in zip(one, other, strict=False)})


def _cut(words: Sequence[str], read: str) -> str | None:
    match = re.fullmatch(r"-d ?(.) ?-f ?(\d{1,4})|-f ?(\d{1,4}) ?-d ?(.)", " ".join(words))
    if match is None:
        return None
    mark, field = match[1] or match[4], int(match[2] or match[3])
    lines = []
    for line in read.splitlines():
        cells = line.split(mark)
        lines.append(line if len(cells) == 1 else cells[field - 1] if field <= len(cells) else "")
    return "".join(f"{line}\n" for line in lines)


_REPLACES = re.compile(r"s([/#|,@:!~])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)\1(g?)\s*(?:;\s*|$)")
_PLAIN = re.compile(r"\\[^\w\s(){}|+?]|\[\^?[\w\s./-]+\]|[^\\\[\](){}|+?]")
_MOST_WORK = 3_000_000


def _sed(words: Sequence[str], read: str) -> str | None:
    """Of sed's programs: replacements, each of a pattern without groups by a text."""
    text = ";".join(word for word in words if word != "-e")
    if not text or len(words) != max(1, 2 * words.count("-e")):
        return None
    while text:
        match = _REPLACES.match(text)
        if match is None or re.search(r"(?<!\\)&|\\\w", match[3]):
            return None
        replaced = _replaced(match, read)
        if replaced is None:
            return None
        read, text = replaced, text[match.end() :]
    return read


def _replaced(match: re.Match[str], read: str) -> str | None:
    form, count = match[2], 0 if match[4] else 1
    if "".join(_PLAIN.findall(form)) != form or not form or form.startswith("*"):
        return None
    pattern, new = re.compile(form), re.sub(r"\\(.)", r"\1", match[3])
    if (new and pattern.match("")) or len(read) ** (1 + form.count("*")) > _MOST_WORK:
        return None
    return "\n".join(pattern.sub(lambda _: new, line, count) for line in read.split("\n"))


def _awk(words: Sequence[str], read: str) -> str | None:
    """Of awk's programs: one field of each line, or how many there are."""
    asked = re.fullmatch(r"(?:-F ?(\S) )?\{ ?print (NF|\$(?:NF|\d{1,4})) ?;? ?\}", " ".join(words))
    if asked is None:
        return None
    found = []
    for line in read.splitlines():
        fields = line.split(asked[1]) if line else []
        last = asked[2].removeprefix("$")
        at = len(fields) if last == "NF" else int(last)
        picked = line if at == 0 else fields[at - 1] if at <= len(fields) else ""
        found.append(str(len(fields)) if asked[2] == "NF" else picked)
    return "".join(f"{one}\n" for one in found)
