"""A validation as a picture, and as one page that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from calibration.validation_text import SETTING, name_of_set, sentences, table_rows, warnings
from simulator.cli.console import seconds


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


# What is wider than the screen scrolls in a box of its own: the page never does.
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;
overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:13px;overflow-wrap:normal}
td,th{padding:.25em .6em;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}
.name{text-align:left;white-space:normal;min-width:6em;max-width:14em}
td:first-child,th:first-child{position:sticky;left:0;background:#fff}
.box{overflow-x:auto;margin:1em 0}.box img{width:100%;min-width:640px}
.warnings{border-left:4px solid #d55e00;padding-left:1em}
@media(max-width:600px){body{margin:1em auto}h1{font-size:1.4em}ul{padding-left:1.2em}}"""


def page(content: dict[str, Any], picture: bytes) -> str:
    """The whole report as one page that needs no other file, readable on a telephone."""
    image = base64.b64encode(picture).decode("ascii")
    rows = table_rows(content)
    trained = [
        [run["name"], run["policy"], str(run["seed"]), str(run["steps"])]
        for run in content["calibrated_on"]
    ]
    made_on = [f"{key}: {_plain(value)}" for key, value in content["provenance"].items()]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Validation: {content['mode']}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Validation: {content['mode']}</h1>",
        _list(sentences(content)),
        "<h2>Warnings</h2>",
        f"<div class='warnings'>{_list(warnings(content) or ['none'])}</div>",
        "<h2>Runs</h2><p>Median absolute errors by step; bubble and staleness as differences.</p>",
        _html_table(list(rows[0]), [list(row.values()) for row in rows]),
        "<div class='box'><img alt='measured and forecast step times' "
        f"src='data:image/png;base64,{image}'></div>",
        *_ranking(content["ranking"]),
        "<h2>Calibrated on</h2>",
        _html_table(("run", "policy", "seed", "steps"), trained),
        _list(made_on),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "none" if value is None else str(value)


def _ranking(order: dict[str, Any]) -> list[str]:
    """The policies of each set of runs that are alike, fastest first, and its pairs."""
    if not order["sets"]:
        return []
    parts = ["<h2>Ranking</h2><p>Only runs of one setting and number of steps are ranked together: "
             "mean step times, fastest first as measured.</p>"]  # fmt: skip
    for number, alike in enumerate(order["sets"]):
        times = (alike["step_s_measured"], alike["step_s_forecast"])
        ranked = [
            [policy, seconds(times[0][policy]), seconds(times[1][policy]),
             str(alike["forecast"].index(policy) + 1)]
            for policy in alike["measured"]
        ]  # fmt: skip
        pairs = [
            [" / ".join(pair["policies"]), f"{100 * pair['real_difference']:.1f} %",
             f"{100 * pair['noise']:.1f} %", "yes" if pair["right"] else "no", pair["faster"],
             f"{100 * pair['sure']:.0f} %"]
            for pair in order["pairs"] if pair["set"] == number
        ]  # fmt: skip
        parts.append(f"<h3>{html.escape(name_of_set(alike))}</h3>")
        parts.append(_html_table(("policy", "measured", "forecast", "place by forecast"), ranked))
        parts.append(_html_table(("pair", "real difference", "noise", "right order",
                                  "forecast faster", "sure"), pairs))  # fmt: skip
    return parts


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in a box; what names a row stands to the left and may be broken."""
    marks = [" class='name'" if i == 0 or c == SETTING else "" for i, c in enumerate(columns)]

    def line(tag: str, cells: Sequence[str]) -> str:
        found = zip(marks, cells, strict=True)
        inside = "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in found)
        return f"<tr>{inside}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<div class='box'><table>{line('th', columns)}{body}</table></div>"
