"""What goes wrong when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rollcast.simulator.core.spans import DownSpan
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.virtual.ask import EngineError
from rollcast.simulator.virtual.engine import Engine, Home
from rollcast.simulator.virtual.errors import VirtualError

Kind = Literal["dies", "hangs", "errors"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a replica at an instant. ``dies``: its requests fail, and later ones are refused.
    ``hangs``: it answers nothing. ``errors``: its oldest request fails. until_s: when it works
    again; None: never (and at once for ``errors``)."""

    at_s: float
    kind: Kind
    replica: int = 0
    until_s: float | None = None


def plant(fleet: Home, engines: Sequence[Engine], faults: Collection[Fault]) -> None:
    """Has faults happen to a fleet's engines. Raises VirtualError for an unknown replica."""
    for fault in faults:
        if not 0 <= fault.replica < len(engines):
            raise VirtualError(f"a fault of replica {fault.replica}, of {len(engines)} replicas")
        engine = engines[fault.replica]
        fleet.kernel.call_at(to_ticks(fault.at_s), _happens(fleet, engine, fault))
        if fault.until_s is not None:
            fleet.kernel.call_at(to_ticks(fault.until_s), _is_over(fleet, engine, fault))


def _happens(fleet: Home, engine: Engine, fault: Fault) -> Callable[[], None]:
    def happens() -> None:
        fleet.journal.add(f"replica {fault.kind}", fault.replica)
        if fault.kind == "hangs":
            engine.freeze("hang")
            return
        hit = list(engine.asks)
        if fault.kind == "dies":
            engine.dead = True
            fleet.record.run.downs.append(DownSpan(fault.replica, to_seconds(fleet.kernel.now)))
            hit += engine.held
            engine.held.clear()
        else:
            hit = hit[:1]
        for ask in hit:
            said = "died" if fault.kind == "dies" else "failed this request"
            status = 503 if fault.kind == "dies" else 500
            fleet.fail(ask, EngineError(f"replica {fault.replica} {said}", status))
        fleet.outbox.flush()

    return happens


def _is_over(fleet: Home, engine: Engine, fault: Fault) -> Callable[[], None]:
    def is_over() -> None:
        fleet.journal.add("replica works again", fault.replica)
        if fault.kind == "hangs":
            engine.thaw("hang")
        elif fault.kind == "dies":
            engine.dead = False
            for span in fleet.record.run.downs:
                if span.replica == fault.replica:
                    span.end_s = min(span.end_s, to_seconds(fleet.kernel.now))
            engine.replica.flush()

    return is_over
