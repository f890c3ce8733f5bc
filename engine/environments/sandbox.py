"""One rollout's environment, called so that no error of it ends the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rollcast.engine.environments.base import Answer, CallError, Environment, Episode, Turn
from rollcast.engine.errors import sentence
from rollcast.simulator.workload.seconds import LARGEST_S

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Patience:
    """timeout_s: of a call; retry: repetitions of a failed call."""

    timeout_s: float = math.inf
    retry: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a call. answer: of a call for one. seconds: that it took. reason: of a failure."""

    ended: Literal["answered", "timeout", "failed"]
    seconds: float
    answer: Answer | None = None
    observed: tuple[int, ...] = ()
    reason: str = ""


class _LateError(Exception):
    """A call took too long."""


class _NonsenseError(Exception):
    """An answer is invalid."""


class Sandbox:
    """An environment and its calls. make: makes the environment. encode: token ids of a text.
    vocab_size: of the model. clock: times the calls. since: when the call under way began, or None;
    given_up: nobody waits for it any more. Both are for watchers in other threads."""

    def __init__(
        self,
        make: Callable[[], Environment],
        episode: Episode,
        patience: Patience,
        encode: Callable[[str], Sequence[int]],
        vocab_size: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.booted = False
        self.since: float | None = None
        self.given_up = False
        self._make, self._episode, self._patience = make, episode, patience
        self._encode, self._vocab_size, self._clock = encode, vocab_size, clock
        self._environment: Environment | None = None
        self._seconds = 0.0

    def work(self, repeats: Sequence[Turn], asked: Turn | None) -> Outcome:
        """A call: boots the environment and repeats earlier turns where needed, then asks."""
        self._seconds = 0.0
        try:
            if not self.booted:
                self._call(self._boot)
                self.booted = True
                for request in repeats:
                    self._call(self._step, request)
            if asked is None:
                return Outcome("answered", self._seconds)
            answer, observed = self._call(self._step, asked)
            return Outcome("answered", self._seconds, answer, observed)
        except _LateError as late:
            return Outcome("timeout", self._seconds, reason=str(late))
        except BaseException as error:  # SystemExit of a careless one included
            return Outcome("failed", self._seconds, reason=_reason(error))
        finally:
            if self.given_up:
                self.close()

    def close(self) -> None:
        """Ends the environment, whatever it raises."""
        environment, self._environment, self.booted = self._environment, None, False
        if environment is not None:
            with suppress(BaseException):
                environment.close()

    def _call(self, call: Callable[..., tuple[Any, float]], *arguments: Any) -> Any:
        """Calls, with repetitions; adds up the seconds."""
        for tries_left in reversed(range(self._patience.retry + 1)):
            if self.given_up:
                raise _LateError("it was closed")
            self.since = began = self._clock()
            least_s, failure = 0.0, None
            try:
                value, least_s = call(*arguments)
            except BaseException as error:
                failure = error
                if isinstance(error, CallError):
                    with suppress(_NonsenseError):
                        least_s = _seconds(error.seconds, "seconds")
            finally:
                self.since = None
            took_s = max(self._clock() - began, least_s)
            limit_s = self._patience.timeout_s
            self._seconds += min(took_s, limit_s)
            if took_s > limit_s:
                raise _LateError(f"it took longer than {limit_s:g} s")
            if failure is None:
                return value
            if not tries_left:
                raise failure
        raise AssertionError

    def _boot(self) -> tuple[None, float]:
        self.close()
        self._environment = self._make()
        wait_s = self._environment.reset(self._episode)
        return None, 0.0 if wait_s is None else _seconds(wait_s, "what reset returned")

    def _step(self, request: Turn) -> tuple[tuple[Answer, tuple[int, ...]], float]:
        assert self._environment is not None
        answer = _answer(self._environment.step(request))
        observed = () if answer.done else self._tokens(answer.observation)
        return (answer, observed), answer.seconds

    def _tokens(self, observation: str | Sequence[int]) -> tuple[int, ...]:
        tokens = tuple(self._encode(observation) if isinstance(observation, str) else observation)
        for token in tokens:
            if type(token) is not int or not 0 <= token < self._vocab_size:
                raise _NonsenseError(
                    f"its observation holds {token!r}, which is no token of the model's "
                    f"vocabulary of {self._vocab_size}"
                )
        return tokens


def _reason(error: BaseException) -> str:
    if isinstance(error, _NonsenseError):
        return str(error)
    try:
        return sentence(error)
    except Exception:  # its own text fails
        return type(error).__name__


_KEYS = tuple(Answer.__dataclass_fields__)


def _answer(given: Any) -> Answer:
    """The answer that ``step`` returned. Raises _NonsenseError."""
    if isinstance(given, str):
        given = Answer(given)
    elif isinstance(given, Mapping):
        unknown = [key for key in given if key not in _KEYS]
        if unknown:
            raise _NonsenseError(
                f"its answer has {unknown[0]!r}, which is none of {', '.join(_KEYS)}"
            )
        given = Answer(**given)
    if not isinstance(given, Answer):
        raise _NonsenseError(
            f"step returned {type(given).__name__}, and not an answer, a mapping or a text"
        )
    if not isinstance(given.observation, str | Sequence) or isinstance(given.observation, bytes):
        raise _NonsenseError(
            f"its observation is {type(given.observation).__name__}, not text or token ids"
        )
    if not isinstance(given.done, bool):
        raise _NonsenseError(f"its done is {given.done!r}, not true or false")
    reward = _number(given.reward, "reward")
    return Answer(given.observation, given.done, reward, _seconds(given.seconds, "seconds"))


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise _NonsenseError(f"its {name} is {value!r}, not a finite number")
    return number


def _seconds(value: Any, name: str) -> float:
    number = _number(value, name)
    if not 0 <= number <= LARGEST_S:
        raise _NonsenseError(f"its {name} is {number:g}, not from 0 to {LARGEST_S:g}")
    return number
