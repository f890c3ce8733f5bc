"""YAML as people mean it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml

_TAGS = "tag:yaml.org,2002:"
MERGE, TEXT, _INT, _FLOAT = (_TAGS + kind for kind in ("merge", "str", "int", "float"))
_RADIX = {"0x": 16, "0b": 2}


class Loader(yaml.SafeLoader):
    """YAML in which ``1e9`` is a number, ``010`` is 10 and ``1:30`` text, unlike YAML 1.1."""

    def _whole_number(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "").lower()
        sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
        return sign * int(digits, _RADIX.get(digits[:2], 10))


Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in (_INT, _FLOAT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor(_INT, Loader._whole_number)
Loader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"(?:[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)"
        r"|[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


@lru_cache(maxsize=1024)  # each stack reads the words of a launch
def word(text: str) -> Any:
    """A value as YAML reads it, where it is a plain one; else the text."""
    text = text.strip()
    if len(text) > 10_000 or text.startswith(("&", "*", "!", "{", "[", "|", ">", "%", "@", "`")):
        return text.strip("'\"")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, ArithmeticError):
        return text
    if isinstance(value, str):
        try:  # YAML 1.1 takes 1e-6 for text
            return float(value) if re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value) else value
        except ValueError:
            return value
    return value if isinstance(value, int | float | bool) or value is None else text


def spelt(value: Any) -> str:
    """A value on one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1e6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
