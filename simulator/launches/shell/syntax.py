"""What a shell script is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters as they stand. quoted: they are not split, and name no reserved word."""

    text: str
    line: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """``$name`` or ``${name...}``. text: as written. op: ``:-``, ``%%``, ``/``... index: ``@``,
    ``*`` or an expression, of an array. length: ``${#name}``. keys: ``${!name}``."""

    name: str
    text: str
    line: int
    quoted: bool
    op: str = ""
    argument: Word | None = None
    second: Word | None = None
    index: Word | None = None
    length: bool = False
    keys: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """``$(...)``, or the same in backticks."""

    body: Block
    text: str
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """``$((...))``."""

    expression: Word
    text: str
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Opaque:
    """What has no value here: ``<(...)``, and a placeholder such as ``<PATH>``."""

    text: str
    line: int
    why: str = "a file that only a run has"


Part = Literal | Parameter | Output | Sum | Opaque


@dataclass(frozen=True, slots=True)
class Word:
    """Parts that make up one word."""

    parts: tuple[Part, ...]
    line: int

    @property
    def bare(self) -> str | None:
        """Its text where nothing of it is quoted or expanded."""
        text = ""
        for part in self.parts:
            if not isinstance(part, Literal) or part.quoted:
                return None
            text += part.text
        return text


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name=value``. value: a word, or of an array its elements with their indices."""

    name: str
    value: Word | tuple[tuple[Word | None, Word], ...]
    line: int
    index: Word | None = None
    append: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> target``. body: for ``<<`` and ``<<<``, the one text that is read."""

    op: str
    target: Word
    body: Sequence[Word] = ()
    fd: str = ""


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each of which reads what the one before it writes."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands with ``&&`` or ``||`` before each but the first."""

    first: Command
    rest: tuple[tuple[str, Command], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Background:
    """``command &``."""

    command: Command


@dataclass(frozen=True, slots=True)
class Block:
    """Commands one after another."""

    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what they guard, and the else."""

    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block
    line: int


@dataclass(frozen=True, slots=True)
class While:
    """``while`` and ``until``."""

    condition: Block
    body: Block
    until: bool
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """``for name in words``; words is None for the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: Block
    line: int


@dataclass(frozen=True, slots=True)
class Count:
    """``for ((start; condition; step))``."""

    start: Word
    condition: Word
    step: Word
    body: Block
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """A word and clauses of patterns."""

    word: Word
    clauses: tuple[tuple[tuple[Word, ...], Block, str], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ...; }`` or ``( ... )``, or any compound command with redirections."""

    body: Block
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """``name() { ... }``."""

    name: str
    body: Command
    line: int


@dataclass(frozen=True, slots=True)
class Condition:
    """``[[ ... ]]``: words, and operators as text."""

    tokens: tuple[Word | str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """``((...))``."""

    expression: Word
    line: int


Command = (
    Simple
    | Pipeline
    | Chain
    | Background
    | Block
    | If
    | While
    | For
    | Count
    | Case
    | Group
    | Function
    | Condition
    | Evaluate
)
