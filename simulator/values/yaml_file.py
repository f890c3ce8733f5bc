"""YAML files of the package: presets, and what a stack's folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_yaml(path: Path) -> Any:
    """What is in a file. Raises yaml.YAMLError for text that is not YAML."""
    import yaml

    return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
