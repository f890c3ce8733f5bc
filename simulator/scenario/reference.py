"""Every key of a scenario, with its range, default, unit, meaning and source, from the annotations
that the keys are read by."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulator.errors import ScenarioError
from simulator.options import Choice, Option, declared, nearest, tag
from simulator.policies import POLICIES
from simulator.policies.described import describe
from simulator.scenario.sections import ScenarioModel


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. when: what chooses the section that it belongs to, where there are several.

    value: what it must be. default: as YAML writes it; '' where it must be given. holds: whether
    keys stand below it.
    """

    key: str
    meaning: str
    value: str
    default: str
    unit: str = ""
    source: str = ""
    when: str = ""
    holds: bool = False


def reference(elsewhere: Mapping[str, type] | None = None) -> tuple[Entry, ...]:
    """Every key, in the order of the sections; policies last, by their names.

    elsewhere: sections that other packages read, by their key.
    """
    entries = [
        each for each in _section(ScenarioModel, "", "", elsewhere or {}) if each.key != "policy"
    ]
    [policy] = [option for option in declared(ScenarioModel) if option.key == "policy"]
    entries.append(Entry("policy", policy.doc.meaning, "a list, or text", "null", holds=True))
    for name, kind in POLICIES.items():
        key, about = f"policy.{name}", describe(kind)
        holds = bool(declared(kind))
        value = "its name, or a mapping of it to its parameters" if holds else "its name"
        entries.append(Entry(key, about.mechanism, value, "", "", about.source, holds=holds))
        entries.extend(_section(kind, key, "", {}))
    return tuple(entries)


def find(key: str, entries: tuple[Entry, ...]) -> list[Entry]:
    """The entries of one key, one for each section that it may stand in; ``[2]`` of a list counts
    for nothing. Raises ScenarioError for a key that there is not, with the nearest one."""
    plain = re.sub(r"\[\d*\]", "", key)
    found = [entry for entry in entries if entry.key == plain]
    if found:
        return found
    names = [entry.key for entry in entries]
    if not difflib.get_close_matches(plain.lower()[:100], names, n=1, cutoff=0.5):
        names = [entry.key for entry in below("", entries)]
    raise ScenarioError(key, f"unknown key; {nearest(plain, names)}")


def below(key: str, entries: tuple[Entry, ...]) -> list[Entry]:
    """The entries one level below a key; those of the top for ''."""
    start = f"{key}." if key else ""
    return [
        entry
        for entry in entries
        if entry.key.startswith(start) and "." not in entry.key[len(start) :]
    ]


def _section(kind: type, prefix: str, when: str, elsewhere: Mapping[str, type]) -> Iterator[Entry]:
    start = f"{prefix}." if prefix else ""
    for key, doc in getattr(kind, "ALSO", {}).items():
        yield Entry(f"{start}{key}", doc.meaning, "a name", "null", doc.unit, doc.source, when)
    for option in declared(kind):
        key = f"{start}{option.key}"
        kinds = (elsewhere[key],) if key in elsewhere else option.reader.below()
        yield Entry(
            key,
            option.doc.meaning,
            "a mapping of keys to values" if key in elsewhere else option.reader.wanted,
            _default(option),
            option.unit,
            option.doc.source,
            when,
            bool(kinds),
        )
        yield from _tags(key, kinds)
        for each in kinds:
            yield from _section(each, key, _when(each) if len(kinds) > 1 else "", elsewhere)


def _when(kind: type) -> str:
    """What chooses a section among several."""
    key, valid = tag(kind)
    return f"with {key}" if valid is None else f"with {key}: {', '.join(map(str, valid))}"


def _tags(prefix: str, kinds: tuple[type, ...]) -> Iterator[Entry]:
    """The keys that choose among sections and are no options of theirs."""
    words: dict[str, list[str]] = {}
    for kind in kinds:
        own = getattr(kind, "TAG", None)
        if own is not None:
            words.setdefault(own[0], []).append(own[1])
    for key, valid in words.items():
        value = Choice(tuple(valid)).wanted
        yield Entry(f"{prefix}.{key}", "which kind it is, on which the other keys hang", value, "")


def _default(option: Option) -> str:
    if option.required:
        return ""
    return _shown(option.default)


def _shown(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) if isinstance(value, int | str) else "its keys' defaults"


__all__ = ["Entry", "below", "find", "reference"]
