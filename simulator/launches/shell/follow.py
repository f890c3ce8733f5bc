"""Goes through a script without running it: variables, conditions, files it calls, its commands.

What the script does not decide by itself is followed on every path: what the paths agree on is
known afterwards, and of the rest it is known why it is not. Commands that are not the shell's own
are collected as `Called`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import (
    Piece,
    Text,
    cut,
    doubted,
    joined,
    known,
    place_of,
    plain,
    shown,
    unknown,
    why,
)
from rollcast.simulator.launches.shell import arithmetic, pure
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.conditions import Answer, Conditions, Operand
from rollcast.simulator.launches.shell.expand import (
    MOST_FIELDS,
    Array,
    Expander,
    Scope,
    TooLongError,
    Value,
)
from rollcast.simulator.launches.shell.parse import ShellSyntaxError, commands
from rollcast.simulator.launches.shell.patterns import matches, regex
from rollcast.simulator.launches.shell.syntax import (
    Assignment,
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
    Redirect,
    Simple,
    While,
    Word,
)
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.stacks.settings import Place

_MOST_STEPS = 20_000
_MOST_TEXT = 50_000_000
"""Characters that all commands together may have."""
_MOST_ROUNDS, _MOST_CALLS = 1_000, 500
_DEEPEST = 12
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_PREFIXES = {"exec", "command", "builtin", "nohup", "time", "setsid", "sudo"}
_REMOTE = {"ssh", "pdsh", "tmux", "screen"}
_LAUNCHED = r"\s.*\b(?:python3?|torchrun|accelerate|deepspeed|ray)\s|^(?:python3?|torchrun)\s"
_STARTS = re.compile(r"(?:.*/)?(?:python[\d.]*|trl|rl|torchrun|accelerate|deepspeed)")
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


class Status(Enum):
    """How a command ends. OPEN: a condition that the script does not decide; RAN: one that is not
    run, and is taken to succeed."""

    YES = 0
    NO = 1
    OPEN = 2
    RAN = 3


class _Exit(Exception):  # noqa: N818 - a way out, no error
    """``exit``."""


class _Return(Exception):  # noqa: N818
    """``return``."""


class _Jump(Exception):  # noqa: N818
    """``break`` and ``continue``, out of so many loops."""

    def __init__(self, levels: int, again: bool) -> None:
        self.levels, self.again = levels, again


@dataclass(frozen=True)
class Called:
    """A command that is not the shell's own. words: with its name. missing: variables of its words
    that had no value. maybe: why it may not be reached. variables: as they were there."""

    words: tuple[Text, ...]
    place: Place
    missing: frozenset[str]
    maybe: str
    variables: Mapping[str, Value]


@dataclass(frozen=True)
class Lost:
    """A file that a script calls, and that is not there. sourced: read into the script itself."""

    name: str
    place: Place
    sourced: bool


@dataclass
class Found:
    """What was found on the way. broken: where a script could not be read on, and why."""

    calls: list[Called] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broken: tuple[Place, str] | None = None

    def note(self, text: str) -> None:
        """A sentence for the user, once."""
        if text not in self.notes and len(self.notes) < 50:
            self.notes.append(text)


def follow(sources: Sources, path: Path, environment: Mapping[str, str]) -> Found:
    """Follows a script. environment: values of variables from outside. Raises ScenarioError for one
    that cannot be read, or has no end."""
    follower = _Follower(sources, environment, path)
    try:
        follower.script(path, None)
    except (_Exit, _Return, _Jump):
        pass
    except TooLongError:
        raise ScenarioError(follower.here(), "its texts or loops grow without end") from None
    return follower.found


@dataclass
class _State:
    """What a subshell has a copy of."""

    variables: dict[str, Value]
    positional: list[Text]
    functions: dict[str, tuple[Command, str]]
    unset: set[str]
    folder: str | None = None

    def copy(self) -> _State:
        return _State(
            dict(self.variables),
            list(self.positional),
            dict(self.functions),
            set(self.unset),
            self.folder,
        )


class _Follower:
    def __init__(self, sources: Sources, environment: Mapping[str, str], path: Path) -> None:
        self.found = Found()
        self._sources = sources
        outside = Place("the environment")
        self._state = _State({k: known(v, outside) for k, v in environment.items()}, [], {}, set())
        self._file, self._folder, self._line = sources.name(path), path.parent, 0
        self._steps = self._characters = self._depth = self._loops = self._conditions = 0
        self._maybe = self._open = ""
        self._out: list[Piece] = []
        self._missing: set[str] = set()
        self._seen: set[tuple[Place, tuple[str, ...]]] = set()
        self._zero = path

    def here(self) -> str:
        """The line that is followed now."""
        return str(Place(self._file, self._line))

    # Scripts

    def script(self, path: Path, called: Place | None) -> None:
        """Follows a file. called: where it is named."""
        text = self._sources.read(path, called)
        if self._depth >= _DEEPEST:
            raise ScenarioError(str(called), "files call each other without end")
        before = self._file, self._folder, self._line
        self._file, self._folder = self._sources.name(path), path.parent
        source = self._state.variables.get("BASH_SOURCE")
        absolute = known(str(path.absolute()), Place(self._file))
        self._state.variables["BASH_SOURCE"] = Array({0: absolute})
        self._depth += 1
        try:
            self.text(text, 1)
        finally:
            self._depth -= 1
            self._file, self._folder, self._line = before
            if source is not None:
                self._state.variables["BASH_SOURCE"] = source

    def text(self, text: str, line: int) -> Status:
        """Follows the commands of a text. Raises ScenarioError where it cannot be parsed, unless
        commands were found before."""
        status = Status.YES
        try:
            for command in commands(text, line):
                status = self._run(command)
        except ShellSyntaxError as error:
            if not self.found.calls:
                raise ScenarioError(
                    str(Place(self._file, error.line)), f"is no shell script: {error}"
                ) from None
            place = Place(self._file, error.line)
            self.found.note(f"{place}: not read from here on: {error}")
            self.found.broken = self.found.broken or (place, str(error))
        return status

    # Commands

    def _run(self, command: Command) -> Status:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ScenarioError(self.here(), f"more than {_MOST_STEPS:,} commands are followed")
        self._line = getattr(command, "line", self._line)
        match command:
            case Simple():
                return self._simple(command)
            case Block():
                status = Status.YES
                for one in command.commands:
                    status = self._run(one)
                return status
            case Group():
                return self._group(command)
            case Chain():
                return self._chain(command)
            case Pipeline():
                return self._pipeline(command)
            case Background():
                self._apart(lambda: self._run(command.command))
                return Status.YES
            case If():
                return self._if(command, 0)
            case While():
                return self._while(command)
            case For():
                return self._for(command)
            case Count():
                return self._count(command)
            case Case():
                return self._case(command)
            case Function():
                self._state.functions[command.name] = command.body, self._file
                return Status.YES
            case Condition():
                return self._condition(command)
            case Evaluate():
                try:
                    number = self._expander().number(command.expression)
                except UndecidedError as error:
                    return self._undecided(str(error))
                return Status.YES if number else Status.NO

    def _undecided(self, reason: str) -> Status:
        self._open = reason
        return Status.OPEN

    def _expander(self) -> Expander:
        state = self._state
        place = Place(self._file, self._line)
        special = {"0": known(str(self._zero.absolute()), place)}
        if "PWD" not in state.variables and state.folder is not None:
            special["PWD"] = known(state.folder, place)
        scope = Scope(self._file, state.variables, state.positional, special, state.unset)
        return Expander(scope, self._output, self._missing)

    def _output(self, body: Block, text: str, place: Place) -> Text:
        """What a command substitution prints."""
        before, self._out = self._out, []
        printed: list[Piece] = []

        def run() -> None:
            self._run(body)

        try:
            self._apart(run)
        finally:
            printed, self._out = self._out, before
        reason = why(tuple(printed))
        if reason and not _path_like(printed):
            return unknown(text, place, reason)
        while printed and not printed[-1].why and printed[-1].text.endswith("\n"):
            rest = printed[-1].text.rstrip("\n")
            last = printed.pop()
            if rest:
                printed.append(Piece(rest, last.place))
                break
        return tuple(printed)

    def _print(self, text: Text) -> None:
        self._out.extend(text)
        if len(self._out) > 100_000:
            raise TooLongError

    def _apart(self, run: Callable[[], object]) -> None:
        """In a subshell: nothing that is set there stays."""
        before, self._state = self._state, self._state.copy()
        depth = self._depth
        self._depth += 1
        if self._depth > 4 * _DEEPEST:
            raise ScenarioError(self.here(), "nested too deeply")
        try:
            run()
        except (_Exit, _Return, _Jump):
            pass
        finally:
            self._state, self._depth = before, depth

    def _group(self, group: Group) -> Status:
        status = Status.RAN

        def run() -> Status:
            nonlocal status
            status = self._run(group.body)
            return status

        before, self._out = self._out, []
        try:
            if group.subshell:
                self._apart(run)
            else:
                run()
        finally:
            printed, self._out = self._out, before
            self._redirected(group.redirects, tuple(printed), self._expander())
        return status

    def _chain(self, chain: Chain) -> Status:
        status = self._run(chain.first)
        for op, command in chain.rest:
            if status is Status.OPEN:
                reason = f"it depends on {self.here()}: {self._open}"
                self._either([partial(self._run, command), _nothing], reason)
                status = self._undecided(self._open)
            elif (status in (Status.YES, Status.RAN)) == (op == "&&"):
                status = self._branch(command)
        return status

    def _pipeline(self, pipeline: Pipeline) -> Status:
        status = Status.YES
        read: Text | None = None
        for number, command in enumerate(pipeline.commands):
            last = number == len(pipeline.commands) - 1
            if last and number == 0:
                status = self._run(command)
                break
            before, self._out = self._out, []
            printed: list[Piece] = []

            def run(command: Command = command, read: Text | None = read) -> None:
                nonlocal status
                status = self._piped(command, read)

            try:
                self._apart(run)
            finally:
                printed, self._out = self._out, before
            read = tuple(printed)
            if last:
                self._print(read)
        if pipeline.negated:
            status = {Status.YES: Status.NO, Status.NO: Status.YES, Status.RAN: Status.NO}.get(
                status, status
            )
        return status

    def _piped(self, command: Command, read: Text | None) -> Status:
        if isinstance(command, Simple):
            return self._simple(command, read)
        return self._run(command)

    # Paths

    def _either(self, branches: Sequence[Callable[[], object]], reason: str) -> None:
        """Follows each of several ways from here, and keeps what they agree on."""
        before, doubt = self._state, self._maybe
        outcomes = []
        self._conditions += 1
        for branch in branches:
            self._state = before.copy()
            self._maybe = doubt or reason
            try:
                branch()
            except (_Exit, _Return, _Jump):
                continue  # the rest is what runs otherwise
            finally:
                self._maybe = doubt
            outcomes.append(self._state)
        self._conditions -= 1
        self._state = self._merged(before, outcomes or [before], reason)

    def _merged(self, before: _State, outcomes: Sequence[_State], reason: str) -> _State:
        first, *others = outcomes
        if not others:
            return first
        merged = first.copy()
        for name in {name for one in outcomes for name in one.variables}:
            values = [one.variables.get(name) for one in outcomes]
            if all(value is values[0] for value in values[1:]):
                continue
            merged.variables[name] = _agreed(name, values, reason, Place(self._file, self._line))
        for one in others:
            merged.functions.update(one.functions)
            merged.unset &= one.unset
            if one.folder != merged.folder:
                merged.folder = None
            if [*map(shown, one.positional)] != [*map(shown, merged.positional)]:
                merged.positional = before.positional
        return merged

    def _if(self, command: If, at: int) -> Status:
        if at == len(command.branches):
            return self._branch(command.otherwise)
        condition, body = command.branches[at]
        status = self._run(condition)
        if status is Status.YES:
            return self._branch(body)
        if status is Status.NO:
            return self._if(command, at + 1)
        line = condition.commands[0] if condition.commands else command
        self._line = getattr(line, "line", command.line)
        why_open = self._open if status is Status.OPEN else "its command is not run"
        reason = f"it depends on {self.here()}: {why_open}"
        self._either([lambda: self._run(body), lambda: self._if(command, at + 1)], reason)
        return Status.RAN

    def _branch(self, body: Command) -> Status:
        """A branch that is taken for sure. One that ends the script before anything was launched is
        there for another case than that of somebody who asks what would be launched."""
        self._conditions += 1
        try:
            return self._run(body)
        except _Exit:
            if any(_starts_python(call) for call in self.found.calls):
                raise
            self.found.note(f"{self.here()}: the script would end here; what follows is read")
            return Status.RAN
        finally:
            self._conditions -= 1

    def _rounds(self, body: Block, more: Callable[[], bool]) -> Status:
        rounds = 0
        status = Status.YES
        line = self._line
        while more():
            rounds += 1
            if rounds > _MOST_ROUNDS:
                self.found.note(
                    f"{Place(self._file, line)}: the loop was left after {_MOST_ROUNDS:,} rounds"
                )
                break
            try:
                status = self._run(body)
            except _Jump as jump:
                if jump.levels > 1:
                    raise _Jump(jump.levels - 1, jump.again) from None
                if not jump.again:
                    break
        return status

    def _while(self, loop: While) -> Status:
        wanted = Status.NO if loop.until else Status.YES
        status = self._run(loop.condition)
        if status is Status.RAN and loop.until:
            return Status.YES
        if status in (Status.OPEN, Status.RAN):
            why_open = self._open if status is Status.OPEN else "its command is not run"
            reason = f"it depends on a loop in {self.here()}: {why_open}"
            self._either([lambda: self._run(loop.body), _nothing], reason)
            return Status.YES
        first = True

        def more() -> bool:
            nonlocal first
            if first:
                first = False
                return status is wanted
            return self._run(loop.condition) is wanted

        return self._rounds(loop.body, more)

    def _for(self, loop: For) -> Status:
        expander = self._expander()
        texts = self._state.positional if loop.words is None else expander.fields(loop.words)
        queue = list(texts)

        def more() -> bool:
            if not queue:
                return False
            text = queue.pop(0)
            name = plain(text)
            if name is not None and re.search(r"[*?\[]", name):
                text = unknown(name, text[0].place, f"which files are {name} is known in a run")
            self._state.variables[loop.name] = text
            return True

        return self._rounds(loop.body, more)

    def _count(self, loop: Count) -> Status:
        try:
            self._expander().number(loop.start)

            def more() -> bool:
                return bool(self._expander().number(loop.condition))

            def step() -> bool:
                self._expander().number(loop.step)
                return more()

            turns = iter((more,))
            return self._rounds(loop.body, lambda: next(turns, step)())
        except UndecidedError as error:
            reason = f"it depends on a loop in {self.here()}: {error}"
            self._either([lambda: self._run(loop.body), _nothing], reason)
            return Status.RAN

    def _case(self, command: Case) -> Status:
        expander = self._expander()
        text = expander.text(command.word)
        word = plain(text)
        if word is None:
            reason = f"it depends on {self.here()}: {why(text)}"
            bodies = [partial(self._run, body) for _, body, _ in command.clauses]
            catches = any(
                pattern.bare == "*" for patterns, _, _ in command.clauses for pattern in patterns
            )
            self._either([*bodies, *([] if catches else [_nothing])], reason)
            return Status.RAN
        falls = False
        status = Status.YES
        for patterns, body, end in command.clauses:
            if not falls:
                forms = [regex(expander.pattern(pattern) or "") for pattern in patterns]
                if not any(form and matches(form, word) for form in forms):
                    continue
            status = self._branch(body)
            falls = end == ";&"
            if end not in (";&", ";;&"):
                return status
        return status

    # Conditions

    def _condition(self, command: Condition) -> Status:
        expander = self._expander()
        tokens: list[Operand | str] = []
        for token in command.tokens:
            if isinstance(token, str):
                tokens.append(token)
            else:
                tokens.append((expander.text(token), expander.pattern(token)))
        return self._answered(tokens, True)

    def _answered(self, tokens: Sequence[Operand | str], patterns: bool) -> Status:
        answer: Answer = Conditions(tokens, self._whole, self._is_set, patterns).answer()
        if answer.holds is None:
            return self._undecided(answer.why)
        return Status.YES if answer.holds else Status.NO

    def _whole(self, text: Text) -> int | str:
        if plain(text) is None:
            return why(text)
        try:
            expander = self._expander()
            return arithmetic.value(shown(text), expander.number_text, expander.store)
        except UndecidedError as error:
            return str(error)

    def _is_set(self, name: str) -> bool | None:
        return True if name in self._state.variables else None

    # Simple commands

    def _simple(self, command: Simple, read: Text | None = None) -> Status:
        expander = self._expander()
        self._missing = expander.missing = set()
        fields: list[Text] = []
        for word in command.words:
            if isinstance(word, Assignment):
                self._assign(word)
            else:
                fields.extend(expander.fields([word]))
        for text in fields:
            self._characters += sum(len(piece.text) for piece in text)
        if self._characters > _MOST_TEXT or len(fields) > MOST_FIELDS:
            raise TooLongError
        for redirect in command.redirects:
            for body in redirect.body:
                read = expander.text(body)
                if redirect.op == "<<<":
                    read = (*read, *known("\n", Place(self._file, command.line)))
            if redirect.op == "<":
                name = shown(expander.text(redirect.target))
                read = self._sources.written.get(name)
        if not fields:
            for assignment in command.assignments:
                self._assign(assignment)
            self._redirected(command.redirects, (), expander)
            return Status.YES
        before, self._out = self._out, []
        try:
            with_values = {a.name: a.value for a in command.assignments}
            separator = with_values.get("IFS")
            status = self._call(fields, read, command, separator, frozenset(expander.missing))
        finally:
            printed, self._out = self._out, before
            self._redirected(command.redirects, tuple(printed), expander)
        return status

    def _redirected(self, redirects: Iterable[Redirect], printed: Text, expander: Expander) -> None:
        """Writes what was printed to the script's own files, or lets it pass."""
        for redirect in redirects:
            if redirect.op in (">", ">>", ">|", "&>", "&>>") and redirect.fd in ("", "1"):
                name = shown(expander.text(redirect.target))
                self._sources.write(name, printed, redirect.op.endswith(">>"))
                return
            if redirect.op == ">&" and redirect.fd in ("", "1"):
                return
        self._print(printed)

    def _assign(self, assignment: Assignment) -> None:
        expander = self._expander()
        variables = self._state.variables
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
                    array.items[self._index(array, index)] = expander.text(word)
                    continue
                for text in expander.fields([word]):
                    array.items[array.next()] = text
            if sum(map(len, array.items.values())) > 20_000:
                raise TooLongError
            value = array
        elif assignment.index is not None:
            array = held.copy() if isinstance(held, Array) else Array()
            at = self._index(array, assignment.index)
            text = expander.text(assignment.value)
            array.items[at] = (*array.items.get(at, ()), *text) if assignment.append else text
            value = array
        else:
            text = expander.text(assignment.value)
            if assignment.append and isinstance(held, Array):
                value = held.copy()
                value.items[0] = (*held.items.get(0, ()), *text)
            elif assignment.append:
                value = (*(held if isinstance(held, tuple) else ()), *text)
                if sum(len(piece.text) for piece in value) > 1_000_000:
                    raise TooLongError
            else:
                value = text
        variables[assignment.name] = value
        self._state.unset.discard(assignment.name)

    def _index(self, array: Array, word: Word) -> int | str:
        expander = self._expander()
        if array.named:
            return shown(expander.text(word))
        try:
            return expander.number(word)
        except UndecidedError:
            array.named = True
            return shown(expander.text(word))

    def _call(
        self,
        fields: list[Text],
        read: Text | None,
        command: Simple,
        separator: object,
        missing: frozenset[str],
    ) -> Status:
        name = plain(fields[0])
        while name in _PREFIXES and len(fields) > 1 and not shown(fields[1]).startswith("-"):
            fields = fields[1:]
            name = plain(fields[0])
        if name is None:
            return self._external(fields, command, missing)
        if name in self._state.functions:
            return self._function(name, fields[1:])
        own = getattr(self, f"_do_{_METHODS.get(name, '')}", None) if name in _METHODS else None
        if own is not None:
            status: Status = own(fields, read, command)
            return status
        if name == "read":
            return self._read(fields[1:], read, separator)
        return self._other(name, fields, read, command, missing)

    def _function(self, name: str, arguments: list[Text]) -> Status:
        body, file = self._state.functions[name]
        if self._depth >= _DEEPEST:
            raise ScenarioError(self.here(), f"{name} calls itself without end")
        positional, before = self._state.positional, self._file
        line = self._line
        self._state.positional, self._file = arguments, file
        self._depth += 1
        try:
            return self._run(body)
        except _Return:
            return Status.RAN
        finally:
            self._depth -= 1
            self._state.positional, self._file, self._line = positional, before, line

    def _do_true(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        return Status.YES

    def _do_false(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        return Status.NO

    def _do_exit(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        raise _Exit

    def _do_return(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        raise _Return

    def _do_break(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        levels = shown(fields[1]) if len(fields) > 1 else "1"
        raise _Jump(
            int(levels) if levels.isdecimal() and len(levels) < 4 else 1,
            shown(fields[0]) == "continue",
        )

    def _do_declare(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        """``export A=b`` and its like, where the words are not assignments by their form."""
        if any(re.fullmatch(r"-\w*A\w*", shown(text)) for text in fields[1:]):
            for word in command.words:
                name = word.name if isinstance(word, Assignment) else word.bare or ""
                if isinstance(word, Assignment):
                    self._state.variables.pop(word.name, None)
                    self._state.variables[word.name] = Array({}, True)
                    self._assign(word)
                elif re.fullmatch(r"[A-Za-z_]\w*", name) and name not in _METHODS:
                    self._state.variables[name] = Array({}, True)
        for text in fields[1:]:
            match = re.match(r"([A-Za-z_]\w*)=", shown(text))
            if match and not text[0].why:
                self._state.variables[match[1]] = cut(text, match.end())[1]
        return Status.YES

    def _do_unset(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        for text in fields[1:]:
            self._state.variables.pop(shown(text), None)
            self._state.unset.add(shown(text))
        return Status.YES

    def _do_shift(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        count = shown(fields[1]) if len(fields) > 1 else "1"
        here = self._state.positional
        self._state.positional = here[int(count) if count.isdecimal() and len(count) < 6 else 1 :]
        return Status.YES if here else Status.RAN

    def _do_set(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        words = [shown(text) for text in fields[1:]]
        if "--" in words:
            self._state.positional = fields[2 + words.index("--") :]
        return Status.YES

    def _do_cd(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        words = [text for text in fields[1:] if not shown(text).startswith("-")]
        to = plain(words[0]) if words else None
        if to is None or not (to.startswith("/") or self._state.folder is not None):
            relative = to is not None and not to.startswith("/")
            if relative and (self._folder / str(to)).is_dir():
                self._state.folder = None
            else:
                self._state.folder = None
        else:
            self._state.folder = posixpath.normpath(posixpath.join(self._state.folder or "/", to))
        return Status.YES

    def _do_pwd(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        place = Place(self._file, command.line)
        if self._state.folder is None:
            reason = "the folder that it is started in is known in a run"
            self._print(unknown("$(pwd)", place, reason))
        else:
            self._print(known(self._state.folder + "\n", place))
        return Status.YES

    def _do_test(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        words = fields[1:]
        if shown(fields[0]) == "[" and words and shown(words[-1]) == "]":
            words = words[:-1]
        return self._answered([(text, None) for text in words], False)

    def _do_let(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        number: int | str = 0
        for text in fields[1:]:
            number = self._whole(text)
        return self._undecided(number) if isinstance(number, str) else Status.YES

    def _do_eval(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        text = shown(joined(fields[1:], " ", Place(self._file, command.line)))
        return self._inner(text, command.line)

    def _do_source(self, fields: list[Text], read: Text | None, command: Simple) -> Status:
        if len(fields) < 2:
            return Status.RAN
        place = Place(self._file, command.line)
        written = self._sources.written.get(shown(fields[1]))
        if written is not None:
            return self._inner(shown(written), command.line)
        path = self._sources.find(fields[1], *self._folders())
        if path is None:
            if not self._maybe:
                self.found.lost.append(Lost(shown(fields[1]), place, True))
            self.found.note(f"{place}: calls {shown(fields[1])}, which is not there")
            return Status.RAN
        positional = self._state.positional
        if len(fields) > 2:
            self._state.positional = fields[2:]
        try:
            self.script(path, place)
        except _Return:
            pass
        finally:
            self._state.positional = positional
        return Status.RAN

    def _folders(self) -> list[Path]:
        """Where a file that is named is looked for first."""
        folders = [] if self._state.folder is None else [Path(self._state.folder)]
        return [*folders, self._folder]

    def _read(self, fields: list[Text], read: Text | None, separator: object) -> Status:
        """``read``: names, from a here-document or a text."""
        words = [shown(text) for text in fields]
        options = "".join(word[1:] for word in words if re.fullmatch(r"-[a-zA-Z]+", word))
        names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)]
        place = Place(self._file, self._line)
        text = None if read is None else plain(read)
        mark = ""
        if isinstance(separator, Word):
            mark = shown(self._expander().text(separator))
        if not names:
            return Status.RAN
        if text is None or read is None:
            for name in names:
                self._state.variables[name] = unknown(f"${name}", place, "it is read in a run")
            return self._undecided("what is read is known in a run alone")
        if "d" not in options:
            text = text.partition("\n")[0]
            parts = text.split(mark) if mark else text.split()
            if "a" in options:
                array = Array({at: known(part, place) for at, part in enumerate(parts)})
                self._state.variables[names[-1]] = array
                return Status.YES
            for at, name in enumerate(names):
                last = at == len(names) - 1
                value = (mark or " ").join(parts[at:]) if last else "".join(parts[at : at + 1])
                self._state.variables[name] = known(value, place)
            return Status.YES
        self._state.variables[names[-1]] = read
        return Status.YES

    def _inner(self, text: str, line: int, positional: list[Text] | None = None) -> Status:
        """Follows a text as a script within this one."""
        if self._depth >= _DEEPEST:
            raise ScenarioError(self.here(), "scripts hold each other without end")
        before = self._state.positional
        self._depth += 1
        if positional is not None:
            self._state.positional = positional
        try:
            return self.text(text, line)
        finally:
            self._depth -= 1
            self._state.positional = before

    def _other(
        self,
        name: str,
        fields: list[Text],
        read: Text | None,
        command: Simple,
        missing: frozenset[str],
    ) -> Status:
        words = [plain(text) for text in fields]
        place = Place(self._file, command.line)
        printed = self._printed(name, fields, words, read, place)
        if printed is not None:
            self._print(printed)
            return Status.YES
        for at, word in enumerate(words[:-1]):
            option = words[at + 1] or ""
            shell = posixpath.basename(word or "") in _SHELLS and at + 2 < len(words)
            if shell and re.fullmatch(r"-[a-z]*c", option):
                text = fields[at + 2]
                line = place_of(text, place).line
                self._apart(partial(self._inner, shown(text), line, fields[at + 4 :]))
                return Status.RAN
        for at, word in enumerate(words):
            if word and re.search(r"\.(sh|bash|slurm|sbatch)$", word) and self._calls(words, at):
                return self._script(fields, at, place)
        if name in _REMOTE and len(fields) > 1 and re.search(_LAUNCHED, shown(fields[-1])):
            line = place_of(fields[-1], place).line
            self._apart(partial(self._inner, shown(fields[-1]), line))
            return Status.RAN
        return self._external(fields, command, missing)

    @staticmethod
    def _calls(words: Sequence[str | None], at: int) -> bool:
        """Whether a word that names a script is what is called, not an argument of a program."""
        before = {posixpath.basename(word or "") for word in words[:at]}
        return at == 0 or bool(before & (_SHELLS | {"sbatch"})) or bool(before & _LAUNCHERS)

    def _script(self, fields: list[Text], at: int, place: Place) -> Status:
        path = self._sources.find(fields[at], *self._folders())
        if path is None:
            self.found.lost.append(Lost(shown(fields[at]), place, False))
            return Status.RAN

        def run() -> None:
            self._state.positional = fields[at + 1 :]
            before, self._zero = self._zero, path
            try:
                self.script(path, place)
            finally:
                self._zero = before

        self._apart(run)
        return Status.RAN

    def _printed(
        self,
        name: str,
        fields: list[Text],
        words: Sequence[str | None],
        read: Text | None,
        place: Place,
    ) -> Text | None:
        """What a command prints, if it follows from its words and input."""
        if name == "cat" and len(fields) == 1 and read is not None:
            return read
        if name == "cat" and len(fields) == 2 and (words[1] or "") in self._sources.written:
            return self._sources.written[words[1] or ""]
        if name == "tee" and len(fields) == 2 and read is not None:
            self._sources.write(shown(fields[1]), read, False)
            return read
        if name in ("realpath", "readlink") and words[-1] and len(fields) > 1:
            folder = self._state.folder
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

    def _external(self, fields: list[Text], command: Simple, missing: frozenset[str]) -> Status:
        place = Place(self._file, command.line)
        name = shown(fields[0])
        self._print(unknown(name, place, f"{posixpath.basename(name)} is not run"))
        key = (place, tuple(map(shown, fields)))
        if len(self.found.calls) < _MOST_CALLS and len(fields) > 1 and key not in self._seen:
            self._seen.add(key)
            variables = dict(self._state.variables)
            call = Called(tuple(fields), place, missing, self._maybe, variables)
            self.found.calls.append(call)
        return Status.RAN


def _starts_python(call: Called) -> bool:
    """Whether a command may be what a script is there for."""
    words = [shown(text) for text in call.words]
    script = any(word.endswith(".py") or word in ("-m", "launch", "@") for word in words)
    return script and any(_STARTS.fullmatch(word) for word in words)


def _nothing() -> None:
    pass


def _path_like(printed: Sequence[Piece]) -> bool:
    """Whether what is not known is the start of a path, whose rest is known."""
    return bool(printed) and bool(printed[0].why) and "/" in printed[-1].text


def _agreed(name: str, values: Sequence[Value | None], reason: str, place: Place) -> Value:
    """What a variable is after paths that may have set it differently."""
    arrays = [value for value in values if isinstance(value, Array)]
    if len(arrays) == len(values) and not any(array.named for array in arrays):
        lists = [array.texts() for array in arrays]
        same = 0
        while all(same < len(one) for one in lists) and (
            len({shown(one[same]) for one in lists}) == 1
        ):
            same += 1
        found = lists[0][:same]
        for one in lists:
            found.extend(doubted(text, reason) for text in one[same:])
        return Array(dict(enumerate(found)))
    texts = [value if isinstance(value, tuple) else () for value in values if value is not None]
    if len(texts) < len(values) or arrays:
        return unknown(f"${name}", place, reason)
    first, *others = texts
    if all(shown(one) == shown(first) and why(one) == why(first) for one in others):
        return first
    shortest = min(texts, key=lambda one: len(shown(one)))
    longer = {shown(one) for one in texts} - {shown(shortest)}
    if len(longer) == 1 and next(iter(longer)).startswith(shown(shortest)):
        longest = max(texts, key=lambda one: len(shown(one)))
        before, after = cut(longest, len(shown(shortest)))
        if not after[:1] or after[0].text[:1].isspace() or not before or shown(before)[-1:] == " ":
            return (*before, *doubted(after, reason))
    return unknown(f"${name}", place, reason)


_METHODS = {
    **{":": "true", "true": "true", "false": "false", "exit": "exit", "return": "return"},
    **{"break": "break", "continue": "break", "unset": "unset", "shift": "shift", "set": "set"},
    **{"export": "declare", "declare": "declare", "typeset": "declare", "local": "declare"},
    **{"readonly": "declare", "cd": "cd", "pushd": "cd", "pwd": "pwd", "[": "test"},
    **{"test": "test", "let": "let", "eval": "eval", "source": "source", ".": "source"},
}
