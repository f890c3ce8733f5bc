"""The policies on real vLLM and torch, as measured: ``python -m benchmarks.real_policies``.

Reads the runs of a campaign (``make measure`` makes them; those of two CPU cores are committed) and
writes ``benchmarks/results/real_policies.{json,md,png}``: step time, tokens/s, accuracy, and the
speed-up in wall-clock time to an accuracy of ``LEVEL`` and to 0.99 of the synchronous run's peak
(moving average over ``WINDOW`` steps). Accuracy is the mean reward of all rollouts that finished in
a step, at the sampling temperature; where a policy finishes short rollouts first, its first steps
look better than they are.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measured
from benchmarks.runner import RESULTS, parser, write_json, write_text
from rollcast.calibration.folder import RunFolder

MEASURED = "real/runs"
WINDOW = 8
LEVEL = 0.70
ENTRIES = {
    "synchronous": "sync",
    "APRIL": "april",
    "SAGC": "sagc",
    "PODS": "pods",
    "prefix reuse": "prefix",
    "all together": "all",
}


def read(folder: Path) -> dict[str, Any]:
    """What a run's folder says: its summary, and time and accuracy by step."""
    run = RunFolder.open(folder)
    summary, steps = run.summary, run.steps
    return {
        "end_s": [round(float(end), 3) for end in steps["end_s"]],
        "accuracy": [round(float(value), 4) for value in steps["accuracy"]],
        "step_s": summary["step_s"],
        "rollout_s": summary["rollout_s"] / summary["steps"],
        "train_s": summary["train_s"] / summary["steps"],
        "tokens_per_s": summary["rollout_tokens_per_s"],
        "staleness": summary["staleness_mean"],
        "bubble": summary["bubble_fraction"],
    }


def smooth(values: list[float]) -> np.ndarray[Any, Any]:
    """Moving average over the last ``WINDOW`` steps (fewer at the start)."""
    total = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(1, len(values) + 1) - WINDOW, 0)
    last = np.arange(1, len(values) + 1)
    return np.asarray((total[last] - total[first]) / (last - first))


def time_to(run: dict[str, Any], target: float) -> float:
    """Wall-clock seconds until the moving average reaches ``target``; infinite if it never does."""
    reached = np.flatnonzero(smooth(run["accuracy"])[WINDOW - 1 :] >= target)
    return run["end_s"][reached[0] + WINDOW - 1] if len(reached) else float("inf")


def speedup(base: list[dict[str, Any]], other: list[dict[str, Any]], targets: list[float]) -> str:
    """How much sooner than the synchronous run of the same seed each run got there: the median and
    the range of those that did in their steps, and how many that were."""
    ratios = [
        time_to(back, target) / time_to(run, target)
        for run, back, target in zip(other, base, targets, strict=True)
        if np.isfinite(time_to(run, target))
    ]
    if not ratios:
        return "not reached"
    text = f"{np.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
    return text if len(ratios) == len(other) else f"{text} in {len(ratios)} of {len(other)}"


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The results as markdown: medians over seeds, with the range where it matters."""
    base = runs["synchronous"]
    peaks = [0.99 * smooth(run["accuracy"])[WINDOW - 1 :].max() for run in base]
    lines = [
        "| policy | step, s | rollout + train, s | rollout tokens/s | staleness | "
        f"accuracy, first -> last | speed-up to {LEVEL:.2f} | to 0.99 of the synchronous peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, records in runs.items():
        to_level = speedup(base, records, [LEVEL] * len(records))
        to_peak = speedup(base, records, peaks)
        first = np.mean([np.mean(run["accuracy"][:WINDOW]) for run in records])
        last = np.mean([np.mean(run["accuracy"][-WINDOW:]) for run in records])

        def middle(key: str, of: list[dict[str, Any]] = records) -> float:
            return float(np.median([run[key] for run in of]))

        lines.append(
            f"| {name} | {middle('step_s'):.2f} "
            f"({min(r['step_s'] for r in records):.2f}-{max(r['step_s'] for r in records):.2f}) | "
            f"{middle('rollout_s'):.2f} + {middle('train_s'):.2f} | "
            f"{middle('tokens_per_s'):,.0f} | "
            f"{middle('staleness'):.2f} | {first:.2f} -> {last:.2f} | {to_level} | {to_peak} |"
        )
    return "\n".join(lines)


def draw(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Accuracy over wall-clock time, and step times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
    colours = ["#555555", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"]
    for (name, records), colour in zip(runs.items(), colours, strict=True):
        for i, run in enumerate(records):
            label = name if i == 0 else None
            left.plot(run["end_s"], smooth(run["accuracy"]), color=colour, lw=1.4, label=label)
    left.set(xlabel="wall-clock time, s", ylabel=f"accuracy (mean of {WINDOW} steps)")
    left.legend(frameon=False, fontsize=8)
    names = list(runs)
    for i, (name, colour) in enumerate(zip(names, colours, strict=True)):
        for run in runs[name]:
            right.plot(run["step_s"], i, "o", color=colour, ms=5)
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlabel="mean step time, s", xlim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=Path, help="folders of runs (default: the committed ones)")
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    folder = given.runs or measured.runs(MEASURED)
    runs = {
        name: [read(folder / f"{entry}-{seed}") for seed in range(given.seeds)]
        for name, entry in ENTRIES.items()
    }
    made_on = RunFolder.open(folder / "sync-0").provenance
    content = {"steps": len(runs["synchronous"][0]["end_s"]), "provenance": made_on, "runs": runs}
    write_json(RESULTS / "real_policies.json", content)
    text = table(runs)
    write_text(RESULTS / "real_policies.md", text + "\n")
    draw(runs, RESULTS / "real_policies.png")
    print(text)


if __name__ == "__main__":
    main()
