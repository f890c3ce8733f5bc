"""Seconds and failures of a made-up environment, by a scenario's ``environment``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from rollcast.engine.environments.base import Episode
from rollcast.simulator.workload.base import address, keyed_uniforms
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.seconds import LARGEST_S, SecondsModel, seconds_model

# Philox streams: the letters of "eprm", "eroll" less one, and "etrn"
_PROMPTS, _ROLLOUTS, _TURNS = 0x6570726D, 0x65726F6C, 0x6574726E


class DrawnDelays:
    """Draws by (seed, prompt, visit, attempt, index, turn), the same whenever they are asked."""

    def __init__(self, section: EnvironmentSection, seed: int) -> None:
        self._answers, self._boots = section.answers, seconds_model(section.boot_s)
        self._failure, self._seed = section.failure, seed

    def boot_s(self, episode: Episode) -> float:
        """Seconds of a boot."""
        _, pace_u, boot_u = self._rollout(episode)
        return self._seconds(self._boots, episode, pace_u, boot_u, 1.0)

    def turn(self, episode: Episode, turn: int) -> tuple[float, int]:
        """Seconds of each call for an answer, and the number of calls that fail first."""
        pace_u, _, _ = self._rollout(episode)
        place = self._place(episode)
        answer_u, hang_u, failure_u = keyed_uniforms(self._seed, _TURNS, (turn + 1, 3), **place)[-1]
        failures = 0
        if self._failure > 0:
            failures = int(math.log(failure_u) / math.log(self._failure))
        return self._seconds(self._answers, episode, pace_u, answer_u, hang_u), failures

    def _seconds(
        self, model: SecondsModel, episode: Episode, pace_u: float, u: float, hang_u: float
    ) -> float:
        number, _ = self._address(episode)
        slow_z = float(ndtri(keyed_uniforms(self._seed, _PROMPTS, (1,), block=number)[0]))
        drawn = model.draw(slow_z, ndtri(np.array([pace_u])), np.array([u]), np.array([hang_u]))
        return min(float(drawn[0]), LARGEST_S)

    def _rollout(self, episode: Episode) -> list[float]:
        uniforms = keyed_uniforms(self._seed, _ROLLOUTS, (3,), **self._place(episode))
        return [float(uniform) for uniform in uniforms]

    @staticmethod
    def _address(episode: Episode) -> tuple[int, int]:
        return address(episode.group, episode.attempt, episode.number, episode.visit)

    def _place(self, episode: Episode) -> dict[str, Any]:
        number, tried = self._address(episode)
        return {"block": number, "lane": episode.index, "attempt": tried}
