"""Goes through a script without running it: variables, conditions, files it calls, its commands.

What the script does not decide by itself is followed on every path: what the paths agree on is
known afterwards, and of the rest it is known why it is not. Commands that are not the shell's own
are collected as `Called`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import Piece, Text, plain, shown, unknown, why
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.conditions import Operand, answered
from rollcast.simulator.launches.shell.expand import Value
from rollcast.simulator.launches.shell.patterns import matches, regex
from rollcast.simulator.launches.shell.session import (
    Called,
    Exit,
    Found,
    Jump,
    Return,
    Session,
    Status,
)
from rollcast.simulator.launches.shell.simple import call, redirected, simple
from rollcast.simulator.launches.shell.syntax import (
    Background,
    Block,
    Case,
    Chain,
    Command,
    Condition,
    Count,
    Evaluate,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Simple,
    While,
)
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.stacks.settings import Place


def follow(sources: Sources, path: Path, environment: Mapping[str, str]) -> Found:
    """Follows a script. environment: values of variables from outside. Raises ScenarioError for one
    that cannot be read, or has no end."""
    session = Session(sources, environment, path, run)
    return _followed(session, lambda: session.script(path, None))


def follow_command(
    sources: Sources, words: Sequence[Text], where: str, environment: Mapping[str, str]
) -> Found:
    """As `follow`, one command by its words. where: it stands."""
    session = Session(sources, environment, sources.first, run)
    session.file = where
    return _followed(session, lambda: call(session, list(words), None, _COMMAND, frozenset()))


def follow_texts(
    sources: Sources, path: Path, texts: Sequence[tuple[str, int]], environment: Mapping[str, str]
) -> Found:
    """As `follow`, texts of a file, each with its line, one after the other. One that is no shell
    is left, and its error kept."""
    session = Session(sources, environment, path, run)
    session.file, session.folder = sources.name(path), path.parent

    def start() -> None:
        for text, line in texts:
            try:
                session.text(text, line)
            except ScenarioError as error:
                session.found.broken = session.found.broken or error

    return _followed(session, start)


_COMMAND = Simple((), (), (), 0)


def _followed(session: Session, start: Callable[[], object]) -> Found:
    try:
        start()
    except (Exit, Return, Jump):
        pass
    except TooLongError:
        raise ScenarioError(session.here(), "its texts or loops grow without end") from None
    return session.found


_MOST_STEPS, _MOST_ROUNDS = 20_000, 1_000
_STARTS = re.compile(r"(?:.*/)?(?:python[\d.]*|trl|rl|torchrun|accelerate|deepspeed)")


def run(session: Session, command: Command) -> Status:
    """Follows a command. Raises ScenarioError where there are too many."""
    session.steps += 1
    if session.steps > _MOST_STEPS:
        raise ScenarioError(session.here(), f"more than {_MOST_STEPS:,} commands are followed")
    session.line = getattr(command, "line", session.line)
    match command:
        case Simple():
            return simple(session, command)
        case Block():
            status = Status.YES
            for one in command.commands:
                status = run(session, one)
            return status
        case Group():
            return _group(session, command)
        case Chain():
            return _chain(session, command)
        case Pipeline():
            return _pipeline(session, command)
        case Background():
            session.apart(lambda: run(session, command.command))
            return Status.YES
        case If():
            return _if(session, command, 0)
        case While():
            return _while(session, command)
        case For():
            return _for(session, command)
        case Count():
            return _count(session, command)
        case Case():
            return _case(session, command)
        case Function():
            session.state.functions[command.name] = command.body, session.file
            return Status.YES
        case Condition():
            return _condition(session, command)
        case Evaluate():
            try:
                number = session.expander().number(command.expression)
            except UndecidedError as error:
                return session.undecided(str(error))
            return Status.YES if number else Status.NO


def _group(session: Session, group: Group) -> Status:
    status = Status.RAN

    def run() -> Status:
        nonlocal status
        status = session.run(group.body)
        return status

    before, session.out = session.out, []
    try:
        if group.subshell:
            session.apart(run)
        else:
            run()
    finally:
        printed, session.out = session.out, before
        redirected(session, group.redirects, tuple(printed), session.expander())
    return status


def _chain(session: Session, chain: Chain) -> Status:
    status = session.run(chain.first)
    for op, command in chain.rest:
        if status is Status.OPEN:
            reason = f"it depends on {session.here()}: {session.open}"
            session.either([partial(session.run, command), _nothing], reason)
            status = session.undecided(session.open)
        elif (status in (Status.YES, Status.RAN)) == (op == "&&"):
            status = _branch(session, command)
    return status


def _pipeline(session: Session, pipeline: Pipeline) -> Status:
    status = Status.YES
    read: Text | None = None
    for number, command in enumerate(pipeline.commands):
        last = number == len(pipeline.commands) - 1
        if last and number == 0:
            status = session.run(command)
            break
        before, session.out = session.out, []
        printed: list[Piece] = []

        def run(command: Command = command, read: Text | None = read) -> None:
            nonlocal status
            status = _piped(session, command, read)

        try:
            session.apart(run)
        finally:
            printed, session.out = session.out, before
        read = tuple(printed)
        if last:
            session.print(read)
    if pipeline.negated:
        status = {Status.YES: Status.NO, Status.NO: Status.YES, Status.RAN: Status.NO}.get(
            status, status
        )
    return status


def _piped(session: Session, command: Command, read: Text | None) -> Status:
    if isinstance(command, Simple):
        return simple(session, command, read)
    return session.run(command)


def _if(session: Session, command: If, at: int) -> Status:
    if at == len(command.branches):
        return _branch(session, command.otherwise)
    condition, body = command.branches[at]
    status = session.run(condition)
    if status is Status.YES:
        return _branch(session, body)
    if status is Status.NO:
        return _if(session, command, at + 1)
    line = condition.commands[0] if condition.commands else command
    session.line = getattr(line, "line", command.line)
    why_open = session.open if status is Status.OPEN else "its command is not run"
    reason = f"it depends on {session.here()}: {why_open}"
    session.either([lambda: session.run(body), lambda: _if(session, command, at + 1)], reason)
    return Status.RAN


def _branch(session: Session, body: Command) -> Status:
    """A branch that is taken for sure. One that ends the script as failed, or before anything was
    launched, is there for another case than that of somebody who asks what would be launched: what
    it sets does not count."""
    before = session.state.copy()
    try:
        return session.run(body)
    except Exit as way:
        if not way.failed and any(_starts_python(call) for call in session.found.calls):
            raise
        session.state = before
        session.found.note(f"{session.here()}: the script would end here; what follows is read")
        return Status.RAN


def _rounds(session: Session, body: Block, more: Callable[[], bool]) -> Status:
    rounds = 0
    status = Status.YES
    line = session.line
    while more():
        rounds += 1
        if rounds > _MOST_ROUNDS:
            session.found.note(
                f"{Place(session.file, line)}: the loop was left after {_MOST_ROUNDS:,} rounds"
            )
            break
        try:
            status = session.run(body)
        except Jump as jump:
            if jump.levels > 1:
                raise Jump(jump.levels - 1, jump.again) from None
            if not jump.again:
                break
    return status


def _while(session: Session, loop: While) -> Status:
    wanted = Status.NO if loop.until else Status.YES
    status = session.run(loop.condition)
    if status is Status.RAN and loop.until:
        return Status.YES
    if status in (Status.OPEN, Status.RAN):
        why_open = session.open if status is Status.OPEN else "its command is not run"
        reason = f"it depends on a loop in {session.here()}: {why_open}"
        session.either([lambda: session.run(loop.body), _nothing], reason)
        return Status.YES
    first, left = True, session.left
    endless = any(_words(one) in (["true"], [":"]) for one in loop.condition.commands)
    before: dict[str, Value] | None = None

    def more() -> bool:
        nonlocal first, before
        if first:
            first = False
            return status is wanted
        if session.left > left:  # what it waits for is known in a run: once for all rounds
            return False
        if endless and session.state.variables == before:  # each round is as the last
            return False
        before = dict(session.state.variables) if endless else None
        return session.run(loop.condition) is wanted

    return _rounds(session, loop.body, more)


def _for(session: Session, loop: For) -> Status:
    expander = session.expander()
    texts = session.state.positional if loop.words is None else expander.fields(loop.words)
    queue = list(texts)

    def more() -> bool:
        if not queue:
            return False
        text = queue.pop(0)
        name = plain(text)
        if name is not None and re.search(r"[*?\[]", name):
            text = unknown(name, text[0].place, f"which files are {name} is known in a run")
        session.state.variables[loop.name] = text
        return True

    return _rounds(session, loop.body, more)


def _count(session: Session, loop: Count) -> Status:
    try:
        session.expander().number(loop.start)

        def more() -> bool:
            return bool(session.expander().number(loop.condition))

        def step() -> bool:
            session.expander().number(loop.step)
            return more()

        turns = iter((more,))
        return _rounds(session, loop.body, lambda: next(turns, step)())
    except UndecidedError as error:
        reason = f"it depends on a loop in {session.here()}: {error}"
        session.either([lambda: session.run(loop.body), _nothing], reason)
        return Status.RAN


def _case(session: Session, command: Case) -> Status:
    expander = session.expander()
    text = expander.text(command.word)
    word = plain(text)
    if word is None:
        reason = f"it depends on {session.here()}: {why(text)}"
        bodies = [partial(session.run, body) for _, body, _ in command.clauses]
        catches = any(
            pattern.bare == "*" for patterns, _, _ in command.clauses for pattern in patterns
        )
        session.either([*bodies, *([] if catches else [_nothing])], reason)
        return Status.RAN
    falls = False
    status = Status.YES
    for patterns, body, end in command.clauses:
        if not falls:
            forms = [regex(expander.pattern(pattern) or "") for pattern in patterns]
            if not any(form and matches(form, word) for form in forms):
                continue
        status = _branch(session, body)
        falls = end == ";&"
        if end not in (";&", ";;&"):
            return status
    return status


def _condition(session: Session, command: Condition) -> Status:
    expander = session.expander()
    tokens: list[Operand | str] = []
    for token in command.tokens:
        if isinstance(token, str):
            tokens.append(token)
        else:
            tokens.append((expander.text(token), expander.pattern(token)))
    return answered(session, tokens, True)


def _starts_python(call: Called) -> bool:
    """Whether a command may be what a script is there for."""
    words = [shown(text) for text in call.words]
    script = any(word.endswith(".py") or word in ("-m", "launch", "@") for word in words)
    return script and any(_STARTS.fullmatch(word) for word in words)


def _words(command: Command) -> list[str | None]:
    return [getattr(word, "bare", None) for word in getattr(command, "words", ())]


def _nothing() -> None:
    pass
