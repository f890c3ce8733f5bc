"""Judges: what comes after a rollout's last turn, a test suite or a model, and its time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollcast.simulator.workload.base import (
    INDICES_PER_LANE,
    DerivedWorkload,
    GroupDraw,
    Trajectory,
    Turn,
    Workload,
    address,
    check_seed,
    keyed_uniforms,
)
from rollcast.simulator.workload.seconds import SecondsModel
from rollcast.simulator.workload.turns import normal

# Philox streams: the letters of "jgrp" and "jrol"
_GROUPS, _ROLLOUTS = 0x6A677270, 0x6A726F6C


class JudgedWorkload(DerivedWorkload):
    """A workload whose rollouts are judged at their end. max_context_tokens: the base's."""

    def __init__(
        self, base: Workload, max_context_tokens: int, seconds: SecondsModel, seed: int = 0
    ) -> None:
        self.base = base
        self.max_context_tokens = max_context_tokens
        self._seconds = seconds
        self._seed = check_seed(seed)

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        number, tried = address(group, attempt, prompt, visit)
        seconds = self._drawn(number, len(drawn.new_tokens), tried)
        if drawn.trajectories is None:
            cap = self.max_new_tokens
            trajectories = [
                Trajectory((Turn(0, n, 0.0),), "length" if n >= cap else "stop", 0.0, s)
                for n, s in zip(drawn.new_tokens, seconds, strict=True)
            ]
        else:
            trajectories = [
                replace(trajectory, reward_s=s)
                for trajectory, s in zip(drawn.trajectories, seconds, strict=True)
            ]
        return replace(drawn, trajectories=trajectories)

    def _drawn(self, group: int, size: int, attempt: int) -> list[float]:
        [slow_z] = normal(keyed_uniforms(self._seed, _GROUPS, (1,), block=group))
        seconds: list[float] = []
        for lane in range((size + INDICES_PER_LANE - 1) // INDICES_PER_LANE):
            shape = (2, INDICES_PER_LANE)
            whole = keyed_uniforms(
                self._seed, _ROLLOUTS, shape, block=group, lane=lane, attempt=attempt
            )
            pace_z, never = normal(whole[0]), np.ones(INDICES_PER_LANE)
            seconds += self._seconds.draw(slow_z, pace_z, whole[1], never).tolist()
        return seconds[:size]
