"""Small tasks on which a small model learns something new by reinforcement, in characters.

| task | what is learned | answers |
|---|---|---|
| ``sum`` | To write the running sums of six digits before the sum. | right ones long |
| ``walk`` | To follow a permutation until it comes back. | wrong ones long |
| ``ask`` | To ask an environment for all that the answer needs, a turn each. | right ones long |

A prompt has a fixed width. The warm start imitates ``demonstration``, whose author can do the task
only sometimes, or only in part.
"""

import random
from typing import Protocol

from rollcast.simulator.learning.schedule import RateSchedule

END = "$"
SCHEDULE = RateSchedule(warmup_updates=5)
"""Of the learning rate, over updates of all their minibatches."""
EVALUATED = 320
"""Held-out prompts of an evaluation."""
ALPHABET = "0123456789abcdefghijklmnopqrstuv=<>" + END


class Task(Protocol):
    """width: characters of a prompt. cap: most sampled tokens of a response, its end included.
    longest: most characters of a response, replies included. shortest: sampled tokens without which
    no answer that was thought of is right. start: accuracy at which the warm
    start ends. learning_rate, updates: of a run."""

    width: int
    cap: int
    longest: int
    shortest: int
    start: float
    learning_rate: float
    updates: int

    def prompt(self, draw: random.Random) -> tuple[str, str]:
        """A prompt, and what a right answer is judged by."""

    def demonstration(self, draw: random.Random) -> tuple[str, str, str]:
        """A prompt, a response to imitate, and for each of its characters 1 if the model says it,
        0 if the environment does."""

    def reply(self, answer: str, response: str) -> str | None:
        """What the environment says to a response so far; None where the response is over."""

    def reward(self, answer: str, response: str) -> float:
        """1 for a right response, else 0."""


class Sum:
    """Six digits; the last digit of their sum after ``>``, with or without running sums before."""

    width, cap, longest, shortest, start = 7, 10, 10, 9, 0.22
    learning_rate, updates = 3e-4, 80

    def prompt(self, draw: random.Random) -> tuple[str, str]:
        """Digits and ``=``."""
        digits = [draw.randint(0, 9) for _ in range(6)]
        return "".join(map(str, digits)) + "=", str(sum(digits) % 10)

    def demonstration(self, draw: random.Random) -> tuple[str, str, str]:
        """Running sums in 15 of 100; otherwise a guess."""
        prompt, answer = self.prompt(draw)
        said = f">{draw.randint(0, 9)}{END}"
        if draw.random() < 0.15:
            total, sums = 0, ""
            for digit in prompt[:-1]:
                total = (total + int(digit)) % 10
                sums += str(total)
            said = f"{sums}>{answer}{END}"
        return prompt, said, "1" * len(said)

    def reply(self, answer: str, response: str) -> str | None:
        """Nothing until the end."""
        return None if response.endswith(END) else ""

    def reward(self, answer: str, response: str) -> float:
        """Whether the digit after ``>`` is right."""
        return float(response.endswith(f">{answer}{END}"))


class Walk:
    """A permutation of six letters, read as places; the letters from ``a`` until it is back."""

    width, cap, longest, shortest, start = 7, 9, 9, 2, 0.25
    learning_rate, updates = 3e-4, 100
    letters = "abcdef"

    def prompt(self, draw: random.Random) -> tuple[str, str]:
        """The letter that follows each of a to f, and ``=``."""
        follow = [*self.letters]
        draw.shuffle(follow)
        return "".join(follow) + "=", self._walk(follow)

    def _walk(self, follow: list[str]) -> str:
        said, at = "", "a"
        while not said.endswith("a"):
            at = follow[self.letters.index(at)]
            said += at
        return said + END

    def demonstration(self, draw: random.Random) -> tuple[str, str, str]:
        """The whole walk in half of the cases; otherwise steps at random."""
        prompt, answer = self.prompt(draw)
        said = answer
        if draw.random() < 0.6:
            said = "".join(draw.choice(self.letters) for _ in range(draw.randint(2, 7))) + END
        return prompt, said, "1" * len(said)

    def reply(self, answer: str, response: str) -> str | None:
        """Nothing until the end."""
        return None if response.endswith(END) else ""

    def reward(self, answer: str, response: str) -> float:
        """Whether every step is right."""
        return float(response == answer)


class Ask:
    """Three of six places that only the environment can see; each that the model names is a turn,
    answered by its digit. Then ``>`` and the largest of the three."""

    width, cap, longest, shortest, start = 4, 9, 16, 4, 0.22
    learning_rate, updates = 3e-4, 80
    places = "abcdef"

    def prompt(self, draw: random.Random) -> tuple[str, str]:
        """The places and ``=``; then all digits, and the largest of the three."""
        seen = "".join(str(draw.randint(0, 9)) for _ in self.places)
        asked = "".join(draw.sample(self.places, 3))
        largest = max(seen[self.places.index(place)] for place in asked)
        return asked + "=", seen + largest

    def demonstration(self, draw: random.Random) -> tuple[str, str, str]:
        """All three in 15 of 100; otherwise up to two of them, and a guess."""
        prompt, answer = self.prompt(draw)
        asked, largest = prompt[:3], answer[-1]
        if draw.random() >= 0.15:
            asked, largest = asked[: draw.randint(0, 2)], str(draw.randint(0, 9))
        said = "".join(place + answer[self.places.index(place)] for place in asked)
        return prompt, f"{said}>{largest}{END}", "10" * len(asked) + "111"

    def reply(self, answer: str, response: str) -> str | None:
        """The digit of the place that was named; None at the end."""
        if response.endswith(END):
            return None
        named = response[-1] in self.places
        return answer[self.places.index(response[-1])] if named else ""

    def reward(self, answer: str, response: str) -> float:
        """Whether the digit after ``>`` is right."""
        return float(response.endswith(f">{answer[-1]}{END}"))


TASKS: dict[str, Task] = {"sum": Sum(), "walk": Walk(), "ask": Ask()}
