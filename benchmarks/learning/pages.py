"""Tables of ``docs/learning.md`` out of ``benchmarks/results/learning.json``."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runner import markdown_table


def _read(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((folder / "learning.json").read_text("utf-8"))
    return found


def validated(folder: Path) -> str:
    """Held-out policies by task, and held-out tasks."""
    found = _read(folder)
    lines = [
        (f"policies of {task}" if task != "all" else "policies, all tasks", row)
        for task, row in found["within"].items()
    ]
    lines += [(f"the task {task}", row) for task, row in found["between"].items()]
    head = (
        "held out",
        "times",
        "error, median",
        "inside 90 %",
        "pairs",
        "right order",
        "abstained",
        "mean of the curve off by",
        "its end",
    )
    return markdown_table(head, [(name, *_cells(row)) for name, row in lines])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(row["times"]),
        _share(row["median_error"]),
        _share(row["coverage"]),
        str(row["pairs"]),
        _share(row["ranked_right"]),
        str(row["abstained"]),
        f"{row['area_error']:.3f}",
        f"{row['last_error']:.3f}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def fitted(folder: Path) -> str:
    """The parameters of each task."""
    found = _read(folder)["parameters"]
    head = (
        *("task", "progress of the first update", "slowing", "noise, rollouts"),
        *("power of the learning rate", "staleness"),
    )
    rows = []
    for task, named in found.items():
        cells = [task]
        for name, (value, error) in named.items():
            if name.startswith("log_"):
                value, error = math.exp(value), error * math.exp(value)
            cells.append(f"{value:.2g} +- {error:.1g}")
        rows.append(cells)
    return markdown_table(head, rows)


def policies(folder: Path) -> str:
    """Updates to the middle target over those of synchronous runs, and the law's error."""
    found = _read(folder)["policies"]
    rows = []
    for name, row in found.items():
        measured = "not reached" if row["ratio"] is None else f"{row['ratio']:.2f}"
        if row["ratio"] is not None and row["runs"] > 1:
            measured += f" ({row['low']:.2f} to {row['high']:.2f})"
            if row["missed"]:
                measured += f", {row['missed']} not reached"
        error = "abstains" if row["error"] is None else f"{100 * row['error']:+.0f} %"
        rows.append((name, row["settings"], str(row["runs"]), measured, error))
    head = ("set-up", "policy", "runs", "updates over synchronous", "forecast, unseen")
    return markdown_table(head, rows)


def papers(folder: Path) -> str:
    """The papers' claims."""
    from benchmarks.learning.papers import HEAD

    return markdown_table(HEAD, _read(folder)["papers"])


_OVER_RUNS = ("mean accuracy", "forecast", "inside", "last accuracy", "forecast", "inside")


def _over_runs(one: Mapping[str, Any], digits: int = 3) -> tuple[str, ...]:
    """Measured, forecast, and how many intervals hold (`benchmarks.learning.means`)."""
    values = [f"{one[key]:.{digits}f}" for key in ("measured", "predicted")]
    return (*values, f"{one['inside']} of {one['of']}")


def real(folder: Path) -> str:
    """Curves of real runs under policies that the law had not seen."""
    rows = [
        (f"`{row['policy']}`", *_over_runs(row["area"]), *_over_runs(row["last"]))
        for row in _read(folder)["real"]
    ]
    return markdown_table(("policy", *_OVER_RUNS), rows)


def public(folder: Path) -> str:
    """Public curves, by the prior that knows the other set-ups."""
    rows = []
    for row in _read(folder)["public"]:
        half = row["half"]
        cells = ("-", "-", "-")
        if half:
            target, measured, predicted, low, high = half
            ends = [_updates(value) for value in (low, high)]
            cells = (
                f"{target:.2f} after {_updates(measured)}",
                f"{_updates(predicted)} ({ends[0]} to {ends[1]})",
                f"{row['inside']} of {row['times']}",
            )
        rose = f"{row['from']:.2f} to {row['to']:.2f} in {row['updates']:,}"
        rows.append((row["model"], row["task"], rose, f"{row['speed']:.2g}", *cells))
    head = ("model", "task", "accuracy, updates", "progress of the first update")
    return markdown_table((*head, "measured", "forecast (90 %)", "times inside"), rows)


