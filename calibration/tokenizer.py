"""The user's tokenizer, for dumps that hold text alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError

OPTION = "--tokenizer"


def token_counter(path: str) -> Callable[[str], int]:
    """Counts the tokens of a text, special ones not added. said: a ``tokenizer.json``, the folder
    of one, or a name on the Hugging Face Hub. Raises ScenarioError (``--tokenizer``)."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ScenarioError(
            OPTION,
            "needs the package tokenizers (pip install tokenizers); without it, leave the "
            "option out, and characters are scaled to the logged mean",
        ) from None
    tokenizer: Any = _load(Tokenizer, path)

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def _load(kind: Any, name: str) -> Any:
    path = Path(name).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.is_file():
            return kind.from_file(str(file))
        if path.exists() or name.endswith(".json") or name.count("/") != 1:
            raise ScenarioError(OPTION, f"{name} is no tokenizer.json, nor a folder with one")
        return kind.from_pretrained(name)
    except ScenarioError:
        raise
    except Exception as error:  # the package raises bare exceptions of its own
        first = (str(error).splitlines() or ["no reason given"])[0]
        raise ScenarioError(OPTION, f"cannot load {name}: {first}") from None
