"""Seconds of a step's generation in which no rollout runs yet, and how sure a log makes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from rollcast.simulator.costs.ranges import Rollouts, Seconds
from rollcast.simulator.values import Above, Doc, Options
from rollcast.simulator.values.chance import Chance

_LEAST, _MOST = 1e-3, 0.95
"""Of a generation, what is drawn to be no iteration."""


@dataclass(frozen=True, slots=True)
class Opening(Options):
    """Generation that takes its time whatever the lengths: agent loops, queues, requests
    (``cost.scale.opening``), as long as there are rollouts that begin; those that go on have been
    through it. A log times it together with the iterations, so that what one is longer the other
    is shorter. Raises ScenarioError."""

    FIELD = "cost.scale.opening"

    seconds: Annotated[
        float,
        Above(0, 1e6),
        Doc(
            "time of a step's generation before its first rollouts run, beside the cost model's",
            unit="seconds",
        ),
    ]
    rollouts: Annotated[
        Rollouts, Doc("number of rollouts that begin in such a step", unit="rollouts")
    ]
    sd: Annotated[
        Seconds, Doc("uncertainty of seconds: its standard deviation", unit="seconds")
    ] = 0.0
    decode_s: Annotated[
        Seconds,
        Doc("time of the same generation's iterations, from which intervals take what they add"),
    ] = 0.0

    def drawn(self, chance: Chance) -> tuple[Opening, float]:
        """Another split of the same seconds, and the factor on decoding that goes with it."""
        if not self.decode_s or not self.sd:
            return self, 1.0
        whole = self.seconds + self.decode_s
        shifted = self.seconds + self.sd * chance.normal("decode efficiency/opening")
        seconds = min(max(shifted, _LEAST * whole), _MOST * whole)
        decode_s = whole - seconds
        return replace(self, seconds=seconds, decode_s=decode_s), decode_s / self.decode_s

    def seconds_of(self, rollouts: int) -> float:
        """Where so many begin."""
        return self.seconds * rollouts / self.rollouts

    def times(self, factor: float) -> Opening:
        """All of it so many times as long."""
        seconds, sd, decode_s = (factor * s for s in (self.seconds, self.sd, self.decode_s))
        return replace(self, seconds=seconds, sd=sd, decode_s=decode_s)
