"""Reading a scenario's YAML: where each key stands, and ``--set`` overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import ScenarioError

_MAX_BYTES = 4_000_000


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``1e-3`` and ``1e9`` are numbers, a key given twice is an error."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)$"),
    list("-+0123456789"),
)


@dataclass(frozen=True)
class RawScenario:
    """A scenario before it is checked: its mapping, and the line of each dotted key.

    folder: what relative paths inside it start from.
    """

    data: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    name: str = "scenario"
    folder: Path = Path()
    overridden: frozenset[str] = frozenset()

    def locate(self, error: ScenarioError) -> ScenarioError:
        """The same error with the file and line of its key, or of the nearest key above it."""
        key = error.field
        while key:
            if key in self.overridden:
                return ScenarioError(error.field, f"{error.message} (from --set {key})")
            if key in self.lines:
                place = f"{self.name}, line {self.lines[key]}"
                return ScenarioError(error.field, f"{error.message} ({place})")
            key = re.sub(r"(\[[^\]]*\]|\.?[^.\[]+)$", "", key)
        return error


def read_scenario(path: Path) -> RawScenario:
    """Reads a scenario file. Raises ScenarioError where there is none or it is not a mapping."""
    try:
        if path.is_dir():
            raise ScenarioError("", f"{path} is a folder; give a scenario file (YAML)")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ScenarioError("", f"{path} is too large for a scenario file")
        text = content.decode("utf-8")
    except OSError as error:
        raise ScenarioError("", f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError("", f"{path} is not a text file in UTF-8") from None
    return parse_scenario(text, path.name, path.parent)


def parse_scenario(text: str, name: str = "scenario", folder: Path = Path()) -> RawScenario:
    """Parses a scenario's text; see `read_scenario`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        lines: dict[str, int] = {}
        if root is not None:
            _walk(root, "", lines, name)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ScenarioError("", f"{name}{place}: not valid YAML: {problem}") from None
    except (ValueError, RecursionError, TypeError) as error:
        raise ScenarioError("", f"{name}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ScenarioError("", f"{name} is empty or not a mapping of keys; see examples/")
    return RawScenario(data, lines, name, folder)


def _walk(node: yaml.Node, prefix: str, lines: dict[str, int], name: str) -> None:
    """Notes the line of every key below ``node``. Raises ScenarioError for a key given twice."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}.{key.value}" if prefix else str(key.value)
            line = key.start_mark.line + 1
            if dotted in lines and not prefix.endswith("]"):
                message = f"given twice, in lines {lines[dotted]} and {line} of {name}"
                raise ScenarioError(dotted, message)
            lines[dotted] = line
            _walk(value, dotted, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            lines[f"{prefix}[{position}]"] = item.start_mark.line + 1
            if isinstance(item, yaml.MappingNode):  # a policy's parameters are policy.NAME.KEY
                _walk_item(item, prefix, lines)


def _walk_item(node: yaml.MappingNode, prefix: str, lines: dict[str, int]) -> None:
    for key, value in node.value:
        dotted = f"{prefix}.{key.value}"
        lines.setdefault(dotted, key.start_mark.line + 1)
        if isinstance(value, yaml.MappingNode):
            for inner, _ in value.value:
                lines.setdefault(f"{dotted}.{inner.value}", inner.start_mark.line + 1)


def override(raw: RawScenario, settings: Sequence[str]) -> RawScenario:
    """The scenario with ``key=value`` settings applied; a value is read as YAML.

    A policy's parameter is ``policy.april.over_sampling``. Raises ScenarioError for a setting of
    another form, or one that would put a key under something that is not a mapping.
    """
    data = _copy(raw.data)
    overridden = set(raw.overridden)
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key or any(not part for part in key.split(".")):
            raise ScenarioError("--set", f"{setting!r} is not of the form key=value")
        try:
            value = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError:
            raise ScenarioError("--set", f"cannot read the value in {setting!r}") from None
        _put(data, key.split("."), value, key)
        overridden.add(key)
    return RawScenario(data, raw.lines, raw.name, raw.folder, frozenset(overridden))


def _put(place: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    """Sets ``path`` below ``place``; a name stands for a mapping that is yet empty."""
    part, *rest = path
    if not rest:
        place[part] = value
        return
    below = place.get(part)
    if below is None or isinstance(below, str):
        below = place[part] = {}
    elif isinstance(below, list):
        below = _entry(below, rest[0], key)
    elif not isinstance(below, dict):
        raise ScenarioError(key, f"{part} is {below!r}, which has no keys below it")
    _put(below, rest, value, key)


def _entry(items: list[Any], name: str, key: str) -> dict[str, Any]:
    """The entry called ``name`` of a list such as ``policy``, as ``{name: parameters}``."""
    for position, item in enumerate(items):
        if item == name:
            items[position] = {name: {}}
        if isinstance(items[position], dict) and name in items[position]:
            return items[position]  # type: ignore[no-any-return]
    raise ScenarioError(key, f"the list has no entry called {name}")


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
