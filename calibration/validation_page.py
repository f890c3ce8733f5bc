"""A validation as a picture, and as one page that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from calibration.validation_text import COLUMNS, flags, sentences, table_rows


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
        _html_table(COLUMNS, table_rows(content)),
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
