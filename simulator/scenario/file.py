"""Reads a scenario's YAML with the line of each key, and applies ``--set``.

Modules that a file names are imported, which runs their code, only where the user trusts the file;
those named on the command line or in Python always are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies.outside import is_module
from rollcast.simulator.policies.registry import kind_of
from rollcast.simulator.stacks.syntax.yaml_text import MERGE, TEXT, Loader
from rollcast.simulator.values.readers import in_their_units

MAX_BYTES = 4_000_000
_MAX_VALUES = 100_000
_MAX_DEPTH = 100


@dataclass(frozen=True)
class RawScenario:
    """A scenario before it is checked: its mapping, and the line of each dotted key.

    folder: start of relative paths. overridden: the option behind each key set on the command line.
    modules: where modules of policies are looked for beside the Python path: the folder of the
    file, or its key ``modules``; None for a run's folder, which runs no code.
    """

    data: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    name: str = "scenario"
    folder: Path = Path()
    overridden: Mapping[str, str] = field(default_factory=dict)
    modules: Path | None = None

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Adds file and line (`locate`) to a ScenarioError raised inside."""
        try:
            yield
        except ScenarioError as error:
            raise self.locate(error) from None

    def locate(self, error: ScenarioError) -> ScenarioError:
        """The same error with the file and line of its key, or of the nearest key above it."""
        key = error.field
        while key:
            if key in self.overridden:
                return ScenarioError(error.field, f"{error.message} (from {self.overridden[key]})")
            if key in self.lines:
                place = f"{self.name}, line {self.lines[key]}"
                return ScenarioError(error.field, f"{error.message} ({place})")
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return error


_OF_LAUNCHES = (".sh", ".bash", ".sbatch", ".slurm", ".toml", ".py")
_OF_SCENARIOS = {"workload", "engine", "cost", "model", "gpu", "steps", "modules"}
"""Keys of which every scenario has one, and no launch any."""


