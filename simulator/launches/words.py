"""What the words of a command say: which program, and its options as the stack spells them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rollcast.simulator.launches.names import is_called
from rollcast.simulator.launches.pieces import Text, cut, maybe, place_of, plain, shown, why
from rollcast.simulator.launches.python.notebook import SCRIPTS
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.launch import Form, Launch
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.syntax.yaml_text import word

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_COMMANDS = {"run", "--", "exec", "torchrun", "launch"}
_TOOLS = {
    *("awk", "cat", "chmod", "chown", "cp", "curl", "diff", "find", "git", "grep", "head", "ln"),
    *("ls", "mv", "patch", "rm", "rsync", "scp", "sed", "tail", "tar", "touch", "unzip", "wget"),
}
"""Commands whose words are files that they read or write, and do not start."""
_HYDRA = {
    **{"config-path": "path", "config_path": "path", "cp": "path"},
    **{"config-name": "name", "config_name": "name", "cn": "name"},
    **{"config-dir": "folder", "cd": "folder"},
}
_FILES = ("config", "config_file", "config-file", "c")
CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json")
_LONG_NAMES = {"cn": "config-name", "cp": "config-path", "cd": "config-dir", "c": "config"}


@dataclass(frozen=True, slots=True)
class Program:
    """What a command starts. name: a module, a script or a command, as dotted parts. at: of the
    word, path: it as written. module: whether after ``-m``."""

    name: str
    at: int
    path: Text
    module: bool


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that words give. kind: ``flag``, ``override``, ``drop``, ``file`` (key is what its
    settings go below), ``path``, ``name`` and ``folder`` (Hydra's)."""

    kind: str
    key: str
    value: Any
    text: Text
    place: Place
    added: bool = False


def programs(words: Sequence[Text]) -> Iterator[Program]:
    """What a command may start, the first the likeliest: a module after ``-m``, a script of
    Python's, or the command itself."""
    found: list[Program] = []
    if words and posixpath.basename(shown(words[0])) in _TOOLS:
        return
    for at, text in enumerate(words):
        name = plain(text)
        before = plain(words[at - 1]) if at else None
        if name is None:
            tail = shown(text)
            if not tail.endswith(SCRIPTS) or (text and text[-1].why):
                continue
            name = tail
        if before in ("-m", "--module") and re.fullmatch(r"[\w.]+", name):
            found.append(Program(name, at, text, True))
        elif name.endswith(SCRIPTS) and not _takes(before):
            parts = name.rpartition(".")[0].replace("$", "").strip("./").split("/")
            found.append(Program(".".join(parts), at, text, False))
        elif not at or before in _COMMANDS or _is_option(before):
            base = posixpath.basename(name)
            if re.fullmatch(r"[a-z][\w-]{0,40}", base) and not _PYTHON.fullmatch(name):
                found.append(Program(base, at, text, False))
    scripts = [one for one in found if one.module or shown(one.path).endswith(SCRIPTS)]
    yield from scripts
    yield from (one for one in found if one not in scripts)


