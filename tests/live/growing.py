"""A verl log that grows: its lines, and a clock that lets a test write between two looks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rollcast.calibration.live.follow import Asked, Clock, Seen, follow
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.run_log import RunLog


def lines(
    steps: int,
    seed: int = 0,
    first: int = 1,
    generation: Callable[[int], float] = lambda step: 1.0,
    tokens: Callable[[int], float] = lambda step: 1.0,
) -> list[str]:
    """Steps of about 15 s. generation, tokens: factors by step."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(first, first + steps):
        mean = 600 * tokens(step) * rng.lognormal(0, 0.05)
        made = 10 * (mean / 600) * generation(step) * rng.lognormal(0, 0.03)
        update = 5 * (mean / 600) * rng.lognormal(0, 0.02)
        values = {
            "timing_s/gen": made,
            "timing_s/update_actor": update,
            "timing_s/step": made + update,
            "response_length/mean": mean,
            "response_length/max": 2000 * rng.lognormal(0, 0.03),
            "response_length/min": 50.0,
            "response_length/clip_ratio": 0.0,
            "prompt_length/mean": 100.0,
            "critic/rewards/mean": 0.5,
        }
        found.append(json.dumps({"step": step, "data": values}) + "\n")
    return found


def append(path: Path, text: str) -> None:
    """Writes on, as a trainer does."""
    with path.open("a") as file:
        file.write(text)


def log_of(folder: Path, written: list[str]) -> RunLog:
    """The log of such lines."""
    path = folder / "run.jsonl"
    path.write_text("".join(written))
    return read_log([path])


def watched(asked: Asked, acts: list[Callable[[], object]], beat_s: float = 1000.0) -> list[Seen]:
    """What is seen if each act happens after one look at the files; then nothing more does."""
    now = [1_800_000_000.0]
    left: Iterator[Callable[[], object]] = iter(acts)

    def wait(_: float) -> None:
        now[0] += beat_s
        for act in left:
            act()
            break

    return list(follow(asked, Clock(lambda: now[0], wait)))


def news(seen: list[Seen]) -> list[Seen]:
    """Those that tell anything."""
    return [each for each in seen if each.new]
