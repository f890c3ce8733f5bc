"""Ranges that options of several cost models share."""

from __future__ import annotations

from typing import Annotated

from rollcast.simulator.values import SHARE, Above, Between

Seconds = Annotated[float, Between(0, 1e6)]
"""No cost takes longer; up to it the clock counts without loss."""

Rate = Annotated[float, Above(0, 1e30)]
"""Bytes or flop a second."""

Factor = Annotated[float, Above(0, 1000)]
Share = Annotated[float, SHARE]
PositiveShare = Annotated[float, Above(0, 1)]
Rollouts = Annotated[int, Between(1, 10**9)]
Tokens = Annotated[int, Between(1, 10**9)]
Gpus = Annotated[int, Between(1, 100_000)]
