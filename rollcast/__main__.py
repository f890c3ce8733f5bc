"""The command ``rollcast``, and ``python -m rollcast``."""

from __future__ import annotations


def main() -> None:
    """Runs the command line on this process's arguments and exits."""
    from rollcast.simulator.cli.app import main as command

    command()


if __name__ == "__main__":
    main()
