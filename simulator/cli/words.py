"""Words of the command line that are taken as they are: typer asks pydantic about each, which takes
a tenth of a second to import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typer.core import TyperGroup


class PlainCommands(TyperGroup):
    """Commands that take plain words as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the commands below."""
        _take_plain(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` name."""
        found = super().resolve_command(ctx, args)
        if found[1] is not None:
            _take_plain(found[1], ctx)
        return found


def _take_plain(command: Any, ctx: Any) -> None:
    """Puts `_Plain` before typer's conversions; earlier releases have none to put it before."""
    for param in command.get_params(ctx):
        if getattr(param, "_runtime_param", False) is None:
            param._runtime_param = _Plain()


class _Plain:
    """Takes what is plain, and leaves everything else to typer."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        described = param.type_descriptor
        take = _TAKEN.get(described.annotation)
        if take and not described.parameter_info.parser:
            taken = [take(word) for word in (value if many else [value])]
            if None not in taken:
                return taken if many else taken[0]
        param._runtime_param = None
        theirs, param._runtime_param = param.get_runtime_param(), self  # of this word alone
        return theirs.coerce(value, param=param, ctx=ctx)


def _text(word: object) -> str | None:
    return word if isinstance(word, str) else None


def _path(word: object) -> Path | None:
    """None also for what cannot be read, about which typer complains."""
    if not isinstance(word, str) or (os.path.exists(word) and not os.access(word, os.R_OK)):
        return None
    return Path(word)


def _whole(word: object) -> int | None:
    return int(word) if isinstance(word, str) and word.isascii() and word.isdecimal() else None


_TAKEN = {str: _text, Path: _path, int: _whole, list[str]: _text, list[Path]: _path}
