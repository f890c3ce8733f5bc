"""What a workload is: the tokens that each rollout samples and the reward that it gets."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rollcast.simulator.workload.draws import GroupDraw, address


class Workload(Protocol):
    """Draws that depend on their address alone, so that every policy meets the same ones."""

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt, tokens."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each change made to the given data, for the run's result."""

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``, which answers ``prompt`` (None: one of its own
        number) for the ``visit``-th time, from 0. attempt: 0, or the number of the restart, which
        draws other responses. version: of the weights when the group was first launched."""


class AddressedWorkload:
    """Base of workloads that draw by prompt and try, where a visit of a prompt counts as a try."""

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """See `Workload.draw`. Raises ValueError for a size below 1 or another number below 0."""
        if size < 1:
            raise ValueError(f"no group of {size} rollouts")
        number, tried = address(group, attempt, prompt, visit)
        return self._drawn(number, size, tried, version)

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        raise NotImplementedError


class DerivedWorkload:
    """Base of workloads that change the draws of another one, ``base``."""

    base: Workload

    @property
    def max_new_tokens(self) -> int:
        """The base's cap on a response, tokens."""
        return self.base.max_new_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """The base's longest prompt, tokens."""
        return self.base.max_prompt_tokens

    @property
    def warnings(self) -> tuple[str, ...]:
        """The base's."""
        return self.base.warnings

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The base's draw, changed; see `Workload.draw`."""
        drawn = self.base.draw(group, size, attempt, version, prompt, visit)
        return self._changed(drawn, group, attempt, prompt, visit)

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        raise NotImplementedError


@runtime_checkable
class WorkloadOfTurns(Workload, Protocol):
    """A workload whose rollouts have turns; ``max_new_tokens`` is of one turn."""

    @property
    def max_context_tokens(self) -> int:
        """The longest context, tokens."""


@runtime_checkable
class ScaledWorkload(Workload, Protocol):
    """A workload whose lengths can be made longer."""

    def scaled(self, factor: float) -> Workload:
        """The same draws with every median length ``factor`` times as long."""


@runtime_checkable
class TracedWorkload(Workload, Protocol):
    """A workload that holds every rollout beforehand."""

    @property
    def longest(self) -> tuple[int, int]:
        """(prompt, new tokens) of its longest rollout."""


def longest_context(workload: Workload) -> int:
    """The longest context, tokens."""
    if isinstance(workload, WorkloadOfTurns):
        return workload.max_context_tokens
    return workload.max_prompt_tokens + workload.max_new_tokens


def longest_rollout(workload: Workload) -> tuple[int, int]:
    """(prompt, new tokens) of the longest possible rollout."""
    if isinstance(workload, TracedWorkload):
        return workload.longest
    prompt_tokens = workload.max_prompt_tokens
    return prompt_tokens, longest_context(workload) - prompt_tokens
