"""A module for each stack; what they have in common is in `calibration.logs.readers.stack`."""

from __future__ import annotations

from calibration.logs.readers import (
    areal,
    nemo_rl,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    table,
    trl,
    verl,
)
from calibration.logs.readers.stack import Stack

STACKS: tuple[Stack, ...] = tuple(
    module.STACK
    for module in (
        verl, trl, slime, nemo_rl, prime_rl, areal, skyrl, openrlhf, roll, table
    )
)  # fmt: skip
"""Every stack. Where the keys of two fit equally well, the first is taken."""
