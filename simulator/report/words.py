"""Sentences on a comparison, for the terminal and pages."""

from __future__ import annotations

from collections.abc import Mapping

from rollcast.simulator.results.over_time import CAUSES, WAITED_FOR
from rollcast.simulator.results.text import share
from rollcast.simulator.studies.drawn import LEVEL
from rollcast.simulator.studies.ranking import SURE, Ranking

_MOST_PAIRS = 6


def sureness(ranking: Ranking | None) -> str:
    """What the intervals are, and which pairs of policies are not clearly ordered."""
    if ranking is None:
        return "No intervals were asked for."
    short = ranking.source == "short runs"
    source = "short runs" if short else f"{len(ranking.draws)} draws"
    sentence = (
        f"{100 * LEVEL:.0f} % intervals from {source} with other lengths, rewards and costs "
        "(linear costs are fixed)."
    )
    unclear = ranking.may_flip()
    if not unclear:
        return (
            f"{sentence} The order by step time holds in at least {100 * SURE:.0f} % of the draws."
        )
    pairs = [f"{a} before {b} ({100 * held:.0f} %)" for a, b, held in unclear[:_MOST_PAIRS]]
    if len(unclear) > len(pairs):
        pairs.append(f"{len(unclear) - len(pairs)} more")
    return f"{sentence} Not clearly ordered by step time: {', '.join(pairs)}."


def time_spent(use: Mapping[str, float]) -> str:
    """The use of GPU time and the main cause of idling. use: of `report.ledger.gpu_use`."""
    idle = {cause: use[cause] for cause in CAUSES}
    tail = f" ({share(use['tail'])} their tail)" if use["tail"] >= 0.005 else ""
    sentence = (
        f"GPU time: {share(use['rollout'] + use['tail'])} rollouts{tail}, {share(use['train'])} "
        f"training, {share(sum(idle.values()))} idle"
    )
    worst = max(idle, key=lambda cause: idle[cause])
    if idle[worst] >= 0.005 and worst != "other":
        sentence += f", mostly waiting for {WAITED_FOR[worst]}"
    return f"{sentence}."


def bias(staleness: float | None, length_bias: float | None) -> str:
    """How a policy's training data differ from synchronous RL's."""
    sentences = []
    if staleness:
        sentences.append(f"tokens that are {staleness:.2f} versions old on average")
    if length_bias is not None and abs(length_bias - 1) >= 0.01:
        sentences.append(f"responses {length_bias:.2f} times as long as those launched")
    return f"It trains on {' and '.join(sentences)}." if sentences else ""
