"""Forecasts of updates or of vLLM on one GPU, then the measurements.

    python -m benchmarks.gpu_cases forecast --gpu h100-sxm -o forecasts.json [--suite engine]
    python -m benchmarks.gpu_cases measure -o measured.json [--limit-s 150]
    python -m benchmarks.gpu_cases measure -o measured.json --engine forecasts.json
    python -m benchmarks.gpu_cases table forecasts.json measured.json
    python -m benchmarks.gpu_cases judge [measured.json --gpu h200-sxm] [--fit]

``forecast`` needs no GPU: for each case what rollcast says from its presets, written down before
anything is measured. ``measure`` runs the cases in their order (`benchmarks.gpu.cases`) on random
weights, as many in one process as its device survives; running out of memory is a result. vLLM's
cases (`benchmarks.gpu.engine`) take the lengths of their forecasts; engines start at once, each in
a process of its own, and measure one after another.
What is done is saved after each case. ``table`` shows both, and measured over forecast. ``judge``
holds today's forecasts of our own trainer's passes against measured ones, by default all that are
here; ``--fit`` fits their figures.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.gpu import engine, judge
from benchmarks.gpu.cases import all_cases
from benchmarks.gpu.forecast import forecast
from benchmarks.runner import (
    ROOT,
    fails_in_words,
    first_line,
    markdown_table,
    parser,
    progress,
    python_path,
    write_json,
)
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.errors import ScenarioError

CASE_S, ENGINE_S, IMPORT_S = 30.0, 400.0, 120.0  # limits of a case, of one of vLLM, and of imports
DONE = 0
GB = 1e9


def forecasts(gpu: str, tiny: bool, suite: str) -> dict[str, Any]:
    """Of every case of a suite."""
    known = load_gpu(gpu)
    if suite == "engine":
        cases = {name: engine.forecast(case, gpu) for name, case in engine.CASES.items()}
    else:
        cases = {case.name: {"values": forecast(case, known)} for case in all_cases(tiny)}
    commit = first_line("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return {"gpu": gpu, "commit": commit, "date": date.today().isoformat(), "cases": cases}


class Measurement:
    """All cases in their order. limit_s: of all. asked: the forecasts that vLLM's cases are of."""

    def __init__(
        self,
        out: Path,
        limit_s: float,
        device: str,
        names: Sequence[str],
        *,
        tiny: bool = False,
        asked: Path | None = None,
    ) -> None:
        self.out, self.device, self.tiny, self.asked = out, device, tiny, asked
        self.case_s = CASE_S if asked is None else ENGINE_S
        self._writing = Lock()
        self.until = time.monotonic() + limit_s
        self.told: dict[str, Any] = {
            "device": device,
            "commit": first_line("git", "-C", str(ROOT), "rev-parse", "HEAD"),
            "before": _gpu_now(),
            "import_s": [],
            "cases": {name: {"outcome": "not_run"} for name in names},
        }

    def run(self) -> None:
        """Until all are done, or time is up."""
        began_s = time.monotonic()
        self._write()
        batches: dict[Any, list[str]] = defaultdict(list)
        for name in self.told["cases"]:
            batches[None if self.asked is None else engine.CASES[name].engine].append(name)
        with ThreadPoolExecutor(len(batches)) as pool:
            list(pool.map(self._batch, batches.values()))
        self.told |= {"after": _gpu_now(), "seconds": time.monotonic() - began_s}
        self._write()

    def _batch(self, names: Sequence[str]) -> None:
        """Cases that share processes."""
        while (left := self._left(names)) and time.monotonic() < self.until:
            if not self._child(left):
                return

    def _left(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.told["cases"][name]["outcome"] == "not_run"]

    def _write(self) -> None:
        with self._writing:
            write_json(self.out, self.told)

    def _child(self, names: Sequence[str]) -> bool:
        """One process, for as many of these cases as it can; whether another may go on."""
        with tempfile.TemporaryDirectory() as folder:
            lines, errors = Path(folder) / "lines", Path(folder) / "errors"
            lines.touch()
            more = {"PYTHONPATH": python_path(), "HF_HUB_OFFLINE": "1"}
            more |= {"TOKENIZERS_PARALLELISM": "false", "VLLM_CACHE_ROOT": folder}
            words = ["-m", "benchmarks.gpu.child", str(lines), self.device, str(int(self.tiny))]
            words += ["" if self.asked is None else str(self.asked)]
            with errors.open("w") as stream:
                child = subprocess.Popen(
                    [sys.executable, *words, *names],
                    env={**os.environ, **more},
                    stdout=stream,
                    stderr=stream,
                )
                try:
                    at, stopped = self._follow(child, lines)
                finally:
                    if child.poll() is None:
                        child.kill()
                    child.wait()
            said = errors.read_text(errors="replace")[-1500:]
        if at is not None:
            outcome = {"timed_out": "timed_out", "cut": "not_run"}.get(stopped, "crashed")
            self.told["cases"][at] = {"outcome": outcome, "error": said}
        elif not stopped and self._left(names) == [*names]:  # it did not come to its first case
            self.told["error"] = said
            progress(said)
            return False
        self._write()
        return stopped != "cut" and child.returncode != DONE

    def _follow(self, child: subprocess.Popen[bytes], lines: Path) -> tuple[str | None, str]:
        """(the case that had begun and not ended, why the process was stopped)."""
        seen, at, limit = 0, None, time.monotonic() + IMPORT_S
        while True:
            ended = child.poll() is not None
            text = lines.read_text(encoding="utf-8")
            for line in text[seen : text.rfind("\n") + 1].splitlines():
                told = json.loads(line)
                if "begin" in told:
                    at, limit = told["begin"], time.monotonic() + self.case_s
                elif "end" in told:
                    self._ended(told["end"], told["result"])
                    at, limit = None, time.monotonic() + self.case_s
                else:
                    self.told["import_s"].append(told["import_s"])
            seen = max(seen, text.rfind("\n") + 1)
            if ended:
                return at, ""
            if time.monotonic() >= self.until:
                return at, "cut"
            if time.monotonic() >= limit:
                return at, "timed_out"
            time.sleep(0.05)

    def _ended(self, name: str, result: Mapping[str, Any]) -> None:
        self.told["cases"][name] = result
        self._write()
        progress(f"{result['seconds']:6.1f} s  {result['outcome']:13} {name}")


