"""A stack's launch settings: one table of its keys and ours, read in both directions.

From a script, a configuration or a log to a run's settings (`Launch.read`), to what the stack takes
for the rest (`Launch.unsaid`), and from settings back to the stack's own arguments
(`Launch.written`), as exports and advice need them. `simulator.stacks.launch_file` reads the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from rollcast.simulator.stacks.deals import Deal
from rollcast.simulator.stacks.implied import Rules
from rollcast.simulator.stacks.keys import NOT_SAID, Key, as_yaml
from rollcast.simulator.stacks.releases import ANY, Bounds, Span, later, narrowed, ordered
from rollcast.simulator.stacks.settings import Place, Setting, Settings
from rollcast.simulator.stacks.syntax.json_text import nested

Form = Literal["key=value", "--key value", "key: value"]
FORMS: tuple[Form, ...] = get_args(Form)
Switches = Literal["bare", "valued", "negated"]
"""True and false of ``--key value``: ``--key`` or nothing, ``--key true`` or ``--key false``,
``--key`` or ``--no-key``."""
ENTRY = "(entry)"
"""As a key of theirs: the module or script that is launched, of which keys name a part."""
VARIABLE = "$"
"""As a key of theirs begins that is a variable of the environment."""
FORK = "run.fork"
"""Our key of the fork that a launch is of, on which the keys that it alone has depend."""
Implied = Callable[[Settings], Iterable[Setting]]
"""Settings that others imply, as a stack's ``launch.py`` has them: they count before those."""
NAMED = re.compile(r"\{([\w.]+)\}")
"""Our key in words of advice, in whose place theirs is put."""


class Given(NamedTuple):
    """A value that a run was given. key: the stack's. sure: how surely, 0 the most."""

    key: str
    value: Any
    place: Place
    sure: int = 0


@dataclass(frozen=True, slots=True)
class Words(Bounds):
    """How some releases have a change of a run. words: with ``{ours}`` for their keys."""

    words: str = ""


