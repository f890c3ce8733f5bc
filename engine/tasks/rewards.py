"""Reward functions, called so that exceptions and hangs are explained."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from typing import Any

from rollcast.engine.errors import EngineError
from rollcast.engine.tasks.base import Prompt

RewardFunction = Callable[[str, str, Any], float]
"""``(prompt text, response text, answer) -> reward``"""


class RewardCaller:
    """Calls a reward function in a thread, with a time limit for each call. A call that raises,
    returns no finite number, or takes longer than ``timeout_s`` is an EngineError that names
    function and prompt. The thread of a hung call is abandoned (it does not keep the process
    alive)."""

    def __init__(self, function: RewardFunction, name: str, timeout_s: float = 30.0) -> None:
        self._function, self._name, self._timeout_s = function, name, timeout_s
        self._calls: queue.SimpleQueue[tuple[str, str, Any]] | None = None
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def __call__(self, prompt: Prompt, response_text: str) -> float:
        """The reward. Raises EngineError as the class says."""
        if self._calls is None:
            self._start()
        assert self._calls is not None
        self._calls.put((prompt.text, response_text, prompt.answer))
        try:
            value, error = self._results.get(timeout=self._timeout_s)
        except queue.Empty:
            self._calls = None
            raise EngineError(
                f"Reward function {self._name} took longer than {self._timeout_s:g} s on the "
                f"prompt {_shortened(prompt.text)}."
            ) from None
        if error is not None:
            raise EngineError(
                f"Reward function {self._name} raised {type(error).__name__}: {error} on the "
                f"prompt {_shortened(prompt.text)}."
            ) from error
        try:
            reward = float(value)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise EngineError(
                f"Reward function {self._name} returned {value!r}, which is not a finite number, "
                f"on the prompt {_shortened(prompt.text)}."
            )
        return reward

    def _start(self) -> None:
        self._calls = queue.SimpleQueue()
        self._results = queue.SimpleQueue()
        arguments = (self._function, self._calls, self._results)
        threading.Thread(target=_serve, args=arguments, name="reward", daemon=True).start()


def _serve(
    function: RewardFunction,
    calls: queue.SimpleQueue[tuple[str, str, Any]],
    results: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    while True:
        arguments = calls.get()
        try:
            results.put((function(*arguments), None))
        except BaseException as error:  # SystemExit of a careless function included
            results.put((None, error))


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}")