# Of accelerate (commands/launch.py), torchrun (torch/distributed/run.py) and DeepSpeed's launcher
_SWITCHES = frozenset(
    f"--{name}"
    for name in (
        *("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "cpu", "debug", "quiet"),
        *("standalone", "force_multi", "bind_cores_to_rank"),
    )
)


def _takes(text: str | None) -> bool:
    """Whether a word is an option whose value comes next."""
    if text is None or text.replace("-", "_").replace("__", "--", 1) in _SWITCHES:
        return False
    return text.startswith("--") and len(text) > 2 and "=" not in text


def _is_option(text: str | None) -> bool:
    return text is not None and text.startswith("--") and "=" in text


SURE, _LIKELY = 3, 1


def entered(launch: Launch, program: Program) -> int:
    """How much a program speaks for a stack, in keys of its: most where it is an entry with the
    name of a package, little where its name is one that others may have, 0 where it is none."""
    matched = [entry for entry in launch.entries if is_called(program.name, entry)]
    return max((SURE if "." in entry else _LIKELY for entry in matched), default=0)


def server(launch: Launch, words: Sequence[Text]) -> int | None:
    """Where the options begin of a command that starts a stack's server; None of any other."""
    names = [plain(text) or "" for text in words]
    pairs = (" ".join(pair) for pair in pairwise(names))
    return next((at + 2 for at, pair in enumerate(pairs) if pair in launch.servers), None)


def options(words: Sequence[Text], form: Form) -> Iterator[Option]:
    """The settings in the words after a program, as a stack of that form reads them."""
    at = 0
    while at < len(words):
        text = words[at]
        name = _start(text)
        place = place_of(text, Place(""))
        at += 1
        if name.startswith("@"):
            file = cut(text, 1)[1]
            if not shown(file) and at < len(words):
                file = words[at]
                at += 1
            yield Option("file", "", None, file, place)
            continue
        flag = re.match(r"(--?[A-Za-z_][\w.@/-]*)(=?)", name)
        if flag and (name.startswith("--") or flag[1].lstrip("-") in _LONG_NAMES or not flag[2]):
            key = flag[1].lstrip("-")
            if flag[2]:
                values = [cut(text, flag.end())[1]]
            elif flag.end() < len(shown(text)):
                continue
            else:
                values = list(_following(words[at:], form, key))
                at += len(values)
            yield from _flag(key, values, place, text)
            continue
        if name.endswith((".yaml", ".yml")) and "=" not in name:
            yield Option("file", "", None, text, place)
            continue
        override = split_override(name) if name else None
        if override is not None:
            key = override.key
            after = shown(text).index("=") + 1 if not override.drops else 0
            value = cut(text, after)[1] if after else ()
            if key in _FILES and override.value.endswith(CONFIGURATIONS):  # OmegaConf.from_cli
                yield Option("file", "", None, value, place)
                continue
            kind = "drop" if override.drops else "override"
            yield Option(
                kind,
                key,
                value_of(value, override_value, maybe(text)),
                value,
                place,
                name.startswith("+"),
            )


def _start(text: Text) -> str:
    """What is known of a word's start, and the rest as it stands."""
    return "" if not text or (text[0].why and len(text) == 1) else shown(text)


def _following(words: Sequence[Text], form: Form, key: str) -> Iterator[Text]:
    """The words that are values of an option."""
    for number, text in enumerate(words):
        start = shown(text)
        if start.startswith("--") or (start.startswith("@") and number):
            return
        if re.match(r"-[A-Za-z]", start) or (text and text[0].why and start.endswith("[@]}")):
            return  # an array of which nothing is known holds flags
        if re.match(r"\+{1,2}[A-Za-z_][\w.@/]*=", start):
            return  # Hydra's, also of a stack that has flags
        if number and key in _FILES and not re.search(r"\.(?:ya?ml|toml|json)$", start):
            return
        if form != "--key value" and (
            number or (split_override(start) is not None and key not in _FILES)
        ):
            return
        yield text


def _flag(key: str, values: list[Text], place: Place, text: Text) -> Iterator[Option]:
    doubt = maybe(text)
    if key in _HYDRA and values:
        yield Option(_HYDRA[key], "", None, values[0], place)
        return
    if values and shown(values[0]).startswith("@"):
        file = values[1] if shown(values[0]) == "@" and len(values) > 1 else cut(values[0], 1)[1]
        yield Option("file", key, None, file, place)
        return
    if key in _FILES and values:
        for file in values:
            yield Option("file", "", None, file, place)
        return
    if not values:
        yield Option("flag", key, Unknown("", doubt) if doubt else True, text, place)
        return
    read = [value_of(value, word, doubt) for value in values]
    unknown = next((value for value in read if isinstance(value, Unknown)), None)
    if unknown is not None and len(read) > 1:
        unknown = replace(unknown, text=" ".join(map(shown, values)))
    found: Any = unknown if unknown is not None else read[0] if len(read) == 1 else read
    yield Option("flag", key, found, values[0], place)


def value_of(text: Text, spelt: Any = word, doubt: str = "") -> Any:
    """The value that a text is; `Unknown` where it is not known. A path of which the end is known
    is a value: it names what is meant. spelt: reads a known text."""
    doubt = doubt or maybe(text)
    if doubt:
        return Unknown(shown(text), doubt)
    known = plain(text)
    if known is not None:
        return spelt(known)
    last = max(at for at, piece in enumerate(text) if piece.why)
    tail = "".join(piece.text for piece in text[last + 1 :])
    path = re.sub(r"\$\{(\w+)[^{}]*\}", r"$\1", shown(text))
    if re.fullmatch(r"(?:[^\s{}\[\]]*/)[\w.+@-]*\w/?", tail) and "${" not in path:
        return path
    return Unknown(shown(text), why(text))


_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/:$-]{0,300})(?:=(.*))?", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}:]+(?::[^,\[\]{} ][^,\[\]{}]*)*")
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Override:
    """An override. drops: ``~key``. value: None where it drops."""

    key: str
    value: str
    drops: bool = False


