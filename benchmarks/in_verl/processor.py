"""Processor seconds of verl's processes, step by step: what a run costs whatever else the machine
does, beside the seconds that it takes.
"""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

LOOK_S = 1.0
KINDS = {
    "WorkerDict": "trainer",
    "Server": "engine",
    "AgentLoopWorkerTQ": "agent loops",
    "TaskRunnerV1": "verl's trainer loop",
}
"""Ray's actors by their class; all others are Ray's, the queue's and the reward loop's."""
OTHERS = "everything else"


class Watch:
    """While it is open, notes what the processes below ``pid`` have used at each new line of a log:
    ``seconds[i]`` at line i + 1, by kind."""

    def __init__(self, pid: int, log: Path) -> None:
        self._root, self._log = psutil.Process(pid), log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._used: dict[int, tuple[str, float]] = {}  # by process, those that ended too
        self.seconds: list[dict[str, float]] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._note()  # a last line that came as the processes ended

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self._count()
            self._note()

    def _note(self) -> None:
        while self._lines() > len(self.seconds):
            self.seconds.append(self._by_kind())

    def _lines(self) -> int:
        with suppress(OSError):
            return self._log.read_bytes().count(b"\n")
        return 0

    def _count(self) -> None:
        with suppress(psutil.Error):
            for process in self._root.children(recursive=True):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._used[process.pid] = kind_of(process), times.user + times.system

    def _by_kind(self) -> dict[str, float]:
        total: defaultdict[str, float] = defaultdict(float)
        for kind, seconds in self._used.values():
            total[kind] += seconds
        return {kind: round(seconds, 2) for kind, seconds in sorted(total.items())}


def kind_of(process: psutil.Process) -> str:
    """By the title that Ray gives its actors."""
    found = re.match(r"ray::(\w+)", " ".join(process.cmdline()))
    return KINDS.get(found[1], OTHERS) if found else OTHERS


def a_step(file: Path, settled: int) -> dict[str, float]:
    """Mean processor seconds of the steps after the first ``settled``, by kind."""
    seconds: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
    first, last = seconds[settled - 1], seconds[-1]
    steps = len(seconds) - settled
    return {kind: (last[kind] - first.get(kind, 0.0)) / steps for kind in last}
