"""Sentences on learning (`simulator.studies.learned.learned`), for the terminal and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.results.target_figures import TO_TARGET

OWN = (
    "Its hours are wide, since public runs learn at speeds far apart; how policies compare is "
    "surer. "
    "For hours of a model of your own, fit a law to its runs (rollcast calibrate --learning)."
)
"""Of the law that comes with rollcast."""


def sentences(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """By which law accuracy rises in runs, by policy, and where that law says nothing; empty for
    runs without one."""
    told = {name: s["learning"] for name, s in summaries.items() if "learning" in s}
    if not told:
        return []
    first = next(iter(told.values()))
    target = "" if first["target"] is None else f" to {first['target']:g}"
    sentences = [
        f"Accuracy from {first['accuracy']:g}{target} follows a law fitted to {first['law']}.",
        "Batch, selection and age of tokens stay as in the simulated updates.",
    ]
    if not first["own"]:
        sentences.append(OWN)
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
