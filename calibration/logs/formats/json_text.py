"""JSON, of a line or of a file."""

from __future__ import annotations

import json
from typing import Any


class NotJsonError(ValueError):
    """What is wrong, as the end of a sentence."""


def parse(text: bytes | str) -> Any:
    """The value that ``text`` spells; NaN and infinities as Python's own JSON has them. Raises
    NotJsonError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise NotJsonError("too many levels deep") from None
    except UnicodeDecodeError:
        raise NotJsonError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"no JSON: {error.msg} in column {error.colno}") from None
    except ValueError:
        raise NotJsonError("a number has too many digits") from None


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """The leaves of nested mappings by dotted key; lists are leaves."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, dict) and depth < 50:
            found.update(flatten(item, dotted, depth + 1))
        else:
            found[dotted] = item
    return found
