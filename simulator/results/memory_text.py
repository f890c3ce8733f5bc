"""Words for the peak of a ledger of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.results.figure import Values
from rollcast.simulator.results.text import gigabytes

ENGINE_SHARE = "engine_share"
"""The pool of a ledger that is what an engine may use of its GPUs."""
MEMORY_PHASES: Mapping[str, str] = {
    "start": "at the start",
    "generation": "in generation",
    "switch": "between rollout and training",
    "log_prob": "in the log-probabilities",
    "update": "in the update",
    "optimizer_step": "in the optimiser's step",
    "sync": "in the weight sync",
}
"""Phases of a ledger of memory, as a sentence goes on."""
MEMORY_PHASE_NAMES: Mapping[str, str] = {
    "start": "start",
    "generation": "generation",
    "switch": "switch",
    "log_prob": "log-probs",
    "update": "update",
    "optimizer_step": "optimiser step",
    "sync": "weight sync",
}
"""The same in tables."""


def room(peak: Mapping[str, Any]) -> str:
    """What a peak is of: a GPU's memory, or an engine's share of it. peak: as a ledger tells it."""
    size = gigabytes(peak["capacity_bytes"])
    return f"the engine's {size} of a GPU" if peak["pool"] == ENGINE_SHARE else f"{size} of a GPU"


def _peak(v: Values) -> Values | None:
    memory = v.get("memory")
    return None if memory is None else memory["peak"]


def peak_text(v: Values) -> str:
    """Empty where no memory is known."""
    peak = _peak(v)
    return "" if peak is None else gigabytes(peak["bytes"])


def peak_note(v: Values) -> str:
    """Of what the peak is, and in which phase; empty where no memory is known."""
    peak = _peak(v)
    if peak is None:
        return ""
    return f"of {room(peak)}, {MEMORY_PHASES[peak['phase']]}"


def memory_said(v: Values) -> str:
    """Peak, phase, what is left and how sure that is, as a sentence; empty where no memory is
    known. v: with ``memory``, of a ledger."""
    memory, peak = v.get("memory"), _peak(v)
    if memory is None or peak is None:
        return ""
    spare = peak["capacity_bytes"] - peak["bytes"]
    rest = f"{gigabytes(spare)} are left" if spare >= 0 else f"{gigabytes(-spare)} are missing"
    return (
        f"A GPU holds at most {gigabytes(peak['bytes'])} of {gigabytes(peak['capacity_bytes'])}, "
        f"{MEMORY_PHASES[peak['phase']]}: {rest}; it fits with a probability of "
        f"{100 * memory['fits_probability']:.0f} %."
    )
