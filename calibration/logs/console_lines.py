"""Consoles: rows of stacks, printed configurations, command lines."""

from __future__ import annotations

import re
from collections.abc import Collection
from copy import copy, deepcopy
from functools import cache
from typing import NamedTuple

from rollcast.calibration.logs import recognise
from rollcast.calibration.logs.formats import configs, mlperf
from rollcast.calibration.logs.formats.configs import Given
from rollcast.calibration.logs.opened import Reached
from rollcast.calibration.logs.readers import readers
from rollcast.calibration.logs.scanned import (
    COMMAND,
    CONSOLE,
    MACHINE,
    RESOLVED,
    Reader,
    Scanned,
    Take,
)
from rollcast.simulator.stacks.log_format import Console, RecordError, StackLog
from rollcast.simulator.stacks.syntax.python_text import nested, opens

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|(?<![\w\]])\[\d{1,3}(?:;\d{1,3})*m")
"""Escapes; copied out of a page, they have lost their first character."""
_ACTOR = re.compile(r"\s*\(([^()]*?\bpid=\d+[^()]*)\)(?: ?\[[^\]]*\])? ?")
_REPEATED = re.compile(
    r"\s*\[repeated \d+x across [^\]]*\](?:.*RAY_DEDUP_LOGS.*)?$|\s*\[repeated \d+x\]$"
)


class Piece(NamedTuple):
    """A text, and the process that printed it ('' if unknown)."""

    actor: str
    text: str


def plain(raw: bytes) -> bytes:
    """A line without colours."""
    return _ESCAPES.sub(b"", raw) if b"\x1b" in raw else raw


def pieces(raw: bytes) -> list[Piece]:
    """The texts of a line: a progress bar overwrites itself with carriage returns."""
    text = raw.decode("utf-8", "replace").replace("\0", "")
    return [_clean(piece) for piece in text.split("\r")] if "\r" in text else [_clean(text)]


def _clean(text: str) -> Piece:
    if "\x1b" in text or "[" in text:
        text = _ANSI.sub("", text)
    actor = ""
    if "pid=" in text:
        match = _ACTOR.match(text)
        if match:
            actor, text = match[1], text[match.end() :]
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    return Piece(actor, text)


_CUES = (
    mlperf.CUE.encode(),
    *(b"{'", b"python", b"torchrun", b"accelerate", b"ray job", b"uv run", b"...."),
    b"KV cache size",
    *(b"atch size per device = ", b"ccumulation steps = ", b"atch size ("),
    *(b"otal optimization steps = ", b"loading configuration file "),
)
"""Bytes of lines that hold settings."""
_KV = re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")
_TRAINER = re.compile(
    r"\b(?:(?P<rows>(?:Instantaneous b|B)atch size per device)"
    r"|(?P<passes>Gradient [Aa]ccumulation steps)"
    r"|(?P<total>Total (?:train )?batch size \([^()]*\))"
    r"|(?P<steps>Total optimization steps))"
    r" = (?P<value>\d[\d,]{0,19})"
)
"""What transformers' Trainer prints before its first step (_inner_training_loop), and Unsloth's."""
_LOADED = re.compile(r"\bloading configuration file (?:.* )?(?P<folder>\S{1,1000})/config\.json$")
"""What transformers prints of a model (get_text_config's file, or its snapshot on the hub)."""
_OF_TRAINER = {
    "rows": "per_device_train_batch_size",
    "passes": "gradient_accumulation_steps",
    "steps": "max_steps",
}
_MOST_CONFIG = 20_000
_LONGEST = 4 * 2**20
"""Bytes of a line between carriage returns: rows of genuine consoles have up to 100,000."""


@cache
def _starts(stacks: tuple[StackLog, ...]) -> tuple[re.Pattern[bytes], tuple[bytes, ...]]:
    """The first line of a row, one group a stack, and bytes of the lines that matter."""
    forms = (b"(?P<%s>%s)" % (s.name.encode(), s.start) for s in stacks if s.start is not None)
    return re.compile(b"|".join(forms)), (*{s.cue for s in stacks if s.cue}, *_CUES)


class ConsoleLines(Reader):
    """A console. A block of lines is of one process: lines of others in between are not of it."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        super().__init__(scanned, take)
        scanned.kind = CONSOLE
        self._consoles: dict[str, tuple[Console, str]] = {}  # with the process of the last block
        self._config = _Printed(scanned)
        self._mlperf = mlperf.MlperfLines()
        self._ended = True

    def _open(self) -> bool:
        """Whether a block of several lines is being read."""
        return self._config.open or any(console.open for console, _ in self._consoles.values())

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally = self.scanned.tally
        starts, cues = _starts(readers())
        lines = self.scanned.file.lines(tally, cues, self._open, since, whole)
        for at, line, self._ended in lines:
            if len(line) > _LONGEST and len(max(line.split(b"\r"), key=len)) > _LONGEST:
                tally.skip(at, f"it has more than {_LONGEST // 2**20} MB: no line of a console")
                continue
            begun = {match.lastgroup for match in starts.finditer(plain(line))}
            used, wrong = False, ""
            for piece in pieces(line):
                try:
                    used = self._feed(at, piece, begun) or used
                except (RecordError, ValueError) as error:
                    wrong = str(error)
                used = self._mlperf.feed(at, piece.text) or self._config.feed(at, piece) or used
            if wrong:
                tally.skip(at, wrong, line[:200].decode("utf-8", "replace"))
            elif used:
                tally.used += 1

    def _feed(self, line: int, piece: Piece, begun: Collection[str | None]) -> bool:
        """Whether a piece belongs to a row. begun: the stacks of which the line begins a row.
        Raises RecordError for a row that cannot be read, or is cut off."""
        used = False
        for begins in filter(None, begun):
            stack = recognise.named(begins)
            if stack is not None and stack.console is not None:
                console, _ = self._consoles.get(stack.name) or (stack.console(), "")
                self._consoles[stack.name] = (console, piece.actor)
        for name, (console, actor) in self._consoles.items():
            was_open = console.open
            if name not in begun and not (was_open and actor == piece.actor):
                continue
            rows = list(console.feed(line, piece.text))
            if rows and not self._ended and not console.open:
                raise RecordError("it is cut off in mid-line")
            self.scanned.add(name, rows)
            used = used or bool(rows) or was_open or console.open
        return used

    def close(self) -> None:
        """A last block may be whole without a line that ends it; one that is cut off in mid-line
        is not. Rows that waited for the end are whole where no block is open: a stopped run leaves
        a progress bar without its end of line."""
        for name, (console, _) in self._consoles.items():
            if self._ended or not console.open:
                self.scanned.add(name, console.close())
        self._config.close()
        stack = self._mlperf.stack(readers())
        if stack is not None:
            given = self._mlperf.settings(stack)
            self.scanned.settings.extend((COMMAND, setting) for setting in given)
            if not self.scanned.rows.get(stack.name):  # the stack's own rows say more
                self.scanned.add(stack.name, self._mlperf.rows(stack))

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`."""
        other = ConsoleLines(scanned, take)
        other._consoles = deepcopy(self._consoles)
        other._config = self._config.copied(scanned)
        other._mlperf = deepcopy(self._mlperf)
        other._ended = self._ended
        return other


class _Printed:
    """Settings on a console: a printed mapping, a command line, Megatron's table, vLLM's pool."""

    def __init__(self, scanned: Scanned) -> None:
        self._scanned = scanned
        self._lines: list[tuple[int, str]] = []
        self._actor = ""
        self._depth = 0
        self._counts: dict[str, int] = {}  # that the trainer printed, by the names in `_TRAINER`
        self._loaded: dict[str, int] = {}  # folders of models, and their lines

    @property
    def open(self) -> bool:
        """Whether a mapping is being read."""
        return bool(self._lines)

    def feed(self, line: int, piece: Piece) -> bool:
        """Whether a piece holds settings."""
        text = piece.text
        if self._lines:
            return piece.actor == self._actor and self._more(line, text)
        if text.lstrip().startswith("{'") and (depth := opens(text)) > 0:
            self._actor, self._depth = piece.actor, depth
            self._lines = [(line, text)]
            return True
        kv, loaded = _KV.search(text), _LOADED.search(text.rstrip())
        if loaded:
            self._loaded.setdefault(loaded["folder"], line)
            return True
        if kv:
            given = [Given("vllm: GPU KV cache size", int(kv[1].replace(",", "")), line)]
        else:
            one = configs.argument(text, line)
            given = [one] if one else self._of_trainer(text, line)
            given = given or configs.from_command(text, line)
        self._scanned.settings.extend((COMMAND, setting) for setting in given)
        return bool(given)

    def copied(self, scanned: Scanned) -> _Printed:
        """See `Reader.copied`."""
        other = copy(self)
        other._scanned, other._lines = scanned, [*self._lines]
        other._counts, other._loaded = {**self._counts}, {**self._loaded}
        return other

    def close(self) -> None:
        """The model, where the run loaded no other."""
        if len(self._loaded) == 1:
            [(folder, line)] = self._loaded.items()
            self._scanned.settings.append((MACHINE, Given("_name_or_path", folder, line)))

    def _of_trainer(self, text: str, line: int) -> list[Given]:
        """Batch sizes of transformers' Trainer; processes follow, as it prints their product."""
        given = []
        for found in _TRAINER.finditer(text):
            count = int(found["value"].replace(",", ""))
            name = next(key for key in (*_OF_TRAINER, "total") if found[key])
            self._counts[name] = count
            if name in _OF_TRAINER:
                given.append(Given(_OF_TRAINER[name], count, line))
            a_process = self._counts.get("rows", 0) * self._counts.get("passes", 0)
            total = self._counts.get("total", 0)
            if name != "steps" and a_process and total and total % a_process == 0:
                given.append(Given("accelerate.num_processes", total // a_process, line))
        return given

    def _more(self, line: int, text: str) -> bool:
        self._lines.append((line, text))
        self._depth += opens(text)
        if self._depth > 0 and len(self._lines) < _MOST_CONFIG:
            return True
        lines, self._lines = self._lines, []
        for key, value, at in nested([text for _, text in lines]):
            self._scanned.settings.append((RESOLVED, Given(key, value, lines[at][0])))
        return True
