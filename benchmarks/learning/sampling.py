"""Responses under way: what a row has said, and one more character of every row at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.learning.model import Decoder, encode
from benchmarks.learning.tasks import ALPHABET, Task


@dataclass
class Row:
    """A response so far: its text, and of each character whether it was sampled, its log-
    probability and the version of the weights (0 and -1 where the environment said it)."""

    prompt: str
    answer: str
    text: str = ""
    sampled: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    whole: bool = False
    truncated: bool = False

    @property
    def tokens(self) -> int:
        """Sampled ones."""
        return sum(self.sampled)

    def say(self, task: Task, letter: str, log_prob: float, version: int) -> None:
        """Takes in a sampled character, and what the environment replies."""
        self.text += letter
        self.sampled.append(True)
        self.log_probs.append(log_prob)
        self.versions.append(version)
        reply = task.reply(self.answer, self.text)
        self.whole = reply is None
        if reply is None:
            return
        if self.tokens >= task.cap:
            self.whole = self.truncated = True
            return
        for letter_ in reply:
            self.text += letter_
            self.sampled.append(False)
            self.log_probs.append(0.0)
            self.versions.append(-1)


class Sampler:
    """Rows in the slots of a decoder; ``step`` adds a character to each."""

    def __init__(self, task: Task, decoder: Decoder, slots: int, seed: int) -> None:
        self.task, self.decoder = task, decoder
        self.free = [*range(slots)][::-1]
        self.slots: dict[int, Row] = {}  # by slot
        self._fed: dict[int, int] = {}  # characters in the cache
        self._draw = torch.Generator().manual_seed(seed)

    def start(self, rows: Sequence[Row]) -> list[int]:
        """Puts rows into free slots; what they have said is computed, but for its last one."""
        taken = [self.free.pop() for _ in rows]
        texts = [encode(row.prompt + row.text)[:-1] for row in rows]
        self.decoder.prefill(torch.tensor(taken), texts)
        for slot, row, text in zip(taken, rows, texts, strict=True):
            self.slots[slot] = row
            self._fed[slot] = len(text)
        return taken

    def stop(self, slot: int) -> Row:
        """Takes a row out."""
        self.free.append(slot)
        del self._fed[slot]
        return self.slots.pop(slot)

    def step(self, version: int) -> list[int]:
        """One more character of every row; slots of those that are whole now, which stay."""
        slots = [*self.slots]
        rows = [self.slots[slot] for slot in slots]
        width = self.task.width
        places = [self._fed[slot] for slot in slots]
        texts = [
            row.prompt[p] if p < width else row.text[p - width]
            for p, row in zip(places, rows, strict=True)
        ]
        logs = self.decoder.step(
            torch.tensor(slots), torch.tensor(encode("".join(texts))), torch.tensor(places)
        )
        chosen = torch.multinomial(logs.exp(), 1, generator=self._draw)
        said = logs.gather(1, chosen)[:, 0].tolist()
        over = []
        for slot, row, code, log_prob in zip(slots, rows, chosen[:, 0].tolist(), said, strict=True):
            self._fed[slot] += 1
            if self._fed[slot] < width + len(row.text):
                continue  # a reply is fed before the model goes on
            row.say(self.task, ALPHABET[code], log_prob, version)
            if row.whole:
                over.append(slot)
        return over
