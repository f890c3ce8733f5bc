"""What a script has set so far, and what is left of it where several ways meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcast.simulator.launches.pieces import Text, cut, doubted, shown, unknown, why
from rollcast.simulator.launches.shell.expand import Array, Value
from rollcast.simulator.launches.shell.syntax import Command
from rollcast.simulator.stacks.settings import Place


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
