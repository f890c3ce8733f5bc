"""Configuration files: one by itself, or with the parents that it names.

Two ways of naming parents: Hydra's ``defaults`` list, of files in groups below a folder of
configurations, and NeMo-RL's, of paths from the file itself.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import known
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.trees import read_toml_tree, read_yaml_tree
from rollcast.simulator.launches.values import Leaf, Tree, at, copied, drop, merge, put, tree_of
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse

CONFIG = 2
"""How sure what a configuration file says is; see `Given`."""
_DEEPEST = 20
_MOST_CONFIG = 400_000
_MOST_LOADED = 300
_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")
_UNKNOWN_ROOT = re.compile(r"^\$\{[^{}]*\}(?=/)")
_REPLACES = "_override_"


def parse_tree(sources: Sources, text: str, name: str, suffix: str) -> Tree:
    """The settings of a text. suffix: of its file, which says what it is. Raises ScenarioError."""
    said = text, name, suffix
    if said not in sources.trees:  # each stack reads it
        sources.trees[said] = _parsed(sources, *said)
    return copied(sources.trees[said])


def _parsed(sources: Sources, text: str, name: str, suffix: str) -> Tree:
    if len(text) > _MOST_CONFIG:
        raise ScenarioError(name, f"is longer than {_MOST_CONFIG:,} characters; is it a launch?")
    if suffix == ".toml":
        return read_toml_tree(text, name, CONFIG, sources)
    if suffix == ".json":
        try:
            value = parse(text)
        except NotJsonError as error:
            raise ScenarioError(name, f"is {error}") from None
        tree = tree_of(value, Place(name), CONFIG)
    else:
        found = read_yaml_tree(text, name, CONFIG, sources)
        if isinstance(found, list):
            raise ScenarioError(name, "is a list; a configuration is a mapping of keys")
        tree = found
    if isinstance(tree, Leaf):
        raise ScenarioError(name, "is no mapping of keys")
    return tree


@dataclass
class Configs:
    """Reads configurations with their parents. shipped: names of those that come with the stack, of
    which the stack's defaults hold where they are not there. choices: by group, what a command
    takes in the place of a list's; used: those of groups that are in a list. on_shipped: whether
    one of the stack's own is a parent."""

    sources: Sources
    shipped: Collection[str]
    choices: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    on_shipped: bool = False
    _chosen: dict[str, str] = field(default_factory=dict)
    _overridden: dict[str, str] = field(default_factory=dict)
    _loaded: int = 0

    def composed(self, path: Path, place: Place | None) -> Tree:
        """A file and all of its parents."""
        tree = self._read(path, place)
        if _by_path(tree):
            return self._on_parents(tree, path, 0)
        folders = [path.parent, *self._search_path(tree)]
        result = self._with_defaults(tree, _package(tree, ""), "", folders, path, 0)
        for group in [one for one in self.choices if one not in self.used]:  # ``+group=option``
            if _there(folders, group.partition("@")[0], self.choices[group]):
                added = place or Place(self.sources.name(path))
                merge(result, self._child(group, self.choices[group], "", "", folders, added, 0))
        result.pop("hydra", None)
        return result

    def _read(self, path: Path, place: Place | None) -> Tree:
        self._loaded += 1
        if self._loaded > _MOST_LOADED:
            raise ScenarioError(str(place or path), f"more than {_MOST_LOADED} files are called")
        text = self.sources.read(path, place)
        tree = parse_tree(self.sources, text, self.sources.name(path), path.suffix)
        header = _PACKAGE.search(text[:2_000])
        if header:
            tree["_package_"] = Leaf(header[1], Place(self.sources.name(path), 1))
        return tree

    def _missing(self, name: str, place: Place) -> None:
        if name.rpartition("/")[2].removesuffix(".yaml") in self.shipped:
            self.on_shipped = True
            return
        note = f"{place}: calls {name}, which is not there; what it sets is not read"
        if note not in self.notes:
            self.notes.append(note)

    # NeMo-RL's way

    def _on_parents(self, tree: Tree, path: Path, depth: int) -> Tree:
        named = tree.pop("defaults", None)
        if not isinstance(named, Leaf):
            return tree
        if depth > _DEEPEST:
            raise ScenarioError(str(named.place), "configurations call each other without end")
        result: Tree = {}
        for name in named.value if isinstance(named.value, list) else [named.value]:
            text = str(name)
            parent = self.sources.find(known(text, named.place), path.parent)
            if parent is None:
                self._missing(text, named.place)
                continue
            other = self._on_parents(self._read(parent, named.place), parent, depth + 1)
            _replacing(result, other)
        _replacing(result, tree)
        return result

    # Hydra's way

    def _search_path(self, tree: Tree) -> list[Path]:
        found = at(tree, ["hydra", "searchpath"])
        folders: list[Path] = []
        if not isinstance(found, Leaf) or not isinstance(found.value, list):
            return folders
        for item in found.value:
            name = _UNKNOWN_ROOT.sub("", str(item).removeprefix("file://")).strip("/")
            if "://" in name or not name:
                continue
            for root in self.sources.roots():
                if (root / name).is_dir():
                    folders.append(root / name)
                    break
        return folders

    def _with_defaults(
        self, tree: Tree, package: str, group: str, folders: Sequence[Path], path: Path, depth: int
    ) -> Tree:
        """A configuration below its package, over those that its list of defaults names."""
        named = tree.pop("defaults", None)
        tree.pop("_package_", None)
        own: Tree = {}
        if package:
            put(own, package.split("."), tree)
        else:
            own = tree
        if not isinstance(named, Leaf) or not isinstance(named.value, list):
            return own
        if depth > _DEEPEST:
            raise ScenarioError(str(named.place), "configurations call each other without end")
        self._choose(named.value, group)
        result: Tree = {}
        placed = False
        for entry in named.value:
            if entry == "_self_":
                merge(result, own)
                placed = True
                continue
            for which, option in entry.items() if isinstance(entry, dict) else [("", entry)]:
                for one in option if isinstance(option, list) else [option]:
                    if one is None:
                        continue
                    merge(
                        result,
                        self._child(which, str(one), package, group, folders, named.place, depth),
                    )
        if not placed:
            merge(result, own)
        return result

    def _choose(self, entries: Sequence[object], group: str) -> None:
        """Notes what a list of defaults chooses: what a command says holds over an ``override``,
        that of the outermost list over those further in, and either over a plain choice."""
        choices = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
        for which, option in choices:
            words = str(which).split() or [""]
            name = words[-1].partition("@")[0]
            if "override" in words[:-1]:
                self._overridden.setdefault(_inside(group, name), str(option))
        for which, option in choices:
            words = str(which).split() or [""]
            name = words[-1].partition("@")[0]
            there = self._overridden.get(_inside(group, name), str(option))
            plain = self.choices.get(name, self.choices.get(words[-1], there))
            self._chosen[_inside(group, name)] = plain

    def _child(
        self,
        which: str,
        option: str,
        package: str,
        group: str,
        folders: Sequence[Path],
        place: Place,
        depth: int,
    ) -> Tree:
        """One entry of a list of defaults: ``option`` alone, or ``which: option``."""
        words = which.split()
        optional = "optional" in words[:-1] or option.startswith("optional ")
        if "override" in words[:-1]:
            return {}
        which, option = (words[-1] if words else ""), option.removeprefix("optional ")
        target = ""
        if which:
            which, _, target = which.partition("@")
            if which in self.choices:
                option = self.choices[which]
                self.used.add(which)
            else:
                option = self._overridden.get(_inside(group, which), option)
        else:
            option, _, target = option.partition("@")
        if which.lstrip("/").startswith("hydra") or option.startswith(("hydra/", "/hydra/")):
            return {}
        option = re.sub(r"\$\{([\w./@]+)\}", lambda m: self._chosen.get(m[1], m[0]), option)
        name = option.removesuffix(".yaml")
        inside = which or posixpath.dirname(name)
        there = _inside(group, inside)
        file = posixpath.join(there, posixpath.basename(name) if not which else name)
        found = next((f / f"{file}.yaml" for f in folders if (f / f"{file}.yaml").is_file()), None)
        if found is None:
            if not optional:
                self._missing(file, place)
            return {}
        tree = self._read(found, place)
        steps = [part for part in inside.strip("/").split("/") if part not in ("", "..", ".")]
        home = ".".join(steps) if inside.startswith("/") else _below(package, ".".join(steps))
        home = _below(package, target) if target else _package(tree, home)
        return self._with_defaults(tree, home, there, folders, found, depth + 1)


