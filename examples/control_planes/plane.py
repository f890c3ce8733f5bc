"""What every adapter here has in common."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
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
class Beside:
    """A setting of a control plane, and rollcast's own policy of that name.

    verdict: where the two differ on one scenario, and who is right. options: of the adapter's
    ``drive``. scenario: what the policy's scenario says beside it.
    """

    policy: str
    verdict: str
    setting: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    scenario: Sequence[str] = ()


@dataclass(frozen=True)
class Adapter:
    """How a stack's control plane is driven.

    packages: of the stack, imported anew for each run. absent: what stands in. drive: runs it on a
    fleet for so many steps, plain or async. beside: what it is compared with. laws: what it
    promises; each is called with what the run left. folders: below the checkout, where its packages
    are. module: of an installed package that holds the control plane; empty: no package index has
    it.
    """

    packages: Sequence[str]
    absent: Sequence[str]
    drive: Callable[..., Any]
    beside: Sequence[Beside] = ()
    laws: Sequence[Callable[[Tried], None]] = ()
    folders: Sequence[str] = (".",)
    module: str = ""


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
        with (
            warnings.catch_warnings(action="ignore"),
            code_of([*paths, *more_paths], adapter.absent),
        ):
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


async def new_weights(fleet: Fleet, *, keep: bool) -> None:
    """Pauses all engines, brings them the trainer's weights, and resumes. keep: requests in flight
    go on with their keys and values; else these are computed anew."""
    engines, mode = fleet.engines, "keep" if keep else "retract"
    await asyncio.gather(*(engine.pause(mode) for engine in engines))  # type: ignore[arg-type]
    await fleet.sync()
    await asyncio.gather(*(engine.resume() for engine in engines))


def unit(number: int) -> str:
    """What the journal calls a group."""
    return f"group {number}"


class Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None
