"""Measure, import, calibrate, forecast, confirm, all inside verl: half an hour of two cores.

    python -m benchmarks.in_verl.circle run DIR [--steps 12] [NAME ...]
    python -m benchmarks.in_verl.circle judge DIR

The built-in task and its taught model train by GRPO in verl with no policy; ``rollcast import``
reads that log alone; the imported scenario forecasts exported policies; each is run in verl. The
run without a policy is repeated last: what the machine's own speed moved by is
no error of a forecast. Needs the environment of ``make test-verl``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.in_verl.run import CONSOLE, DUMP, LOG, Setup, run, write_prompts
from benchmarks.runner import (
    RESULTS,
    ROOT,
    fails_in_words,
    machine,
    parser,
    progress,
    rollcast,
    write_json,
)
from rollcast.engine.tasks.warm_start import warm_start
from rollcast.simulator.errors import ScenarioError

SCENARIO = ROOT / "examples" / "engine.yaml"
SETTINGS = ("workload.batch_groups=24", "engine.max_seqs=64")
BASE, AGAIN = "sync", "sync again"
RUNS = {BASE: "sync", "pods": "pods(keep=4)", "april+pods": "april+pods(keep=4)", AGAIN: "sync"}
SETTLED = 2
"""Steps at the start that are left out: everything is loaded, and the wave fills."""
POLL_S = 0.1
"""Between two looks of the exported sampler, on a small queue."""
DRAWS = 20


def measure(folder: Path, steps: int, names: list[str]) -> None:
    """Runs what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = Setup(warm_start(), folder / "prompts.parquet")
    if not setup.prompts.is_file():
        write_prompts(setup.prompts)
    for name in names:
        out = place(folder, name)
        if out.exists():
            continue
        with tempfile.TemporaryDirectory() as made:
            export = Path(made) / "export"
            settings = [f"--set={one}" for one in (*SETTINGS, f"steps={steps}")]
            policy = RUNS[name]
            rollcast(
                "export", SCENARIO, *settings, "--policy", policy, "--to", "verl", "--out", export
            )
            progress(f"{name}: {steps} steps inside verl")
            run(export, out, setup)


def place(folder: Path, name: str) -> Path:
    """Of a run."""
    return folder / name.replace(" ", "_")


def step_s(folder: Path) -> float:
    """Mean of the settled steps, seconds, by verl's own log."""
    rows = [json.loads(line)["data"] for line in (folder / LOG).read_text("utf-8").splitlines()]
    return statistics.fmean(row["timing_s/step"] for row in rows[SETTLED:])


def judge(folder: Path) -> dict[str, Any]:
    """Forecast and measured seconds of a step, of every run that is there, and gains over the one
    without a policy."""
    base, imported = place(folder, BASE), folder / "imported"
    log = (base / LOG, base / CONSOLE, base / DUMP)
    rollcast("import", *log, "--tokenizer", warm_start(), "--out", imported, "--force")
    rows: dict[str, dict[str, float]] = {}
    for name, policy in RUNS.items():
        if not (place(folder, name) / LOG).is_file():
            continue
        poll = [] if policy == "sync" else ["--set", f"poll_s={POLL_S}"]
        words = ("--policy", policy, "--draws", DRAWS, "--json", *poll)
        [said] = json.loads(rollcast("compare", imported / "scenario.yaml", *words))
        rows[name] = {"forecast_s": said["step_s"], "measured_s": step_s(place(folder, name))}
    for row in rows.values():
        row["error"] = row["forecast_s"] / row["measured_s"] - 1
        for kind in ("forecast", "measured"):
            row[f"{kind}_gain"] = rows[BASE][f"{kind}_s"] / row[f"{kind}_s"]
    return {"machine": machine(), "runs": rows}


@fails_in_words
def main() -> int:
    """Runs, or judges what was run."""
    shape = parser(__doc__)
    shape.add_argument("what", choices=("run", "judge"))
    shape.add_argument("folder", type=Path)
    shape.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; or all")
    shape.add_argument("--steps", type=int, default=12)
    given = shape.parse_args()
    if given.what == "run":
        if unknown := [name for name in given.names if name not in RUNS]:
            raise ScenarioError("NAME", f"{unknown[0]} is none of {', '.join(RUNS)}")
        measure(given.folder, given.steps, given.names or list(RUNS))
        return 0
    found = judge(given.folder)
    write_json(RESULTS / "in_verl.json", found)
    print(json.dumps(found["runs"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
