"""Every key of a scenario with range, default, unit, meaning and source, from its annotations. A
section that may stand in several places is listed once (`Entry.like`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.policies.described import describe
from rollcast.simulator.scenario.sections import ScenarioModel
from rollcast.simulator.values import Choice, Option, declared, nearest, tag

FIRST: Mapping[str, tuple[str, ...]] = {
    "Model and hardware": ("model", "gpu"),
    "Cluster": (
        "cluster.placement",
        "cluster.replicas",
        "cluster.tensor_parallel",
        "cluster.trainer_gpus",
        "cluster.routing",
    ),
    "Inference engine": (
        "engine.max_seqs",
        "engine.max_batched_tokens",
        "engine.kv_tokens",
        "engine.prefix_caching",
    ),
    "Workload": (
        "workload.batch_groups",
        "workload.group_size",
        "workload.prompt_tokens",
        "workload.max_new_tokens",
        "workload.lengths",
        "workload.turns",
        "workload.rewards",
        "environment",
        "reward",
    ),
    "Policy": ("policy",),
    "Costs": ("cost", "cost.roofline.engine", "cost.roofline.stack", "cost.file"),
    "Run": ("steps", "seed"),
    "Planning": ("plan.run", "plan.choose", "plan.limits"),
}
"""The thirty keys that a first scenario needs, by subject."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. when: what chooses its section among several. value: what it must be. default: as in
    YAML; '' if required. holds: whether keys stand below it. like: the key below which they are
    listed. old: an earlier name that is still read."""

    key: str
    meaning: str
    value: str
    default: str
    unit: str = ""
    source: str = ""
    when: str = ""
    holds: bool = False
    like: str = ""
    old: str = ""


def reference(elsewhere: Mapping[str, type] | None = None) -> tuple[Entry, ...]:
    """Every key in the sections' order, policies last. elsewhere: other packages' sections."""
    listing = _Listing(elsewhere or {})
    entries = [entry for entry in listing.section(ScenarioModel, "") if entry.key != "policy"]
    [policy] = [option for option in declared(ScenarioModel) if option.key == "policy"]
    entries.append(Entry("policy", policy.doc.sentence, "a list, or text", "null", holds=True))
    for name, kind in POLICIES.items():
        key, about = f"policy.{name}", describe(kind)
        holds = bool(declared(kind))
        value = "its name, or a mapping of it to its parameters" if holds else "its name"
        entries.append(Entry(key, about.mechanism, value, "", "", about.source, holds=holds))
        entries.extend(listing.section(kind, key))
    return tuple(entries)


def find(key: str, entries: tuple[Entry, ...]) -> list[Entry]:
    """The entries of a key, one for each section that it may stand in; ``[2]`` is ignored. Raises
    ScenarioError for an unknown key, with the nearest one."""
    plain = re.sub(r"\[\d*\]", "", key)
    listed = _where_listed(plain, entries)
    matches = [replace(entry, key=plain) for entry in entries if entry.key == listed]
    matches = matches or [entry for entry in entries if listed and entry.old == listed]
    if matches:
        return matches
    names = [entry.key for entry in entries]
    ends = sorted({name for name in names if name.endswith(f".{listed}")}, key=len)
    if ends:
        raise ScenarioError(key, f"unknown key; did you mean {' or '.join(ends[:3])}?")
    if not difflib.get_close_matches(listed.lower()[:100], names, n=1, cutoff=0.5):
        names = [entry.key for entry in below("", entries)]
    raise ScenarioError(key, f"unknown key; {nearest(listed, names)}")


def below(key: str, entries: tuple[Entry, ...]) -> list[Entry]:
    """The entries one level below a key; those of the top for ''."""
    listed = _where_listed(key, entries)
    listed = next((e.like for e in entries if e.key == listed and e.like), listed)
    start = f"{listed}." if listed else ""
    lead = f"{key}." if key else ""
    return [
        replace(entry, key=lead + entry.key[len(start) :])
        for entry in entries
        if entry.key.startswith(start) and "." not in entry.key[len(start) :]
    ]


def _where_listed(key: str, entries: tuple[Entry, ...]) -> str:
    """The key under which ``key`` is listed: its own, or one of a section like its own."""
    for entry in entries:
        if entry.like and key.startswith(f"{entry.key}."):
            return _where_listed(entry.like + key[len(entry.key) :], entries)
    return key


class _Listing:
    """Lists sections, each only where it comes first. elsewhere: as `reference` takes it."""

    def __init__(self, elsewhere: Mapping[str, type]) -> None:
        self._elsewhere = elsewhere
        self._listed: dict[tuple[type, ...], str] = {}

    def section(self, kind: type, prefix: str, when: str = "") -> Iterator[Entry]:
        """The entries below ``prefix`` of a section's class, and of all below it."""
        start = f"{prefix}." if prefix else ""
        for key, doc in getattr(kind, "ALSO", {}).items():
            yield Entry(f"{start}{key}", doc.sentence, "a name", "null", doc.unit, doc.source, when)
        old = {key: f"{start}{old}" for old, key in getattr(kind, "RENAMED", {}).items()}
        for option in declared(kind):
            entry, *under = self._option(option, f"{start}{option.key}", when)
            default = getattr(kind, "DEFAULTS", {}).get(option.key, entry.default)
            yield replace(entry, default=default, old=old.get(option.key, ""))
            yield from under

    def _option(self, option: Option, key: str, when: str) -> Iterator[Entry]:
        outside = key in self._elsewhere
        kinds = (self._elsewhere[key],) if outside else option.reader.below()
        comes_first = bool(kinds) and kinds not in self._listed
        like = self._listed.setdefault(kinds, key) if kinds else key
        yield Entry(
            key,
            option.doc.sentence,
            "a mapping of keys to values" if outside else option.reader.wanted,
            "" if option.required else _shown(option.default),
            option.unit,
            option.doc.source,
            when,
            bool(kinds),
            "" if like == key else like,
        )
        if comes_first:
            yield from _tags(key, kinds)
            for kind in kinds:
                yield from self.section(kind, key, _when(kind) if len(kinds) > 1 else "")


def _when(kind: type) -> str:
    """What chooses a section among several."""
    if chosen_by := getattr(kind, "CHOSEN_BY", ()):
        return f"with {chosen_by[0]} or another figure"
    key, valid = tag(kind)
    return f"with {key}" if valid is None else f"with {key}: {', '.join(map(str, valid))}"


def _tags(prefix: str, kinds: tuple[type, ...]) -> Iterator[Entry]:
    """The keys that choose among sections and are no options of theirs."""
    words: dict[str, list[str]] = {}
    for kind in kinds:
        own_tag = getattr(kind, "TAG", None)
        if own_tag is not None:
            words.setdefault(own_tag[0], []).append(own_tag[1])
    for key, valid in words.items():
        value = Choice(tuple(valid)).wanted
        yield Entry(f"{prefix}.{key}", "The kind; the other keys depend on it.", value, "")


def _shown(value: object) -> str:
    """A default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) if isinstance(value, int | str) else "its keys' defaults"
