"""Processes that tests start."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

ROLLCAST = [sys.executable, "-m", "rollcast"]


def started(argv: Sequence[str]) -> subprocess.Popen[str]:
    """One whose output is read, and that signals end."""
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_signals
    )


def processor_s(pid: int) -> float:
    """Seconds of processor time that a running process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_a_terminal(command: Sequence[str], columns: int = 200) -> bytes:
    """What a command that succeeds writes to its terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    running = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    written = b""
    try:
        while part := os.read(master, 65536):
            written += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert running.wait(60) == 0, written
    return written


def _heed_signals() -> None:
    """A shell starts what it puts into the background with SIGINT ignored; its children too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
