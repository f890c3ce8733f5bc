"""Single values as command lines and configurations spell them."""

from __future__ import annotations

import re
from typing import Any

import yaml


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
