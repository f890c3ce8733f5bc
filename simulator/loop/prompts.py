"""Which prompt the next fresh group answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rollcast.simulator.errors import RunError
from rollcast.simulator.plan import Prompts


@dataclass(slots=True)
class PromptOrder:
    """turns: prompts that had their turn. visits: launches of each prompt of a finite dataset."""

    turns: int = 0
    visits: dict[int, int] = field(default_factory=dict)

    def following(self, plan: Prompts, chosen: deque[int]) -> tuple[int, int]:
        """(prompt, earlier visits) of the next group: the first of ``chosen``, which it removes,
        else the next in order. Raises RunError where all prompts are skipped."""
        prompt = chosen.popleft() if chosen else self._in_turn(plan)
        visit = 0
        if plan.dataset is not None or prompt in self.visits:
            visit = self.visits.get(prompt, 0)
            self.visits[prompt] = visit + 1
        return prompt, visit

    def _in_turn(self, plan: Prompts) -> int:
        tried = 0
        while True:
            prompt = self.turns if plan.dataset is None else self.turns % plan.dataset
            self.turns += 1
            if prompt not in plan.skip:
                return prompt
            tried += 1
            if plan.dataset is not None and tried >= plan.dataset:
                raise RunError(f"all {plan.dataset} prompts are skipped; let the policy skip fewer")
