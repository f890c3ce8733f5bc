"""Manifests of jobs: YAML files of SkyPilot, Kubernetes, Ray's operator, dstack, Determined, Azure
ML or Compose, which hold the commands of a launch and the GPUs that it gets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeGuard

import yaml

from rollcast.simulator.costs.presets.gpus import named_gpu
from rollcast.simulator.stacks.settings import Place, Setting
from rollcast.simulator.stacks.syntax.yaml_text import Loader

_LINES = ("commands", "script")
"""A list under these has a command an entry."""
_WORDS = ("command", "cmd", "args", "entrypoint")
"""A list under these, in a mapping together, has a command's words."""
_TEXTS = ("run", *_LINES, *_WORDS)
_HOLDS = re.compile(rf"^[\s-]*[\"']?(?:{'|'.join(_TEXTS)})[\"']?\s*:", re.MULTILINE)
_VARIABLES = ("env", "envs", "environment", "env_vars")
_RAY = "runtimeEnvYAML"
"""Of a RayJob: a text of YAML with ``env_vars``."""
_MOST_CHARACTERS, _MOST_NODES, _DEEPEST = 2**20, 20_000, 60
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_KIND = re.compile(r"([A-Za-z][\w .-]*):(\d{1,4})")
"""SkyPilot's and dstack's: H100:8."""


@dataclass
class Manifest:
    """commands: (text of the shell, line of its file). machine: nodes, GPUs of a node and their
    kind, by our key."""

    commands: list[tuple[str, int]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Setting] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the first node: the manifest's, and those that SkyPilot sets (its page on
        distributed jobs)."""
        nodes, gpus = (self.machine.get(key) for key in ("run.nodes", "run.gpus_per_node"))
        sky = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": str(nodes.value if nodes else 1)}
        if gpus is not None:
            sky["SKYPILOT_NUM_GPUS_PER_NODE"] = str(gpus.value)
        return {**sky, **self.variables}


def manifest(text: str, name: str) -> Manifest | None:
    """What a YAML text holds as a manifest of jobs; None where it has no command. name: of the
    file, for places."""
    if len(text) > _MOST_CHARACTERS or not _HOLDS.search(text):
        return None
    found = Manifest()
    try:
        nodes = [node for node in yaml.compose_all(text, Loader) if node is not None]
    except (yaml.YAMLError, RecursionError):  # readers of configurations say what is wrong
        return None
    for mapping in _mappings(nodes):
        _take(found, mapping, name)
    return found if found.commands else None


def _mappings(nodes: list[yaml.Node]) -> Iterator[dict[str, yaml.Node]]:
    """Each mapping once, as they stand in the file."""
    seen: set[int] = set()
    left = [(node, 0) for node in reversed(nodes)]
    while left and len(seen) < _MOST_NODES:
        node, depth = left.pop()
        if id(node) in seen or depth > _DEEPEST:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: value for key, value in node.value if _is_text(key)}
            yield pairs
            left += [(value, depth + 1) for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            left += [(item, depth + 1) for item in reversed(node.value)]


def _take(found: Manifest, pairs: Mapping[str, yaml.Node], name: str) -> None:
    words: list[yaml.ScalarNode] = []
    for key in _TEXTS:
        node = pairs.get(key)
        if node is None:
            continue
        if _is_text(node) and (key != "args" or not words):
            found.commands.append((node.value, _line(node)))
        elif listed := _listed(node):
            if key in _LINES:
                found.commands += [(item.value, _line(item)) for item in listed]
            else:
                words = [*listed, *words] if key == "entrypoint" else [*words, *listed]
    if words:
        line = _line(max(words, key=lambda word: len(word.value)))
        found.commands.append((shlex.join(word.value for word in words), line))
    for key in _VARIABLES:
        if key in pairs:
            found.variables |= dict(_variables(pairs[key]))
    if _is_text(ray := pairs.get(_RAY)):
        with suppress(yaml.YAMLError, RecursionError):
            for inner in _mappings([*yaml.compose_all(ray.value, Loader)]):
                if "env_vars" in inner:
                    found.variables |= dict(_variables(inner["env_vars"]))
    _take_machine(found.machine, pairs, name)


def _take_machine(machine: dict[str, Setting], pairs: Mapping[str, yaml.Node], name: str) -> None:
    """The first number of each counts."""
    said: list[tuple[str, str, yaml.Node, int | str]] = []
    for theirs in ("num_nodes", "nodes"):
        node = pairs.get(theirs)
        if _is_text(node) and re.fullmatch(r"[1-9]\d{0,4}", node.value):
            said.append(("run.nodes", theirs, node, int(node.value)))
    for theirs in _GPUS:
        node = pairs.get(theirs)
        if _is_text(node) and re.fullmatch(r"[1-9]\d{0,3}", node.value):
            said.append(("run.gpus_per_node", theirs, node, int(node.value)))
    for theirs in ("accelerators", "gpu"):
        node = pairs.get(theirs)
        if _is_text(node) and (kind := _KIND.fullmatch(node.value)):
            said.append(("run.gpus_per_node", theirs, node, int(kind[2])))
            if preset := named_gpu(kind[1]):
                said.append(("gpu", theirs, node, preset))
    for ours, theirs, node, value in said:
        place = Place(name, node.start_mark.line + 1)
        machine.setdefault(ours, Setting(ours, value, theirs, place))


def _variables(node: yaml.Node) -> Iterator[tuple[str, str]]:
    """Of a mapping, of Kubernetes' pairs of name and value, or of a list of NAME=VALUE."""
    if isinstance(node, yaml.MappingNode):
        yield from ((k.value, v.value) for k, v in node.value if _is_text(k) and _is_text(v))
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(item, yaml.MappingNode):
            pair = {key.value: value for key, value in item.value if _is_text(key)}
            key, value = pair.get("name"), pair.get("value")
            if _is_text(key) and _is_text(value):
                yield key.value, value.value
        elif _is_text(item) and "=" in item.value:
            key_text, _, value_text = item.value.partition("=")
            yield key_text, value_text


def _listed(node: yaml.Node) -> list[yaml.ScalarNode]:
    """The texts of a list; none of anything else, or of a list that holds more."""
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    return list(items) if all(_is_text(item) for item in items) else []


def _line(node: yaml.ScalarNode) -> int:
    """In which a text begins; of a block, below its mark."""
    return int(node.start_mark.line) + (2 if node.style in ("|", ">") else 1)


def _is_text(node: object) -> TypeGuard[yaml.ScalarNode]:
    return isinstance(node, yaml.ScalarNode)