def _there(folders: Sequence[Path], group: str, option: str) -> bool:
    """Whether a group has a file of this name; a text may be too long for one."""
    with suppress(OSError, ValueError):
        return any((folder / group / f"{option}.yaml").is_file() for folder in folders)
    return False


def _inside(group: str, name: str) -> str:
    """The folder of a group that is named in a list of another's."""
    whole = name.lstrip("/") if name.startswith("/") else posixpath.join(group, name)
    path = posixpath.normpath(whole)  # of the outermost list, ``..`` leads above the folder
    return "" if path in (".", "/") else path.lstrip("/")


def _package(tree: Tree, default: str) -> str:
    """Where a file's settings go, as its own head says."""
    named = tree.get("_package_")
    if not isinstance(named, Leaf) or named.value == "_group_":
        return default
    return "" if named.value == "_global_" else str(named.value)


def _below(package: str, name: str) -> str:
    if name == "_here_":
        return package
    if name == "_global_" or name.startswith("_global_."):
        return name.removeprefix("_global_").lstrip(".")
    return ".".join(part for part in (package, name) if part)


def _by_path(tree: Tree) -> bool:
    """Whether parents are named by their paths."""
    named = tree.get("defaults")
    if not isinstance(named, Leaf):
        return False
    if isinstance(named.value, str):
        return True
    names = named.value if isinstance(named.value, list) else []
    return bool(names) and all(isinstance(n, str) and n.endswith((".yaml", ".yml")) for n in names)


def _replacing(into: Tree, other: Tree) -> None:
    """As `merge`, but a mapping with ``_override_`` takes the place of what is there."""
    for key, item in other.items():
        if not isinstance(item, dict):
            into[key] = item
            continue
        mark = item.get(_REPLACES)
        drop(item, [_REPLACES])
        held = into.get(key)
        if (isinstance(mark, Leaf) and mark.value is True) or not isinstance(held, dict):
            into[key] = item
        else:
            _replacing(held, item)
