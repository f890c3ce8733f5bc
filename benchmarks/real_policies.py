"""The policies on real vLLM and torch: ``python benchmarks/real_policies.py``.

Every (policy, seed) is a `rollcast run` of examples/engine.yaml; finished runs are kept in
``--work`` and not made again, so an interrupted measurement goes on where it stopped. Writes
``benchmarks/results/real_policies.{json,md,png}``: step time, tokens/s, accuracy, and the speed-up
in wall-clock time to 0.99 of the synchronous peak accuracy (moving average over ``WINDOW`` steps).
Accuracy is the mean reward of all rollouts that finished in a step, at the
sampling temperature.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SCENARIO = HERE.parent / "examples" / "engine.yaml"
RESULTS = HERE / "results"
WINDOW = 8
POLICIES = {
    "synchronous": "sync",
    "APRIL": "april(over_sampling=2)",
    "SAGC": "sagc",
    "PODS": "pods(keep=4)",
    "prefix reuse": "prefix_reuse",
    "all together": "april(over_sampling=2)+sagc+pods(keep=4)+prefix_reuse",
}


def measure(policy: str, seed: int, steps: int, folder: Path) -> None:
    """One real run, unless its folder is there already."""
    if (folder / "summary.json").exists():
        return
    resume = folder.with_name(folder.name + ".running").exists()
    settings = [f"--set=policy={json.dumps(policy)}", f"--set=steps={steps}", f"--seed={seed}"]
    subprocess.run(
        [
            *(sys.executable, "-m", "simulator.cli", "run", str(SCENARIO), "--no-plot"),
            *(f"--out={folder}", *settings, *(["--resume"] if resume else [])),
        ],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def read(folder: Path) -> dict[str, Any]:
    """What a run's folder says: its summary, and time and accuracy by step."""
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "steps.csv").open() as file:
        ends = [float(row["end_s"]) for row in csv.DictReader(file)]
    lines = (folder / "updates.jsonl").read_text().splitlines()
    accuracy = [json.loads(line)["accuracy"] for line in lines]
    return {
        "end_s": [round(end, 3) for end in ends],
        "accuracy": [round(value, 4) for value in accuracy],
        "step_s": summary["step_s"],
        "rollout_s": summary["rollout_s"] / summary["steps"],
        "train_s": summary["train_s"] / summary["steps"],
        "tokens_per_s": summary["rollout_tokens_per_s"],
        "staleness": summary["staleness_mean"],
        "bubble": summary["bubble_fraction"],
        "versions": json.loads((folder / "provenance.json").read_text()),
    }


def smooth(values: list[float]) -> np.ndarray[Any, Any]:
    """Moving average over the last ``WINDOW`` steps (fewer at the start)."""
    total = np.cumsum([0.0, *values])
    first = np.maximum(np.arange(1, len(values) + 1) - WINDOW, 0)
    last = np.arange(1, len(values) + 1)
    return (total[last] - total[first]) / (last - first)


def time_to(run: dict[str, Any], target: float) -> float:
    """Wall-clock seconds until the moving average reaches ``target``; infinite if it never does."""
    reached = np.flatnonzero(smooth(run["accuracy"])[WINDOW - 1 :] >= target)
    return run["end_s"][reached[0] + WINDOW - 1] if len(reached) else float("inf")


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The results as markdown: medians over seeds, with the range where it matters."""
    base = runs["synchronous"]
    targets = [0.99 * smooth(run["accuracy"])[WINDOW - 1 :].max() for run in base]
    reference = [time_to(run, target) for run, target in zip(base, targets, strict=True)]
    lines = [
        "| policy | step, s | rollout + train, s | rollout tokens/s | staleness | accuracy, first -> last | time to 0.99 of the synchronous peak |",  # noqa: E501
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        speedups = [
            back / time_to(run, target)
            for run, target, back in zip(found, targets, reference, strict=True)
        ]
        finite = [s for s in speedups if s > 0]
        said = f"{np.median(speedups):.2f}x" if finite else "not reached"
        if finite:
            said += f" ({min(speedups):.2f}-{max(speedups):.2f})"
        first = np.mean([np.mean(run["accuracy"][:WINDOW]) for run in found])
        last = np.mean([np.mean(run["accuracy"][-WINDOW:]) for run in found])

        def middle(key: str, found: list[dict[str, Any]] = found) -> float:
            return float(np.median([run[key] for run in found]))

        lines.append(
            f"| {name} | {middle('step_s'):.2f} "
            f"({min(r['step_s'] for r in found):.2f}-{max(r['step_s'] for r in found):.2f}) | "
            f"{middle('rollout_s'):.2f} + {middle('train_s'):.2f} | "
            f"{middle('tokens_per_s'):,.0f} | "
            f"{middle('staleness'):.2f} | {first:.2f} -> {last:.2f} | {said} |"
        )
    return "\n".join(lines)


def draw(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Accuracy over wall-clock time, and step times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
    colours = ["#555555", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"]
    for (name, found), colour in zip(runs.items(), colours, strict=True):
        for i, run in enumerate(found):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("out/real_policies"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in POLICIES}
    for seed in range(options.seeds):
        for name, policy in POLICIES.items():
            folder = options.work / f"{name.replace(' ', '-')}-{seed}"
            measure(policy, seed, options.steps, folder)
            runs[name].append(read(folder))
            print(f"{name}, seed {seed}: {runs[name][-1]['step_s']:.2f} s a step", flush=True)
    RESULTS.mkdir(exist_ok=True)
    versions = runs["synchronous"][0]["versions"]
    for found in runs.values():
        for run in found:
            run.pop("versions")
    content = {"steps": options.steps, "provenance": versions, "runs": runs}
    (RESULTS / "real_policies.json").write_text(json.dumps(content, indent=1) + "\n")
    text = table(runs)
    (RESULTS / "real_policies.md").write_text(text + "\n")
    draw(runs, RESULTS / "real_policies.png")
    print(text)


if __name__ == "__main__":
    main()
