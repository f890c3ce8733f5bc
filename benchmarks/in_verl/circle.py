"""Measure, import, calibrate, forecast, confirm, all inside verl: a quarter of an hour of two idle
cores.

    python -m benchmarks.in_verl.circle run DIR [--steps 12] [NAME ...]
    python -m benchmarks.in_verl.circle judge DIR

The built-in task and its taught model train by GRPO in verl as without a policy; ``rollcast
import`` reads that log alone; the imported scenario forecasts exported policies; each is run in
verl. The first run is repeated last: what the machine's own speed moved by is no error of a
forecast. The first run has the exported sampler, too, with a selection that keeps every rollout:
verl's own looks every two seconds whether rollouts are done, and gains would be of that. Needs the
environment of ``make test-verl``.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.in_verl.processor import a_step
from benchmarks.in_verl.run import CONSOLE, DUMP, LOG, PROCESSOR, Setup, run, write_prompts
from benchmarks.runner import (
    RESULTS,
    ROOT,
    fails_in_words,
    machine,
    parser,
    progress,
    read_json,
    rollcast,
    write_json,
)
from rollcast.engine.tasks.warm_start import warm_start
from rollcast.simulator.errors import RunError, ScenarioError

SCENARIO = ROOT / "examples" / "engine.yaml"
SETTINGS = ("engine.max_seqs=64",)
BASE, AGAIN = "sync", "sync again"
RUNS = {
    BASE: "pods(keep=8)",
    "april": "april",
    "april+pods": "april+pods(keep=4)",
    "pods": "pods(keep=4)",
    AGAIN: "pods(keep=8)",
}
SETTLED = 2
"""Steps at the start that are left out: everything is loaded, and the wave fills."""
DRAWS = 20
LOADS = "loads.json"
"""In a run's folder: the machine's load of a minute before it; of one, five and 15 after it."""


def measure(folder: Path, steps: int, names: list[str]) -> None:
    """Runs what is not there yet. Raises RunError where verl fails."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = Setup(warm_start(), folder / "prompts.parquet")
    if not setup.prompts.is_file():
        write_prompts(setup.prompts)
    for name in names:
        out = place(folder, name)
        if (out / LOADS).is_file():
            continue
        shutil.rmtree(out, ignore_errors=True)  # it was not finished
        with tempfile.TemporaryDirectory() as made:
            export = Path(made) / "export"
            settings = [f"--set={one}" for one in (*SETTINGS, f"steps={steps}")]
            policy = RUNS[name]
            rollcast(
                "export", SCENARIO, *settings, "--policy", policy, "--to", "verl", "--out", export
            )
            progress(f"{name}: {steps} steps inside verl")
            loads = [os.getloadavg()[0]]
            try:
                run(export, out, setup)
            except subprocess.CalledProcessError:
                raise RunError(f"verl failed in the run {name}; see {out / CONSOLE}") from None
            write_json(out / LOADS, [*loads, *os.getloadavg()])


def place(folder: Path, name: str) -> Path:
    """Of a run."""
    return folder / name.replace(" ", "_")


def step_s(folder: Path) -> tuple[float, float]:
    """Mean of the settled steps, seconds, and its standard error, by verl's own log."""
    rows = [json.loads(line)["data"] for line in (folder / LOG).read_text("utf-8").splitlines()]
    each_s = [row["timing_s/step"] for row in rows[SETTLED:]]
    return statistics.fmean(each_s), statistics.stdev(each_s) / math.sqrt(len(each_s))


def processor_s(folder: Path) -> dict[str, float] | None:
    """Processor seconds of a settled step by kind of process; None of a run that kept none."""
    file = folder / PROCESSOR
    return a_step(file, SETTLED) if file.is_file() else None


def phases_s(folder: Path) -> dict[str, float]:
    """Mean seconds of the settled steps by verl's own phases."""
    rows = [json.loads(line)["data"] for line in (folder / LOG).read_text("utf-8").splitlines()]
    names = [name for name in rows[-1] if name.startswith("timing_s/")]
    return {
        name.removeprefix("timing_s/"): statistics.fmean(row[name] for row in rows[SETTLED:])
        for name in names
    }


def judge(folder: Path) -> dict[str, Any]:
    """Forecast and measured seconds of a step, of every run that is there, and gains over the one
    without a policy: of the forecast with its 90 % interval; measured over the mean of the first
    run and of its repetition, which lie around the others."""
    base, imported = place(folder, BASE), folder / "imported"
    if not (base / LOADS).is_file():
        raise ScenarioError("FOLDER", f"{folder} holds no run without a policy; run {BASE} first")
    log = (base / LOG, base / CONSOLE, base / DUMP)
    rollcast("import", *log, "--tokenizer", warm_start(), "--out", imported, "--force")
    ran = [name for name in RUNS if (place(folder, name) / LOADS).is_file()]
    asked = [word for name in ran if name != AGAIN for word in ("--policy", RUNS[name])]
    words = ("compare", imported / "scenario.yaml", *asked, "--draws", DRAWS, "--json")
    said = {found["policy"]: found for found in json.loads(rollcast(*words))}
    rows: dict[str, dict[str, Any]] = {}
    for name in ran:
        found = said[RUNS[name]]
        measured_s, error_s = step_s(place(folder, name))
        rows[name] = {
            "forecast_s": found["step_s"],
            "measured_s": measured_s,
            "standard_error_s": error_s,
            "forecast_gain": found["speedup"],
            "forecast_gain_90": [found["speedup_low"], found["speedup_high"]],
            "loads": read_json(place(folder, name) / LOADS, None),
            "processor_s": processor_s(place(folder, name)),
            "phases_s": phases_s(place(folder, name)),
        }
    around = [row["measured_s"] for name, row in rows.items() if name in (BASE, AGAIN)]
    for row in rows.values():
        row["error"] = row["forecast_s"] / row["measured_s"] - 1
        row["measured_gain"] = statistics.fmean(around) / row["measured_s"]
        row["gain_error"] = row["forecast_gain"] / row["measured_gain"] - 1
    return {**provenance(base), "runs": rows}


def with_earlier(found: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """With what earlier versions forecast for the same runs, and the explanation of them."""
    runs = {
        name: {**row, **{k: v for k, v in was.items() if k.startswith("forecast_before_")}}
        for name, row in found["runs"].items()
        for was in (kept.get("runs", {}).get(name, {}),)
    }
    return {**kept, **found, "runs": runs}


def provenance(base: Path) -> dict[str, Any]:
    """What was run, and where."""
    return {
        "machine": f"{machine()}, {os.cpu_count()} cores",
        "packages": {name: version(name) for name in ("verl", "transformers", "torch", "ray")},
        "scenario": [str(SCENARIO.relative_to(ROOT)), *SETTINGS],
        "steps": len((base / LOG).read_text("utf-8").splitlines()),
        "settled_from": SETTLED,
    }


@fails_in_words
def main() -> int:
    """Runs, or judges what was run."""
    shape = parser(__doc__)
    shape.add_argument("what", choices=("run", "judge"))
    shape.add_argument("folder", type=Path)
    shape.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; or all")
    shape.add_argument("--steps", type=int, default=12)
    given = shape.parse_intermixed_args()  # names may follow options
    if given.what == "run":
        if unknown := [name for name in given.names if name not in RUNS]:
            raise ScenarioError("NAME", f"{unknown[0]} is none of {', '.join(RUNS)}")
        measure(given.folder, given.steps, given.names or list(RUNS))
        return 0
    found = with_earlier(judge(given.folder), read_json(RESULTS / "in_verl.json", {}))
    write_json(RESULTS / "in_verl.json", found)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