@dataclass(frozen=True, slots=True)
class Other:
    """What a stack starts that is no RL loop that is known. words: what that does. programs, calls:
    patterns of what is started, and of what a script calls. keys: values that tell it, by a pattern
    of their key; none where the key alone does. lacks: patterns of keys, of which it has none."""

    words: str
    programs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    keys: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """The table. keys: theirs by ours, of which the first counts. advice: how they have a
    change of a run, by the change's name in `calibration.judge.advice`. entries: what launches it,
    as dotted names, the last parts of which may be all that is given; ``*`` is any text. shipped:
    names of configurations that come with the stack. calls: keys by the arguments of calls. starts,
    classes, constants: what the stack gives to scripts of Python that launch it. implies: rules of
    what follows from settings. deals: batches that it refuses. packages: its names where packages,
    images and repositories are named. versions: files of its own sources that say their version.
    servers: commands of an engine beside it, whose options are keys below ``server``.
    harmless: patterns of keys that change neither memory nor time. parts: names of files that
    lie in one folder, each a part of the configuration, by the key below which it stands. renamed:
    roles by other names that they have in some of its loops, as keys begin. others:
    what it starts that is no RL loop that is known."""

    form: Form
    keys: Mapping[str, tuple[Key, ...]]
    advice: Mapping[str, tuple[Words, ...]] = field(default_factory=dict)
    releases: str = ""
    switches: Switches = "bare"
    entries: tuple[str, ...] = ()
    shipped: tuple[str, ...] = ()
    calls: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    starts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    implies: Rules = field(default_factory=dict)
    deals: tuple[Deal, ...] = ()
    packages: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Other, ...] = ()

    def ignores(self, theirs: str) -> bool:
        """Whether a key of theirs is known to change neither memory nor time."""
        return any(fnmatchcase(theirs.replace("-", "_"), known) for known in self.harmless)

    @cached_property
    def ours(self) -> Mapping[str, tuple[str, int, Key]]:
        """Our key by theirs, with where it stands among those of the same meaning; keys of command
        lines with hyphens and underscores alike. The first, where theirs says several things."""
        return {theirs: meanings[0] for theirs, meanings in self.meanings.items()}

    @cached_property
    def meanings(self) -> Mapping[str, tuple[tuple[str, int, Key], ...]]:
        """As ``ours``, all that a key of theirs says."""
        table: dict[str, list[tuple[str, int, Key]]] = {}
        for ours, keys in self.keys.items():
            for rank, key in enumerate(keys):
                names = {key.key}
                if self.form == "--key value":
                    names.add(key.key.replace("-", "_"))
                for name in names:
                    table.setdefault(name, []).append((ours, rank, key))
        return {theirs: tuple(meanings) for theirs, meanings in table.items()}

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Their keys that are variables of the environment, as the table spells them."""
        return tuple(theirs for theirs in self.meanings if theirs.startswith(VARIABLE))

    @cached_property
    def conditions(self) -> frozenset[str]:
        """Ours that decide whether others count."""
        return frozenset(ours for keys in self.keys.values() for key in keys for ours in key.where)

    @cached_property
    def _absent(self) -> Mapping[str, Any]:
        """What nothing says of a run that no fork's key shows: it is the stack's own."""
        return {FORK: None} if FORK in self.keys else {}

    def read(self, given: Iterable[Given], implied: Implied | None = None) -> Settings:
        """The settings that a run was given, by our key; see `conflicts` for what is said twice."""
        read = {key: setting for key, (_, setting) in self._ranked(given)[0].items()}
        more = implied(read) if implied else ()
        return {**read, **{setting.key: setting for setting in more}}

    def unsaid(
        self,
        said: Settings,
        place: Place,
        implied: Implied | None = None,
        release: str | None = None,
    ) -> Settings:
        """What holds beside the settings that were said, and is none of them: the stack's defaults,
        in a place of theirs, and what follows from these and those together."""
        known = {ours: setting.value for ours, setting in said.items()}
        taken: dict[str, Setting] = {}
        span = self._span(said)
        for ours in sorted(self.keys, key=lambda ours: ours not in self.conditions):
            key = self._defaulting(ours, release, span, known) if ours not in said else None
            if key is not None:
                theirs = key.ours(key.default)
                taken[ours] = Setting(ours, theirs, key.key, place, unsaid=True)
                known[ours] = taken[ours].value
        for setting in implied({**taken, **said}) if implied else ():
            taken[setting.key] = setting
        return {ours: setting for ours, setting in taken.items() if ours not in said}

    def _defaulting(
        self, ours: str, release: str | None, span: Span, known: Mapping[str, Any]
    ) -> Key | None:
        """The key whose default holds: of the release, else of any that the run may be of."""
        keys = [key for key in self.keys[ours] if key.has_default and key.counts(known)]
        able = (key for key in keys if key.within(span))
        return min(able, key=lambda key: not key.current(release, span), default=None)

    def undated(self, said: Settings, taken: Settings) -> list[tuple[Setting, Key]]:
        """The defaults of the newest release that older ones, which the run may be of, have
        otherwise, each with the key of the latest of those. said: by the launch, which does not
        tell its release. taken: the defaults that hold."""
        known = {ours: setting.value for ours, setting in {**taken, **said}.items()}
        span = self._span(said)
        found = []
        for ours, setting in taken.items():
            holds = self._defaulting(ours, None, span, known) if ours in self.keys else None
            if holds is not None and holds.where and holds.since is holds.until is None:
                continue  # of every release
            older = [
                key
                for key in self.keys.get(ours, ())
                if key.has_default and key.until is not None and not key.fork
                if key.within(span) and key.counts(known)
                if key.ours(key.default) != setting.value
            ]
            if older:
                latest = max(older, key=lambda key: ordered(key.until or ""))
                found.append((setting, latest))
        return found

    @cached_property
    def _spans(self) -> Mapping[str, Span]:
        """The releases that have each key of theirs."""
        spans = {}
        for theirs, told in self.meanings.items():
            since = _bounds(key.since for _, _, key in told)
            until = _bounds(key.until for _, _, key in told)
            oldest = min(since, key=ordered, default=None)
            spans[theirs] = Span(oldest, max(until, key=ordered, default=None))
        return spans

    def bounds(self, theirs: str) -> Span:
        """The releases that have a key of theirs; any for one that the table does not have."""
        return self._spans.get(theirs, ANY)

    def known_in(self, theirs: str, release: str) -> bool:
        """Whether a release has a key, as far as the table knows it."""
        meanings = self.meanings.get(theirs, ())
        return not meanings or any(key.holds(release) for _, _, key in meanings)

    def told_by(self, given: Iterable[Given]) -> tuple[Given | None, Given | None]:
        """Of what was given the key that is there since the latest release, and the one that is
        gone by the earliest; None where none is bounded so, or the two exclude each other."""
        given = list(given)
        begun = [one for one in given if self.bounds(one.key).since is not None]
        gone = [one for one in given if self.bounds(one.key).until is not None]
        low = max(begun, key=lambda one: ordered(self.bounds(one.key).since or ""), default=None)
        high = min(gone, key=lambda one: ordered(self.bounds(one.key).until or ""), default=None)
        clash = low and high and later(self.bounds(low.key).since, self.bounds(high.key).until)
        return (low, None) if clash else (low, high)

    def refuses(self, deal: Deal, release: str | None, run: Settings) -> bool:
        """Whether a run's release has a rule; the newest that it may be of where none is told."""
        if release is not None:
            return Bounds(deal.since, deal.until).holds(release)
        until = self._span(run).until
        begun = deal.since is None or until is None or not later(deal.since, until)
        return begun and (deal.until is None or (until is not None and later(deal.until, until)))

    def _span(self, run: Settings) -> Span:
        """The releases that have the keys of a run."""
        spans = [self.bounds(one.theirs) for one in run.values()]
        since = [span.since for span in spans if span.since is not None]
        until = [span.until for span in spans if span.until is not None]
        return Span(max(since, key=ordered, default=None), min(until, key=ordered, default=None))

    def advised(self, run: Settings, seen: Span = ANY) -> dict[str, str]:
        """Their settings for a change of a run, by change: in the words and keys of the release
        that the run is of. seen: releases that it may be of, beside what its settings say."""
        span = narrowed(self._span(run), seen)
        advised = {}
        for change, entries in self.advice.items():
            able = [entry for entry in entries if entry.within(span)]
            later = [entry for entry in entries if entry.since is not None]
            if able:
                advised[change] = self._filled(able[0].words, run, seen)
            elif later:
                words = self._filled(later[-1].words, {}, Span(since=later[-1].since))
                advised[change] = f"from release {later[-1].since} on: {words}"
        return advised

    def _filled(self, words: str, run: Settings, seen: Span) -> str:
        """Words with ``{ours}`` replaced by the stack's key. Raises KeyError for an unknown one."""

        def name(match: re.Match[str]) -> str:
            key = self._key(match[1], None, run, {k: s.value for k, s in run.items()}, seen=seen)
            return self._named(key)

        return NAMED.sub(name, words)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By our key, what the latest release takes where a launch does not say."""
        return {ours: one.value for ours, one in self.unsaid({}, Place("")).items()}

    def conflicts(self, given: Iterable[Given]) -> list[tuple[Setting, Setting]]:
        """Settings given twice with different values and equal right; the first of two is taken."""
        return self._ranked(given)[1]

    def _ranked(
        self, given: Iterable[Given]
    ) -> tuple[dict[str, tuple[tuple[int, int], Setting]], list[tuple[Setting, Setting]]]:
        settings: dict[str, tuple[tuple[int, int], Setting]] = {}
        conflicts = []
        said = [(item, *meaning) for item in given for meaning in self.meanings.get(item.key, ())]
        said.sort(key=lambda one: (one[1] not in self.conditions, bool(one[3].where)))
        for item, key, at, theirs in said:
            known = {**self._absent, **{ours: one.value for ours, (_, one) in settings.items()}}
            if theirs.counts(known) is False or not theirs.says(item.value):
                continue
            setting = Setting(key, theirs.ours(item.value), item.key, item.place)
            rank = (item.sure, at)
            if key in settings:
                had_rank, had = settings[key]
                if had_rank == rank and rank[0] == 0 and had.value != setting.value:
                    conflicts.append((had, setting))
                if had_rank <= rank:
                    continue
            settings[key] = (rank, setting)
        return settings, conflicts

    def written(
        self,
        settings: Mapping[str, Any],
        release: str | None = None,
        run: Settings | None = None,
        python: bool = False,
    ) -> list[str]:
        """Settings by our key as arguments of the stack, in the order given. run: what its launch
        says, whose spelling is kept; a switch of it that is turned off by leaving it out is a line
        that says so. python: as arguments of a call, where the launch is one, of
        what a command line would have behind dashes. Raises KeyError for one that the release,
        or such a run, has no key for, as `name` does, or whose value the stack does not take."""
        known = {**self._absent, **{ours: one.value for ours, one in (run or {}).items()}}
        known |= settings
        said: list[tuple[Key, Any]] = []
        for ours, value in settings.items():
            first = self._key(ours, release, run or {}, known, value)
            said += _pairs(first, value)
            others = (key for key in self.keys[ours] if key is not first and key.holds(release))
            said += [(key, key.theirs(value)) for key in others if key.written_beside(known)]
        if self.form == "key: value":
            return list(_lines(nested((key.key, value) for key, value in said), ""))
        there = {one.theirs.replace("-", "_") for one in (run or {}).values() if not one.unsaid}
        lines = []
        for key, value in said:
            line = self._argument(key, value)
            if key.spelt is None and python and self.form == "--key value":
                line = f"{key.key}={value!r}"
            elif key.spelt is None and not line and key.key.replace("-", "_") in there:
                line = f"remove {self._named(key)}"
            lines.append(line)
        return [line for line in lines if line]

    def taken(self, runs: Iterable[Settings], release: str | None = None) -> frozenset[str]:
        """Our keys for which the stack has one in any of these runs."""
        every = tuple(runs)
        return frozenset(
            ours for ours in self.keys if any(self.has(ours, release, run) for run in every)
        )

    def has(self, ours: str, release: str | None = None, run: Settings | None = None) -> bool:
        """Whether there is a key for that, as `name` finds it."""
        try:
            self.name(ours, release, run)
        except KeyError:
            return False
        return True

    def name(self, ours: str, release: str | None = None, run: Settings | None = None) -> str:
        """Their key, as their command line spells it. Raises KeyError where there is none."""
        known = {key: one.value for key, one in (run or {}).items()}
        return self._named(self._key(ours, release, run or {}, known))

    def _named(self, key: Key) -> str:
        if self.form == "--key value":
            return f"--{key.key}"
        return f"++{key.key}" if key.added and self.form == "key=value" else key.key

    def _key(
        self,
        ours: str,
        release: str | None,
        run: Settings,
        known: Mapping[str, Any],
        value: Any = NOT_SAID,
        seen: Span = ANY,
    ) -> Key:
        """The one that the run has; else the first of the release, one whose conditions are known
        to hold before others. value: of ours, to be written. seen: as in `advised`."""
        whole = [key for key in self.keys[ours] if key.part is None]
        able = [key for key in whole if key.counts(known) is not False]
        if value is not NOT_SAID:
            able = [key for key in able if key.takes(value)]
        for key in able:
            names = {key.key, key.key.replace("-", "_")}
            if ours in run and run[ours].theirs in names:
                return key
        span = narrowed(self._span(run), seen)
        able = [key for key in able if not key.fork and key.current(release, span)]
        if not able:
            raise KeyError(ours)
        return min(able, key=lambda key: (not (key.where and key.counts(known)), bool(key.where)))

    def _argument(self, key: Key, theirs: Any) -> str:
        name = self._named(key)
        if key.spelt is not None:
            return key.spelt.replace("{}", str(as_yaml(theirs)))
        if self.form == "key=value":
            return f"{name}={'null' if theirs is None else theirs}"
        if theirs is None and self.switches == "bare":
            return ""
        if not isinstance(theirs, bool):
            return f"{name} {theirs}"
        if self.switches == "valued":
            return f"{name} {as_yaml(theirs)}"
        without = f"--no-{name.removeprefix('--')}" if self.switches == "negated" else ""
        return name if theirs else without


def _pairs(key: Key, value: Any) -> Iterable[tuple[Key, Any]]:
    """A key with its value, and those that have to be said beside it."""
    yield key, key.theirs(value)
    for theirs, wanted in (key.also.get(value) or key.also.get("any") or {}).items():
        yield Key(key=theirs, added=key.added), wanted


def _lines(tree: Mapping[str, Any], indent: str) -> Iterable[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {as_yaml(value)}"


def _bounds(releases: Iterable[str | None]) -> list[str]:
    """All of them, none where one is not bounded."""
    known = list(releases)
    return [release for release in known if release is not None] if None not in known else []
