"""Arguments of a script's own command line: argparse, and parsers of dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.launches.python.script import Defined, Made, Parsed
from rollcast.simulator.launches.values import NOT_GIVEN, Unknown

PARSES = ("parse_args", "parse_known_args", "parse_args_and_config", "parse_args_into_dataclasses")


def add(
    parser: Made,
    arguments: list[Any],
    keywords: Mapping[str, tuple[Any, Any]],
    given: Mapping[str, Any],
) -> None:
    """``add_argument``. given: by the command line, hyphens as underscores."""
    names = [one for one in arguments if isinstance(one, str)]
    if not names:
        return
    long = next((name for name in names if name.startswith("--")), names[0])
    dest = str(keywords.get("dest", (long.lstrip("-").replace("-", "_"), None))[0])
    default = keywords["default"][0] if "default" in keywords else None
    if default is None and keywords.get("action", ("",))[0] == "store_true":
        default = False
    if "default" not in keywords and default is None:
        default = Unknown(dest, f"{long} {NOT_GIVEN}")
    for name in (dest, long.lstrip("-").replace("-", "_")):
        default = given.get(name, default)
    parser.attributes[dest] = default, parser.place


def parsed(
    name: str,
    parser: Any,
    arguments: list[Any],
    keywords: Mapping[str, tuple[Any, Any]],
    given: Mapping[str, Any],
) -> Any:
    """What a parser gives; None where it is not known. name: of its method."""
    if not isinstance(parser, Made):
        return None
    if name.endswith(("parse_args", "parse_known_args")):
        return Parsed({key: value for key, (value, _) in parser.attributes.items()})
    classes = parser.argument(0) if 0 in parser.given else parser.argument("dataclass_types")
    found = []
    for one in classes if isinstance(classes, list) else [classes]:
        fields = dict(one.fields) if isinstance(one, Defined) else {}
        fields.update({k: v for k, v in given.items() if k in fields or not fields})
        found.append(Parsed(fields))
    return found
