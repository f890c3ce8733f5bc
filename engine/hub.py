"""Models by their names on the Hugging Face hub, such as ``Qwen/Qwen3-0.6B``.

A name is turned into a folder once, so that trainer, tokenizer and engine have the same files and
look nothing up themselves. Importing this module imports none of the libraries.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.engine.errors import sentence
from rollcast.simulator.errors import ScenarioError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja", "*.tiktoken"),
)
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken")


def is_hub_name(model: str, folder: Path) -> bool:
    """Whether ``model`` is ``organisation/name``, and no folder seen from ``folder``."""
    return _NAME.fullmatch(model) is not None and not (folder / model).is_dir()


def asks_the_hub(scenario: Mapping[str, Any], folder: Path) -> bool:
    """Whether a scenario, not checked yet, has its model by a hub name."""
    engine = scenario.get("engine")
    model = engine.get("model") if isinstance(engine, Mapping) else None
    return isinstance(model, str) and is_hub_name(model, folder)


def fetch(name: str) -> Path:
    """The folder that holds the model: in the hub's own cache, downloaded if it is not there yet.

    Raises ScenarioError (``engine.model``) where it cannot be had.
    """
    from huggingface_hub import snapshot_download

    failed: Exception | None = None
    for local in (True, False):
        try:
            path = snapshot_download(name, allow_patterns=[*_WANTED], local_files_only=local)
        except Exception as error:  # of the hub, of the network, of the disk
            failed = error
            continue
        folder = Path(path)
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
        failed = None
    if failed is None:
        message = f"{name} came from the Hugging Face hub without config.json or safetensors"
    elif os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        message = (
            f"{name} is neither a folder here nor in the Hugging Face cache, and HF_HUB_OFFLINE "
            "forbids to download it"
        )
    else:
        message = (
            f"{name} is neither a folder here nor in the Hugging Face cache, and cannot be "
            f"downloaded: {sentence(failed)}"
        )
    raise ScenarioError("engine.model", message) from failed


def folder_of(model: Path | str) -> Path:
    """A model's folder, by its path or its name on the hub. Raises ScenarioError."""
    return fetch(model) if isinstance(model, str) else model


def copy_tokenizer(model: Path, folder: Path) -> None:
    """Copies the tokenizer's files of a model's folder, and its chat template. Raises OSError."""
    for pattern in _TOKENIZER:
        for path in model.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
