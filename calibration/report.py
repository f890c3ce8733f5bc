"""A validation on the terminal, as JSON, as a picture and as one self-contained page."""

from __future__ import annotations

import base64
import html
import io
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calibration.calibrate import Fitted
from calibration.validate import Validation
from simulator.cli.tables import seconds
from simulator.errors import ScenarioError
from simulator.results.folder import write_json

FILES = ("validation.json", "validation.png", "report.html")
_COLUMNS = ("policy", "seed", "", "run time", "forecast (90 %)", "error", "step", "rollout",
            "train", "tokens/s", "bubble", "staleness", "steps inside", "pulse")  # fmt: skip
_METRICS = ("step_s", "rollout_s", "train_s", "tokens_per_s", "bubble", "staleness")


def table_rows(content: dict[str, Any]) -> list[list[str]]:
    """One row a run, as text, under `_COLUMNS`."""
    rows = []
    for run in content["runs"]:
        total, metrics = run["total"], run["metrics"]
        low, high = total["interval_s"]
        rows.append(
            [
                f"{run['policy']} [{run['setting']}]" if run["setting"] else run["policy"],
                str(run["seed"]),
                "held out" if run["held_out"] else "calibrated on",
                seconds(total["measured_s"]),
                f"{seconds(total['forecast_s'])} ({seconds(low)} - {seconds(high)})",
                f"{100 * total['error']:+.1f} %",
                *(_error(metrics[name]) for name in _METRICS),
                f"{100 * run['coverage_of_steps']:.0f} %",
                _pulse(run["pulse"]),
            ]
        )
    return rows


def _pulse(pulse: dict[str, float] | None) -> str:
    return "-" if pulse is None else f"{pulse['short']:.2f} / {pulse['long']:.2f}"


def _error(metric: dict[str, Any]) -> str:
    value = metric["median_absolute_error"]
    return f"{value:.3f}" if metric["unit"] == "difference" else f"{100 * value:.1f} %"


def sentences(content: dict[str, Any]) -> list[str]:
    """What the numbers come to."""
    said = []
    what = {
        "replay": "replay: the runs' own lengths, under the fitted costs; judges the costs alone",
        "predict": "predict: fitted lengths and rewards as well; judges the whole forecast",
    }
    said.append(what[content["mode"]])
    known = [run for run in content["runs"] if run["pulse"] is not None]
    if known:
        judged = "its own pulse" if known[0]["at_pulse"] else "the calibration's pulse, not its own"
        said.append(
            "pulse: a fixed small computation timed all through a run, short / long, over the "
            f"calibration's (above 1, the machine was slower); each run is judged at {judged}"
        )
    machine, floor = content["machine_noise"], content["noise_floor"]
    said.append(
        "the machine alone moves a step of the calibration by a median of "
        f"{100 * machine['rollout_s']:.1f} % (rollout) and {100 * machine['train_s']:.1f} % (train)"
    )
    if floor["pairs"]:
        said.append(
            f"noise floor over {floor['pairs']} pairs of runs of one policy: steps differ by "
            f"{100 * floor['step_s']:.1f} % (median), run times by {100 * floor['run_time']:.1f} % "
            f"(at most {100 * floor['run_time_largest']:.1f} %)"
        )
        at_pulse = content["noise_floor_at_pulse"]
        if known:
            said.append(
                f"the same at one pulse: steps {100 * at_pulse['step_s']:.1f} %, run times "
                f"{100 * at_pulse['run_time']:.1f} % (at most "
                f"{100 * at_pulse['run_time_largest']:.1f} %)"
            )
    else:
        said.append("no policy was run twice, so there is no noise floor between runs")
    errors = content["held_out"]
    if errors["step_s"] is not None:
        said.append(
            f"median over held-out runs: step time off by {100 * errors['step_s']:.1f} %, by "
            f"{100 * errors['step_s_at_own_level']:.1f} % once each run's own level is taken out; "
            f"run time by {100 * errors['run_time']:.1f} %"
        )
    held = content["coverage"]["held_out"]
    if held["step_count"]:
        said.append(
            f"nominal 90 % intervals hold {100 * held['steps']:.0f} % of {held['step_count']} "
            f"held-out steps and {100 * held['runs']:.0f} % of {held['run_count']} run times"
        )
    order = content["ranking"]
    if order["pairs"]:
        said.append(f"fastest first, measured: {', '.join(order['measured'])}")
        said.append(f"fastest first, forecast: {', '.join(order['forecast'])}")
        said.append(
            f"{order['clear_pairs_right']} of {order['clear_pairs']} pairs whose real difference "
            f"exceeds the noise are in the right order ({len(order['pairs'])} pairs in all)"
        )
        for pair in order["pairs"]:
            if pair["may_flip"]:
                slower = next(p for p in pair["policies"] if p != pair["faster"])
                said.append(
                    f"not sure: {pair['faster']} before {slower} in {100 * pair['sure']:.0f} % of "
                    "the draws; within the interval they change places"
                )
    return said


