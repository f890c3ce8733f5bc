"""What each rollout is going to do: its length, its reward, its turns, and what it shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollcast.simulator.cluster.kv import Leading, leading_blocks, shared_blocks
from rollcast.simulator.core.rollout import Key, Rollout
from rollcast.simulator.workload.base import Sharing, Trajectory, Workload


class Drawn(NamedTuple):
    """What a rollout is going to do. leading, sharing: what others have in common with it."""

    attempt: int
    prompt_tokens: int
    new_tokens: int
    reward: float
    leading: Leading
    sharing: Sharing | None
    trajectory: Trajectory | None


class Draws:
    """The rollouts drawn and not yet forgotten (``of``), a group at a time."""

    def __init__(self, workload: Workload, block_tokens: int) -> None:
        self.of: dict[Key, Drawn] = {}
        self._workload = workload
        self._block_tokens = block_tokens

    def draw(self, rollouts: Sequence[Rollout], version: int) -> None:
        """Draws rollouts not drawn yet at their attempt. version: of the replicas' weights."""
        sizes: dict[tuple[int, int, int, int], int] = {}
        drawn = self.of
        again = False  # whether any is drawn anew
        for rollout in rollouts:
            known = drawn.get(rollout.key)
            if known is None or known[0] != rollout.attempt:
                again |= known is not None
                key = (rollout.group, rollout.attempt, rollout.prompt, rollout.visit)
                sizes[key] = max(sizes.get(key, 0), rollout.index + 1)
        asked = {rollout.key for rollout in rollouts} if again else ()
        for (group, attempt, prompt, visit), size in sizes.items():
            draw = self._workload.draw(group, size, attempt, version, prompt, visit)
            leading = leading_blocks(prompt, draw.prompt_tokens, self._block_tokens)
            prompt_tokens, sharing, turned = draw.prompt_tokens, draw.sharing, draw.trajectories
            for index in range(size):
                known = drawn.get((group, index))
                if known is None or (known[0] != attempt and (group, index) in asked):
                    drawn[group, index] = Drawn(
                        attempt,
                        prompt_tokens,
                        draw.new_tokens[index],
                        draw.rewards[index],
                        leading,
                        sharing,
                        None if turned is None else turned[index],
                    )

    def shared(self, sharing: Sharing, rollout: Rollout, version: int) -> Leading:
        """The leading blocks of a rollout that shares more than its prompt."""
        return shared_blocks(sharing.path(rollout.index, version), self._block_tokens)
