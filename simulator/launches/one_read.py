"""What the words of a command give to one stack, with the configurations that they name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches import around
from rollcast.simulator.launches.configs import CONFIG, Configs, parse_tree
from rollcast.simulator.launches.interpolate import resolve
from rollcast.simulator.launches.pieces import Text, known, plain, shown
from rollcast.simulator.launches.python.script import Script
from rollcast.simulator.launches.python.settings import settings
from rollcast.simulator.launches.shell.expand import Value
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.sweeps import first_run
from rollcast.simulator.launches.values import (
    NOT_GIVEN,
    Leaf,
    Tree,
    Unknown,
    drop,
    leaves,
    merge,
    put,
    tree_of,
)
from rollcast.simulator.launches.words import SURE, Option, Program, entered, server, value_of
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.stack import Stack

CONFIG_NAME = "--config-name"
"""Hydra's, where a stack's table gives its name a meaning."""
NOT_KNOWN = "which configuration is launched is not known"
COMMAND = 1
"""How sure what a launch's own command says is; see `Given`."""
_DEEPSPEED = {
    *("deepspeed", "deepspeed_config", "accelerate.deepspeed_config_file"),
    "accelerate.deepspeed_config.deepspeed_config_file",
}
_ZERO = re.compile(r"zero([0-3])(_offload)?")
_NAMED_ZERO = re.compile(
    r"(?:zero|stage|ds_?z|\bz)[_-]?([0-3])(?!\d)(?:.*(offload))?", re.IGNORECASE
)
"""In names of configurations: DeepSpeed's stage, and whether it keeps states on the host."""


