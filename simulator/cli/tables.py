"""Readable tables on the terminal; plain text in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.checks import nearest
from simulator.errors import ScenarioError
from simulator.results.folder import plain
from simulator.studies.capacity import Choice
from simulator.studies.compare import table
from simulator.studies.ranking import LEAST_STEPS, LEVEL, SURE, Ranking
from simulator.studies.simulate import Result


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=width, highlight=False, soft_wrap=False)


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 7200:
        return f"{value / 3600:.2f} h"
    if value >= 600:
        return f"{value / 60:.1f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.1f} s"


def count(value: float) -> str:
    """A count for people."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in per cent."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


def show_summary(summary: Mapping[str, Any], as_json: bool = False) -> None:
    """Prints one run."""
    if as_json:
        print(json.dumps(plain(dict(summary)), indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    s = summary
    title = Text(f"{s['scenario']}: {s['policy']}")
    grid = Table(title=title, show_header=False, title_justify="left")
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim")
    rows = [
        (
            "step time",
            seconds(s["step_s"]),
            f"mean of {s['steps']}, p95 {seconds(s['step_s_p95'])}",
        ),
        ("rollout / train", f"{seconds(s['rollout_s'])} / {seconds(s['train_s'])}", "in total"),
        ("sync / switch", f"{seconds(s['sync_s'])} / {seconds(s['switch_s'])}", "in total"),
        ("rollout tokens/s", count(s["rollout_tokens_per_s"]), "generated, over rollout time"),
        ("trained tokens/s", count(s["trained_tokens_per_s"]), "over the whole run"),
        ("bubble", share(s["bubble_fraction"]), "GPU time idle" + _causes(s["bubble_by_cause"])),
        (
            "underfilled",
            share(s["underfilled_fraction"]),
            "rollout time below 1/4 of the peak load",
        ),
        ("stragglers", share(s["straggler_rate"]), "groups whose max / median > 1.25"),
        ("staleness", f"{s['staleness_mean']:.3f}", "versions, mean over trained tokens"),
        ("tokens generated", count(s["generated_tokens"]), ""),
        ("  trained / masked", f"{count(s['trained_tokens'])} / {count(s['masked_tokens'])}", ""),
        ("  dropped / carried", f"{count(s['dropped_tokens'])} / {count(s['carried_tokens'])}", ""),
        ("re-prefilled", count(s["reprefilled_tokens"]), f"{s['preemptions']} preemptions"),
        ("makespan", seconds(s["makespan_s"]), f"{s['gpu_hours']:.2f} GPU-hours" + _cost(s)),
    ]
    for row in rows:
        grid.add_row(*row)
    console = _console()
    console.print(grid)
    _warn(console, s["warnings"])


def _causes(causes: Mapping[str, float]) -> str:
    said = [f"{name} {share(value)}" for name, value in causes.items() if value]
    return f": {', '.join(said)}" if said else ""


def _cost(summary: Mapping[str, Any]) -> str:
    return f", ${summary['cost_usd']:,.2f}" if "cost_usd" in summary else ""


def _warn(console: Any, warnings: list[str]) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def show_comparison(
    results: Mapping[str, Result], ranking: Ranking | None = None, as_json: bool = False
) -> None:
    """Prints one row a policy, and how sure their ranking is."""
    rows = table(results, ranking)
    if as_json:
        print(json.dumps(plain(rows), indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    scenario = next(iter(results.values())).scenario
    batch = scenario.plan.batch
    title = (
        f"{scenario.name}: {scenario.steps} steps of {batch.groups} x {batch.group_size} rollouts"
    )
    console = _console()
    columns = [name for name in _COMPARED if ranking is not None or name != _INTERVAL]
    left_out: list[str] = []
    wide = console.options.update_width(1000)
    longest = max(6, *(len(row["policy"]) for row in rows))
    policy_width = min(longest, max(12, console.width // 4))
    while True:
        grid = Table(padding=(0, 0, 0, 1), title=Text(title), title_justify="left")
        grid.add_column("policy", overflow="fold", style="bold", width=policy_width)
        for name in columns:
            grid.add_column(name, justify="right", no_wrap=True)
        for row, result in zip(rows, results.values(), strict=True):
            cells = _cells(row, result.summary["steps"])
            if row is rows[0]:  # held against itself
                cells[_INTERVAL] = ""
            grid.add_row(Text(row["policy"]), *(cells[name] for name in columns))
        dropped = next((name for name in _FIRST_TO_GO if name in columns), None)
        if dropped is None or console.measure(grid, options=wide).maximum <= console.width:
            break
        columns.remove(dropped)
        left_out.append(dropped.replace("-\n", "").replace("\n", " "))
    console.print(grid)
    notes = "Times are means per step. gain: rollout tokens/s against the first row; dropped and "
    notes += "re-prefilled: share of the tokens generated."
    if left_out:
        notes += f" For {', '.join(left_out)}, make the terminal wider."
    console.print(notes, style="dim", markup=False)
    console.print(_sureness(ranking), style="dim", markup=False)
    said: list[str] = []
    for result in results.values():
        said.extend(w for w in result.summary["warnings"] if w not in said)
    _warn(console, said)


def _sureness(ranking: Ranking | None) -> str:
    """What the intervals are, and which policies may change places."""
    if ranking is None:
        return f"Fewer than {LEAST_STEPS} steps: no interval. Give more, or --draws N."
    said = f"{100 * LEVEL:.0f} % intervals "
    if ranking.source == "steps":
        said += "for other lengths and rewards, from the steps of this run; costs taken as exact."
    else:
        said += f"from {len(ranking.draws)} draws of lengths, rewards and, but for linear, costs."
    open_pairs = ranking.may_flip()
    if not open_pairs:
        return f"{said} The ranking by step time holds in at least {100 * SURE:.0f} % of the draws."
    pairs = [f"{a} before {b} ({100 * held:.0f} %)" for a, b, held in open_pairs[:_MOST_PAIRS]]
    more = len(open_pairs) - len(pairs)
    return f"{said} Not sure by step time: {', '.join(pairs)}{f', {more} more' if more else ''}."


_MOST_PAIRS = 6
_INTERVAL = "90 %\ninterval"
_COMPARED = (
    "step\ntime",
    "speed-\nup",
    _INTERVAL,
    "rollout\nphase",
    "train\nphase",
    "rollout\ntokens/s",
    "gain",
    "bubble",
    "strag-\nglers",
    "stale-\nness",
    "drop-\nped",
    "re-pre-\nfilled",
)
_FIRST_TO_GO = ("gain", "drop-\nped", "re-pre-\nfilled", "strag-\nglers", "train\nphase",
                "rollout\nphase", "stale-\nness", "rollout\ntokens/s")  # fmt: skip


def _cells(row: Mapping[str, Any], steps: int) -> dict[str, str]:
    """A policy's cells by column."""
    generated = max(row["generated_tokens"], 1)
    values = (
        seconds(row["step_s"]),
        f"{row['speedup']:.2f}x",
        f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}" if "speedup_low" in row else "",
        seconds(row["rollout_s"] / max(steps, 1)),
        seconds(row["train_s"] / max(steps, 1)),
        count(row["rollout_tokens_per_s"]),
        f"{100 * (row['throughput_gain'] - 1):+.0f}%",
        share(row["bubble_fraction"]),
        share(row["straggler_rate"]),
        f"{row['staleness_mean']:.2f}",
        share(row["dropped_tokens"] / generated),
        share(row["reprefilled_tokens"] / generated),
    )
    return dict(zip(_COMPARED, values, strict=True))


def show_plan(choices: Sequence[Choice], as_json: bool = False) -> None:
    """Prints one row a choice, best first."""
    if as_json:
        print(json.dumps(plain([choice.row() for choice in choices]), indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    priced = any(choice.figures.get("usd_per_step") is not None for choice in choices)
    console = _console()
    grid = Table(padding=(0, 0, 0, 1))
    for name in (*choices[0].settings, "policy"):
        short = "=".join(part.rpartition(".")[2] for part in name.split("="))
        grid.add_column(Text(short), overflow="fold", style="bold")
    for name in ("", "GPUs", "step\ntime", "GPU-s\na step", *(["$ a\nstep"] if priced else []),
                 "rollout\ntokens/s", "bubble", "stale-\nness"):  # fmt: skip
        grid.add_column(name, justify="right", no_wrap=True)
    for choice in choices:
        named = [Text(str(value)) for value in (*choice.settings.values(), choice.policy)]
        f = choice.figures
        if f:
            money = [f"{f['usd_per_step']:.3g}" if f["usd_per_step"] is not None else "-"]
            grid.add_row(*named, "*" if choice.best else "", str(f["gpus"]), seconds(f["step_s"]),
                         count(f["gpu_s_per_step"]), *(money if priced else []),
                         count(f["rollout_tokens_per_s"]), share(f["bubble_fraction"]),
                         f"{f['staleness_mean']:.2f}")  # fmt: skip
        else:
            grid.add_row(*named, "", "-", "-", "-", *(["-"] if priced else []), "-", "-", "-")
    console.print(grid)
    note = "* no other choice beats it in both time and GPU time of a step."
    console.print(note, style="dim", markup=False)
    reasons = dict.fromkeys(choice.problem for choice in choices if choice.problem)
    for reason in reasons:
        console.print(f"cannot be run: {reason}", style="yellow", markup=False)


KINDS = ("gpus", "models", "lengths", "policies")


def show_presets(kind: str | None, name: str | None, as_json: bool = False) -> None:
    """Prints the presets of a kind, or all; with a name, every figure and its source."""
    from simulator.cli.presets import preset_details, preset_rows

    if kind is not None and kind not in KINDS:
        raise ScenarioError("presets", f"unknown kind {kind!r}; {nearest(kind, KINDS)}")
    if name is not None and kind is not None:
        details = preset_details(kind, name)
        if as_json:
            print(json.dumps(plain(details), indent=1))
            return
        _print_table(f"{kind}: {name}", details)
        return
    kinds = [kind] if kind else list(KINDS)
    if as_json:
        print(json.dumps(plain({k: preset_rows(k) for k in kinds}), indent=1))
        return
    for each in kinds:
        _print_table(each, preset_rows(each))


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=Text(title), title_justify="left")
    for column in rows[0]:
        number = isinstance(rows[0][column], int | float)
        grid.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(str(value)) for value in row.values()))
    _console().print(grid)
