"""Lengths and rewards as a finished run had them: the same run in another world."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import RunError
from simulator.spans import Stays
from simulator.workload.draws import GroupDraw


class RecordedWorkload:
    """The responses of a run's table of stays, by (group, attempt, index).

    A rollout that the run never finished is longer than it got, by ``unfinished_tokens`` at least:
    where the replay takes the same decisions, it never gets there. max_new_tokens: the run's cap.
    """

    def __init__(self, stays: Stays, max_new_tokens: int, unfinished_tokens: int = 1) -> None:
        self.max_new_tokens = max_new_tokens
        self._found: dict[tuple[int, int], dict[int, tuple[int, float]]] = {}
        self._prompts: dict[int, int] = {}
        columns = ("group", "attempt", "index", "prompt_tokens", "total_tokens", "finished")
        for group, attempt, index, prompt, total, finished, reward in zip(
            *(stays[name].tolist() for name in (*columns, "reward")), strict=True
        ):
            tokens = total if finished else min(total + unfinished_tokens, max_new_tokens)
            self._found.setdefault((group, attempt), {})[index] = (tokens, reward)
            self._prompts[group] = prompt
        self.max_prompt_tokens = max(self._prompts.values(), default=1)

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The group's responses. Raises RunError for one that the run never launched."""
        found = self._found.get((group, attempt), {})
        if not all(index in found for index in range(size)):
            raise RunError(
                f"the replay launched {size} rollouts of group {group} (attempt {attempt}), but "
                f"the run it replays launched {len(found)}: their decisions differ"
            )
        drawn: Sequence[tuple[int, float]] = [found[index] for index in range(size)]
        lengths = tuple(tokens for tokens, _ in drawn)
        return GroupDraw(self._prompts[group], lengths, tuple(reward for _, reward in drawn))
