"""Configurations: YAML, TOML, JSON, Hydra's overrides, command lines; each value with its line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.trees import read_toml_tree, read_yaml_tree
from rollcast.simulator.launches.values import Tree, leaves
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse
from rollcast.simulator.stacks.syntax.yaml_text import word

MOST_TEXT = 4_000_000
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a configuration gives to a dotted key."""

    key: str
    value: Any
    line: int


class NotConfigError(ValueError):
    """What is wrong, as the end of a sentence. line: where, 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def from_yaml(text: str) -> list[Given]:
    """The values of a YAML file; of a list of ``key=value`` (Hydra's overrides.yaml), those. Raises
    NotConfigError, also where anchors repeat without end."""
    tree = _read(read_yaml_tree, text)
    if isinstance(tree, list):
        return [one for leaf in tree for one in override(str(leaf.value), leaf.place.line)]
    return _given(tree)


def _read(read: Callable[[str, str, int, Sources], _Read], text: str) -> _Read:
    """By a reader of launches' configurations. Raises NotConfigError."""
    try:
        return read(text, "", 0, Sources(Path()))
    except ScenarioError as error:
        line = re.search(r"line (\d+)$", error.field)
        raise NotConfigError(
            error.message.removeprefix("is "), int(line[1]) if line else 0
        ) from None


def _given(tree: Tree) -> list[Given]:
    return [Given(key, leaf.value, leaf.place.line) for key, leaf in leaves(tree) if key]


def from_toml(text: str) -> list[Given]:
    """The values of a TOML file. Raises NotConfigError."""
    return _given(_read(read_toml_tree, text))


def from_json(text: str) -> list[Given]:
    """The values of a JSON file, whose lines are not known. Raises NotConfigError."""
    try:
        value = parse(text)
    except NotJsonError as error:
        raise NotConfigError(str(error)) from None
    if not isinstance(value, dict):
        raise NotConfigError("no mapping")
    return [Given(key, item, 0) for key, item in flatten(value).items()]


_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.@/-]{0,200})=(.*)", re.DOTALL)


def override(text: str, line: int) -> Iterator[Given]:
    """``key=value`` as Hydra has it, ``+key=value`` included; nothing for other text."""
    match = _OVERRIDE.fullmatch(text.strip())
    if match:
        yield Given(match[1], word(match[2]), line)


_COMMAND = re.compile(
    r"(?:^|[\s+;&|/])(?:python[\d.]*|torchrun|accelerate|ray job submit|uv run|rl)\b"
)


def from_command(text: str, line: int) -> list[Given]:
    """Options of a command line, names without dashes, and ``a.b=c``; empty for other text."""
    if len(text) > 100_000 or not (" --" in text or "=" in text) or not _COMMAND.search(text):
        return []
    return _options(text, line)


def from_script(text: str, line: int) -> list[Given]:
    """The options on a line of a launcher's script; ``a.b=c`` counts, a shell's ``A=c`` not."""
    text = text.split(" #")[0].rstrip().removesuffix("\\")
    if len(text) > 100_000 or text.lstrip().startswith("#"):
        return []
    options = _options(text, line)
    return [
        g for g in options if "$" not in str(g.value) and (f"--{g.key}" in text or "." in g.key)
    ]


def _options(text: str, line: int) -> list[Given]:
    try:
        words = shlex.split(text, posix=True)
    except ValueError:
        words = text.split()
    return of_words(words, line)


def of_words(words: list[str], line: int) -> list[Given]:
    """The same of words as a program was given them."""
    options: list[Given] = []
    at = 0
    while at < len(words):
        here = words[at]
        at += 1
        if here.startswith("--"):
            name, equals, value = here[2:].partition("=")
            if not equals and at < len(words) and not words[at].startswith("--"):
                value, equals = words[at], "="
                at += 1
            options.append(Given(name, word(value) if equals else True, line))
        else:
            options.extend(override(here, line))
    return options


_ARGUMENT = re.compile(r"\s{0,8}(\w{2,80}) ?\.{4,} ?(\S.{0,2000})")


def argument(text: str, line: int) -> Given | None:
    """A line of Megatron's table of arguments: ``  name ........ value``."""
    match = _ARGUMENT.fullmatch(text.rstrip())
    return Given(match[1], word(match[2]), line) if match else None
