"""A validation on the terminal, and as a folder with its JSON, picture and page."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.calibration.pages.validation_text import (
    SETTING,
    name_of_set,
    sentences,
    table_rows,
    warnings,
)
from rollcast.calibration.validate import Validation
from rollcast.simulator.cli.console import console, fitted, named_column
from rollcast.simulator.report.page import Content, Markup, tag
from rollcast.simulator.report.page import page as whole_page
from rollcast.simulator.report.parts import (
    Column,
    Row,
    breakable,
    code,
    folded,
    headline,
    listed,
    notes,
    section,
    table,
    tiles,
)
from rollcast.simulator.report.plots import Series, series
from rollcast.simulator.results.folder import check_target as check_folder
from rollcast.simulator.results.folder import write_folder
from rollcast.simulator.results.text import seconds, share
from rollcast.simulator.results.write import write_json

if TYPE_CHECKING:
    from rich.table import Table


def draw(content: dict[str, Any]) -> bytes:
    """A picture (png): a panel of steps in their intervals a run, and one of run times."""
    from matplotlib.figure import Figure

    runs = content["runs"]
    columns = min(3, len(runs) + 1)
    rows = -(-(len(runs) + 1) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, run in zip(panels, runs, strict=False):
        steps, at = run["by_step"], range(run["steps"])
        panel.fill_between(
            at, steps["low_s"], steps["high_s"], color="#bcd4e6", lw=0, label="90 % interval"
        )
        panel.plot(at, steps["forecast_s"], color="#0072b2", lw=1.2, label="forecast")
        panel.plot(at, steps["measured_s"], ".", color="#222222", ms=3.5, label="measured")
        panel.set_title(f"{run['policy']}, seed {run['seed']}", fontsize=8)
        panel.set_ylim(0, None)
    panels[0].set(xlabel="step", ylabel="step time, s")
    panels[0].legend(frameon=False, fontsize=7)
    last = panels[len(runs)]
    for i, run in enumerate(runs):
        total = run["total"]
        last.plot(total["interval_s"], [i, i], color="#0072b2", lw=4, alpha=0.4)
        last.plot(total["forecast_s"], i, "|", color="#0072b2", ms=9)
        last.plot(total["measured_s"], i, "o", color="#222222", ms=4)
    names = [f"{_short(r['policy'])}, {r['seed']}" for r in runs]
    last.set_yticks(range(len(runs)), names, fontsize=6)
    last.invert_yaxis()
    last.set(xlim=(0, None), xlabel="run time, s")
    last.set_title("measured (dot), forecast, 90 % interval", fontsize=8)
    for panel in panels[len(runs) + 1 :]:
        panel.set_axis_off()
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _short(policy: str) -> str:
    return policy if len(policy) <= 18 else policy[:17] + "…"


_WORDS = ("policy", "run", SETTING, "run is", "pair", "forecast faster")


def page(content: Mapping[str, Any]) -> str:
    """The whole report as one page that needs no other file, readable on a telephone."""
    mode = content["mode"]
    rows = table_rows(dict(content))
    trained = [
        {
            "run": run["name"],
            "policy": run["policy"],
            "seed": str(run["seed"]),
            "steps": str(run["steps"]),
        }
        for run in content["calibrated_on"]
    ]
    made_on = [f"{key}: {_plain(value)}" for key, value in content["provenance"].items()]
    return whole_page(
        f"Validation: {mode}",
        headline(_lead(content)),
        _tiles(content),
        notes(warnings(dict(content))),
        section("Results", listed(sentences(dict(content)))),
        section(
            "Runs",
            _table(rows, "Runs, measured and forecast"),
            about="Median absolute error over the steps, relative; bubble and staleness: absolute.",
        ),
        section(
            "Step by step",
            series([_series(run) for run in content["runs"]]),
            about="Seconds per step.",
        ),
        _ranking(content["ranking"]),
        section(
            "Calibrated on",
            folded(f"Runs ({len(trained)})", _table(trained, "Runs calibrated on")),
            folded("Versions and machine", listed(made_on)),
            code(_command(content), "the command"),
        ),
        subtitle=f"{len(rows)} real runs against their forecasts",
    )


def _command(content: Mapping[str, Any]) -> str:
    """What made this, from the folder of the runs."""
    runs = [run["name"] for run in content["runs"]]
    return shlex.join(
        ["rollcast", "validate", "fitted.json", *runs, "--mode", content["mode"], "--out", "report"]
    )


def _lead(content: Mapping[str, Any]) -> str:
    errors = content["held_out"]
    if errors["step_s"] is None:
        return "No run was held out: all were used for the calibration."
    off, by_step = share(errors["run_time"]), share(errors["step_s"])
    return (
        f"Held-out runs, median error of the forecast: {off} in run time, {by_step} in step time."
    )


def _tiles(content: Mapping[str, Any]) -> Markup:
    held, order = content["coverage"]["held_out"], content["ranking"]
    figures = []
    for what, key in (("run time off by", "run_time"), ("a step off by", "step_s")):
        if content["held_out"][key] is not None:
            figures.append((what, share(content["held_out"][key]), "median, held out"))
    if held["step_count"]:
        figures.append(("steps inside", share(held["steps"]), "of 90 % intervals"))
    if order["clear_pairs"]:
        right = f"{order['clear_pairs_right']} of {order['clear_pairs']}"
        figures.append(("clear pairs in order", right, "of policies"))
    return tiles(figures) if figures else Markup()


def _series(run: Mapping[str, Any]) -> Series:
    steps, at = run["by_step"], list(range(run["steps"]))
    return Series(
        f"{run['policy']}, seed {run['seed']}",
        list(zip(at, steps["measured_s"], strict=True)),
        at,
        steps["forecast_s"],
        steps["low_s"],
        steps["high_s"],
    )


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "none" if value is None else str(value)


def _ranking(order: Mapping[str, Any]) -> Content:
    """The policies of each set of runs that are alike, fastest first, and its pairs."""
    if not order["sets"]:
        return None
    parts: list[Content] = []
    for place, alike in enumerate(order["sets"]):
        times = (alike["step_s_measured"], alike["step_s_forecast"])
        ranked = [
            {
                "policy": policy,
                "measured": seconds(times[0][policy]),
                "forecast": seconds(times[1][policy]),
                "place by forecast": str(alike["forecast"].index(policy) + 1),
            }
            for policy in alike["measured"]
        ]
        pairs = [
            {
                "pair": " / ".join(pair["policies"]),
                "real difference": f"{100 * pair['real_difference']:.1f} %",
                "noise": f"{100 * pair['noise']:.1f} %",
                "right order": "yes" if pair["right"] else "no",
                "forecast faster": pair["faster"],
                "sure": f"{100 * pair['sure']:.0f} %",
            }
            for pair in order["pairs"]
            if pair["set"] == place
        ]
        name = name_of_set(alike)
        parts += [tag("h3", name), _table(ranked, f"Ranking, {name}"), _table(pairs, "Pairs")]
    about = (
        "Mean step times, fastest first as measured. Runs are ranked together only if they have "
        "the same settings and number of steps."
    )
    return section("Ranking", parts, about=about)


def _table(rows: list[dict[str, str]], caption: str) -> Markup:
    """A table of the rows' keys; what names a row stands to the left and may be broken."""
    if not rows:
        return Markup()
    columns = [Column(name, text=name in _WORDS or not i) for i, name in enumerate(rows[0])]
    cells = [list(row.values()) for row in rows]
    return table(columns, [Row([breakable(name), *rest]) for name, *rest in cells], caption)


