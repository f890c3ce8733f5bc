"""Commands by their words: assignments, functions, the shell's own, others; and redirections."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import Text, known, plain, shown
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.builtins import BUILTINS, assign
from rollcast.simulator.launches.shell.expand import MOST_FIELDS, Expander
from rollcast.simulator.launches.shell.programs import external, other
from rollcast.simulator.launches.shell.session import DEEPEST, Return, Session, Status
from rollcast.simulator.launches.shell.syntax import Assignment, Redirect, Simple
from rollcast.simulator.stacks.settings import Place

_MOST_TEXT = 50_000_000
"""Characters that all commands together may have."""
_PREFIXES = {"exec", "command", "builtin", "nohup", "time", "setsid", "sudo"}


def simple(session: Session, command: Simple, read: Text | None = None) -> Status:
    """Follows a command of words. read: its input. Raises TooLongError."""
    expander = session.expander()
    session.missing = expander.missing = set()
    fields: list[Text] = []
    for word in command.words:
        if isinstance(word, Assignment):
            assign(session, word)
        else:
            fields.extend(expander.fields([word]))
    for text in fields:
        session.characters += sum(len(piece.text) for piece in text)
    if session.characters > _MOST_TEXT or len(fields) > MOST_FIELDS:
        raise TooLongError
    for redirect in command.redirects:
        for body in redirect.body:
            read = expander.text(body)
            if redirect.op == "<<<":
                read = (*read, *known("\n", Place(session.file, command.line)))
        if redirect.op == "<":
            name = shown(expander.text(redirect.target))
            read = session.sources.written.get(name)
    if not fields:
        for assignment in command.assignments:
            assign(session, assignment)
        redirected(session, command.redirects, (), expander)
        return Status.YES
    before, session.out = session.out, []
    try:
        status = call(session, fields, read, command, frozenset(expander.missing))
    finally:
        printed, session.out = session.out, before
        redirected(session, command.redirects, tuple(printed), expander)
    return status


def redirected(
    session: Session, redirects: Iterable[Redirect], printed: Text, expander: Expander
) -> None:
    """Writes what was printed to the script's own files, or lets it pass."""
    for redirect in redirects:
        if redirect.op in (">", ">>", ">|", "&>", "&>>") and redirect.fd in ("", "1"):
            name = shown(expander.text(redirect.target))
            session.sources.write(name, printed, redirect.op.endswith(">>"))
            return
        if redirect.op == ">&" and redirect.fd in ("", "1"):
            return
    session.print(printed)


def call(
    session: Session,
    fields: list[Text],
    read: Text | None,
    command: Simple,
    missing: frozenset[str],
) -> Status:
    """Follows a command by its fields, its name first. missing: variables that had no value."""
    name = plain(fields[0])
    while name in _PREFIXES and len(fields) > 1 and not shown(fields[1]).startswith("-"):
        fields = fields[1:]
        name = plain(fields[0])
    if name is None:
        return external(session, fields, command, missing)
    if name in session.state.functions:
        return _function(session, name, fields[1:], command.assignments)
    own = BUILTINS.get(name)
    if own is not None:
        return own(session, fields, read, command)
    return other(session, name, fields, read, command, missing)


def _function(
    session: Session, name: str, arguments: list[Text], said: Iterable[Assignment]
) -> Status:
    """Follows a function's body. said: variables that it alone has so."""
    body, file = session.state.functions[name]
    if session.depth >= DEEPEST:
        raise ScenarioError(session.here(), f"{name} calls itself without end")
    positional, before = session.state.positional, session.file
    line = session.line
    session.state.positional, session.file = arguments, file
    held = {one.name: session.state.variables.get(one.name) for one in said}
    for one in said:
        assign(session, one)
    session.depth += 1
    try:
        return session.run(body)
    except Return:
        return Status.RAN
    finally:
        session.depth -= 1
        session.state.positional, session.file, session.line = positional, before, line
        for variable, value in held.items():
            session.state.variables.pop(variable, None)
            if value is not None:
                session.state.variables[variable] = value
