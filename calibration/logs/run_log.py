"""What a run's log says: the data that fits, forecasts and advice stand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rollcast.calibration.logs.errors import Tally
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.releases import ANY, Span
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
    """Something that the log lacks. level: that needs it. column: or table. why: and the remedy."""

    level: int
    column: str
    why: str


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run, as far as its log holds it.

    steps, rollouts, requests: tables with all columns of `calibration.logs.columns`, NaN where
    nothing was logged; ``step`` is the run's own number, rising, each once. level: 0 to 3, the
    highest that is there with all below. gaps: what is missing. settings: by our key. overlapped:
    whether rollouts were made beside the training. outside: phases that ``step_s`` leaves out.
    tool_tokens_inside: whether the steps' lengths of responses include tokens written by tools.
    tallies: of each file that mattered. notes: sentences for the user. ignored: number of files
    without log. name: of the files together. words: the stack's key by our column; advice: its
    settings by change of the run. pads: whether updates pad every rollout to the longest of the
    batch. fully_async: options of the policy of that name that the stack runs.
    releases: of the stack, that write such keys. tokenized: whether text was counted with a
    tokenizer.
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
    fully_async: Mapping[str, Any] = field(default_factory=lambda: {"exceeded": "wait"})
    releases: Span = ANY

    @property
    def unread(self) -> int:
        """Lines and records that could not be read."""
        return sum(tally.unread for tally in self.tallies)

    def within(self, first: int | None, last: int | None) -> RunLog:
        """The part from one step to another, both included; None: from the first, to the last.
        Raises ScenarioError (``--steps``) where there is no such step."""
        tables = {}
        for name in ("steps", "rollouts", "requests"):
            table = getattr(self, name)
            kept = table["step"].notna()
            if first is not None:
                kept &= table["step"] >= first
            if last is not None:
                kept &= table["step"] <= last
            tables[name] = table[kept].reset_index(drop=True)
        if tables["steps"].empty:
            own = self.steps["step"]
            has = f"steps {own.min()} to {own.max()}" if len(own) else "no steps"
            raise ScenarioError("--steps", f"the log has none of these steps; it has {has}")
        return replace(self, **tables)

    def place(self, step: int) -> Place:
        """Where a step was read from. Raises KeyError for one that there is not."""
        rows = self.steps[self.steps["step"] == step]
        if rows.empty:
            raise KeyError(step)
        row = rows.iloc[0]
        return Place(str(row["file"]), int(row["line"]))
