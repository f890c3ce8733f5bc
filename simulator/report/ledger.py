"""Bars of GPU time by use and of generated tokens by outcome; each sums to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.core.spans import Run
from rollcast.simulator.report.page import Content, Markup, joined, tag
from rollcast.simulator.report.parts import key
from rollcast.simulator.results.intervals import intersection, total_s
from rollcast.simulator.results.over_time import (
    CAUSES,
    WAITED_FOR,
    gpu_lanes,
    underfilled_intervals,
)
from rollcast.simulator.results.text import count, share

USES = (
    ("rollout", "rollout", "rollouts"),
    ("tail", "tail", "rollout tail: a replica runs under a quarter of its peak"),
    ("train", "train", "training"),
    ("sync", "sync", "weight sync and switches"),
    *((cause, "idle", f"idle, waiting for {WAITED_FOR[cause]}") for cause in CAUSES),
)
"""Of GPUs: (use, CSS class, label)."""

OUTCOMES = (
    ("trained_tokens", "rollout", "trained on"),
    ("masked_tokens", "train", "masked in the loss"),
    ("dropped_tokens", "lost", "dropped"),
    ("carried_tokens", "idle", "carried, unfinished at the end"),
)
"""Of generated tokens: (figure of the summary, CSS class, label)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar. kind: CSS class; tip: tooltip."""

    kind: str
    share: float
    tip: str


def gpu_use(run: Run) -> dict[str, float]:
    """Shares of a run's GPU time by `USES`; they sum to 1."""
    held_s = run.shape.gpus * run.makespan_s
    spent = {what: 0.0 for what, _, _ in USES}
    underfilled = underfilled_intervals(run)
    for lane in gpu_lanes(run):
        for what, intervals in {**lane.busy, **lane.idle}.items():
            spent[what] += lane.gpus * total_s(intervals)
        if lane.replica >= 0:
            few = intersection(lane.busy["rollout"], underfilled[lane.replica])
            spent["tail"] += lane.gpus * total_s(few)
            spent["rollout"] -= lane.gpus * total_s(few)
    return {what: spent_s / held_s if held_s else 0.0 for what, spent_s in spent.items()}


def time_parts(use: Mapping[str, float]) -> list[Part]:
    """The bar of `gpu_use`."""
    return [
        Part(kind, use[what], f"{label}: {share(use[what])} of GPU time")
        for what, kind, label in USES
    ]


def token_parts(summary: Mapping[str, Any]) -> list[Part]:
    """The bar of a run's generated tokens by outcome."""
    generated = max(summary["generated_tokens"], 1)
    return [
        Part(
            kind,
            summary[what] / generated,
            f"{label}: {count(summary[what])} tokens, {share(summary[what] / generated)}",
        )
        for what, kind, label in OUTCOMES
    ]


def time_bars(uses: Mapping[str, Mapping[str, float]]) -> Markup:
    """Bars of `gpu_use` by name, and their key."""
    shown = [
        (kind, label)
        for what, kind, label in USES
        if kind != "idle" and any(use[what] > 0 for use in uses.values())
    ]
    rows = [(name, time_parts(use)) for name, use in uses.items()]
    return joined([bars(rows), key([*shown, ("idle", "idle")])])


def token_bars(summaries: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Bars of tokens by name, and their key."""
    rows = [(name, token_parts(summary)) for name, summary in summaries.items()]
    return joined([bars(rows), key([(kind, label) for _, kind, label in OUTCOMES])])


def bars(rows: Sequence[tuple[str, Sequence[Part]]]) -> Markup:
    """Bars below each other; each part has a tooltip and can be tabbed to."""
    cells: list[Content] = []
    for name, parts in rows:
        shown = [part for part in parts if part.share > 0]
        cells.append(tag("div", name))
        cells.append(
            tag(
                "div",
                [
                    tag(
                        "span",
                        class_=part.kind,
                        style=f"flex:{part.share:.5f} 0 0",
                        tabindex=0,
                        role="img",
                        data_tip=part.tip,
                        aria_label=part.tip,
                    )
                    for part in shown
                ],
                class_="bar",
            )
        )
    return tag("div", joined(cells), class_="bars")
