"""What verl's launch settings imply."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_COLOCATED = {"sync": True, "colocate_async": True, "separate_async": False}


def implied(settings: Settings) -> Iterable[Setting]:
    """Placement and policy of V1's trainer mode, and the bound on staleness in updates:
    ``staleness_threshold`` is how many more rollouts than one synchronisation's updates train on
    may be started between two of them (fully_async_policy, ``max_required_samples``)."""
    mode = settings.get("run.mode")
    if mode is not None and str(mode.value) in _COLOCATED:
        yield mode.implies("run.colocated", _COLOCATED[mode.value])
        if mode.value == "colocate_async":
            yield mode.implies("policy", ["colocate_async"])
    share, every = value(settings, "run.staleness_share"), whole(settings, "run.sync_every")
    if isinstance(share, int | float) and share >= 0 and every:
        bound = math.ceil((1 + share) * every - 1e-9) - 1
        yield settings["run.staleness_share"].implies("run.max_staleness", bound)