class OneRead:
    """Reads options and the configurations that they name, for one stack. on_shipped: whether the
    configuration is put over one that comes with the stack."""

    def __init__(
        self,
        sources: Sources,
        stack: Stack,
        variables: Mapping[str, Value],
        folders: Sequence[Path] = (),
    ) -> None:
        self._sources, self._stack = sources, stack
        self._folders = (*folders, sources.folder)
        self._variables = {k: v for k, v in variables.items() if isinstance(v, tuple)}
        self._used: set[str] = set()
        self.on_shipped = False
        self.notes: list[str] = []

    def of_file(self, path: Path) -> list[Given]:
        """A configuration and its parents, or all parts of it that lie in one folder."""
        configs = Configs(self._sources, self._stack.launch.shipped)
        tree = self._composed(configs, path, None)
        if parts_of(self._stack, path):
            self.notes.append(
                f"{path.name} was read with the files of its other parts; GPUs that their command "
                "gives to one of them are not known: give --gpus, or the command"
            )
        self.notes.extend(configs.notes)
        self.on_shipped = configs.on_shipped
        return self.of_tree(tree, [])

    def _composed(self, configs: Configs, path: Path, place: Place | None) -> Tree:
        """A configuration and its parents, or all parts of it that lie in one folder, each below
        its key."""
        parts = parts_of(self._stack, path)
        if not parts:
            return configs.composed(path, place)
        tree: Tree = {}
        for key, part in parts.items():
            put(tree, [key], configs.composed(part, place))
        return tree

    def of_options(
        self, given: Sequence[Option], program: Program, script: Script | None, path: Path | None
    ) -> list[Given]:
        """What options say, and the configurations that they name. script: of Python, that is
        started, and its path."""
        tree: Tree = {}
        given, notes = first_run(given)
        self.notes.extend(notes)
        for option in given:
            if option.kind == "file":
                merge(tree, self._file(option))
        merge(tree, self._primary(given, program, script, path))
        found = self.of_tree(tree, given)
        found.extend(
            Given(CONFIG_NAME, plain(option.text), option.place, COMMAND)
            for option in given
            if option.kind == "name" and CONFIG_NAME in self._stack.launch.ours
        )
        found.extend(self._deepspeed(found))
        if script is not None and self._stack.launch.calls:
            more, notes = settings(script.calls, self._stack.launch.calls, CONFIG)
            more = _given_by_file(more, found)
            found.extend(more)
            found.extend(self._deepspeed([item for item in more if self._is_there(item)]))
            self.notes.extend(notes)
        return found

    def of_launcher(self, words: Sequence[Text], place: Place) -> list[Given]:
        """What torchrun, deepspeed or accelerate is told, where the stack's table has keys of
        theirs: below their names, as is what accelerate's own configuration says; the GPUs that
        deepspeed names are counted."""
        names = (posixpath.basename(plain(text) or "") for text in words)
        launcher = next((name for name in names if name in around.LAUNCHERS), "")
        if not any(key.startswith(f"{launcher}.") for key in self._stack.launch.ours):
            return []
        found: list[Given] = []
        for key, value, at in around.options(words, place):
            if key == "config_file" and (said := self._by_name(value, at)):
                found.extend(said)
            elif key == "config_file":
                leaf = Option("file", launcher, None, value, at)
                found.extend(
                    Given(dotted, _value(one), one.place, CONFIG)
                    for dotted, one in leaves(self._file(leaf))
                )
            elif key in ("include", "i") and launcher == "deepspeed":
                counts = around.included(plain(value) or "")
                found.extend(
                    Given(f"deepspeed.{of}", its, at, COMMAND) for of, its in counts.items()
                )
            else:
                found.append(Given(f"{launcher}.{key}", value_of(value), at, COMMAND))
        found.extend(self._deepspeed(found))
        return [item for item in found if item.key in self._stack.launch.ours]

    def of_server(self, words: Sequence[Text], place: Place) -> list[Given]:
        """The options of a command that starts an engine's server beside the stack's program, below
        ``server``, and that itself; nothing of any other command."""
        begins = server(self._stack.launch, words)
        if begins is None:
            return []
        said = [
            Given(f"server.{key}", value_of(value), where, COMMAND)
            for key, value, where in around.options(words[begins:], place)
        ]
        known_too = (item for item in said if item.key in self._stack.launch.ours)
        return [Given("server", True, place, COMMAND), *known_too]

    def _deepspeed(self, flags: Sequence[Given]) -> list[Given]:
        """What DeepSpeed's configuration says that a flag or accelerate names, where the stack's
        table has keys of it."""
        if not any(key.startswith("deepspeed.") for key in self._stack.launch.ours):
            return []
        found: list[Given] = []
        for item in flags:
            names = item.key in _DEEPSPEED and isinstance(item.value, str)
            shipped = _ZERO.fullmatch(item.value) if names else None
            if shipped is not None:
                found.extend(_shipped(shipped, item.place))
            elif names and (said := self._by_name(known(item.value, item.place), item.place)):
                found.extend(said)
            elif names:
                named = known(item.value, item.place)
                tree = self._file(Option("file", "deepspeed", None, named, item.place))
                found.extend(Given(k, one.value, one.place, CONFIG) for k, one in leaves(tree))
        return found

    def _by_name(self, text: Text, place: Place) -> list[Given]:
        """What the name of a DeepSpeed configuration says that is not there, with a note."""
        name = _NAMED_ZERO.search(posixpath.basename(shown(text)))
        there = shown(text) in self._sources.written or self._sources.find(text, *self._folders)
        if name is None or there:
            return []
        offload = ", with offload" * bool(name[2])
        self.notes.append(
            f"{place}: calls {shown(text)}, which is not there; by its name it is DeepSpeed's "
            f"stage {name[1]}{offload}, and nothing else of it is known"
        )
        return list(_shipped(name, place))

    def _is_there(self, item: Given) -> bool:
        """Whether what a script of Python's names can be read; a note where it cannot, since only
        a run knows from where the script would have found it."""
        if item.key not in _DEEPSPEED or not isinstance(item.value, str):
            return False
        if _ZERO.fullmatch(item.value):
            return True
        named = known(item.value, item.place)
        named_zero = _NAMED_ZERO.search(posixpath.basename(item.value))
        if named_zero or self._sources.find(named, *self._folders) is not None:
            return True
        self.notes.append(f"{item.place}: {item.value} is not read: it is not there")
        return False

    def of_tree(self, tree: Tree, given: Sequence[Option]) -> list[Given]:
        """Configurations with overrides put over them, and interpolations resolved."""
        flags: list[Given] = []
        over: list[Given] = []
        for option in given:
            if option.key in self._used:
                continue  # it chose a file
            if option.kind == "drop":
                drop(tree, option.key.split("."))
            elif option.kind == "flag":
                flags.append(Given(option.key, option.value, option.place, COMMAND))
            elif option.kind == "override" and "@" not in option.key and "/" not in option.key:
                item = tree_of(option.value, option.place, COMMAND)
                put(tree, option.key.split("."), item)
                if isinstance(item, Leaf):
                    over.append(Given(option.key, item.value, item.place, COMMAND))
        resolved = resolve(tree, self._variables)
        found = [Given(key, _value(leaf), leaf.place, leaf.sure) for key, leaf in leaves(resolved)]
        kept = {(item.key, item.place, item.sure) for item in found}
        last = {item.key: item for item in over}
        twice = [
            item
            for item in over
            if (item.key, item.place, item.sure) not in kept or last[item.key] is not item
        ]
        return [*twice, *found, *flags]

    def _file(self, option: Option) -> Tree:
        """A file that an option names, below its key."""
        configs = Configs(self._sources, self._stack.launch.shipped)
        tree = self._written(shown(option.text))
        if tree is None:
            path = self._sources.find(option.text, *self._folders)
            if path is None:
                self._not_there(option.text, option.place, option.kind == "file" and not option.key)
                return {}
            if not option.key:
                tree = self._composed(configs, path, option.place)
            else:
                tree = configs.composed(path, option.place)
        self.notes.extend(configs.notes)
        if not option.key:
            return tree
        below: Tree = {}
        put(below, option.key.split("."), tree)
        return below

    def _written(self, name: str) -> Tree | None:
        """A file that the script itself would write; None where it writes none of this name."""
        text = self._sources.written.get(name)
        if text is None:
            return None
        return parse_tree(self._sources, self._sources.as_text(text), name, Path(name).suffix)

    def _primary(
        self, given: Sequence[Option], program: Program, script: Script | None, started: Path | None
    ) -> Tree:
        """Hydra's configuration, by the options for its folder and its name, else by what the
        script that is started says itself."""
        named = {
            option.kind: option for option in given if option.kind in ("path", "name", "folder")
        }
        choices = {
            option.key: str(option.value)
            for option in given
            if option.kind == "override" and "." not in option.key
        }
        configs = Configs(self._sources, self._stack.launch.shipped, choices)
        name = named.get("name")
        if name is None:
            return self._own(configs, script, started)
        file = plain(name.text)
        folder = named.get("path") or named.get("folder")
        start = folder.text if folder else ()
        ending = "" if (file or "").endswith(".yaml") else ".yaml"
        between = known("/", name.place) if start and not shown(start).endswith("/") else ()
        wanted = (*start, *between, *name.text, *known(ending, name.place))
        if (tree := self._written(shown(wanted))) is not None:
            return tree
        beside = [started.parent] if started else []
        if started and script is not None and script.hydra is not None and not start:
            beside.insert(0, started.parent / script.hydra[0])
        path = self._sources.find(wanted, *beside, *self._folders)
        if path is None:
            shipped = (file or "").removesuffix(".yaml") in self._stack.launch.shipped
            if shipped or self._of_the_stack(program, shown(start)):
                self.notes.append(f"{name.place}: {shown(wanted)} is the stack's own; not read")
            else:
                self._not_there(wanted, name.place, file is None)
            return {}
        tree = configs.composed(path, name.place)
        self._used |= configs.used
        self.notes.extend(configs.notes)
        return tree

    def _own(self, configs: Configs, script: Script | None, started: Path | None) -> Tree:
        """The configuration that a script takes by itself, unless it comes with the stack."""
        if script is None or script.hydra is None or started is None:
            return {}
        folder, name = script.hydra
        path = started.parent / folder / f"{name.removesuffix('.yaml')}.yaml"
        if name.removesuffix(".yaml") in self._stack.launch.shipped or not path.is_file():
            return {}
        tree = configs.composed(path, None)
        self._used |= configs.used
        self.notes.extend(configs.notes)
        return tree

    def _of_the_stack(self, program: Program, folder: str) -> bool:
        """Whether a folder, named from the stack's own module, comes with the stack."""
        own = entered(self._stack.launch, program) == SURE
        return own and program.module and not folder.startswith(("/", "$", "~"))

    def _not_there(self, text: Text, place: Place, whole: bool) -> None:
        """A file that the launch names and that is not there: an error where its name is known, or
        where it is the whole configuration of the launch."""
        if plain(text) is None:
            why = next(piece.why for piece in text if piece.why)
            if whole:
                raise ScenarioError(
                    str(place),
                    f"{NOT_KNOWN}: it is {shown(text)}, and {why}; check that file itself, or give "
                    "the variable with --env NAME=VALUE",
                )
            self.notes.append(f"{place}: {shown(text)} is not read: {why}")
            return
        raise ScenarioError(str(place), f"calls another file that is not there: {shown(text)}")


