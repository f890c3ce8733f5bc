"""Seconds and memory of ``rollcast import``: ``python benchmarks/import_logs.py``.

Each row is a process of its own, reading, drafting and writing: a run of 500 steps with 100 MB of
dumped texts (verl) or tokens (NeMo-RL), and one whose console has 200 MB of other lines.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STEPS = 500
TARGET_S, TARGET_MB = 10, 500


def metrics(step: int, lengths: list[int]) -> dict[str, float]:
    mean = sum(lengths) / len(lengths)
    timed = {"timing_s/gen": 3.0, "timing_s/update_actor": 2.0, "timing_s/step": 6.0 + step % 3}
    other = {f"actor/other_{i}": 0.5 for i in range(80)}
    return {**timed, **other, "response_length/mean": mean, "response_length/max": max(lengths)}


def verl(folder: Path) -> None:
    draw = random.Random(0)
    with (folder / "run.jsonl").open("w") as file:
        for step in range(1, STEPS + 1):
            lengths = [draw.randrange(100, 700) for _ in range(512)]
            file.write(json.dumps({"step": step, "data": metrics(step, lengths)}) + "\n")
            rows = (
                {
                    "input": f"question {step} {i // 8}",
                    "output": "ab c " * (n // 7),
                    "gts": "1",
                    "score": float(i % 2),
                    "step": step,
                    "uid": f"u{step}-{i // 8}_{i % 8}_0",
                }
                for i, n in enumerate(lengths)
            )
            dump(folder / "rollout_data" / f"{step}.jsonl", rows)


def nemo_rl(folder: Path) -> None:
    draw = random.Random(0)
    for step in range(1, STEPS + 1):
        dump(folder / f"train_data_step{step}.jsonl", (nemo_row(draw) for _ in range(32)))


def nemo_row(draw: random.Random) -> dict[str, object]:
    made = draw.randrange(100, 1000)
    ids = [draw.randrange(150_000) for _ in range(50 + made)]
    return {
        "content": ["x"],
        "rewards": [1.0],
        "input_lengths": [50 + made],
        "token_loss_mask": [[0] * 50 + [1] * made],
        "token_ids": [ids],
    }


def console(folder: Path) -> None:
    draw = random.Random(0)
    words = [
        "INFO",
        "worker",
        "loaded",
        "shard",
        "of",
        "model",
        "in",
        "3.4",
        "s",
        "(EngineCore",
        "pid=12)",
        "request",
        "done",
    ]
    noise = "".join(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(6000))
    with (folder / "console.log").open("w") as file:
        for step in range(1, STEPS + 1):
            file.write(noise)
            parts = [f"{key}:{item}" for key, item in metrics(step, [100, 200]).items()]
            file.write(f"(TaskRunner pid=1) step:{step} - {' - '.join(parts)}\n")


def dump(path: Path, rows: Iterator[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


CASES: dict[str, Callable[[Path], None]] = {
    "dumped texts": verl,
    "dumped tokens": nemo_rl,
    "console": console,
}


def main() -> None:
    for name, write in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work, "run")
            folder.mkdir()
            write(folder)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            start = time.perf_counter()
            command = [
                sys.executable,
                "-m",
                "rollcast",
                "import",
                str(folder),
                "--out",
                str(Path(work, "out")),
            ]
            subprocess.run(command, check=True, capture_output=True)
            seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(
            f"{name}: {size / 1e6:.0f} MB in {seconds:.1f} s (target {TARGET_S}), at most "
            f"{peak:.0f} MB so far (target {TARGET_MB})",
            flush=True,
        )


if __name__ == "__main__":
    main()
