"""YAML and TOML as trees of settings, each with the line that says it."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.values import DEEPEST, EMPTY, MOST_LEAVES, Leaf, Tree, Unknown
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.syntax.yaml_text import MERGE, Loader

_HEADER = re.compile(r"\s*\[\[?\s*([\w.\"' -]+?)\s*\]\]?")
_ENTRY = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def read_toml_tree(text: str, name: str, sure: int, sources: Sources) -> Tree:
    """The settings of a TOML text. name: of the file, for places. Raises ScenarioError, with file
    and line, for what is no TOML; a key that is set twice is none."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"\(at line (\d+)", str(error))
        place = Place(name, int(match[1]) if match else 0)
        problem = re.sub(r" \(at .*", "", str(error)) or "it cannot be parsed"
        if "digits" in problem:
            problem = "a number has too many digits"
        if isinstance(error, RecursionError):
            problem = "it is nested too deeply"
        raise ScenarioError(str(place), f"is no TOML: {problem}") from None
    return _tree(values, "", _lines(text), name, sure, sources)


def _lines(text: str) -> dict[str, int]:
    """The line of each dotted key, as far as a look at lines tells."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        header, entry = _HEADER.match(line), _ENTRY.match(line)
        if header and not entry:
            table = _dotted(header[1])
            lines.setdefault(table, number)
        elif entry:
            lines.setdefault(f"{table}.{_dotted(entry[1])}".lstrip("."), number)
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _tree(
    values: dict[str, Any],
    prefix: str,
    lines: dict[str, int],
    name: str,
    sure: int,
    sources: Sources,
) -> Tree:
    tree: Tree = {}
    for key, value in values.items():
        dotted = f"{prefix}.{key}" if prefix else key
        if value == {}:
            tree[key] = Leaf(EMPTY, Place(name, _nearest(dotted, lines)), sure)
            continue
        if isinstance(value, dict):
            tree[key] = _tree(value, dotted, lines, name, sure, sources)
            continue
        meant = sources.resolved(value) if isinstance(value, str) else None
        place = Place(name, _nearest(dotted, lines))
        tree[key] = Leaf(value if meant is None else meant, place, sure)
    return tree


def _nearest(key: str, lines: dict[str, int]) -> int:
    """The line of a key, or of the inline table that holds it."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return 0


_PLAIN_TAGS = "tag:yaml.org,2002:"
_TIMES = _PLAIN_TAGS + "timestamp"


def read_yaml_tree(text: str, name: str, sure: int, sources: Sources) -> Tree | list[Leaf]:
    """The settings of a YAML text; of a list at its top, its entries.

    name: of the file, for places. Raises ScenarioError, with file and line, for what is no YAML, is
    neither mapping nor list, sets a key twice, or holds more than a configuration does.
    """
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        walk = _Walk(loader, name, sure, sources)
        if isinstance(node, yaml.MappingNode):
            return _unwrapped(walk.mapping(node, "", 0))
        if isinstance(node, yaml.SequenceNode):
            return [walk.leaf(item, 0) for item in node.value]
        if node is None:
            return {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        place = Place(name, mark.line + 1 if mark else 0)
        raise ScenarioError(str(place), f"is no YAML: {problem}") from None
    except RecursionError:
        raise ScenarioError(name, "is YAML nested too deeply") from None
    raise ScenarioError(name, "is neither a mapping nor a list")


WANDB = "_wandb"
"""What Weights & Biases writes of itself into a run's ``config.yaml``, the machine among it."""


def _unwrapped(tree: Tree) -> Tree:
    """Without the ``value`` that Weights & Biases puts between a key and what is below it."""
    if not {WANDB, "wandb_version"} & tree.keys():
        return tree
    return {
        key: item["value"] if isinstance(item, dict) and "value" in item else item
        for key, item in tree.items()
    }


class _Walk:
    def __init__(self, loader: Loader, name: str, sure: int, sources: Sources) -> None:
        self._loader, self._name, self._sure, self._sources = loader, name, sure, sources
        self._left = MOST_LEAVES

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._name, node.start_mark.line + 1)

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise ScenarioError(self._name, f"holds more than {MOST_LEAVES:,} values")
        if depth > DEEPEST:
            raise ScenarioError(str(self._place(node)), f"is more than {DEEPEST} levels deep")

    def mapping(self, node: yaml.MappingNode, prefix: str, depth: int) -> Tree:
        """The tree of a mapping; what is merged into it comes first."""
        self._count(node, depth)
        tree: Tree = {}
        lines: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.tag == MERGE:
                parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for part in reversed(parts):
                    if isinstance(part, yaml.MappingNode):
                        tree = {**self.mapping(part, prefix, depth + 1), **tree}
        for key, value in node.value:
            if key.tag == MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise ScenarioError(str(self._place(key)), "a key is neither text nor a number")
            name = str(key.value)
            had = lines.get(name)
            if had is not None and not _same(had, value):
                shown = f"{prefix}.{name}" if prefix else name
                raise ScenarioError(
                    str(self._place(key)),
                    f"{shown} is set here again, and before in line "
                    f"{had.start_mark.line + 1}; keep one",
                )
            lines[name] = value
            dotted = f"{prefix}.{name}" if prefix else name
            if isinstance(value, yaml.MappingNode):
                tree[name] = self.mapping(value, dotted, depth + 1)
            else:
                tree[name] = self.leaf(value, depth + 1, self._place(key))
        return tree

    def leaf(self, node: yaml.Node, depth: int, place: Place | None = None) -> Leaf:
        """A value that is no mapping."""
        return Leaf(self._plain(node, depth), place or self._place(node), self._sure)

    def _plain(self, node: yaml.Node, depth: int) -> Any:
        self._count(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {
                str(key.value): self._plain(value, depth + 1)
                for key, value in node.value
                if isinstance(key, yaml.ScalarNode)
            }
        text = str(node.value)
        meant = self._sources.resolved(text)
        if meant is not None:
            return meant
        if node.tag == _TIMES:
            return text
        if not node.tag.startswith(_PLAIN_TAGS) or node.tag.startswith(_PLAIN_TAGS + "python"):
            return Unknown(text, f"a value of the kind {node.tag} is not read")
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, LookupError):
            return text


def _same(one: yaml.Node, other: yaml.Node) -> bool:
    """Whether two nodes are one value."""
    if isinstance(one, yaml.ScalarNode) and isinstance(other, yaml.ScalarNode):
        return bool(one.value == other.value)
    return False
