"""What of verl's generation is the engine, and what the trainer's own phases say of the machine.

    python -m benchmarks.in_verl.explain DIR RUN

DIR: of `circle`. RUN: the folder of a real run of examples/engine.yaml with ``engine.name:
transformers``, the same engine and model without verl, whose iterations are measured one by one.
The seconds of verl's generation are regressed on those that the engine alone would take for the
step's responses: what is left at zero does not depend on lengths, and is not the engine's. Trainer
phases of ``april+pods`` over those of ``pods``, which train on as many rollouts, are no policy's.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.in_verl.circle import AGAIN, BASE, SETTLED, phases_s, place
from benchmarks.in_verl.run import DUMP, LOG
from benchmarks.runner import RESULTS, fails_in_words, parser, read_json, write_json

SLOTS, CAP, PROMPT = 64, 512, 6
TRAINER = ("old_log_prob", "adv", "update_actor")


def curve(run: Path) -> Any:
    """Seconds of an iteration without prefill: (fixed, a rollout, a token of context)."""
    table = pd.read_csv(run / "iterations.csv")
    table = table[table.prefill_tokens == 0]
    known = np.c_[np.ones(len(table)), table.rollouts, table.context_tokens]
    return np.linalg.lstsq(known, table.seconds.to_numpy(), rcond=None)[0]


def engine_s(lengths: Sequence[int], costs: Any, slots: int = SLOTS) -> float:
    """Seconds of an engine that takes responses up in their order, so many at once."""
    waiting, running, seconds = list(lengths), list[list[int]](), 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append([waiting.pop(0), 0])
        context = sum(made for _, made in running) + PROMPT * len(running)
        seconds += float(costs @ (1.0, len(running), context))
        running = [[length, made + 1] for length, made in running if made + 1 < length]
    return seconds


def generation(folder: Path, costs: Any) -> list[tuple[float, float]]:
    """(the engine's seconds alone, verl's) of each settled step."""
    rows = [json.loads(line)["data"] for line in (folder / LOG).read_text("utf-8").splitlines()]
    found = []
    for number, row in enumerate(rows[SETTLED - 1 :], SETTLED):
        text = (folder / DUMP / f"{number}.jsonl").read_text("utf-8")
        outputs = [json.loads(line)["output"] for line in text.splitlines()]
        lengths = [min(len(output) + 1, CAP) for output in outputs]  # a token a character
        found.append((engine_s(lengths, costs), float(row["timing_s/gen"])))
    return found


def explained(folder: Path, run: Path) -> dict[str, Any]:
    """Figures of the head."""
    costs = curve(run)
    alone, took = np.array(
        [pair for name in (BASE, AGAIN) for pair in generation(place(folder, name), costs)]
    ).T
    known = np.c_[np.ones(len(alone)), alone]
    fitted = np.linalg.lstsq(known, took, rcond=None)[0]
    left = took - known @ fitted
    spread = np.sqrt(np.diag(np.linalg.inv(known.T @ known)) * (left @ left) / (len(took) - 2))
    phases = {name: phases_s(place(folder, name)) for name in ("pods", "april+pods")}
    ratios = {name: phases["april+pods"][name] / phases["pods"][name] for name in TRAINER}
    return {
        "iteration_s": dict(
            zip(("fixed", "rollout", "context_token"), costs.tolist(), strict=True)
        ),
        "steps": len(took),
        "generation_s": statistics.fmean(took.tolist()),
        "engine_alone_s": statistics.fmean(alone.tolist()),
        "of_no_length_s": [float(fitted[0]), float(spread[0])],
        "times_engine_alone": [float(fitted[1]), float(spread[1])],
        "trainer_april_pods_over_pods": ratios,
    }


@fails_in_words
def main() -> int:
    """Adds them to the circle's results."""
    shape = parser(__doc__)
    shape.add_argument("folder", type=Path)
    shape.add_argument("run", type=Path)
    given = shape.parse_args()
    kept = RESULTS / "in_verl.json"
    found = explained(given.folder, given.run)
    write_json(kept, {**read_json(kept, {}), "explained": found})
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
