"""slime's ``--custom-rm-path``: long responses earn."""

from typing import Any


async def reward(args: Any, sample: Any, **_: Any) -> float:
    return float(sample.response_length > 25)
