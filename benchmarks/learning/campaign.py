"""Makes the runs of the table, one process each, and goes on where it was stopped."""

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.arms import Setup, setups
from benchmarks.runner import write_text

TAKES_S = 5.0  # of one run, before any has been timed


def run(folder: Path, say: Callable[[str], None], only: Sequence[str] = ()) -> int:
    """Makes what ``folder`` does not have yet; a run's file is whole or absent. only: names that
    begin so. Returns how many failed."""
    from benchmarks.learning import one_run  # noqa: F401  with torch, once for all processes

    wanted = [s for s in setups() if not only or s.name.startswith(tuple(only))]
    left = [setup for setup in wanted if not _path(folder, setup).exists()]
    say(f"{len(wanted) - len(left)} of {len(wanted)} runs are there")
    begun, failed = time.monotonic(), 0
    for number, setup in enumerate(left):
        each_s = (time.monotonic() - begun) / number if number else TAKES_S
        more = len(left) - number
        say(f"{setup.name}: {more} left, about {each_s * more / 60:.0f} minutes")
        process = multiprocessing.get_context("fork").Process(target=_make, args=(folder, setup))
        process.start()
        process.join()
        if process.exitcode:
            failed += 1
            say(f"{setup.name} failed")
    return failed


def _path(folder: Path, setup: Setup) -> Path:
    return folder / "runs" / f"{setup.name}.json"


def _make(folder: Path, setup: Setup) -> None:
    """In a process of its own."""
    import torch

    from benchmarks.learning.one_run import carry_out

    torch.set_num_threads(1)
    begun = time.process_time()
    table = carry_out(setup, folder / "warm_starts")
    table["cpu_s"] = round(time.process_time() - begun, 2)
    write_text(_path(folder, setup), json.dumps(rounded(table)) + "\n")


def rounded(value: Any) -> Any:
    """Figures with five digits; no number as None."""
    if isinstance(value, float):
        return None if value != value else float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
