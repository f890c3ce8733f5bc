"""Where a script stands while it is followed, and the steps that all kinds of commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import (
    Piece,
    Text,
    cut,
    doubted,
    known,
    place_of,
    shown,
    unknown,
    why,
)
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.expand import Array, Expander, Scope, Value
from rollcast.simulator.launches.shell.parse import ShellSyntaxError, commands
from rollcast.simulator.launches.shell.syntax import Block, Command
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.stacks.settings import Place


@dataclass(frozen=True)
class Called:
    """A command that is not the shell's own. words: with its name. missing: variables of its words
    that had no value. maybe: why it may not be reached. variables: as they were there. folders: in
    which files that it names are looked for first."""

    words: tuple[Text, ...]
    place: Place
    missing: frozenset[str]
    maybe: str
    variables: Mapping[str, Value]
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A file that a script calls, and that is not there. sourced: read into the script itself."""

    name: Text
    place: Place
    sourced: bool

    @property
    def said(self) -> str:
        """A sentence of it, whose subject is the place."""
        at = max((at for at, piece in enumerate(self.name) if piece.why), default=-1)
        if at >= 0 and "/" not in shown(self.name[at + 1 :]):
            return f"which file it calls is not known: {shown(self.name)}: {self.name[at].why}"
        return f"calls another file that is not there: {shown(self.name)}"


@dataclass
class Found:
    """What was found on the way. broken: the error of the first place from which a script
    could not be followed on."""

    calls: list[Called] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broken: ScenarioError | None = None

    def note(self, text: str) -> None:
        """A sentence for the user, once."""
        if text not in self.notes and len(self.notes) < 50:
            self.notes.append(text)


@dataclass
class State:
    """What a subshell has a copy of. folder: that the script is in, where it says so from the root
    on. near: folders here that a relative ``cd`` may have meant."""

    variables: dict[str, Value]
    positional: list[Text]
    functions: dict[str, tuple[Command, str]]
    unset: set[str]
    folder: str | None = None
    near: tuple[Path, ...] = ()

    def copy(self) -> State:
        """A state of its own."""
        return State(
            dict(self.variables),
            list(self.positional),
            dict(self.functions),
            set(self.unset),
            self.folder,
            self.near,
        )


def merged(before: State, outcomes: Sequence[State], reason: str, place: Place) -> State:
    """What several ways agree on. place: where they meet."""
    first, *others = outcomes
    if not others:
        return first
    merged = first.copy()
    for name in {name for one in outcomes for name in one.variables}:
        values = [one.variables.get(name) for one in outcomes]
        if all(value is values[0] for value in values[1:]):
            continue
        merged.variables[name] = _agreed(name, values, reason, place)
    for one in others:
        merged.functions.update(one.functions)
        merged.unset &= one.unset
        if one.folder != merged.folder:
            merged.folder = None
        if [*map(shown, one.positional)] != [*map(shown, merged.positional)]:
            merged.positional = before.positional
    return merged


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


DEEPEST = 12


class Status(Enum):
    """How a command ends. OPEN: a condition that the script does not decide; RAN: one that is not
    run, and is taken to succeed."""

    YES = 0
    NO = 1
    OPEN = 2
    RAN = 3


class Exit(Exception):  # noqa: N818 - a way out, no error
    """``exit``. failed: whether with a code that says so."""

    def __init__(self, failed: bool) -> None:
        self.failed = failed


class Return(Exception):  # noqa: N818
    """``return``."""


class Jump(Exception):  # noqa: N818
    """``break`` and ``continue``, out of so many loops."""

    def __init__(self, levels: int, again: bool) -> None:
        self.levels, self.again = levels, again


