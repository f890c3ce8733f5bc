"""The report of an import: one page that needs no other file and no network."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence

import numpy as np

from calibration.imported import text
from calibration.imported.outcome import Outcome
from calibration.logs.draft import missing
from calibration.logs.run_log import RunLog

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;
overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:13px}
td,th{padding:.25em .6em;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}
.box{overflow-x:auto;margin:1em 0}.box img{width:100%;min-width:560px}
.notes{border-left:4px solid #d55e00;padding-left:1em}"""


def page(log: RunLog, found: Outcome) -> str:
    """The page; everything that a log said is escaped."""
    known = found.fit
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{_safe(log.name)}: imported</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_safe(log.name)}, a run of {_safe(log.stack)}</h1>",
        "<h2>What was read</h2>",
        _list(_read(log)),
        "<h2>How well it forecasts its own last third</h2>",
        _list([text.judged(each) for each in found.judged] or [_unjudged(found)]),
    ]
    if found.judged:
        image = base64.b64encode(draw(found)).decode("ascii")
        parts.append("<div class='box'><img alt='measured and forecast step times' "
                     f"src='data:image/png;base64,{image}'></div>")  # fmt: skip
    parts.append("<h2>What would change it</h2>")
    if found.advice is not None:
        parts.append(_list(found.advice.bottleneck))
        parts.append(_table(("change", "speed-up", "90 % interval", "how, in this stack"),
                            text.advice_rows(found)))  # fmt: skip
        parts.append(f"<p>{_safe(_caveat(found))}</p>")
    else:
        parts.append("<p>Not asked for, or nothing to simulate.</p>")
    parts.append("<h2>What was fitted</h2>")
    if known is None:
        parts.append("<p>Nothing.</p>")
    else:
        parts.append(f"<p>Costs: {_safe(text.shape(known))}.</p>")
        parts.append(_table(("phase", "factor", "90 % interval", "from"), text.factors(known)))
        if known.coefficients:
            rows = [(name, f"{value:.4g}") for name, value in known.cost["linear"].items()]
            parts.append(_table(("coefficient", "seconds"), rows))
        parts.append(_table(("lengths", "value", "standard error"), text.lengths(known, found)))
    parts.append("<h2>The scenario, and where each value is from</h2>")
    parts.append(_table(
        ("key", "value", "from"),
        [(p.key, str(p.value), p.source) for p in found.parts if p.value is not None],
    ))  # fmt: skip
    parts.append("<h2>What was assumed</h2>")
    parts.append(_list([f"{p.key}: {p.value} ({p.source})" for p in found.parts
                        if p.assumed and p.key != "seed"] or ["nothing"]))  # fmt: skip
    parts.append("<h2>What to beware of</h2>")
    warnings = [*text.notes(found, log), *(f"{p.key}: {p.source}" for p in missing(found.parts))]
    parts.append(f"<div class='notes'>{_list(warnings or ['nothing'])}</div>")
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _read(log: RunLog) -> list[str]:
    steps = log.steps["step"]
    found = [
        f"level {text.levels(log)}",
        f"{len(steps)} steps, {steps.iloc[0]} to {steps.iloc[-1]}; {len(log.rollouts):,} rollouts; "
        f"{len(log.requests):,} requests",
        *(f"{t.file}: {t.used:,} of {t.lines:,} lines or records used, {t.unread:,} unread"
          for t in log.tallies[:12]),
    ]  # fmt: skip
    if len(log.tallies) > 12:
        found.append(f"and {len(log.tallies) - 12} files more")
    found.extend(f"missing: {gap.column}: {gap.why}" for gap in log.gaps)
    return found


def _unjudged(found: Outcome) -> str:
    return f"not judged: {len(found.used)} steps are too few, or their times are not known"


def _caveat(found: Outcome) -> str:
    assert found.advice is not None
    said = (f"Simulated under the fitted costs and lengths; intervals from {found.advice.draws} "
            "draws of both. How well a policy learns is not part of this.")  # fmt: skip
    if found.advice.divided > 1:
        said += (f" To take seconds, a step had {found.advice.divided} times fewer replicas and "
                 "prompts, its updates priced as the whole batch's.")  # fmt: skip
    return said


def draw(found: Outcome) -> bytes:
    """Held-out step times in their intervals (png)."""
    from matplotlib.figure import Figure

    count = len(found.judged)
    figure = Figure(figsize=(8, 2.8 * count), layout="constrained")
    panels = np.atleast_1d(figure.subplots(count, 1))
    for panel, each in zip(panels, found.judged, strict=True):
        steps = found.used
        panel.plot(steps.number, steps.whole_s, ".", color="#888888", ms=4, label="measured")
        panel.fill_between(each.number, each.low_s, each.high_s, color="#bcd4e6", lw=0,
                           label="90 % interval")  # fmt: skip
        panel.plot(each.number, each.forecast_s, color="#0072b2", lw=1.3, label="forecast")
        panel.plot(each.number, each.measured_s, ".", color="#222222", ms=4)
        panel.set_title(each.mode, fontsize=9)
        panel.set(xlabel="step", ylabel="step time, s")
        panel.set_ylim(0, None)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return buffer.getvalue()


def _safe(said: object) -> str:
    return html.escape(str(said))


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_safe(item)}</li>" for item in items) + "</ul>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_safe(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<div class='box'><table><tr>{head}</tr>{body}</table></div>"
