"""Configurations: YAML, TOML, JSON, Hydra's overrides, command lines; each value with its line."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse
from rollcast.simulator.stacks.syntax.scalars import word

MOST_TEXT = 4_000_000
_MOST_VALUES = 200_000
_DEEPEST = 50


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
    """The values of a YAML file; of a list of ``key=value`` (Hydra's overrides.yaml), those. Never
    more than a bounded number, however often anchors repeat. Raises NotConfigError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        walk = _Walk()
        walk.visit(node, "", 0)
        return _unwrapped(walk.found)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotConfigError("no YAML", mark.line + 1 if mark else 0) from None
    except RecursionError:
        raise NotConfigError("YAML too many levels deep") from None


def _unwrapped(settings: list[Given]) -> list[Given]:
    """Without the ``value`` that Weights & Biases puts between a key and what is below it."""
    if not any(given.key.startswith(("_wandb.", "wandb_version")) for given in settings):
        return settings
    return [
        Given(re.sub(r"^([^.]+)\.value(?=\.|$)", r"\1", g.key), g.value, g.line) for g in settings
    ]


class _Walk:
    def __init__(self) -> None:
        self.found: list[Given] = []
        self._left = _MOST_VALUES
        self._loader = yaml.SafeLoader("")

    def visit(self, node: yaml.Node | None, key: str, depth: int) -> None:
        """Everything below a node."""
        self._left -= 1
        if node is None or self._left < 0 or depth > _DEEPEST:
            return
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                if isinstance(name, yaml.ScalarNode):
                    dotted = f"{key}.{name.value}" if key else str(name.value)
                    self.visit(value, dotted, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            scalars = [n for n in node.value if isinstance(n, yaml.ScalarNode)]
            if not key:
                for scalar in scalars:
                    self.found.extend(override(str(scalar.value), scalar.start_mark.line + 1))
            elif len(scalars) == len(node.value) <= 1000:
                self.found.append(Given(key, [self._plain(n) for n in scalars], line))
        elif key:
            self.found.append(Given(key, self._plain(node), line))

    def _plain(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, LookupError):
            return str(node.value)


def from_toml(text: str) -> list[Given]:
    """The values of a TOML file. Raises NotConfigError."""
    try:
        values = flatten(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"line (\d+)", str(error))
        raise NotConfigError("no TOML", int(match[1]) if match else 0) from None
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([\w.\"'-]+)\s*\]", line)
        entry = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if header:
            table = re.sub(r"[\"']", "", header[1]) + "."
        elif entry:
            lines.setdefault(table + re.sub(r"[\"']", "", entry[1]), number)
    return [Given(key, value, _nearest(key, lines)) for key, value in values.items()]


def _nearest(key: str, lines: dict[str, int]) -> int:
    """The line of a key, or of the inline table that holds it."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return 0


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
