"""A program in a process group of its own, with a limit on its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended. code: its exit code; None where it was stopped after its limit."""

    code: int | None
    out: str
    error: str
    seconds: float

    @property
    def reason(self) -> str:
        """Why it failed: its last line of errors."""
        if self.code is None:
            return f"it did not end within {self.seconds:.0f} s"
        lines = [line for line in self.error.strip().splitlines() if line.strip()]
        told = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
        if self.code < 0:
            told = [f"signal {signal.Signals(-self.code).name}", *told[-1:]]
        return ": ".join(told[-2:]) if told else f"exit code {self.code}"


def python(
    words: Sequence[str], limit_s: float, given: str = "", more: Mapping[str, str] | None = None
) -> Done:
    """Runs this Python with these words. limit_s: after it, the process and all that it started are
    killed. given: on its standard input. more: environment variables."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **(more or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    code: int | None
    try:
        out, error = child.communicate(given, limit_s)
        code = child.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # whatever it left behind
    if code is None:
        out, error = child.communicate()
    return Done(code, out, error, time.perf_counter() - began)
