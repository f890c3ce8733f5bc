"""Reads how a stack's log is read: ``log.yaml`` and ``log.py`` of its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.simulator.stacks.consoles import OneLine, PrintedMapping
from rollcast.simulator.stacks.log_format import Console, Dump, StackLog
from rollcast.simulator.values.yaml_file import read_yaml

_FUNCTIONS = ("named", "overlapped", "derive", "follow", "of_mlperf")


def load_log(path: Path, module: Any) -> StackLog:
    """The format in a ``log.yaml``. module: its ``log.py`` or None. Raises ValueError."""
    data: dict[str, Any] = dict(read_yaml(path))
    console = data.pop("console", None)
    try:
        for table in ("metrics", "sums"):
            data[table] = {column: _several(keys) for column, keys in data.get(table, {}).items()}
        data["dumps"] = [
            Dump(**{**dump, "read": getattr(module, dump["read"])})
            for dump in data.get("dumps", ())
        ]
        functions = {name: getattr(module, name) for name in _FUNCTIONS if hasattr(module, name)}
        log = StackLog(path.parent.name, **data, **functions)
        return log if console is None else _with_console(log, module, **console)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path.parent.name}/{path.name}: {error}") from None


def _several(keys: str | list[str]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys)


def _with_console(log: StackLog, module: Any, start: str, cue: str, form: str) -> StackLog:
    made: Callable[[], Console]
    if form == "line":
        made = partial(OneLine, start, module.row, log.keys)
    else:
        made = partial(PrintedMapping if form == "mapping" else getattr(module, form), start)
    return replace(log, start=start.encode(), cue=cue.encode(), console=made)
