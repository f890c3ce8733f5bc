"""What the benchmarks share: places, results, a process of its own, time and memory, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.simulator.errors import RollcastError, RunError
from rollcast.simulator.results.write import write_text as write_text

if TYPE_CHECKING:
    from rollcast.simulator.studies.simulate import Result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def fails_in_words(main: Callable[..., int]) -> Callable[..., int]:
    """``main`` that prints one sentence and returns 2 where what the user gave is wrong."""

    @wraps(main)
    def guarded(*arguments: Any) -> int:
        try:
            return main(*arguments)
        except RollcastError as error:
            print(f"error: {error}", file=sys.stderr)
        except OSError as error:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2

    return guarded


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's head."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=doc, formatter_class=form)


def simulated(**keys: Any) -> Result:
    """A run of the scenario with these top-level keys."""
    from rollcast.simulator.scenario.file import RawScenario
    from rollcast.simulator.studies.simulate import from_raw, simulate

    return simulate(from_raw(RawScenario(keys)))


def progress(text: str) -> None:
    """A line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, default: Any) -> Any:
    """Results that are there, else ``default``."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else default


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, the last line ended."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def python_path() -> str:
    """The value of PYTHONPATH for a process of its own: this repository, then what is there."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def python(*words: object, **options: Any) -> str:
    """What ``python ...`` prints, run at the repository's root with one thread: a second one waits
    for the first, and on a shared machine for everyone else.

    options: of `subprocess.run`. Raises RunError with the last error line where it fails.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, *map(str, words)]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, **options}
    done = subprocess.run(command, **options)
    if done.returncode:
        lines = (done.stderr or "").strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if line.startswith("error")] or lines
        raise RunError(f"{' '.join(command[1:4])} failed: {errors[-1]}")
    return str(done.stdout)


def rollcast(*words: object) -> str:
    """What the command line prints."""
    return python("-m", "rollcast", *words)


def in_process(function: str, *arguments: object) -> Any:
    """What ``module:name`` returns for plain arguments, in a process of its own."""
    module, name = function.split(":")
    code = (
        f"import json, sys; from {module} import {name} as f;"
        "print(json.dumps(f(*json.loads(sys.argv[1]))))"
    )
    return json.loads(python("-c", code, json.dumps(arguments)).splitlines()[-1])


def first_line(*words: str) -> str | None:
    """The first line that a program prints; None where it is not there or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return lines[0] if lines else None


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What ``call`` returns, and the wall and CPU seconds that it takes."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    made = call()
    return made, time.perf_counter() - wall_s, time.process_time() - cpu_s


def peak_mb(who: int = resource.RUSAGE_SELF) -> float:
    """The most memory that this process has had, or its largest child (RUSAGE_CHILDREN)."""
    return resource.getrusage(who).ru_maxrss / 1024


def machine() -> str:
    """Processor and Python."""
    version = platform.python_version()
    return f"{platform.machine()}, {platform.python_implementation()} {version}"
