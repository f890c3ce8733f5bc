"""The file that ``rollcast calibrate`` writes, of which a scenario uses costs and lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError

SCHEMA = "rollcast-fitted/1"
_NO_FITTED_FILE = f"so it is not a fitted file ({SCHEMA!r}), which rollcast calibrate writes"


def read_fitted(path: Path, field: str) -> Mapping[str, Any]:
    """The content of a fitted file. Raises ScenarioError (``field``)."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        message = f"cannot read {path.name}: {error.strerror or error}"
        raise ScenarioError(field, message) from None
    except (ValueError, RecursionError):
        raise ScenarioError(
            field, f"{path.name} is not a file of JSON, {_NO_FITTED_FILE}"
        ) from None
    return check_schema(content, path.name, field)


def check_schema(content: object, name: str, field: str) -> Mapping[str, Any]:
    """``content``, if it is of our schema. Raises ScenarioError (``field``)."""
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, Mapping) else None
        said = f"is of schema {found!r}" if found else "names no schema"
        raise ScenarioError(field, f"{name} {said}, {_NO_FITTED_FILE}")
    return content
