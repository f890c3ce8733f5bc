"""Quick intervals against whole runs: ``python -m benchmarks.interval_quality [--draws 100]``.

``rollcast simulate`` gives 90 % intervals for about the price of the run (`simulator.studies.
uncertainty`); ``--draws N`` makes N whole runs for them. Here both are made for several scenarios,
and the quick one's width is set against the other's, beside what such a width is worth: the
standard error of the width of an interval from as few draws, by a bootstrap. Comparisons too: the
interval of a speed-up, quick and from whole runs drawn alike.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import RESULTS, ROOT, parser, read_json, timed, write_json
from rollcast.simulator.studies.compare import run_each
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.ranking import from_short_runs, redraw
from rollcast.simulator.studies.redrawn import redrawn
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

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
PATH = RESULTS / "interval_quality.json"
Draws = NDArray[np.float64]


def width(draws: Draws) -> float:
    low, high = ends(draws).tolist()
    return float(high - low)


def width_error(draws: Draws, rng: np.random.Generator) -> float:
    """Standard error of the width of the interval of so few draws, as a share of it."""
    again = [width(rng.choice(draws, size=len(draws))) for _ in range(200)]
    return float(np.std(again)) / width(draws)


def run_row(name: str, example: str, settings: tuple[str, ...], draws: int) -> dict[str, Any]:
    """A run's step time: the quick interval, and that of ``draws`` whole runs."""
    scenario = load(ROOT / "examples" / f"{example}.yaml", *settings)
    result, run_s, _ = timed(lambda: simulate(scenario))
    quick, quick_s, _ = timed(lambda: uncertainty(result))
    whole = np.array([simulate(redrawn(scenario, d + 1)).summary["step_s"] for d in range(draws)])
    line = row(name, result.summary["step_s"], quick.draws["step_s"], whole)
    return {**line, "run_s": run_s, "quick_s": quick_s, "shares": dict(quick.shares)}


def speedup_row(
    name: str, example: str, settings: tuple[str, ...], policies: tuple[str, ...], draws: int
) -> dict[str, Any]:
    """The second policy's speed-up over the first: the quick interval, and that of whole runs."""
    scenario = load(ROOT / "examples" / f"{example}.yaml", *settings)
    scenarios = [scenario.with_policy(policy) for policy in policies]
    results, run_s, _ = timed(lambda: run_each(scenarios))
    quick, quick_s, _ = timed(lambda: from_short_runs(results))
    point = float(quick.step_s[0] / quick.step_s[1])
    ratios = [made.draws[:, 0] / made.draws[:, 1] for made in (quick, redraw(results, draws))]
    return {**row(name, point, *ratios), "run_s": run_s, "quick_s": quick_s, "speedup": True}


def row(name: str, point: float, quick: Draws, whole: Draws) -> dict[str, Any]:
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


def main() -> None:
    """Judges the cases, and writes each as soon as it is there."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=100)
    options.add_argument("--case", action="append", help="this one alone; repeat it")
    given = options.parse_args()
    known = {line["case"]: line for line in read_json(PATH, {"rows": []})["rows"]}
    for name, example, settings, policies in CASES:
        if given.case and name not in given.case:
            continue
        if policies:
            known[name] = speedup_row(name, example, settings, policies, given.draws)
        else:
            known[name] = run_row(name, example, settings, given.draws)
        ratio, error = known[name]["width_ratio"], known[name]["width_error"]
        print(f"{name}: width {ratio:.2f} of that of whole runs, standard error {error:.2f}")
        rows = [known[case[0]] for case in CASES if case[0] in known]
        write_json(PATH, {"draws": given.draws, "rows": rows})


if __name__ == "__main__":
    main()
