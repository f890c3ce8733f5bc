"""What a workload is: the tokens that each rollout produces and the reward that it gets."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rollcast.simulator.workload.draws import GroupDraw


class Workload(Protocol):
    """Draws that hang on their address only, so that every policy meets the same ones."""

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """No prompt is longer, tokens."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each thing that was done to what was given, for the run's result."""
        ...

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``, which answers ``prompt`` (None: one of its own,
        of the same number) for the ``visit``-th time, from 0.

        attempt: 0 for the first try; a restart keeps the prompt and draws its responses afresh.
        version: updates that the weights had had when the group was first launched.
        """
        ...


@runtime_checkable
class WorkloadOfTurns(Workload, Protocol):
    """A workload whose rollouts have turns; ``max_new_tokens`` is of one turn."""

    @property
    def max_context_tokens(self) -> int:
        """No prompt, with what comes after it, is longer, tokens."""
        ...


@runtime_checkable
class TracedWorkload(Workload, Protocol):
    """A workload that holds every rollout beforehand."""

    @property
    def longest(self) -> tuple[int, int]:
        """(prompt, new tokens) of its longest rollout."""
        ...


def longest_context(workload: Workload) -> int:
    """No prompt, with what comes after it, is longer, tokens."""
    if isinstance(workload, WorkloadOfTurns):
        return workload.max_context_tokens
    return workload.max_prompt_tokens + workload.max_new_tokens
