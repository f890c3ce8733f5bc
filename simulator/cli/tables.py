"""A run, and several side by side, on the terminal; plain text in a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simulator.cli.console import console, count, fitted, named_column, one_line, seconds, share
from simulator.results.write import plain

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.studies.ranking import Ranking
    from simulator.studies.simulate import Result
    from simulator.studies.tornado import Bar


def show_summary(
    summary: Mapping[str, Any], as_json: bool = False, bars: Sequence[Bar] | None = None
) -> None:
    """Prints one run. bars: of its tornado, where one was made."""
    if as_json:
        more = {} if bars is None else {"tornado": [asdict(bar) for bar in bars]}
        print(json.dumps(plain({**summary, **more}), indent=1))
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
            f"mean of {_steady(s)}, p95 {seconds(s['step_s_p95'])}",
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
        ("at the cap", share(s["truncated_share"]), "responses cut at max_new_tokens"),
        ("staleness", f"{s['staleness_mean']:.3f}", "versions, mean over trained tokens"),
        ("tokens generated", count(s["generated_tokens"]), ""),
        ("  trained / masked", f"{count(s['trained_tokens'])} / {count(s['masked_tokens'])}", ""),
        ("  dropped / carried", f"{count(s['dropped_tokens'])} / {count(s['carried_tokens'])}", ""),
        ("re-prefilled", count(s["reprefilled_tokens"]), f"{s['preemptions']} preemptions"),
        (
            "makespan",
            seconds(s["makespan_s"]),
            f"{s['gpu_hours']:.2f} GPU-hours" + _cost(s),
        ),
    ]
    if "turns" in s:
        rows[5:5] = _turns(s["turns"])
    if len(s["group_sizes"]) > 1:
        rows.append(("group sizes", *_group_sizes(s)))
    for row in rows:
        grid.add_row(*row)
    screen = console()
    screen.print(grid)
    for line in _intervals(s):
        screen.print(line, markup=False, highlight=False)
    if bars is not None:
        from simulator.cli.tornado_table import show_tornado

        show_tornado(bars)
    _warn(screen, s["warnings"])


def _steady(s: Mapping[str, Any]) -> str:
    """How many steps the mean is of, and what the start-up took beside."""
    start, stop = s["steady_steps"]
    if (start, stop) == (0, s["steps"]):
        return f"{s['steps']}"
    return f"{stop - start} steady, {seconds(s['fill_s'])} to fill"


def _intervals(s: Mapping[str, Any]) -> list[str]:
    """Where step and run lie in nine of ten draws, and what that comes from."""
    found = s.get("intervals")
    if not found or "step_s" not in found:
        return []
    note = s.get("interval_note", "")
    lines = [f"step, 90 %: {_ends(found['step_s'], seconds)}" + (f"; {note}" if note else "")]
    run = f"run, 90 %: {_ends(found['makespan_s'], seconds)}"
    run += f"; {_ends(found['gpu_hours'], '{:,.3g}'.format)} GPU-hours"
    if "cost_usd" in found:
        run += f"; {_ends(found['cost_usd'], '${:,.3g}'.format)}"
    return [*lines, run]


def _ends(interval: Sequence[float], show: Callable[[float], str]) -> str:
    return f"{show(interval[0])} to {show(interval[1])}"


def _group_sizes(summary: Mapping[str, Any]) -> tuple[str, str]:
    """The sizes that a policy chose, and how often each."""
    sizes = summary["group_sizes"]
    return " / ".join(sizes), f"in {' / '.join(map(str, sizes.values()))} steps"


def _turns(turns: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a rollout's turns come to."""
    split = [
        ("model", turns["model_s"]),
        ("its queue", turns["queue_s"]),
        ("environment", turns.get("environment_s")),
        ("its queue", turns.get("environment_queue_s")),
    ]
    ends = ", ".join(f"{name} {count}" for name, count in turns["endings"].items())
    rows = [
        (
            "turns",
            f"{turns['turns_mean']:.1f}",
            f"of a rollout, p95 {turns['turns_p95']:.0f}; ends: {ends}",
        ),
        (
            "  a turn takes",
            seconds(sum(value for _, value in split if value is not None)),
            ", ".join(f"{name} {seconds(value)}" for name, value in split if value is not None),
        ),
    ]
    for name in ("environment", "reward"):
        if name in turns:
            calls = turns[name]
            use = "" if calls["use"] is None else f", {share(calls['use'])} of the slots"
            what = "environments" if name == "environment" else "judges"
            rows.append((f"  {what} busy", f"{calls['busy_slots_mean']:.1f}", f"in the mean{use}"))
    return rows


