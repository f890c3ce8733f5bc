"""The option ``--trust-modules``, and the question that stands for it on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollcast.simulator.values.words import visible

if TYPE_CHECKING:
    from rollcast.simulator.scenario.trust import Trust

TrustModules = Annotated[
    bool,
    typer.Option(
        "--trust-modules",
        help="Import the policies of your own (module:Class) that the file names: their code runs.",
    ),
]


def trust(given: bool) -> Trust:
    """Whether to import modules that a file names: ``given``, or the answer on a terminal."""
    return given or (_asks if sys.stdin.isatty() and sys.stderr.isatty() else False)


def _asks(named: Sequence[str]) -> bool:
    shown = ", ".join(map(visible, named))
    question = f"This file names {shown}; importing it runs its code. Do you trust it?"
    return typer.confirm(question, err=True)