def parts_of(stack: Stack, path: Path) -> Mapping[str, Path]:
    """The files of a configuration in parts of which one is named, by key; none of another."""
    parts = stack.launch.parts
    if not any(path.name in names for names in parts.values()):
        return {}
    there = {
        key: next((path.with_name(name) for name in names if path.with_name(name).is_file()), path)
        for key, names in parts.items()
    }
    found = {key: file for key, file in there.items() if file.name in parts[key]}
    return found if len(found) > 1 else {}


def _given_by_file(calls: Sequence[Given], found: Sequence[Given]) -> list[Given]:
    """What a script's calls say, where an argument that no command gives is one of a configuration
    that the command names, as parsers of dataclasses have it (TRL's ``--config``)."""
    files = {item.key: item for item in found if item.sure == CONFIG}
    settled: list[Given] = []
    for item in calls:
        value = item.value
        if isinstance(value, Unknown) and value.why.endswith(NOT_GIVEN):
            said = files.get(value.text.rpartition(".")[2])
            item = item if said is None else said._replace(key=item.key)
        settled.append(item)
    return settled


def _shipped(name: re.Match[str], place: Place) -> Iterator[Given]:
    """A configuration of DeepSpeed's by its name, such as ``zero3_offload``, which comes with a
    trainer."""
    below = "deepspeed.zero_optimization"
    yield Given(f"{below}.stage", int(name[1]), place, CONFIG)
    for part in ("offload_optimizer", "offload_param")[: (name[1] == "3") + 1 if name[2] else 0]:
        yield Given(f"{below}.{part}.device", "cpu", place, CONFIG)


def _value(leaf: Leaf) -> object:
    """A leaf's value, a text of a script's own file read as what it stands for."""
    value = leaf.value
    if isinstance(value, tuple):
        return value_of(value)
    return value
