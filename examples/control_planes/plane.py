"""What every adapter here has in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stand_ins import code_of

from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.trial import Client, Tried, try_control

BATCH, GROUP = 16, 4


@dataclass(frozen=True)
class Adapter:
    """How a stack's control plane is driven.

    packages: of the stack, imported anew for each run. absent: what stands in. drive: runs it on a
    fleet for so many steps, plain or async. policy: rollcast's own of that name. laws: what it
    promises; each is called with what the run left. folders: below the checkout, where its packages
    are.
    """

    packages: Sequence[str]
    absent: Sequence[str]
    drive: Callable[..., Any]
    policy: str
    laws: Sequence[Callable[[Tried], None]] = ()
    folders: Sequence[str] = (".",)
    seam: dict[str, Any] = field(default_factory=dict)


def run(
    adapter: Adapter,
    checkout: Path | None,
    scenario: Scenario,
    steps: int,
    *,
    drive: Callable[..., Any] | None = None,
    more_paths: Sequence[Path] = (),
    options: dict[str, Any] | None = None,
    **trial: Any,
) -> Tried:
    """Runs a control plane from its checkout (None: where it is installed). options: of ``drive``;
    trial: of `try_control`."""
    paths = [] if checkout is None else [checkout / folder for folder in adapter.folders]
    driven = drive or adapter.drive

    def main(fleet: Fleet) -> Any:
        logging.disable(logging.CRITICAL)
        return driven(fleet, steps, **(options or {}))

    try:
        with code_of([*paths, *more_paths], adapter.absent):
            return try_control(main, scenario, fresh=adapter.packages, units=False, **trial)
    finally:
        logging.disable(logging.NOTSET)


async def group_of(fleet: Fleet, number: int, size: int = GROUP) -> list[Answer]:
    """The answers to one prompt. Raises EngineError once one fails; the others are aborted."""
    client = Client(fleet)
    asks = [asyncio.ensure_future(client.generate(Prompt(number))) for _ in range(size)]
    try:
        return list(await asyncio.gather(*asks))
    finally:
        for ask in asks:
            ask.cancel()


def unit(number: int) -> str:
    """What the journal calls a group."""
    return f"group {number}"


class Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None