def read_scenario(path: Path, trust_modules: Trust = False) -> RawScenario:
    """Reads a scenario file.

    trust_modules: whether modules named in the file may be imported. Raises ScenarioError for a
    missing file, one that is no mapping, or one that names untrusted modules.
    """
    try:
        if path.is_dir():
            raise ScenarioError("", f"{path} is a folder; give a scenario file (YAML)")
        if path.exists() and not path.is_file():  # which nothing may ever be written to
            raise ScenarioError("", f"{path} is a device or a pipe; give a scenario file (YAML)")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ScenarioError("", f"{path} is too large for a scenario file")
        text = content.decode("utf-8")
    except OSError as error:
        raise ScenarioError("", f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError("", f"{path} is not a text file in UTF-8") from None
    except ValueError:  # of a path with a NUL
        raise ScenarioError("", f"{str(path)!r} is no path of a file") from None
    if path.suffix in _OF_LAUNCHES:
        raise _launch(path)
    raw = parse_scenario(text, path.name, path.parent)
    if raw.data and not raw.data.keys() & _OF_SCENARIOS:
        raise _launch(path)
    with raw.locating():
        require_trust(raw.data, trust_modules, path.name)
    return raw


def _launch(path: Path) -> ScenarioError:
    """The error of a launch in a scenario's place."""
    return ScenarioError(
        "",
        f"{path.name} is no scenario, which has a section workload; rollcast check reads launches, "
        f"and rollcast check {path.name} --out DIR writes the scenario of one, DIR/scenario.yaml",
    )


def parse_scenario(text: str, name: str = "scenario", folder: Path = Path()) -> RawScenario:
    """Parses a scenario's text; see `read_scenario`."""
    data, lines = _parse(text, name)
    if not isinstance(data, dict):
        raise ScenarioError("", f"{name} is empty or not a mapping of keys; see examples/")
    return RawScenario(data, lines, name, folder, modules=_modules(data, folder))


def _modules(data: Mapping[str, Any], folder: Path) -> Path:
    modules = data.get("modules")
    return folder / modules if isinstance(modules, str) else folder


def read_value(text: str, name: str) -> Any:
    """The YAML value of a text on the command line. name: for errors. Raises ScenarioError."""
    return _parse(text, name)[0]


def _parse(text: str, name: str) -> tuple[Any, dict[str, int]]:
    """A YAML text's value, and the line of each dotted key."""
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, {}
        walk = _Walk(name)
        walk.visit(root, "")
        return in_their_units(loader.construct_document(root)), walk.lines
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"the character {_shown(error.character)} is no text"
        raise ScenarioError("", f"{name}, line {line}: not valid YAML: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        context, problem = getattr(error, "context", None), getattr(error, "problem", None)
        reason = ", ".join(part for part in (context, problem) if part) or str(error)
        raise ScenarioError("", f"{name}{place}: not valid YAML: {reason}") from None
    except RecursionError:
        raise ScenarioError("", f"{name}: nested too deeply") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # PyYAML's constructors fail so on values such as !!int "" or 2024-13-45
        raise ScenarioError("", f"{name}: not valid YAML: {error}") from None


_NO_TEXT = re.compile("[\x00\ud800-\udfff]")  # other control characters are shown escaped
_MOST_DIGITS = 1_000


def _shown(character: str | int) -> str:
    """A character by its number, as it may not be printed."""
    return f"U+{ord(character) if isinstance(character, str) else character:04X}"


class _Walk:
    """Collects the line of every key; a policy's parameters are ``policy.NAME.KEY``. Raises
    ScenarioError for duplicate keys, keys that are not text, and anchors that refer to themselves
    or multiply."""

    def __init__(self, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._name = name
        self._above: set[int] = set()
        self._values = 0

    def visit(self, node: yaml.Node, prefix: str) -> None:
        """Visits ``node``, whose dotted key is ``prefix``, and everything below it."""
        self._values += 1
        if self._values > _MAX_VALUES:
            raise ScenarioError(prefix, f"more than {_MAX_VALUES} values in {self._name}")
        if id(node) in self._above:
            raise ScenarioError(prefix, f"refers to itself in {self._name}")
        self._above.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            self._scalar(node, prefix)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, prefix)
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                place = f"{prefix}[{position}]"
                self.lines.setdefault(place, item.start_mark.line + 1)
                self.visit(item, prefix if prefix == "policy" else place)
        self._above.remove(id(node))

    def _scalar(self, node: yaml.ScalarNode, prefix: str) -> None:
        where = f"({self._name}, line {node.start_mark.line + 1})"
        found = _NO_TEXT.search(node.value)
        if found:
            message = f"holds the character {_shown(found[0])}, which is no text {where}"
            raise ScenarioError(prefix, message)
        if node.tag != TEXT and len(node.value) > _MOST_DIGITS:
            raise ScenarioError(prefix, f"is a number of {len(node.value)} digits {where}")

    def _mapping(self, node: yaml.MappingNode, prefix: str) -> None:
        given: dict[str, int] = {}
        merged = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == MERGE:
                merged.append(value)
                continue
            if key.tag != TEXT:
                shown = key.value if isinstance(key, yaml.ScalarNode) else "this key"
                message = f"{shown!r} is not text; put a key into quotes"
                raise ScenarioError(prefix, f"{message} ({self._name}, line {line})")
            dotted = f"{prefix}.{key.value}" if prefix else str(key.value)
            if key.value in given:
                before = given[key.value]
                lines = f"line {line}" if before == line else f"lines {before} and {line}"
                message = f"given twice, in {lines} of {self._name}"
                raise ScenarioError(dotted, message)
            given[key.value] = line
            self.lines.setdefault(dotted, line)
            self.visit(value, dotted)
        for value in merged:  # last, as a key of its own comes before a merged one
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                self.visit(part, prefix)


def override(
    raw: RawScenario, settings: Sequence[str], seed: int | None = None, option: str = "--set"
) -> RawScenario:
    """The scenario with ``key=value`` settings and ``seed`` applied; values are read as YAML.

    A policy's parameter is ``policy.april.over_sampling``, an entry of another list
    ``components[0]``. option: the command line's, for errors. Raises ScenarioError for a setting of
    another form, or a key below something that is no mapping.
    """
    data, lines, overridden = _copy(raw.data), dict(raw.lines), dict(raw.overridden)
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        path = re.sub(r"\[(\d+)\]", r".\1", key).split(".")
        if not equals or not all(path):
            raise ScenarioError(option, f"{setting!r} is not of the form key=value")
        if len(path) > _MAX_DEPTH:
            shown = key if len(key) <= 40 else f"{key[:40]}..."
            raise ScenarioError(option, f"{shown} has {len(path)} parts; no key has so many")
        value = in_their_units(read_value(text, f"{option} {key}"), path[-1])
        _put(data, path, value, key)
        for known in [k for k in lines if k == key or k.startswith((f"{key}.", f"{key}["))]:
            del lines[known]
        parts = [key, *(key[: dot.start()] for dot in re.finditer(r"[.\[]", key))]
        for part in parts:  # the key, and what had to be made to hold it
            if part not in lines:
                overridden[part] = f"{option} {key}"
    if seed is not None:
        data["seed"] = seed
        overridden["seed"] = "--seed"
    modules = None if raw.modules is None else _modules(data, raw.folder)
    return RawScenario(data, lines, raw.name, raw.folder, overridden, modules)


def with_values(raw: RawScenario, values: Mapping[str, Any]) -> RawScenario:
    """The scenario with other values of some dotted keys. Raises ScenarioError for a key below
    something that is no mapping."""
    data = _copy(raw.data)
    for key, value in values.items():
        _put(data, key.split("."), value, key)
    return replace(raw, data=data)


def _put(place: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    """Sets ``path`` below ``place``, making the mappings on the way."""
    part, *rest = path
    if not rest:
        place[part] = value
        return
    below = place.get(part)
    if part == "policy" and not isinstance(below, list):
        below = place[part] = [] if below is None else [below]
    if isinstance(below, list):
        _put_into_list(below, rest, value, key)
        return
    if isinstance(below, str) and part in ("model", "gpu"):
        below = place[part] = {"preset": below}
    elif isinstance(below, str) and part == "cost" and rest[0] == "scale":
        below = place[part] = {below: {}}  # factors on the source that is named
    elif below is None or (isinstance(below, str) and part == "cost"):
        below = place[part] = {}
    if not isinstance(below, dict):
        raise ScenarioError(key, f"{part} is {below!r}, which has no keys below it")
    _put(below, rest, value, key)


def _put_into_list(items: list[Any], path: Sequence[str], value: Any, key: str) -> None:
    """Sets ``path`` in the entry of a list that its first part names or numbers, from 0."""
    part, *rest = path
    for position, item in enumerate(items):
        named = item == part or (isinstance(item, dict) and part in item)
        if not named and part != str(position):
            continue
        if not rest and not named:
            items[position] = value
            return
        if isinstance(item, str):
            item = items[position] = {item: {}}
        if isinstance(item, dict):
            _put(item, path if named else rest, value, key)
            return
    raise ScenarioError(key, f"it has no entry {part} to set this in; set the list as a whole")


def _copy(value: Any) -> Any:
    """A copy in which what an anchor repeats is no longer one object."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


Trust = bool | Callable[[Sequence[str]], bool]
"""Whether the modules that a file names may be imported, or what asks the user about them."""

_REFERENCE = re.compile(r"([^\W\d][\w.]*):([^\W\d][\w.]*)")


def require_trust(data: Mapping[str, Any], trust: Trust, name: str, field: str = "policy") -> None:
    """Raises ScenarioError (``field``) where a scenario file names modules and ``trust`` does not
    allow them. name: of the file."""
    named = named_modules(data)
    if not named or (trust if isinstance(trust, bool) else trust(named)):
        return
    raise ScenarioError(
        field,
        f"{name} names {', '.join(named)}, whose code would run; add --trust-modules (in Python "
        "trust_modules=True) if you trust it",
    )


def named_modules(data: Mapping[str, Any]) -> list[str]:
    """The classes, ``module:Class``, that a scenario's policies and plan name, in order."""
    references = [*_references(data.get("policy")), *_references(data.get("plan"))]
    return list(dict.fromkeys(references))


def kept(data: Mapping[str, Any], modules: Path | None) -> dict[str, Any]:
    """A scenario as kept with its results: with the folder of its modules, if it names any."""
    if modules is None or not named_modules(data):
        return dict(data)
    return {**data, "modules": str(modules.resolve())}


def kept_modules(data: Mapping[str, Any]) -> Path | None:
    """The folder that `kept` notes; None where there is none."""
    folder = data.get("modules")
    return Path(folder) if isinstance(folder, str) else None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            module, rest = match.groups()
            label = "." not in module and kind_of(rest) is not None and not is_module(module)
            if not label:
                yield match.group()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _references(key)
            yield from _references(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _references(item)
