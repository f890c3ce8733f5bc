"""Rollout and training at the same time, for real: ``make demo-overlap``, two cores, five minutes.

The built-in task with one replica and a trainer, each on a core of its own: synchronous, one step
off, and fully asynchronous. ``rollcast calibrate`` is given the synchronous run alone, and
``rollcast simulate`` forecasts all three from it. Writes the run folders, the fitted file,
``overlap.md`` (a table) and ``overlap.png``: who worked when, measured and forecast.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runner import ROOT, fails_in_words, parser, progress, rollcast, write_text
from rollcast.simulator.errors import ScenarioError

SCENARIO = ROOT / "examples" / "overlap.yaml"
POLICIES = {
    "synchronous": "[]",
    "one step off": "one_step_off",
    "fully asynchronous": "fully_async(max_staleness=2)",
}
STEPS = 24
SETTLED, DRAINED = 4, 2
"""Steps at both ends of a run that are left out: the engine warms up and the overlap fills, and at
the end there is nothing left to sample."""
SHOWN_S = 8.0
"""Seconds of each run in the picture."""
NOISE = (
    "±: the standard error over the steps. A machine that is shared adds to it: two runs of one "
    "policy were up to 16 % apart on ours (docs/evidence.md), and a forecast is held against one."
)


@dataclass(frozen=True)
class Ran:
    """A run's folder, measured or forecast."""

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return content

    @property
    def steps(self) -> pd.DataFrame:
        steps = pd.read_csv(self.folder / "steps.csv")
        return steps.iloc[SETTLED : len(steps) - DRAINED]

    @property
    def step_s(self) -> float:
        return float(self.steps["step_s"].mean())

    @property
    def step(self) -> str:
        """The same, and its standard error over the steps."""
        steps = self.steps["step_s"].to_numpy(float)
        return f"{self.step_s:.2f} ± {steps.std(ddof=1) / len(steps) ** 0.5:.2f}"


def measure(out: Path, steps: int) -> None:
    """The three runs, each in a folder of its own below ``out``."""
    for number, (name, policy) in enumerate(POLICIES.items(), 1):
        folder = out / "measured" / slug(name)
        progress(f"{number}/{len(POLICIES)} {name}, for real")
        sets = ("--set", f"policy={policy}", "--set", f"steps={steps}")
        rollcast("run", SCENARIO, *sets, "--out", folder, "--no-plot", "--force")


def forecast(out: Path, steps: int) -> None:
    """The same three from the synchronous one alone."""
    fitted = (out / "fitted.json").resolve()
    rollcast("calibrate", out / "measured" / slug("synchronous"), "-o", fitted)
    for name, policy in POLICIES.items():
        file = f"{{file: '{fitted}'}}"
        sets = [f"policy={policy}", f"steps={steps}", f"cost={file}", f"workload.lengths={file}"]
        sets.append("workload.prompt_tokens=null")  # the fitted file has its own
        words = [word for one in sets for word in ("--set", one)]
        folder = out / "forecast" / slug(name)
        rollcast("simulate", SCENARIO, *words, "--out", folder, "--no-plot", "--force")


def table(out: Path) -> list[str]:
    lines = [
        "| policy | step s | against sync | rollout s | train s | replica idle | trainer idle "
        "| staleness | forecast step s | off by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    base = Ran(out / "measured" / slug("synchronous")).step_s
    for name in POLICIES:
        real, made = (Ran(out / kind / slug(name)) for kind in ("measured", "forecast"))
        replica, trainer = (idle(real, who) for who in ("replica 0", "trainer"))
        steps, off = real.steps, made.step_s / real.step_s - 1
        lines.append(
            f"| {name} | {real.step} | {real.step_s / base:.2f} "
            f"| {steps['rollout_s'].mean():.2f} | {steps['train_s'].mean():.2f} "
            f"| {replica:.0%} | {trainer:.0%} | {real.summary['staleness_mean']:.2f} "
            f"| {made.step} | {off:+.0%} |"
        )
    return lines


def busy(ran: Ran, track: str) -> pd.DataFrame:
    """``start_s`` and ``end_s`` of what a replica's rollouts, or the trainer, did."""
    spans = pd.read_csv(ran.folder / "spans.csv")
    kept = spans[(spans["track"] == track) & (spans["end_s"] > spans["start_s"])]
    return kept[["start_s", "end_s"]]


def idle(ran: Ran, track: str) -> float:
    """The share of the settled steps in which nothing of a track was under way."""
    steps, spans = ran.steps, busy(ran, track)
    first, last = steps["end_s"].iloc[0] - steps["step_s"].iloc[0], steps["end_s"].iloc[-1]
    times, counts = under_way(spans)
    cuts = np.clip(np.append(times, last), first, last)
    held = np.diff(cuts)[counts == 0].sum() + max(cuts[0] - first, 0.0)
    return float(held / (last - first))


def under_way(spans: pd.DataFrame) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """How many intervals cover each stretch: where it begins, and their number until the next."""
    start, end = np.sort(spans["start_s"]), np.sort(spans["end_s"])
    times = np.unique(np.concatenate((start, end)))
    counts = np.searchsorted(start, times, "right") - np.searchsorted(end, times, "right")
    return times, counts


def picture(out: Path) -> None:
    """Who worked when: rollouts in flight on the replica, and the trainer below, in a window that
    begins when a step ends; each run measured and forecast."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [(name, kind) for name in POLICIES for kind in ("measured", "forecast")]
    figure, axes = plt.subplots(len(rows), 1, sharex=True, figsize=(10, 1.15 * len(rows)))
    for axis, (name, kind) in zip(axes, rows, strict=True):
        ran = Ran(out / kind / slug(name))
        zero_s = float(ran.steps["end_s"].iloc[0])
        times, counts = under_way(busy(ran, "replica 0"))
        most = max(counts.max(), 1)
        axis.fill_between(times - zero_s, counts / most, step="post", color="#4878b0", lw=0)
        trainer = busy(ran, "trainer")
        bars = list(
            zip(trainer["start_s"] - zero_s, trainer["end_s"] - trainer["start_s"], strict=True)
        )
        axis.broken_barh(bars, (-0.45, 0.35), color="#e8913a", lw=0)
        for end_s in ran.steps["end_s"] - zero_s:
            axis.axvline(end_s, color="0.2", lw=0.6)
        axis.set_ylim(-0.5, 1.05)
        axis.set_yticks([-0.28, 0.5], ["trainer", "rollouts"], fontsize=7)
        axis.set_title(f"{name}, {kind}: {ran.step_s:.2f} s a step", fontsize=8, loc="left", pad=2)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[-1].set_xlim(0, SHOWN_S)
    axes[-1].set_xlabel("seconds; a line where new weights are in place")
    figure.tight_layout(h_pad=0.3)
    figure.savefig(out / "overlap.png", dpi=130)
    plt.close(figure)


def slug(name: str) -> str:
    return name.replace(" ", "_")


@fails_in_words
def main() -> int:
    """Measures, forecasts, prints; exit code 2 with one sentence where it cannot."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("demo-overlap"))
    options.add_argument("--steps", type=int, default=STEPS)
    given = options.parse_args()
    if given.steps < (least := SETTLED + DRAINED + 2):
        raise ScenarioError("--steps", f"is {given.steps}; give at least {least}")
    out = given.out.resolve()
    measure(out, given.steps)
    forecast(out, given.steps)
    lines = "\n".join([*table(out), "", NOISE])
    write_text(out / "overlap.md", lines + "\n")
    picture(out)
    print(lines)
    progress(f"wrote {given.out}/: overlap.md, overlap.png, and the runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
