"""The shell's own commands, as far as they change what a script has set."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from rollcast.simulator.launches.pieces import Text, cut, joined, known, plain, shown, unknown, why
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.conditions import answered, whole
from rollcast.simulator.launches.shell.expand import Array, Value, bounded
from rollcast.simulator.launches.shell.session import Exit, Jump, Lost, Return, Session, Status
from rollcast.simulator.launches.shell.syntax import Assignment, Simple, Word
from rollcast.simulator.stacks.settings import Place

_OF_THE_MACHINE = re.compile(
    r"(?:^|/)(?:\.bashrc|\.bash_profile|\.profile|\.zshrc|activate|conda\.sh|modules?\.sh)$|^/etc/"
)
"""Files that set up a user's shell or a Python environment, and nothing of a launch."""


def _true(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    return Status.YES


def _false(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    return Status.NO


def _exit(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    code = plain(fields[1]) if len(fields) > 1 else None
    raise Exit(code is not None and code.isdigit() and int(code) > 0)


def _return(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    raise Return


def _break(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    levels = shown(fields[1]) if len(fields) > 1 else "1"
    raise Jump(
        int(levels) if levels.isdecimal() and len(levels) < 4 else 1, shown(fields[0]) == "continue"
    )


def _declare(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    """``export A=b`` and its like, where the words are not assignments by their form."""
    if any(re.fullmatch(r"-\w*A\w*", shown(text)) for text in fields[1:]):
        for word in command.words:
            name = word.name if isinstance(word, Assignment) else word.bare or ""
            if isinstance(word, Assignment):
                session.state.variables.pop(word.name, None)
                session.state.variables[word.name] = Array({}, True)
                assign(session, word)
            elif re.fullmatch(r"[A-Za-z_]\w*", name) and name not in BUILTINS:
                session.state.variables[name] = Array({}, True)
    for text in fields[1:]:
        match = re.match(r"([A-Za-z_]\w*)=", shown(text))
        if match and not text[0].why:
            session.state.variables[match[1]] = cut(text, match.end())[1]
    return Status.YES


def _unset(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    for text in fields[1:]:
        session.state.variables.pop(shown(text), None)
        session.state.unset.add(shown(text))
    return Status.YES


def _shift(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    count = shown(fields[1]) if len(fields) > 1 else "1"
    here = session.state.positional
    session.state.positional = here[int(count) if count.isdecimal() and len(count) < 6 else 1 :]
    return Status.YES if here else Status.RAN


def _set(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    words = [shown(text) for text in fields[1:]]
    if "--" in words:
        session.state.positional = fields[2 + words.index("--") :]
    return Status.YES


def _cd(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    words = [text for text in fields[1:] if not shown(text).startswith("-")]
    to, state = plain(words[0]) if words else None, session.state
    if to is not None and (to.startswith("/") or state.folder is not None):
        state.folder = posixpath.normpath(posixpath.join(state.folder or "/", to))
        state.near = ()
        return Status.YES
    there = session.sources.find_folders(words[0], *state.near, session.folder) if words else ()
    state.folder, state.near = None, there
    return Status.YES


def _pwd(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    place = Place(session.file, command.line)
    if session.state.folder is None:
        reason = "the folder that it is started in is known in a run"
        session.print(unknown("$(pwd)", place, reason))
    else:
        session.print(known(session.state.folder + "\n", place))
    return Status.YES


def _test(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    words = fields[1:]
    if shown(fields[0]) == "[" and words and shown(words[-1]) == "]":
        words = words[:-1]
    return answered(session, [(text, None) for text in words], False)


def _let(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    number: int | str = 0
    for text in fields[1:]:
        number = whole(session, text)
    return session.undecided(number) if isinstance(number, str) else Status.YES


def _eval(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    text = shown(joined(fields[1:], " ", Place(session.file, command.line)))
    return session.inner(text, command.line)


def _source(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    if len(fields) < 2:
        return Status.RAN
    place = Place(session.file, command.line)
    written = session.sources.written.get(shown(fields[1]))
    if written is not None:
        return session.inner(shown(written), command.line)
    path = session.sources.find(fields[1], *session.folders())
    if path is None and _OF_THE_MACHINE.search(shown(fields[1])):
        return Status.RAN
    if path is None:
        lost = Lost(fields[1], place, True)
        if not session.maybe:
            session.found.lost.append(lost)
        session.found.note(f"{place}: {lost.said}")
        return Status.RAN
    positional = session.state.positional
    if len(fields) > 2:
        session.state.positional = fields[2:]
    try:
        session.script(path, place)
    except Return:
        pass
    finally:
        session.state.positional = positional
    return Status.RAN


def _read(session: Session, fields: list[Text], read: Text | None, command: Simple) -> Status:
    """``read``: names, from a here-document or a text."""
    separator = {one.name: one.value for one in command.assignments}.get("IFS")
    words = [shown(text) for text in fields[1:]]
    options = "".join(word[1:] for word in words if re.fullmatch(r"-[a-zA-Z]+", word))
    names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)]
    place = Place(session.file, session.line)
    text = None if read is None else plain(read)
    mark = ""
    if isinstance(separator, Word):
        mark = shown(session.expander().text(separator))
    if not names:
        return Status.RAN
    if read is not None and "d" in options:
        session.state.variables[names[-1]] = read
        return Status.YES
    if text is None or read is None:
        if "a" in options:  # any number of words
            some = unknown(f"${{{names[-1]}[@]}}", place, "it is read in a run")
            session.state.variables[names[-1]] = Array({0: some})
            session.found.note(f"{place}: what {names[-1]} holds is not read: {why(read or some)}")
            return session.undecided("what is read is known in a run alone")
        for name in names:
            session.state.variables[name] = unknown(f"${name}", place, "it is read in a run")
        return session.undecided("what is read is known in a run alone")
    text = text.partition("\n")[0]
    parts = text.split(mark) if mark else text.split()
    if "a" in options:
        array = Array({at: known(part, place) for at, part in enumerate(parts)})
        session.state.variables[names[-1]] = array
        return Status.YES
    for at, name in enumerate(names):
        last = at == len(names) - 1
        value = (mark or " ").join(parts[at:]) if last else "".join(parts[at : at + 1])
        session.state.variables[name] = known(value, place)
    return Status.YES


Builtin = Callable[[Session, list[Text], Text | None, Simple], Status]
"""Of a command's fields, its name first, what it reads, and itself."""
BUILTINS: Mapping[str, Builtin] = {
    **{":": _true, "true": _true, "false": _false, "exit": _exit, "return": _return},
    **{"break": _break, "continue": _break, "unset": _unset, "shift": _shift, "set": _set},
    **{"export": _declare, "declare": _declare, "typeset": _declare, "local": _declare},
    **{"readonly": _declare, "cd": _cd, "pushd": _cd, "pwd": _pwd, "[": _test, "test": _test},
    **{"let": _let, "eval": _eval, "source": _source, ".": _source, "read": _read},
}


def assign(session: Session, assignment: Assignment) -> None:
    """Sets what an assignment says. Raises TooLongError."""
    expander = session.expander()
    variables = session.state.variables
    held = variables.get(assignment.name)
    value: Value
    if isinstance(assignment.value, tuple):
        array = held.copy() if assignment.append and isinstance(held, Array) else Array()
        if assignment.append and isinstance(held, tuple):
            array.items[0] = held
        if isinstance(held, Array) and held.named:
            array.named = True
        for index, word in assignment.value:
            if index is not None:
                array.items[_index(session, array, index)] = expander.text(word)
                continue
            for text in expander.fields([word]):
                array.items[array.next()] = text
        if sum(map(len, array.items.values())) > 20_000:
            raise TooLongError
        value = array
    elif assignment.index is not None:
        array = held.copy() if isinstance(held, Array) else Array()
        at = _index(session, array, assignment.index)
        text = expander.text(assignment.value)
        array.items[at] = (*array.items.get(at, ()), *text) if assignment.append else text
        value = array
    else:
        text = expander.text(assignment.value)
        if assignment.append and isinstance(held, Array):
            value = held.copy()
            value.items[0] = (*held.items.get(0, ()), *text)
        elif assignment.append:
            value = bounded((*(held if isinstance(held, tuple) else ()), *text))
        else:
            value = text
    variables[assignment.name] = value
    session.state.unset.discard(assignment.name)


def _index(session: Session, array: Array, word: Word) -> int | str:
    expander = session.expander()
    if array.named:
        return shown(expander.text(word))
    try:
        return expander.number(word)
    except UndecidedError:
        array.named = True
        return shown(expander.text(word))
