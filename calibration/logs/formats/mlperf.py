"""Lines of MLPerf's benchmarks, ``:::MLLOG {JSON}``, in the terms of the stack that wrote them.

A benchmark's log has one entry a setting and, of each step, entries of figures. A stack's
``log.yaml`` says, below ``mlperf``, which of its own keys each of them is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rollcast.calibration.logs.formats.configs import Given
from rollcast.calibration.logs.formats.machine import GPU
from rollcast.simulator.costs.presets.gpus import named_gpu
from rollcast.simulator.stacks.log_format import Metrics, StackLog
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse

CUE = ":::MLLOG"
_STEP, _FIGURES, _PLATFORM = "step", "tracked_stats", "submission_platform"
_SYSTEMS = re.compile(r"(\d{1,6})x")


@dataclass
class MlperfLines:
    """Reads such lines in order. said: values of settings, by MLPerf's key, with their lines.
    steps: figures by MLPerf's key, of each step, with the last line and its time."""

    said: dict[str, tuple[Any, int]] = field(default_factory=dict)
    steps: dict[int, tuple[dict[str, float], int, float | None]] = field(default_factory=dict)

    def feed(self, line: int, text: str) -> bool:
        """Whether a text is such a line."""
        try:
            entry = parse(text.partition(CUE)[2].strip()) if CUE in text else None
        except NotJsonError:
            return False
        if not isinstance(entry, dict):
            return False
        key, value, more = entry.get("key"), entry.get("value"), entry.get("metadata")
        if key != _FIGURES:
            self.said.setdefault(str(key), (value, line))
            return True
        step = more.get(_STEP) if isinstance(more, dict) else None
        if not isinstance(value, dict) or isinstance(step, bool) or not isinstance(step, int):
            return False
        numbers = {
            name: float(one)
            for name, one in value.items()
            if isinstance(one, int | float) and not isinstance(one, bool)
        }
        at = entry.get("time_ms")
        logged_s = at / 1000 if isinstance(at, int | float) and not isinstance(at, bool) else None
        had = self.steps.get(step, ({}, 0, None))[0]
        self.steps[step] = ({**had, **numbers}, line, logged_s)
        return True

    def stack(self, stacks: Iterable[StackLog]) -> StackLog | None:
        """Whose figures these are, of some stacks: one whose time of a step is among them."""
        names = {name for values, _, _ in self.steps.values() for name in values}
        return next((one for one in stacks if one.mlperf and _timed(one) in names), None)

    def rows(self, stack: StackLog) -> Iterator[Metrics]:
        """The steps that have a time, by the stack's keys."""
        for step, (values, line, logged_s) in sorted(self.steps.items()):
            if _timed(stack) in values:
                mine = {stack.mlperf.get(name, name): one for name, one in values.items()}
                yield Metrics(step, mine, line, logged_s)

    def settings(self, stack: StackLog) -> Iterator[Given]:
        """Settings by the stack's keys; the GPU, and what follows for the stack."""
        for name, (value, line) in self.said.items():
            if name in stack.mlperf:
                yield Given(stack.mlperf[name], value, line)
            elif name == _PLATFORM and isinstance(value, str):
                preset = next(filter(None, map(named_gpu, re.split(r"[@()]|x ", value))), None)
                if preset is not None:
                    yield Given(GPU, preset, line)
        if stack.of_mlperf is not None:
            systems = _SYSTEMS.match(str(self.said.get(_PLATFORM, ("", 0))[0]))
            values = {name: value for name, (value, _) in self.said.items()}
            first = next((one for one, _, _ in self.steps.values() if _timed(stack) in one), {})
            found = stack.of_mlperf(values, first, int(systems[1]) if systems else None)
            yield from (Given(key, value, 0) for key, value in found.items())


def _timed(stack: StackLog) -> str:
    """MLPerf's key of a stack's time of a step."""
    return next(iter(stack.mlperf))
