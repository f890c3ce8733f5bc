"""Settings as a tree of keys, each leaf with its place; and values as files spell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.stacks.settings import Place

MOST_LEAVES = 100_000
DEEPEST = 50
EMPTY = "{}"
"""A table without keys, which turns on what it is of."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """In the place of a value that a launch does not say. text: as it stands there. why: what keeps
    it from being known."""

    text: str
    why: str


NOT_GIVEN = "is an argument that is not given"
"""The end of the reason why an argument of a script's own is not known."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value, and where it stands. sure: as in `Given`. base: the part of a configuration that a
    relative interpolation starts from, which is its own key's unless it was moved."""

    value: Any
    place: Place
    sure: int = 0


Tree = dict[str, "Leaf | Tree"]


def merge(into: Tree, other: Mapping[str, Any]) -> None:
    """Puts one tree over another: mappings are joined, what else is there replaced, unless
    by a table without keys."""
    for key, item in other.items():
        held = into.get(key)
        if isinstance(item, dict) and isinstance(held, dict):
            merge(held, item)
        elif not (isinstance(held, dict) and isinstance(item, Leaf) and item.value == EMPTY):
            into[key] = copied(item) if isinstance(item, dict) else item


def copied(tree: Mapping[str, Any]) -> Tree:
    """A tree of its own."""
    return {key: copied(item) if isinstance(item, dict) else item for key, item in tree.items()}


def put(tree: Tree, path: list[str], item: Leaf | Tree) -> None:
    """Sets what is at a path, in the place of what stands in its way."""
    for key in path[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[path[-1]] = item


def at(tree: Tree, path: list[str]) -> Leaf | Tree | None:
    """What is at a path, or None."""
    here: Leaf | Tree | None = tree
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return here


def drop(tree: Tree, path: list[str]) -> None:
    """Takes away what is at a path, if anything is."""
    above = at(tree, path[:-1])
    if isinstance(above, dict):
        above.pop(path[-1], None)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every leaf with its dotted key."""
    for key, item in tree.items():
        dotted = f"{prefix}.{key}" if prefix else key
        if isinstance(item, dict):
            yield from leaves(item, dotted)
        else:
            yield dotted, item


def tree_of(value: Any, place: Place, sure: int) -> Leaf | Tree:
    """A plain value of mappings and lists as a tree, all of it in one place."""
    if isinstance(value, dict):
        return {str(key): tree_of(item, place, sure) for key, item in value.items()}
    return Leaf(value, place, sure)


def plain_tree(item: Any) -> Any:
    """The values of a tree, or of a leaf of it, without their places."""
    if isinstance(item, dict):
        return {key: plain_tree(inner) for key, inner in item.items()}
    return {} if item.value == EMPTY else item.value