FILES = ("validation.json", "validation.png", "report.html")
WHAT = "report"
_NAMES = ("policy", SETTING)
_LONG = 9
_FIRST_TO_GO = (
    "machine speed",
    "staleness",
    "bubble",
    "tokens/s",
    "train",
    "rollout",
    "steps inside",
    "steps",
    "90 % interval",
    "run is",
)


def show(validation: Validation) -> None:
    """Prints the table and what it comes to."""
    from rich.text import Text

    content = validation.to_json()
    rows = table_rows(content)
    screen = console()

    def build(columns: Sequence[str]) -> Table:
        from rich.table import Table

        title = f"{validation.mode}: median absolute error by step"
        grid = Table(title=title, title_justify="left", padding=(0, 0, 0, 1))
        for name in columns:
            if name in _NAMES:
                named_column(grid, name, [row[name] for row in rows], screen.width)
            else:
                heading = name if len(name) <= _LONG else name.replace(" ", "\n")
                left = name == "run is"
                grid.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for row in rows:
            grid.add_row(*(Text(row[name]) for name in columns))
        return grid

    table, left_out = fitted(screen, list(rows[0]), _FIRST_TO_GO, build)
    screen.print(table)
    if left_out:
        screen.print(f"For {', '.join(left_out)}, make the terminal wider.", style="dim")
    for line in sentences(content):
        screen.print(Text(line))
    for line in warnings(content):
        screen.print(Text(f"warning: {line}"), style="yellow")


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a report cannot go into ``folder``: it is a file, or
    it holds something else, or another report without ``force``."""
    check_folder(folder, force, holds_report, WHAT)


def holds_report(folder: Path) -> bool:
    """Whether a folder is a report and nothing else."""
    return {entry.name for entry in folder.iterdir()} <= set(FILES)


def write(folder: Path, validation: Validation, force: bool = False) -> None:
    """Writes the three files, all or none. Raises ScenarioError (``--out``) as `check_target`."""
    content = validation.to_json()
    picture = draw(content)

    def fill(work: Path) -> None:
        write_json(work / "validation.json", content)
        (work / "validation.png").write_bytes(picture)
        (work / "report.html").write_text(page(content), encoding="utf-8")

    write_folder(folder, fill, force, holds_report, WHAT)
