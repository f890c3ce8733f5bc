"""A stack's launch settings: one table of its keys and ours, read in both directions.

From a script, a configuration or a log to a run's settings (`Launch.read`), and from settings back
to the stack's own arguments (`Launch.written`), as exports and advice need them. The table is the
``launch.yaml`` of the stack's folder::

    form: key=value            # how its command line spells a setting
    releases: 0.3 to 0.9.1     # whose sources and configurations were read
    keys:
      model: actor.path                                # ours: theirs
      workload.group_size: [n, rollout.n]              # the first is taken, and is written
      run.mode: {key: trainer.mode, since: 0.9}        # holds from that release on (until: before)
      engine.max_seqs: {key: max_num_seqs, default: 256}     # where a launch does not give it
      engine.prefix_caching: {key: no-cache, inverted: true} # theirs says the opposite
    advice:
      sync: "{run.mode}=sync"  # by the what-if; {ours} is their key for it

Ours are those of `simulator.stacks.settings.MEANINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rollcast.simulator.stacks.settings import MEANINGS, Place, Setting, Settings
from rollcast.simulator.stacks.yaml_file import read_yaml

Form = Literal["key=value", "--key value", "key: value"]
FORMS: tuple[Form, ...] = ("key=value", "--key value", "key: value")
Implied = Callable[[Settings], Iterable[Setting]]
"""Settings that others imply, as a stack's ``launch.py`` has them: they count before those."""


class Given(NamedTuple):
    """A value that a run was given. key: the stack's. sure: how surely, 0 the most."""

    key: str
    value: Any
    place: Place
    sure: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a stack's. since, until: the first release that has it, and the first that has it no
    more; None where it is not known, or holds still. inverted: whether true there is false here."""

    key: str
    since: str | None = None
    until: str | None = None
    inverted: bool = False

    def holds(self, release: str | None) -> bool:
        """Whether a release has it; without a release, whether the latest does."""
        if release is None:
            return self.until is None
        before = self.since is not None and _ordered(release) < _ordered(self.since)
        after = self.until is not None and _ordered(release) >= _ordered(self.until)
        return not before and not after


@dataclass(frozen=True)
class Launch:
    """The table. keys: theirs by ours, of which the first counts. defaults: by our key, what the
    stack takes where a launch does not say. advice: their settings for a change of a run, by the
    change's name in `calibration.judge.advice`."""

    form: Form
    keys: Mapping[str, tuple[Key, ...]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    releases: str = ""

    @cached_property
    def ours(self) -> Mapping[str, tuple[str, int, Key]]:
        """Our key by theirs, with where it stands among those of the same meaning; keys of command
        lines with hyphens and underscores alike."""
        table: dict[str, tuple[str, int, Key]] = {}
        for ours, keys in self.keys.items():
            for rank, key in enumerate(keys):
                table[key.key] = ours, rank, key
                if self.form == "--key value":
                    table[key.key.replace("-", "_")] = ours, rank, key
        return table

    def read(self, given: Iterable[Given], implied: Implied | None = None) -> Settings:
        """The settings that a run was given, by our key; see `conflicts` for what is said twice."""
        read = {key: setting for key, (_, setting) in self._ranked(given)[0].items()}
        more = implied(read) if implied else ()
        return {**read, **{setting.key: setting for setting in more}}

    def conflicts(self, given: Iterable[Given]) -> list[tuple[Setting, Setting]]:
        """Settings given twice with different values and equal right; the first of two is taken."""
        return self._ranked(given)[1]

    def _ranked(
        self, given: Iterable[Given]
    ) -> tuple[dict[str, tuple[tuple[int, int], Setting]], list[tuple[Setting, Setting]]]:
        settings: dict[str, tuple[tuple[int, int], Setting]] = {}
        conflicts = []
        for item in given:
            if item.key not in self.ours:
                continue
            key, at, theirs = self.ours[item.key]
            flips = theirs.inverted and isinstance(item.value, bool)
            setting = Setting(
                key, item.value ^ flips if flips else item.value, item.key, item.place
            )
            rank = (item.sure, at)
            if key in settings:
                had_rank, had = settings[key]
                if had_rank == rank and rank[0] == 0 and had.value != setting.value:
                    conflicts.append((had, setting))
                if had_rank <= rank:
                    continue
            settings[key] = (rank, setting)
        return settings, conflicts

    def written(self, settings: Mapping[str, Any], release: str | None = None) -> list[str]:
        """Settings by our key as arguments of the stack, in the order given. Raises KeyError for
        one that the release has no key for, as `name` does."""
        lines = (self._argument(ours, value, release) for ours, value in settings.items())
        return [line for line in lines if line]

    def name(self, ours: str, release: str | None = None) -> str:
        """Their key, as their command line spells it. Raises KeyError where there is none."""
        key = self._key(ours, release).key
        return f"--{key}" if self.form == "--key value" else key

    def _key(self, ours: str, release: str | None) -> Key:
        for key in self.keys[ours]:
            if key.holds(release):
                return key
        raise KeyError(ours)

    def _argument(self, ours: str, value: Any, release: str | None) -> str:
        name, inverted = self.name(ours, release), self._key(ours, release).inverted
        value = not value if inverted else value
        if self.form == "--key value":
            if isinstance(value, bool):
                return name if value else ""
            return f"{name} {value}"
        return f"{name}={value}" if self.form == "key=value" else f"{name}: {value}"


def load_launch(path: Path) -> Launch:
    """The table in a file. Raises ValueError, with file and key, where it is not as said above."""
    data = read_yaml(path)
    where = f"{path.parent.name}/{path.name}"
    if not isinstance(data, dict) or data.get("form") not in FORMS:
        raise ValueError(f"{where}: form must be one of {', '.join(FORMS)}")
    keys: dict[str, tuple[Key, ...]] = {}
    defaults = {}
    for ours, entries in data["keys"].items():
        if ours not in MEANINGS:
            raise ValueError(f"{where}: {ours} is no setting of ours (settings.MEANINGS)")
        read = []
        for entry in entries if isinstance(entries, list) else [entries]:
            fields = dict(entry) if isinstance(entry, dict) else {"key": entry}
            if "default" in fields:
                defaults[ours] = fields.pop("default")
            for bound in ("since", "until"):
                if bound in fields:
                    fields[bound] = str(fields[bound])
            try:
                read.append(Key(**fields))
            except TypeError as error:
                raise ValueError(f"{where}: {ours}: {error}") from None
        keys[ours] = tuple(read)
    launch = Launch(data["form"], keys, defaults, {}, str(data.get("releases", "")))
    names = {ours: launch.name(ours) for ours in keys if any(k.holds(None) for k in keys[ours])}
    advice = {change: _filled(words, names) for change, words in data.get("advice", {}).items()}
    return Launch(launch.form, keys, defaults, advice, launch.releases)


def _filled(words: str, names: Mapping[str, str]) -> str:
    """Words with ``{ours}`` replaced by the stack's key. Raises KeyError for an unknown one."""
    for ours, name in names.items():
        words = words.replace("{" + ours + "}", name)
    if "{" in words:
        raise ValueError(f"{words!r} names a setting that the table has no key for")
    return words


def _ordered(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())
