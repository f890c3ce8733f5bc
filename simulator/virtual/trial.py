"""One run of a control plane on simulated engines: how tests, comparisons and examples make it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.simulator.core.spans import Run
from rollcast.simulator.results.write import write_text
from rollcast.simulator.runs.drive import collecting_seldom
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import load
from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.clock import clock
from rollcast.simulator.virtual.engine import handed
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.journal import Journal
from rollcast.simulator.virtual.prompts import AnyPrompt, Prompt

Main = Callable[[Fleet], Any]
"""The code under test: a function of a fleet, plain or async."""


@dataclass
class Tried:
    """What a run left. value: what the code returned. end_s: virtual seconds. events: of the clock.
    warnings: of the clock."""

    value: Any
    fleet: Fleet
    run: Run
    end_s: float
    events: int
    warnings: Sequence[str] = field(default_factory=list)

    @property
    def journal(self) -> Journal:
        """Who did what when."""
        return self.fleet.journal


def try_control(
    main: Main,
    scenario: Scenario | str | Path,
    *settings: str,
    seed: int = 0,
    virtual_s: float | None = None,
    real_s: float | None = None,
    events: int | None = None,
    fresh: Collection[str] = (),
    failed: Callable[[Fleet], None] | None = None,
    **options: Any,
) -> Tried:
    """Runs a control plane on the engines of a scenario. seed, virtual_s, real_s, events, fresh: as
    of `simulator.virtual.clock`. options: of `Fleet`. failed: called with the fleet before an error
    goes on to the caller."""
    if not isinstance(scenario, Scenario):
        scenario = load(scenario, *settings)
    fleet: Fleet | None = None
    bounds = {"virtual_s": virtual_s, "real_s": real_s, "events": events, "fresh": fresh}
    try:
        with collecting_seldom(), clock(seed, **bounds) as time:  # type: ignore[arg-type]
            fleet = Fleet(scenario, time, **options)
            value = main(fleet)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            return Tried(value, fleet, fleet.close(), time.now_s, time.events, time.warnings)
    except Exception:
        if failed is not None and fleet is not None:
            failed(fleet)
        raise


class Client:
    """The engines behind their router, for code that names none."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def generate(
        self, prompt: AnyPrompt, max_tokens: int | None = None, *, request_id: str | None = None
    ) -> Answer:
        """Samples a response on the engine that the router chooses. A caller that is cancelled
        aborts it. Raises EngineError."""
        ask = self._fleet.ask(prompt, max_tokens, request_id=request_id)
        return await handed(self._fleet, ask)


@dataclass
class Training:
    """A training run, for a control plane that drives it whole.

    engine: all engines. prompts: those of the scenario, one after another, for ever. steps: updates
    that are asked for. batch_groups, group_size: of a batch.
    """

    fleet: Fleet
    engine: Client
    prompts: Iterator[Prompt]
    steps: int
    batch_groups: int
    group_size: int

    async def train(self, groups: Collection[Sequence[Answer]]) -> int:
        """An update on groups of answers; returns the version of the trainer's weights."""
        version: int = await self.fleet.train(groups)
        return version

    async def sync(self) -> int:
        """Brings the weights to all engines; returns their version."""
        version: int = await self.fleet.sync()
        return version


def training_of(fleet: Fleet) -> Training:
    """The training run that a fleet's scenario says."""
    scenario = fleet.scenario
    prompts = (Prompt(number) for number in range(1 << 60))
    batch = scenario.plan.batch
    return Training(fleet, Client(fleet), prompts, scenario.steps, batch.groups, batch.group_size)


def keep(fleet: Fleet, folder: Path) -> list[Path]:
    """Writes what a run did: journal.txt, trace.json.gz (opens in ui.perfetto.dev) and
    timeline.png; returns the files that it could write. The last two need a request that an engine
    has worked on."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("journal.txt", "trace.json.gz", "timeline.png")]
    for file in files:
        file.unlink(missing_ok=True)
    write_text(files[0], fleet.journal.text())
    run = fleet.show()
    if not len(run.segments) or run.makespan_s <= 0:
        return files[:1]
    from rollcast.simulator.results.perfetto import write_trace
    from rollcast.simulator.results.timeline import draw_run

    write_trace(run, files[1])
    draw_run(run, files[2], title=fleet.scenario.name, steps=len(run.steps))
    return files