def flags(content: dict[str, Any]) -> list[str]:
    """Each flag once, with the runs that it concerns."""
    found: dict[str, list[str]] = {}
    for run in content["runs"]:
        for flag in run["flags"]:
            found.setdefault(flag, []).append(run["name"])
    return [f"{flag} [{', '.join(names)}]" for flag, names in found.items()]


def show(validation: Validation) -> None:
    """Prints the table and what it comes to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    content = validation.to_json()
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    table = Table(title=f"{validation.mode}: median absolute error by step", title_justify="left")
    for i, column in enumerate(_COLUMNS):
        table.add_column(Text(column), justify="left" if i in (0, 2) else "right", overflow="fold")
    for row in table_rows(content):
        table.add_row(*map(Text, row))
    console.print(table)
    for line in sentences(content):
        console.print(Text(line), soft_wrap=True)
    for line in flags(content):
        console.print(Text(f"warning: {line}"), soft_wrap=True)


def show_fitted(fitted: Fitted) -> None:
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
                _row(table, f"iteration: per rollout beyond {start}", slope,
                     errors.get(f"rollouts>{start}"))  # fmt: skip
        else:
            _row(table, f"iteration: {name}", value, errors.get(name))
    for layout in ("dense", "shared_prefix"):
        if cost[layout] is not None:
            for name, value in cost[layout].items():
                _row(table, f"update ({layout}): {name}", value,
                     fits[layout]["standard_errors"].get(name))  # fmt: skip
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


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a report cannot go into ``folder``: it is a file, or
    it holds something else, or another report without ``force``."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ScenarioError("--out", f"{folder} is a file; give a folder")
    names = {entry.name for entry in folder.iterdir()}
    if names - set(FILES):
        raise ScenarioError("--out", f"{folder} holds something else; give another folder")
    if names and not force:
        raise ScenarioError("--out", f"{folder} holds a report; add --force to replace it")


def write(folder: Path, validation: Validation, force: bool = False) -> None:
    """Writes validation.json, validation.png and report.html into ``folder``, each once all three
    are complete. Raises ScenarioError (``--out``) as `check_target` does, and for a full disk."""
    check_target(folder, force)
    content = validation.to_json()
    picture = draw(content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report.", dir=folder.parent) as name:
            work = Path(name)
            write_json(work / "validation.json", content)
            (work / "validation.png").write_bytes(picture)
            (work / "report.html").write_text(page(content, picture), encoding="utf-8")
            for file in FILES:
                (work / file).replace(folder / file)
    except OSError as error:
        raise ScenarioError("--out", f"cannot write {folder}: {error.strerror or error}") from None


def draw(content: dict[str, Any]) -> bytes:
    """A picture (png): a panel a run with its steps in their intervals, and run times at the
    end."""
    from matplotlib.figure import Figure

    runs = content["runs"]
    columns = min(3, len(runs) + 1)
    rows = -(-(len(runs) + 1) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, run in zip(panels, runs, strict=False):
        steps, at = run["by_step"], range(run["steps"])
        panel.fill_between(at, steps["low_s"], steps["high_s"], color="#bcd4e6", lw=0,
                           label="90 % interval")  # fmt: skip
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


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-size:13px}td,th{padding:.25em .6em;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}img{max-width:100%}"""


def page(content: dict[str, Any], picture: bytes) -> str:
    """The whole report as one page that needs no other file."""
    image = base64.b64encode(picture).decode("ascii")
    pairs = [
        [" / ".join(pair["policies"]), f"{100 * pair['real_difference']:.1f} %",
         f"{100 * pair['noise']:.1f} %", "yes" if pair["right"] else "no", pair["faster"],
         f"{100 * pair['sure']:.0f} %"]
        for pair in content["ranking"]["pairs"]
    ]  # fmt: skip
    trained = [
        [run["name"], run["policy"], str(run["seed"]), str(run["steps"])]
        for run in content["calibrated_on"]
    ]
    made_on = [[key, str(value)] for key, value in content["provenance"].items()]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>Validation: {content['mode']}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Validation: {content['mode']}</h1>",
        _list(sentences(content)),
        "<h2>Runs</h2><p>Median absolute errors by step; bubble and staleness as differences.</p>",
        _html_table(_COLUMNS, table_rows(content)),
        f"<p><img alt='measured and forecast step times' src='data:image/png;base64,{image}'></p>",
        "<h2>Pairs of policies</h2>",
        _html_table(("pair", "real difference", "noise", "right order", "forecast faster", "sure"),
                    pairs),
        "<h2>Flags</h2>",
        _list(flags(content) or ["none"]),
        "<h2>Calibrated on</h2>",
        _html_table(("run", "policy", "seed", "steps"), trained),
        _html_table(("", ""), made_on),
        "</body></html>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
