"""What driver and record take of a step of 128 rollouts, beside engine and trainer.

A real run of ``examples/engine.yaml`` in one process, with either engine. Its own tables have the
seconds of each engine iteration, update and weight sync; what is left of the run's clock is the
driver: the loop, the policy, rewards, token accounting, tables and logs. Saves in the background
are in it as far as they delay the run. The shares are of wall time that all parts spend in the same
process, so a busy machine stretches them alike. What vLLM's adapter itself takes is in
``benchmarks.engine_overhead``.

    python -m benchmarks.driver_share [--steps 40] [--engines vllm transformers]
"""

import csv
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS, machine, parser, python, write_json

TARGET_SHARE = 0.05
_PHASES = ("log_prob_s", "forward_s", "backward_s", "gradient_s", "optimizer_s")


def shares(out: Path) -> dict[str, Any]:
    """Seconds of a finished run, and the driver's over those of engine, trainer and syncs."""
    with (out / "iterations.csv").open() as file:
        engine_s = sum(float(row["seconds"]) for row in csv.DictReader(file))
    updates = [json.loads(line) for line in (out / "updates.jsonl").read_text().splitlines()]
    trainer_s = sum(float(update[phase]) for update in updates for phase in _PHASES)
    with (out / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    sync_s = sum(float(row["sync_s"]) for row in rows)
    summary = json.loads((out / "summary.json").read_text())
    total_s = summary["makespan_s"]
    bare_s = engine_s + trainer_s + sync_s
    return {
        "steps": len(rows),
        "rollouts_a_step": float(rows[0]["trained_rollouts"]),
        "run_s": round(total_s, 3),
        "engine_s": round(engine_s, 3),
        "trainer_s": round(trainer_s, 3),
        "sync_s": round(sync_s, 3),
        "driver_over_the_rest": round((total_s - bare_s) / bare_s, 4),
        "wall_s": round(summary["wall_s"], 1),
    }


def main() -> None:
    """Both engines, and the file of results."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--engines", nargs="+", default=["vllm", "transformers"])
    asked = options.parse_args()
    found: dict[str, Any] = {"target_share": TARGET_SHARE}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.engines:
            out = Path(folder) / name
            settings = ("--set", f"engine.name={name}", "--set", f"steps={asked.steps}")
            python("-m", "rollcast", "run", "examples/engine.yaml", "--out", out, *settings)
            found[name] = shares(out)
            print(name, json.dumps(found[name]), flush=True)
    found["machine"], found["load"] = machine(), round(os.getloadavg()[1], 1)
    write_json(RESULTS / "driver_share.json", found)


if __name__ == "__main__":
    main()
