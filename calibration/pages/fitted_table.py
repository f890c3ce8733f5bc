"""A fitted file on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollcast.calibration.calibrate import Fitted
from rollcast.simulator.cli.console import console


def show(fitted: Fitted) -> None:
    """Prints what a calibration found, each with its standard error."""
    from rich.table import Table

    cost, fits = fitted.content["cost"], fitted.content["fits"]
    table = Table(title="fitted costs", title_justify="left")
    for column in ("", "seconds", "standard error"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value, error in _costs(cost, fits):
        if value:
            table.add_row(name, f"{value:.3g}", "" if error is None else f"{error:.1g}")
    screen = console()
    screen.print(table)
    lengths = fitted.content["lengths"]
    screen.print(
        f"lengths: {_numbers(lengths)}; {lengths['unfinished']} unfinished rollouts counted"
    )
    screen.print(f"rewards: {_numbers(fitted.content['rewards'], 'rewards')}")
    screen.print(
        f"{fits['iteration']['iterations']} iterations, {fits['iteration']['steps']} steps"
    )


def _costs(cost: dict[str, Any], fits: dict[str, Any]) -> Iterator[tuple[str, float, float | None]]:
    """Name, seconds and standard error of each cost."""
    errors = fits["iteration"]["standard_errors"]
    for name, value in cost["iteration"].items():
        if name == "rollout_pieces":
            for start, slope in value:
                error = errors.get(f"rollouts>{start}")
                yield f"iteration: per rollout beyond {start}", slope, error
        else:
            yield f"iteration: {name}", value, errors.get(name)
    for layout in ("dense", "shared_prefix"):
        for name, value in (cost[layout] or {}).items():
            yield f"update ({layout}): {name}", value, fits[layout]["standard_errors"].get(name)
    names = {"sync": "sync_s", "to_train": "switch_to_train_s", "to_rollout": "switch_to_rollout_s"}
    for short, name in names.items():
        yield name, cost[name], fits["overheads"][short]["standard_error_s"]


def _numbers(section: dict[str, Any], key: str = "lengths") -> str:
    errors = section["standard_errors"]
    return ", ".join(
        f"{name} {value:.3g} +- {errors.get(name, 0.0):.2g}"
        for name, value in section[key].items()
        if not isinstance(value, str)
    )
