"""Collatz stopping times: a verifiable task whose responses are really long-tailed.

The prompt is a number n. The response writes the iterates of x -> x/2 (even) or 3x + 1 (odd), from
the one after n, until one is below n, then ``=`` and that one::

    7>22>11>34>17>52>26>13>40>20>10>5=5
    |prompt|    response              |

The reward is 1 if what follows the last ``=`` is right, else 0. Starts are drawn so that the
logarithm of the trace's length is normal, which spreads lengths between prompts; a model that has
learned from a teacher who slips spreads them within a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice, takewhile
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from rollcast.engine.tasks import tokenizer
from rollcast.engine.tasks.base import Prompt
from rollcast.simulator.errors import ScenarioError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_START = 99_999
LARGEST_VALUE = 999_999
MOST_STEPS = 130
MOST_CHARACTERS = 480
MEDIAN_CHARACTERS = 48.0
LOG_SD = 0.8
BINS = 32
STYLES = ("bare", "worded")

_INSTRUCTION = """\
Apply one rule to the number at the end, again and again: halve an even number; multiply an odd \
number by three and add one. Write each new number, with the sign > between them, until one is \
smaller than the number you began with. Then write the sign = and that smaller number once more. \
If you see that the number you have just written is wrong, write the sign ! and the right one, and \
go on from there.

Examples:
6>3=3
5>16>8>4=4
11>34>17>52>26>13>40>20>10=10
39>118>59>178>89>268>134>67>202>101>304>152>76>38=38

Number:
"""


def following(value: int) -> int:
    """The iterate after ``value``."""
    return value // 2 if value % 2 == 0 else 3 * value + 1


def iterates(start: int) -> list[int]:
    """The iterates after ``start`` down to the first one below it."""
    values = [following(start)]
    while values[-1] >= start:
        values.append(following(values[-1]))
    return values


class Starts:
    """Starts of one side of the split, binned by the logarithm of their trace's length."""

    def __init__(self, held_out: bool) -> None:
        starts, characters = _all_starts()
        chosen = _is_held_out(starts) == held_out
        logs = np.log(characters[chosen])
        edges = np.linspace(logs.min(), logs.max(), BINS + 1)
        position = np.clip(np.digitize(logs, edges) - 1, 0, BINS - 1)
        members = [starts[chosen][position == i] for i in range(BINS)]
        self._members = [starts_of_bin for starts_of_bin in members if len(starts_of_bin)]
        centers = (edges[:-1] + edges[1:]) / 2
        self._centers = np.array([centers[i] for i in range(BINS) if len(members[i])])

    def draw(self, rng: Random, log_sd: float = LOG_SD) -> int:
        """A start: its bin by a normal in the logarithm of the length, uniform within."""
        wanted = rng.gauss(float(np.log(MEDIAN_CHARACTERS)), log_sd)
        members = self._members[int(np.abs(self._centers - wanted).argmin())]
        return int(members[rng.randrange(len(members))])


@cache
def starts_for(held_out: bool) -> Starts:
    """The training starts, or the held-out ones (an eighth, by a hash)."""
    return Starts(held_out)


def teacher_response(start: int, rng: Random, slip: float) -> str:
    """A response by a teacher who gets a digit of a step wrong with probability ``slip``. Half of
    the slips are corrected at once after a ``!``; the others carry on. A response that does not
    come down in time starts over, so ``start`` must be one that `Starts` draws."""
    while True:
        parts, value = [], start
        for _ in range(2 * MOST_STEPS):
            text, value = written(following(value), rng, slip)
            parts.append(text)
            if value < start or value > LARGEST_VALUE:
                break
        text = ">".join(parts) + f"={value}"
        if value < start and len(text) <= MOST_CHARACTERS:
            return text


