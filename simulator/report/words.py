"""What a comparison says in words, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.results.figures import share
from simulator.studies.interval import LEVEL
from simulator.studies.ranking import SURE, Ranking

_MOST_PAIRS = 6
_WAITS = {"stragglers": "stragglers", "trainer": "the trainer", "rollouts": "rollouts"}


def sureness(ranking: Ranking | None) -> str:
    """What the intervals are, and which policies may change places."""
    if ranking is None:
        return "No intervals were asked for."
    said = f"{100 * LEVEL:.0f} % intervals "
    if ranking.source == "short runs":
        said += "by short runs with other lengths, rewards and, but for linear, costs."
    else:
        said += f"from {len(ranking.draws)} draws of lengths, rewards and, but for linear, costs."
    open_pairs = ranking.may_flip()
    if not open_pairs:
        return f"{said} The ranking by step time holds in at least {100 * SURE:.0f} % of the draws."
    pairs = [f"{a} before {b} ({100 * held:.0f} %)" for a, b, held in open_pairs[:_MOST_PAIRS]]
    more = len(open_pairs) - len(pairs)
    return f"{said} Not sure by step time: {', '.join(pairs)}{f', {more} more' if more else ''}."


def time_spent(use: Mapping[str, float]) -> str:
    """What the GPUs' time goes into, and what most of the idle time waits for. use: as
    `simulator.report.ledger.gpu_use` has it."""
    idle = {cause: use[cause] for cause in (*_WAITS, "other")}
    busy = [f"{share(use['rollout'] + use['tail'])} runs rollouts"]
    if use["tail"] >= 0.005:
        busy[0] += f" ({share(use['tail'])} their tail)"
    busy.append(f"{share(use['train'])} trains")
    said = f"Of the GPUs' time {', '.join(busy)} and {share(sum(idle.values()))} is idle"
    worst = max(idle, key=lambda cause: idle[cause])
    if idle[worst] >= 0.005 and worst in _WAITS:
        said += f", most of it waiting for {_WAITS[worst]}"
    return f"{said}."


def bias(staleness: float | None, length_bias: float | None) -> str:
    """What a policy trains on, where that is not what synchronous RL would."""
    said = []
    if staleness:
        said.append(f"tokens {staleness:.2f} versions old on average")
    if length_bias is not None and abs(length_bias - 1) >= 0.01:
        said.append(f"responses {length_bias:.2f} times as long as those launched")
    return f"It trains on {' and '.join(said)}." if said else ""