class Session:
    """A script that is followed. run: follows a command; environment: values of variables from
    outside; path: of the script. maybe: why what is followed now may not be reached. open: why the
    last condition is not decided. out: what is printed where output is collected. left: ways that
    would have left a loop, none of which was taken. panes: states of other terminals."""

    def __init__(
        self,
        sources: Sources,
        environment: Mapping[str, str],
        path: Path,
        run: Callable[[Session, Command], Status],
    ) -> None:
        self.found = Found()
        self.sources = sources
        outside = Place("the environment")
        self.state = State({k: known(v, outside) for k, v in environment.items()}, [], {}, set())
        self.file, self.folder, self.line = sources.name(path), path.parent, 0
        self.steps = self.characters = self.depth = 0
        self.maybe = self.open = ""
        self.left = 0
        self.out: list[Piece] = []
        self.missing: set[str] = set()
        self.panes: dict[str, State] = {}
        self.seen: set[tuple[Place, tuple[str, ...]]] = set()
        self.zero = path
        self._run = run

    def run(self, command: Command) -> Status:
        """Follows a command."""
        return self._run(self, command)

    def script(self, path: Path, called: Place | None) -> None:
        """Follows a file. called: where it is named."""
        text = self.sources.read(path, called)
        if self.depth >= DEEPEST:
            raise ScenarioError(str(called), "files call each other without end")
        before = self.file, self.folder, self.line
        self.file, self.folder = self.sources.name(path), path.parent
        source = self.state.variables.get("BASH_SOURCE")
        absolute = known(str(path.absolute()), Place(self.file))
        self.state.variables["BASH_SOURCE"] = Array({0: absolute})
        self.depth += 1
        try:
            self.text(text, 1)
        finally:
            self.depth -= 1
            self.file, self.folder, self.line = before
            if source is not None:
                self.state.variables["BASH_SOURCE"] = source

    def text(self, text: str, line: int) -> Status:
        """Follows the commands of a text. Raises ScenarioError where it cannot be parsed, unless
        commands were found before."""
        status = Status.YES
        try:
            for command in commands(text, line):
                status = self.run(command)
        except ShellSyntaxError as error:
            place = str(Place(self.file, error.line))
            broken = ScenarioError(place, f"is no shell script: {error}")
            if not self.found.calls:
                raise broken from None
            self.found.note(f"{place}: not read from here on: {error}")
            self.found.broken = self.found.broken or broken
        return status

    def here(self) -> str:
        """The line that is followed now."""
        return str(self.place())

    def place(self) -> Place:
        """The line that is followed now."""
        return Place(self.file, self.line)

    def undecided(self, reason: str) -> Status:
        """A condition that the script does not decide."""
        self.open = reason
        return Status.OPEN

    def expander(self) -> Expander:
        """Gives words their values as they are here."""
        state = self.state
        place = self.place()
        special = {"0": known(str(self.zero.absolute()), place)}
        if "PWD" not in state.variables and state.folder is not None:
            special["PWD"] = known(state.folder, place)
        scope = Scope(self.file, state.variables, state.positional, special, state.unset)
        return Expander(scope, self.output, self.missing)

    def output(self, body: Block, text: str, place: Place) -> Text:
        """What a command substitution prints."""
        before, self.out = self.out, []
        printed: list[Piece] = []

        def run() -> None:
            self.run(body)

        try:
            self.apart(run)
        finally:
            printed, self.out = self.out, before
        reason = why(tuple(printed))
        if reason and not _path_like(printed) and not _script_like(printed):
            return unknown(text, place, reason)
        while printed and not printed[-1].why and printed[-1].text.endswith("\n"):
            rest = printed[-1].text.rstrip("\n")
            last = printed.pop()
            if rest:
                printed.append(Piece(rest, last.place))
                break
        return tuple(printed)

    def print(self, text: Text) -> None:
        """Collects what a command prints. Raises TooLongError."""
        self.out.extend(text)
        if len(self.out) > 100_000:
            raise TooLongError

    def apart(self, run: Callable[[], object]) -> None:
        """In a subshell: nothing that is set there stays."""
        before, self.state = self.state, self.state.copy()
        depth = self.depth
        self.depth += 1
        if self.depth > 4 * DEEPEST:
            raise ScenarioError(self.here(), "nested too deeply")
        try:
            run()
        except (Exit, Return, Jump):
            pass
        finally:
            self.state, self.depth = before, depth

    def typed(self, pane: str, text: Text) -> None:
        """Follows what is typed into a terminal of its own, whose state stays for what comes."""
        before, self.state = self.state, self.panes.get(pane, self.state).copy()
        try:
            self.inner(shown(text), place_of(text, self.place()).line, [])
        except (Exit, Return, Jump):
            pass
        finally:
            self.panes[pane], self.state = self.state, before

    def either(self, branches: Sequence[Callable[[], object]], reason: str) -> None:
        """Follows each of several ways from here, and keeps what they agree on."""
        before, doubt = self.state, self.maybe
        outcomes = []
        for branch in branches:
            self.state = before.copy()
            self.maybe = doubt or reason
            try:
                branch()
            except (Exit, Return, Jump) as way:
                self.left += not (isinstance(way, Jump) and way.again)
                continue  # the rest is what runs otherwise
            finally:
                self.maybe = doubt
            outcomes.append(self.state)
        self.state = merged(before, outcomes or [before], reason, self.place())

    def folders(self) -> list[Path]:
        """Where a file that is named is looked for first."""
        folders = [] if self.state.folder is None else [Path(self.state.folder)]
        return [*folders, *self.state.near, self.folder]

    def inner(self, text: str, line: int, positional: list[Text] | None = None) -> Status:
        """Follows a text as a script within this one."""
        if self.depth >= DEEPEST:
            raise ScenarioError(self.here(), "scripts hold each other without end")
        before = self.state.positional
        self.depth += 1
        if positional is not None:
            self.state.positional = positional
        try:
            return self.text(text, line)
        finally:
            self.depth -= 1
            self.state.positional = before


def _path_like(printed: Sequence[Piece]) -> bool:
    """Whether what is not known is the start of a path, whose rest is known."""
    return bool(printed) and bool(printed[0].why) and "/" in printed[-1].text


def _script_like(printed: Sequence[Piece]) -> bool:
    """Whether whole lines of a text are known, as of a script in which a variable is not."""
    first = printed[0] if printed else None
    return (
        first is not None
        and not first.why
        and "\n" in "".join(piece.text for piece in printed if not piece.why).strip("\n")
    )
