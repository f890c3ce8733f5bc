"""What a run's log says: the data that fits, forecasts and advice stand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollcast.calibration.logs.tally import Tally
from rollcast.simulator.stacks.settings import Place, Settings

if TYPE_CHECKING:
    import pandas as pd

LEVELS = (
    "no times of steps",
    "L1: metrics of each step",
    "L2: lengths, rewards and groups of each rollout",
    "L3: times of each request",
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that the log lacks. level: what it would take part in. column: ours, or a table's
    name. why: what is missing, and how to have it."""

    level: int
    column: str
    why: str


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run, as its log tells it.

    stack: which trainer wrote it. steps, rollouts, requests: tables with the columns of
    `calibration.logs.columns`, every one of them there, NaN where nothing was logged; ``step`` is
    the run's own number, in rising order, each once. level: 0 to 3, the highest at which it and all
    below are there. gaps: why it is no higher, and what is missing at those that are reached.
    settings: by our key. overlapped: whether rollouts were made beside the training. outside:
    phases that ``step_s`` leaves out in this stack. tool_tokens_inside: whether the steps' lengths
    of responses hold what tools wrote. tallies: what was read of each file that mattered. notes:
    sentences for the user. ignored: files that were none of a log. name: of the files together.
    words: the stack's key for each of our columns; advice: its settings for a change of the run.
    pads: whether its updates pad every rollout to the longest of the batch. exceeded: what becomes
    of groups beyond its bound on staleness, as `fully_async` calls it.
    tokenized: whether text was counted with a tokenizer.
    """

    stack: str
    name: str
    steps: pd.DataFrame
    rollouts: pd.DataFrame
    requests: pd.DataFrame
    settings: Settings
    level: int
    gaps: tuple[Gap, ...]
    overlapped: bool
    outside: frozenset[str]
    tool_tokens_inside: bool
    tallies: tuple[Tally, ...]
    notes: tuple[str, ...] = ()
    ignored: int = 0
    words: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    tokenized: bool = False
    pads: bool = False
    exceeded: str = "wait"

    @property
    def unread(self) -> int:
        """Lines and records that could not be read."""
        return sum(tally.unread for tally in self.tallies)

    def place(self, step: int) -> Place:
        """Where a step was read from. Raises KeyError for one that there is not."""
        rows = self.steps[self.steps["step"] == step]
        if rows.empty:
            raise KeyError(step)
        row = rows.iloc[0]
        return Place(str(row["file"]), int(row["line"]))
