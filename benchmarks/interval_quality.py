"""Quick intervals against whole runs: ``python -m benchmarks.interval_quality [--draws 100]``.

``rollcast simulate`` gives 90 % intervals for about the price of the run (`simulator.studies.
uncertainty`); ``--draws N`` makes N whole runs for them. Here both are made for several scenarios,
and the quick one's width is set against the other's, beside what such a width is worth: the
standard error of the width of an interval from as few draws, by a bootstrap. Comparisons too: the
interval of a speed-up, quick and from whole runs drawn alike.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.studies.compare import compare
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.ranking import from_short_runs, redraw
from rollcast.simulator.studies.redrawn import redrawn
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
RESULTS = HERE / "results" / "interval_quality.json"

# Name, example, settings, policies of a comparison (none: a run alone).
CASES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("synchronous", "april", ("policy=sync",), ()),
    ("april", "april", (), ()),
    ("a few steps", "april", ("policy=sync", "steps=4"), ()),
    ("pods", "pods", (), ()),
    ("prefix_reuse", "prefix_reuse", (), ()),
    ("one step off", "one_step_off", (), ()),
    ("fully async", "fully_async", (), ()),
    ("tail batching", "tail_batching", (), ()),
    ("linear costs", "engine", (), ()),
    ("a trace", "trace", (), ()),
    ("dapo", "dapo", (), ()),
    ("colocate async", "colocate_async", (), ()),
    ("pipeline rl", "pipeline_rl", (), ()),
    ("sync and april", "april", ("steps=5",), ("sync", "april")),
    ("sync and one step off", "one_step_off", ("steps=5",), ("sync", "one_step_off")),
)
TARGET = 0.15


def width(draws: NDArray[np.float64]) -> float:
    """Of the 90 % interval."""
    low, high = ends(draws).tolist()
    return float(high - low)


def width_error(draws: NDArray[np.float64], rng: np.random.Generator) -> float:
    """Standard error of the width of the interval of so few draws, as a share of it."""
    again = [width(rng.choice(draws, size=len(draws))) for _ in range(200)]
    return float(np.std(again)) / width(draws)


def judged(name: str, example: str, settings: Sequence[str], draws: int) -> dict[str, Any]:
    """A run's step time: the quick interval, and that of ``draws`` whole runs."""
    scenario = load(EXAMPLES / f"{example}.yaml", *settings)
    started = time.perf_counter()
    result = simulate(scenario)
    run_s = time.perf_counter() - started
    started = time.perf_counter()
    quick = uncertainty(result)
    quick_s = time.perf_counter() - started
    whole = np.array([simulate(redrawn(scenario, d + 1)).summary["step_s"] for d in range(draws)])
    return row(name, result.summary["step_s"], quick.draws["step_s"], whole) | {
        "run_s": run_s,
        "quick_s": quick_s,
        "shares": dict(quick.shares),
    }


def compared(
    name: str, example: str, settings: Sequence[str], policies: Sequence[str], draws: int
) -> dict[str, Any]:
    """The second policy's speed-up over the first: the quick interval, and that of whole runs."""
    scenario = load(EXAMPLES / f"{example}.yaml", *settings)
    started = time.perf_counter()
    results = compare([scenario.with_policy(policy) for policy in policies])
    run_s = time.perf_counter() - started
    started = time.perf_counter()
    quick = from_short_runs(results)
    quick_s = time.perf_counter() - started
    whole = redraw(results, draws)
    point = float(quick.step_s[0] / quick.step_s[1])
    ratios = [draws_of.draws[:, 0] / draws_of.draws[:, 1] for draws_of in (quick, whole)]
    return row(name, point, *ratios) | {"run_s": run_s, "quick_s": quick_s, "speedup": True}


def row(
    name: str, point: float, quick: NDArray[np.float64], whole: NDArray[np.float64]
) -> dict[str, Any]:
    """One line of the table."""
    ratio = width(quick) / width(whole)
    return {
        "case": name,
        "point": point,
        "quick": ends(quick).tolist(),
        "whole": ends(whole).tolist(),
        "width_ratio": ratio,
        "width_error": width_error(whole, np.random.default_rng(0)),
        "within": abs(ratio - 1.0) <= TARGET,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Prints a table in Markdown."""
    columns = (
        "case",
        "figure",
        "quick 90 %",
        "whole runs 90 %",
        "width, quick over whole",
        "error of that",
        "run",
        "quick",
    )
    print("| " + " | ".join(columns) + " |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        print(
            f"| {r['case']} | {r['point']:.4g} | {r['quick'][0]:.4g} to {r['quick'][1]:.4g} | "
            f"{r['whole'][0]:.4g} to {r['whole'][1]:.4g} | {r['width_ratio']:.2f} | "
            f"{r['width_error']:.2f} | {r['run_s']:.2f} s | {r['quick_s']:.2f} s |",
            flush=True,
        )


def main() -> None:
    """Judges the cases and writes what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--case", action="append", help="this one alone; repeat it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    chosen = [case for case in CASES if not given.case or case[0] in given.case]
    rows = []
    for name, example, settings, policies in chosen:
        if policies:
            rows.append(compared(name, example, settings, policies, given.draws))
        else:
            rows.append(judged(name, example, settings, given.draws))
    show(rows)
    inside = sum(r["within"] for r in rows)
    print(f"\n{inside} of {len(rows)} widths within {TARGET:.0%}, of {given.draws} whole runs each")
    given.out.write_text(json.dumps({"draws": given.draws, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