def split_override(text: str) -> Override | None:
    """The override that a word is, or None."""
    match = _KEY.fullmatch(text)
    if match is None or (match[3] is None and match[1] != "~"):
        return None
    return Override(match[2], match[3] or "", match[1] == "~")


def override_value(text: str) -> Any:
    """The value of an override: a list, a mapping, a quoted text or a plain value; any text that is
    none of these as it stands."""
    text = text.strip()
    if not text[:1] or text[0] not in "[{'\"":
        return _scalar(text)
    reader = _Reader(text)
    try:
        found = reader.value(0)
    except (ValueError, IndexError):
        return text
    return found if reader.at >= len(text) else text


def _scalar(text: str) -> Any:
    if text in ("null", ""):
        return None if text else ""
    if text.lower() in ("yes", "no", "on", "off", "y", "n", "~"):
        return text
    return word(text)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self.at = text, 0

    def _skip(self) -> str:
        while self.at < len(self._text) and self._text[self.at].isspace():
            self.at += 1
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        """What stands here. Raises ValueError for what is no value."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        letter = self._skip()
        if letter == "[":
            return self._list(depth)
        if letter == "{":
            return self._mapping(depth)
        if letter and letter in "'\"":
            return self._quoted(letter)
        if letter == "$":
            return self._interpolation()
        match = _BARE.match(self._text, self.at)
        if match is None:
            raise ValueError("no value")
        self.at = match.end()
        return _scalar(match[0].strip())

    def _interpolation(self) -> str:
        start, depth = self.at, 0
        while self.at < len(self._text):
            letter = self._text[self.at]
            if depth == 0 and letter in ",]}":
                break
            depth += {"{": 1, "}": -1}.get(letter, 0)
            self.at += 1
        return self._text[start : self.at]

    def _quoted(self, mark: str) -> str:
        match = re.compile(rf"{mark}((?:[^{mark}\\]|\\.)*){mark}", re.DOTALL).match(
            self._text, self.at
        )
        if match is None:
            raise ValueError("a quote is not closed")
        self.at = match.end()
        self._skip()
        return match[1].replace(f"\\{mark}", mark).replace("\\\\", "\\")

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while self._skip() != "]":
            found.append(self.value(depth + 1))
            if self._skip() == ",":
                self.at += 1
            elif self._skip() != "]":
                raise ValueError("a list is not closed")
        self.at += 1
        self._skip()
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while self._skip() != "}":
            match = re.compile(r"\s*(?:'([^']*)'|\"([^\"]*)\"|([\w./-]+))\s*:").match(
                self._text, self.at
            )
            if match is None:
                raise ValueError("a mapping has no key")
            self.at = match.end()
            key = next(group for group in match.groups() if group is not None)
            found[key] = self.value(depth + 1)
            if self._skip() == ",":
                self.at += 1
            elif self._skip() != "}":
                raise ValueError("a mapping is not closed")
        self.at += 1
        self._skip()
        return found