def _gpu_now() -> str | None:
    """Clocks, heat and power."""
    asked = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,"
    asked += "power.limit,memory.used"
    return first_line("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader")


def table(beforehand: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Every value that was forecast or measured, case by case."""
    rows: list[tuple[str, ...]] = []
    for name, was in measured["cases"].items():
        said = beforehand["cases"].get(name, {}).get("values", {})
        found = was.get("values", {})
        chance = said.get("fits_chance")
        words = was["outcome"].replace("_", " ")
        if chance is not None:
            words += f"; chance to fit {chance:.2f}"
        rows.append((name, words, "", "", ""))
        for key in [*said, *(key for key in found if key not in said)]:
            if key == "fits_chance":
                continue
            before, after = said.get(key), found.get(key)
            ratio = ""
            if _is_number(before) and _is_number(after) and before:
                ratio = f"{after / before:.2f}"
            rows.append(("", key, _shown(key, before), _shown(key, after), ratio))
    head = ("case", "value", "forecast", "measured", "measured / forecast")
    return markdown_table(head, rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_shown(key, one) for one in value)
    if not _is_number(value):
        return str(value).replace("|", "/").replace("\n", " ")
    if key.endswith("flop_per_s"):
        return f"{value / 1e12:,.1f} TFLOP/s"
    if key.endswith("bytes_per_s"):
        return f"{value / GB:,.1f} GB/s"
    if "bytes" in key:
        return f"{value / GB:,.2f} GB"
    if key.endswith(("_s", " s")):
        return f"{value * 1e6:,.1f} us" if value < 1e-3 else f"{value * 1e3:,.1f} ms"
    return f"{value:,.4g}"


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise ScenarioError(str(path), "is no JSON") from None
    if not isinstance(told, dict) or not isinstance(told.get("cases"), dict):
        raise ScenarioError(str(path), "has no cases; forecast and measure write such files")
    return told


@fails_in_words
def main() -> int:
    """One verb; 1 where a measurement came to no case, 2 for a user's mistake."""
    options = parser(__doc__)
    verbs = options.add_subparsers(dest="verb", required=True)
    before = verbs.add_parser("forecast", help="what rollcast says beforehand")
    before.add_argument("--gpu", default="h100-sxm", help="a preset: rollcast presets gpus")
    run = verbs.add_parser("measure", help="on the GPU of this machine")
    run.add_argument("--limit-s", type=float, default=150.0, help="seconds of all cases")
    run.add_argument("--device", help="of torch; default: cuda, or with --tiny cpu")
    run.add_argument("--only", action="append", help="cases whose names begin so")
    for verb in (before, run):
        verb.add_argument("-o", "--out", type=Path, required=True)
        verb.add_argument("--tiny", action="store_true", help="tiny models, for a test on CPUs")
    before.add_argument("--suite", choices=("trainer", "engine"), default="trainer")
    run.add_argument("--engine", type=Path, help="vLLM's cases, of these forecasts")
    shown = verbs.add_parser("table", help="forecasts beside measurements, as Markdown")
    shown.add_argument("forecasts", type=Path)
    shown.add_argument("measured", type=Path)
    held = verbs.add_parser("judge", help="today's forecasts of our trainer against measurements")
    held.add_argument("measured", type=Path, nargs="?", help="default: those in benchmarks/data")
    held.add_argument("--gpu", help="the preset of the GPU that was measured")
    held.add_argument("--fit", action="store_true", help="fit the figures again")
    return _do(options.parse_args())


def _do(given: Namespace) -> int:
    if given.verb == "forecast":
        write_json(given.out, forecasts(given.gpu, given.tiny, given.suite))
    elif given.verb == "table":
        print(table(_read(given.forecasts), _read(given.measured)), end="")
    elif given.verb == "judge":
        if (given.measured is None) != (given.gpu is None):
            raise ScenarioError("--gpu", "goes with a file of measurements; give both or neither")
        found = judge.here() if given.gpu is None else {given.gpu: _read(given.measured)}
        print(judge.told(judge.judged(found)), end="")
        if given.fit:
            print(f"\nfitted: {judge.fit(found)}")
    else:
        known = _read(given.engine)["cases"] if given.engine else [c.name for c in all_cases()]
        names = [name for name in known if not given.only or name.startswith(tuple(given.only))]
        if not names:
            raise ScenarioError("--only", f"no case begins with {' or '.join(given.only)}")
        device = given.device or ("cpu" if given.tiny else "cuda")
        asked = given.engine and given.engine.resolve()
        measurement = Measurement(
            given.out.resolve(), given.limit_s, device, names, tiny=given.tiny, asked=asked
        )
        measurement.run()
        return int("error" in measurement.told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
