"""Sentences on a comparison, for the terminal and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.results.figures import TO_TARGET, share
from rollcast.simulator.results.metrics import CAUSES, WAITED_FOR
from rollcast.simulator.studies.interval import LEVEL
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


def learning(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """By which law accuracy rises in runs, by policy, and where that law says nothing; empty for
    runs without one."""
    told = {name: s["learning"] for name, s in summaries.items() if "learning" in s}
    if not told:
        return []
    first = next(iter(told.values()))
    target = "" if first["target"] is None else f" to {first['target']:g}"
    sentences = [
        f"Accuracy from {first['accuracy']:g}{target} follows {first['law']}; all updates are "
        "taken to be like the simulated ones."
    ]
    for key in ("abstains", "note"):
        reasons: dict[str, list[str]] = {}
        for name, one in told.items():
            if key in one:
                reasons.setdefault(one[key].rstrip("."), []).append(name)
        if key == "abstains" and sum(map(len, reasons.values())) == len(told):
            sentences = []
        for reason, names in reasons.items():
            which = "" if len(told) == 1 or len(names) == len(told) else f"{', '.join(names)}: "
            sentences.append(f"{which}{reason}.")
    return sentences


def soonest(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Which run reaches the target first, and how sure that is, in a sentence; empty without one.
    summaries: of runs, by policy, the baseline first."""
    figure = TO_TARGET[0]
    found = {
        name: value
        for name, s in summaries.items()
        if (value := figure.value_in(s)) and s["learning"]["hours"] is not None
    }
    if not found:
        return ""
    name = min(found, key=lambda name: float(summaries[name]["learning"]["hours"]))
    told = summaries[name]["learning"]
    own, ends = found[name]
    sentence = f"{name} reaches accuracy {told['target']:g} after {own} (90 % interval {ends})"
    if "sooner" in told:
        first = next(iter(summaries))
        sentence += f", before {first} in {told['sooner']:.0%} of the draws"
    return f"{sentence}."
