"""What a stack starts that is no RL loop that is known: such a launch is refused, and not priced as
if it were one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from rollcast.simulator.launches.names import is_called
from rollcast.simulator.launches.pieces import Text, plain, shown
from rollcast.simulator.launches.python.script import Script
from rollcast.simulator.launches.words import Program
from rollcast.simulator.stacks.launch import Given, Launch
from rollcast.simulator.stacks.settings import Place


def by_program(launch: Launch, words: Sequence[Text], program: Program) -> str:
    """What a command starts, if it is another of the stack's: a program, or it and the word after
    it; else nothing. Of a path from the root on, its end that tells."""
    names = [program.name]
    if not program.module and program.at + 1 < len(words):
        names.append(f"{program.name} {plain(words[program.at + 1])}")
    patterns = [pattern for other in launch.others for pattern in other.programs]
    if shown(program.path).startswith("/"):
        parts = program.name.split(".")
        names = [".".join(parts[at:]) for at in reversed(range(len(parts)))]
    return next((name for name in names if _matches(name, patterns)), "")


def reason(
    launch: Launch,
    started: str,
    place: Place,
    script: Script | None,
    given: Sequence[Given],
    alone: bool = False,
) -> tuple[str, str]:
    """Where a launch is another of the stack's, and what that is and does; empty for an RL loop.
    started: as `by_program` says. script: of Python, that is started. alone: whether it is
    a configuration by itself, of which what it lacks tells."""
    made = [] if script is None or _loops(launch, script) else script.calls
    for other in launch.others:
        if started and _matches(started, other.programs):
            return str(place), f"starts {started}, which {other.words}"
        for call in made:
            if _matches(call.name, other.calls):
                name = call.name.rpartition(".")[2]
                return str(call.place), f"calls {name}, which {other.words}"
        for item in given:
            for pattern, values in other.keys.items():
                if fnmatchcase(item.key, pattern) and _tells(item.value, values):
                    said = f"{item.key} is {item.value}" if values else f"it has {item.key}"
                    return str(item.place), f"{said}: such a launch {other.words}"
        if other.lacks and alone and not any(_matches(item.key, other.lacks) for item in given):
            return place.file, f"a launch without {' and '.join(other.lacks)} {other.words}"
    return "", ""


def _loops(launch: Launch, script: Script) -> bool:
    """Whether a script calls anything that is named after an RL loop of the stack's."""
    return any(_matches(call.name.lower(), launch.entries) for call in script.calls)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(is_called(name, one) for one in patterns)


def _tells(value: object, listed: Sequence[object]) -> bool:
    return not listed or any(str(value).lower() == str(one).lower() for one in listed)
