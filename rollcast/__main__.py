"""The command ``rollcast``, and ``python -m rollcast``."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Runs the command line on this process's arguments and exits."""
    gc.set_threshold(300_000)  # imports leave no cycles: searching for them took a twentieth
    try:
        from rollcast.simulator.cli.app import main as command
    except KeyboardInterrupt:  # before the command could watch for signals
        sys.exit(130)

    try:
        command()
    finally:
        gc.freeze()  # all of it ends with the process, and need not be searched for that


if __name__ == "__main__":
    main()
