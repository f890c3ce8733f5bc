"""From all that was found to a launch: rights, what is said twice, and what the stack adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched, Unresolved
from rollcast.simulator.launches.release import told
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.launch import ENTRY, Given, Launch
from rollcast.simulator.stacks.settings import Place, Setting, Settings
from rollcast.simulator.stacks.stack import Stack
from rollcast.simulator.values.words import short

COMMAND_LINE = "the command line"
"""In the place of a file, of what the user calls with."""


def spelt(launch: Launch, key: str) -> str:
    """A key as the table of a stack spells it, where it is there in another spelling."""
    other = key.replace("-", "_")
    spellings = [key, other]
    if launch.form == "--key value":  # argparse takes what a flag begins with
        spellings += [f"{key}s", f"{other}s"]
    return next((one for one in spellings if one in launch.ours), key)


def negated(launch: Launch, item: Given) -> Given:
    """``--no-key`` as the key's false, where the stack has no such key but the other."""
    for start in ("no-", "no_"):
        key = spelt(launch, item.key.removeprefix(start))
        flips = item.key.startswith(start) and item.value is True and key in launch.ours
        if flips and spelt(launch, item.key) not in launch.ours:
            return item._replace(key=key, value=False)
    return item._replace(key=spelt(launch, item.key))


def settled(
    stack: Stack,
    found: Iterable[Given],
    around: Mapping[str, Setting],
    entry: str,
    sources: Sources,
    notes: Iterable[str],
) -> Launched:
    """A launch. found: what was given, `Unknown` values included. around: what the machine's own
    words say, such as ``#SBATCH --nodes``, by our key, for what the stack is not told. Raises
    ScenarioError for a setting of the stack's with two values of equal right."""
    launch, said = stack.launch, list(notes)
    best = _best(launch, [negated(launch, item) for item in found], said)
    given = tuple(item for item in best if not isinstance(item.value, Unknown))
    unresolved = tuple(
        Unresolved(item.key, item.value.text, item.place, item.value.why)
        for item in best
        if isinstance(item.value, Unknown)
    )
    begun = Given(ENTRY, entry, Place(sources.files[0].name if sources.files else entry), 9)
    read = dict(launch.read([*given, begun]))
    missing = {launch.ours[item.key][0] for item in unresolved if item.key in launch.ours}
    for ours, setting in around.items():
        if ours not in read and ours not in missing:
            read[ours] = setting
    if stack.implied:
        read.update({one.key: one for one in stack.implied(read)})
    release = told(stack, given, sources)
    defaults: Settings = launch.unsaid(read, Place(stack.name), stack.implied, release.release)
    return Launched(
        stack=stack.name,
        settings=read,
        release=release.release,
        told=release.words,
        defaults={ours: one for ours, one in defaults.items() if ours not in missing},
        given=given,
        unknown=tuple(item for item in given if item.key not in launch.ours),
        unresolved=unresolved,
        entry=entry,
        files=tuple(sources.files),
        notes=tuple([release.words] * bool(release.words) + said),
    )


def _best(launch: Launch, found: Sequence[Given], notes: list[str]) -> list[Given]:
    """Of each key what has the most right, and came last. Raises ScenarioError."""
    best: dict[str, Given] = {}
    for item in found:
        had = best.get(item.key)
        if had is not None and had.sure < item.sure:
            continue
        if had is not None and had.sure == item.sure:
            _compare(launch, had, item, notes)
        best.pop(item.key, None)
        best[item.key] = item
    return list(best.values())


def _compare(launch: Launch, had: Given, item: Given, notes: list[str]) -> None:
    """What is said twice with equal right: an error where values differ, else a note. Words that
    the user adds to a script's stand over its own."""
    two = f"{item.key} is set to {_shown(had.value)} in {had.place}"
    if had.place == item.place and had.value == item.value:
        return
    again = f"line {item.place.line}" if had.place.file == item.place.file else str(item.place)
    if had.value == item.value and type(had.value) is type(item.value):
        notes.append(f"{two}, and in {again}")
        return
    differ = f"{two}, and to {_shown(item.value)} in {again}"
    both = isinstance(had.value, Unknown) or isinstance(item.value, Unknown)
    over = item.place.file == COMMAND_LINE != had.place.file  # what a script passes on by "$@"
    if item.key in launch.ours and not both and not over:
        raise ScenarioError(str(item.place), f"{differ}; keep one")
    notes.append(f"{differ}; the last is taken")


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Unknown) else short(value).strip("'")