def _causes(causes: Mapping[str, float]) -> str:
    said = [f"{name} {share(value)}" for name, value in causes.items() if value >= 0.0005]
    return f": {', '.join(said)}" if said else ""


def _cost(summary: Mapping[str, Any]) -> str:
    return f", ${summary['cost_usd']:,.2f}" if "cost_usd" in summary else ""


def _warn(screen: Console, warnings: list[str]) -> None:
    for warning in warnings:
        screen.print(f"warning: {warning}", style="yellow", markup=False)


def show_comparison(
    results: Mapping[str, Result], ranking: Ranking | None = None, as_json: bool = False
) -> None:
    """Prints one row a policy, and how sure their ranking is."""
    from simulator.report.words import sureness
    from simulator.studies.compare import table, warnings_of

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
    screen = console()
    columns = [name for name in _COMPARED if ranking is not None or name != _INTERVAL]
    cells = [
        _cells(row, result.summary["steps"])
        for row, result in zip(rows, results.values(), strict=True)
    ]
    cells[0][_INTERVAL] = ""  # held against itself

    def build(kept: Sequence[str]) -> Table:
        grid = Table(padding=(0, 0, 0, 1), title=Text(title), title_justify="left")
        named_column(grid, "policy", [row["policy"] for row in rows], screen.width)
        for name in kept:
            grid.add_column(name, justify="right", no_wrap=True)
        for row, found in zip(rows, cells, strict=True):
            grid.add_row(Text(row["policy"]), *(found[name] for name in kept))
        return grid

    grid, left_out = fitted(screen, columns, _FIRST_TO_GO, build)
    screen.print(grid)
    notes = ["Times are means per step.", *(_MEANT[c] for c in _MEANT if c not in left_out)]
    if left_out:
        notes.append(f"For {', '.join(map(one_line, left_out))}, make the terminal wider.")
    screen.print(" ".join(notes), style="dim", markup=False)
    screen.print(sureness(ranking), style="dim", markup=False)
    for name, result in results.items():
        if len(result.summary["group_sizes"]) > 1:
            sizes, steps = _group_sizes(result.summary)
            screen.print(f"{name}: groups of {sizes} {steps}.", style="dim", markup=False)
    _warn(screen, warnings_of(results))


_AT_CAP = "at\ncap"
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
    _AT_CAP,
    "drop-\nped",
    "re-pre-\nfilled",
)
_FIRST_TO_GO = ("gain", _AT_CAP, "drop-\nped", "re-pre-\nfilled", "strag-\nglers", "train\nphase",
                "rollout\nphase", "stale-\nness", "rollout\ntokens/s")  # fmt: skip
_MEANT = {
    "gain": "gain: rollout tokens/s against the first row.",
    _AT_CAP: "at cap: responses cut at max_new_tokens.",
    "drop-\nped": "dropped: share of the tokens generated.",
    "re-pre-\nfilled": "re-prefilled: over the tokens generated.",
}


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
        share(row["truncated_share"]),
        share(row["dropped_tokens"] / generated),
        share(row["reprefilled_tokens"] / generated),
    )
    return dict(zip(_COMPARED, values, strict=True))