class CollatzTask:
    """style: ``bare`` prompts of about 6 characters, or ``worded`` ones of about 540 that share an
    instruction. log_sd: spread of the log length of what prompts ask for."""

    def __init__(
        self, style: str = "bare", max_new_tokens: int = 512, log_sd: float = LOG_SD
    ) -> None:
        if style not in STYLES:
            raise ScenarioError(
                "engine.task.style", f"{style!r} is unknown; it is one of {', '.join(STYLES)}."
            )
        if max_new_tokens < 1:
            raise ScenarioError("engine.task.max_new_tokens", "it has to be at least 1.")
        self.style, self.max_new_tokens, self.log_sd = style, max_new_tokens, log_sd
        self.preamble = instruction(style)

    def prompt(self, group: int, seed: int) -> Prompt:
        """The training prompt of a group, by ``(seed, group)`` alone."""
        return self._prompt(starts_for(False).draw(Random(f"collatz {seed} {group}"), self.log_sd))

    def reward(self, prompt: Prompt, response_text: str) -> float:
        """1 if what follows the last ``=`` is the first iterate below the start, else 0."""
        _, sign, answer = response_text.rpartition("=")
        return float(bool(sign) and answer == prompt.answer)

    def held_out(self, count: int) -> Sequence[Prompt]:
        """Prompts from starts that training never sees."""
        return [self._prompt(start) for start in islice(_held_out_order(), count)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The characters before the end token."""
        tokens = takewhile(tokenizer.END_ID.__ne__, token_ids)
        return "".join([_CHARACTER.get(token, tokenizer.UNKNOWN) for token in tokens])

    def _prompt(self, start: int) -> Prompt:
        text = f"{self.preamble}{start}>"
        return Prompt(text, tuple(tokenizer.encode(text)), str(iterates(start)[-1]))


def instruction(style: str) -> str:
    """The text before the number: none in a ``bare`` prompt."""
    return _INSTRUCTION if style == "worded" else ""


_CHARACTER = {
    i: token
    for token, i in tokenizer.VOCABULARY.items()
    if i not in (tokenizer.PAD_ID, tokenizer.END_ID)
}


def _held_out_order() -> Any:
    rng, starts = Random("collatz held out"), starts_for(True)
    while True:
        yield starts.draw(rng)


def wrong_digit(value: int, rng: Random) -> int:
    """The value with one digit changed; it keeps its length."""
    digits = list(str(value))
    at = rng.randrange(len(digits))
    smallest = 1 if at == 0 else 0
    digits[at] = rng.choice([d for d in map(str, range(smallest, 10)) if d != digits[at]])
    return int("".join(digits))


def written(right: int, rng: Random, slip: float) -> tuple[str, int]:
    """The teacher's text of a number, and the value that it then has: with probability ``slip`` a
    digit is wrong, and half of the slips are corrected at once after a ``!``."""
    if rng.random() >= slip:
        return str(right), right
    wrong = wrong_digit(right, rng)
    return (f"{wrong}!{right}", right) if rng.random() < 0.5 else (str(wrong), wrong)


def _is_held_out(starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """An eighth of the starts, by a multiplicative hash."""
    mixed = (starts.astype(np.uint64) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
    held_out: NDArray[np.bool_] = (mixed >> np.uint64(29)) == 0
    return held_out


@cache
def _all_starts() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts whose traces stay short and small, and the characters of each trace."""
    starts = np.arange(3, LARGEST_START + 1, dtype=np.int64)
    values, alive = starts.copy(), np.ones(len(starts), dtype=bool)
    characters = np.zeros(len(starts), dtype=np.int64)
    stopped = np.zeros(len(starts), dtype=bool)
    for _ in range(MOST_STEPS):
        now = values[alive]
        values[alive] = np.where(now % 2 == 0, now // 2, 3 * now + 1)
        characters[alive] += np.char.str_len(values[alive].astype(str)) + 1
        done = alive & (values < starts)
        characters[done] += np.char.str_len(values[done].astype(str))
        stopped |= done
        alive &= ~done & (values <= LARGEST_VALUE)
    kept = stopped & (characters <= MOST_CHARACTERS)
    return starts[kept], characters[kept]
