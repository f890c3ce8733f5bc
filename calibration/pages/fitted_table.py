"""A fitted file on the terminal."""

from __future__ import annotations

import sys
from typing import Any

from rollcast.calibration.calibrate import Fitted


def show(fitted: Fitted) -> None:
    """Prints what a calibration found, each with its standard error."""
    from rich.console import Console
    from rich.table import Table

    cost, fits = fitted.content["cost"], fitted.content["fits"]
    table = Table(title="fitted costs", title_justify="left")
    for column in ("", "seconds", "standard error"):
        table.add_column(column, justify="left" if not column else "right")
    errors = fits["iteration"]["standard_errors"]
    for name, value in cost["iteration"].items():
        if name == "rollout_pieces":
            for start, slope in value:
                _row(
                    table,
                    f"iteration: per rollout beyond {start}",
                    slope,
                    errors.get(f"rollouts>{start}"),
                )
        else:
            _row(table, f"iteration: {name}", value, errors.get(name))
    for layout in ("dense", "shared_prefix"):
        if cost[layout] is not None:
            for name, value in cost[layout].items():
                _row(
                    table,
                    f"update ({layout}): {name}",
                    value,
                    fits[layout]["standard_errors"].get(name),
                )
    names = {"sync": "sync_s", "to_train": "switch_to_train_s", "to_rollout": "switch_to_rollout_s"}
    for short, name in names.items():
        _row(table, name, cost[name], fits["overheads"][short]["standard_error_s"])
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    lengths = fitted.content["lengths"]
    console.print(
        f"lengths: {_numbers(lengths)}; {lengths['unfinished']} unfinished rollouts counted"
    )
    console.print(f"rewards: {_numbers(fitted.content['rewards'], 'rewards')}")
    console.print(
        f"{fits['iteration']['iterations']} iterations, {fits['iteration']['steps']} steps"
    )


def _row(table: Any, name: str, value: float, error: float | None) -> None:
    if value:
        table.add_row(name, f"{value:.3g}", "" if error is None else f"{error:.1g}")


def _numbers(section: dict[str, Any], key: str = "lengths") -> str:
    errors = section["standard_errors"]
    return ", ".join(
        f"{name} {value:.3g} +- {errors.get(name, 0.0):.2g}"
        for name, value in section[key].items()
        if not isinstance(value, str)
    )