def _updates(value: float | None) -> str:
    return "more" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def lengths(folder: Path) -> str:
    """How much longer responses are at an accuracy, by what is chosen."""
    found = _read(folder)["lengths"]
    tasks = [*found["forecast"]]
    rows = [
        (choice, *(_longer(by_task[task]) for task in tasks))
        for choice, by_task in found["chosen"].items()
    ]
    errors = [_share(found["forecast"][task]["median_error"]) for task in tasks]
    rows.append(("law of lengths on unseen policies, error", *errors))
    return markdown_table(("trained on", *(f"task {task}" for task in tasks)), rows)


def _longer(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "no progress"
    mean, error = value
    return f"{100 * mean:+.1f} %" + ("" if error is None else f" +- {100 * error:.1f}")


def ends(folder: Path) -> str:
    """Long runs, by a law that has seen a third of their length."""
    rows = []
    for row in _read(folder)["ends"]:
        measured, predicted, inside = _over_runs(row)
        first = (row["task"], f"`{row['policy']}`", str(row["of"]), f"{row['short']:.3f}")
        rows.append((*first, f"{measured} after {row['updates']}", predicted, inside))
    head = (
        *("task", "policy", "runs", "accuracy at the usual end", "three times as long"),
        *("forecast", "inside"),
    )
    return markdown_table(head, rows)


def edges(folder: Path) -> str:
    """Set-ups that may no longer learn."""
    rows = []
    for row in _read(folder)["edges"]:
        measured, predicted, inside = _over_runs(row)
        said = f"abstains [{predicted}]" if row["abstains"] else predicted
        fell = f"{row['fell']} of {row['of']}"
        first = (row["settings"], f"{row['age']:.1f}", fell, f"{row['sync']:.3f}")
        rows.append((*first, measured, said, inside))
    head = (
        *("policy", "age of tokens", "runs that fell", "synchronous, at the end", "at the end"),
        *("forecast", "inside"),
    )
    return markdown_table(head, rows)


def whole(folder: Path) -> str:
    """The campaign's task on a real engine and trainer, by the law of the campaign."""
    rows = [
        (
            *(f"`{row['policy']}`", str(row["runs"]), f"{row['age']:.1f}"),
            *_over_runs(row["time"], 0),
            *_over_runs(row["area"]),
            *_over_runs(row["last"]),
        )
        for row in _read(folder)["whole"]
    ]
    head = ("policy", "runs", "age of tokens", "updates to 0.6", "forecast", "inside")
    return markdown_table((*head, *_OVER_RUNS), rows)


def pods(folder: Path) -> str:
    """The published curves of PODS, by the law of the paper's own GRPO runs."""
    rows = []
    for row in _read(folder)["pods"]:
        law = [_times(row[key]) for key in ("forecast_sooner", "forecast_in_time")]
        updates = _number(row["forecast"])
        if row["abstains"]:
            updates, law = f"abstains [{updates}]", [f"[{text}]" for text in law]
        rule = "" if row["rule"] == "none" else f", {row['rule']}"
        rows.append(
            (
                f"{row['data']} to {row['target']:.3f}: {row['trained']} of {row['sampled']}{rule}",
                _number(row["updates"]),
                updates,
                _times(row["sooner"]),
                law[0],
                _times(row["sooner_in_time"]),
                law[1],
                f"{row['inside']} of {row['runs']}",
            )
        )
    head = (
        *("runs", "updates", "forecast", "sooner than GRPO in updates", "forecast"),
        *("in hours", "forecast", "mean accuracy inside"),
    )
    return markdown_table(head, rows)


def _number(value: float | None) -> str:
    return "not reached" if value is None else f"{value:,.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
