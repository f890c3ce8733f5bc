"""Reward functions, called beside the run by a pool of threads, so that failures are counted."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from rollcast.engine.errors import EngineError
from rollcast.engine.tasks.base import Prompt
from rollcast.simulator.core.rollout import LateReward

RewardFunction = Callable[[str, str, Any], float]
"""``(prompt text, response text, answer) -> reward``"""

REWARD_FUNCTION = "the reward function"
"""What the reason of a failed reward begins with."""

CONCURRENCY = 16
TIMEOUT_S = 30.0
ENOUGH_FAILURES = 64
"""Calls in a row that fail, with none that succeeded before or between, after which a run ends."""


class RewardPool:
    """Calls a reward function in up to ``concurrency`` threads.

    A call that raises, returns no finite number, or takes longer than ``timeout_s`` since it began
    counts as ``failed``; the thread of a hung call is abandoned (it does not keep the process
    alive) and replaced. The first calls must not all fail: see `ENOUGH_FAILURES`.
    """

    def __init__(
        self,
        function: RewardFunction,
        name: str,
        timeout_s: float = TIMEOUT_S,
        concurrency: int = CONCURRENCY,
        failed: float = 0.0,
    ) -> None:
        self._timeout_s, self._failed = timeout_s, failed
        self._function, self._name = function, name
        self._concurrency = concurrency
        self._waiting: deque[_Call] = deque()
        self._running: dict[_Call, float] = {}  # when each began
        self._news = threading.Condition()
        self._idle = self._threads = 0
        self._succeeded, self._in_a_row = False, 0

    def __call__(self, prompt: Prompt, response_text: str) -> LateReward:
        """Starts a call; its reward is there when ``float()`` asks for it."""
        call = _Call(self, prompt, response_text)
        with self._news:
            self._waiting.append(call)
            if self._idle >= len(self._waiting) or self._threads == self._concurrency:
                self._news.notify_all()
            else:
                self._start_thread()
        return call

    def reward(self, call: _Call) -> float:
        """The reward of a call, once it has ended or hangs; others that hang do not hold it up.
        Raises EngineError where `ENOUGH_FAILURES` have failed and none has not."""
        with self._news:
            while call.outcome is None:
                now_s = time.monotonic()
                for other, began_s in [*self._running.items()]:
                    if now_s - began_s >= self._timeout_s:
                        del self._running[other]
                        other.outcome = None, _Hung()
                        self._threads -= 1
                        self._start_thread()
                if call.outcome is None:
                    first_s = min(self._running.values(), default=now_s)
                    self._news.wait(first_s + self._timeout_s - now_s)
            failure, reward = self._judged(*call.outcome)
        if failure is None:
            self._succeeded = True
            return reward
        call.failure = f"{REWARD_FUNCTION} {self._name} {failure}"
        self._in_a_row += 1
        if self._in_a_row >= ENOUGH_FAILURES and not self._succeeded:
            prompt = _shortened(call.arguments[0])
            raise EngineError(
                f"The first {self._in_a_row} rewards all failed; the last: {call.failure} on the "
                f"prompt {prompt}."
            )
        return self._failed

    def _judged(self, value: Any, error: BaseException | None) -> tuple[str | None, float]:
        """Why a call failed, if it did, and its reward."""
        if isinstance(error, _Hung):
            return f"took longer than {self._timeout_s:g} s", math.nan
        if error is not None:
            return f"raised {type(error).__name__}: {error}", math.nan
        try:
            reward = float(value)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            return f"returned {value!r}, which is not a finite number", math.nan
        return None, reward

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name="reward", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._news:
                self._idle += 1
                while not self._waiting:
                    self._news.wait()
                self._idle -= 1
                call = self._waiting.popleft()
                self._running[call] = time.monotonic()
                self._news.notify_all()
            try:
                outcome: tuple[Any, BaseException | None] = self._function(*call.arguments), None
            except BaseException as error:  # SystemExit of a careless function included
                outcome = None, error
            with self._news:
                if self._running.pop(call, None) is None:
                    return  # it was given up, and this thread replaced
                call.outcome = outcome
                self._news.notify_all()


class _Hung(Exception):  # noqa: N818 - no error of the function's own
    """A call that took too long."""


class _Call(LateReward):
    """A call. outcome: its value or what it raised, once it has ended."""

    outcome: tuple[Any, BaseException | None] | None
    arguments: tuple[str, str, Any]

    def __new__(cls, pool: RewardPool, prompt: Prompt, response_text: str) -> Self:
        call = super().__new__(cls)
        call.outcome = None
        call.arguments = prompt.text, response_text, prompt.answer
        call._pool, call._reward = pool, None
        return call

    _pool: RewardPool
    _reward: float | None

    def __float__(self) -> float:
        """The reward; waits for it."""
        if self._reward is None:
            self._reward, self.known = self._pool.reward(self), True
        return self._reward

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}")
