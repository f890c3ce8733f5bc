"""The few commands whose output follows from their words and input alone."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

_MOST = 10_000
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", "0": "\0", '"': '"', "a": "\a"}


def output(name: str, words: Sequence[str], read: str | None) -> str | None:
    """What a command prints; None for one that is not known. words: after its name. read: its
    input, None where that is not known."""
    if words[:1] == ["--"] and name != "echo":
        words = words[1:]
    try:
        match name:
            case "echo":
                return _echo(words)
            case "printf":
                return _printf(words)
            case "dirname" if len(words) == 1:
                return (posixpath.dirname(words[0].rstrip("/") or "/") or ".") + "\n"
            case "basename" if 1 <= len(words) <= 2:
                last = words[0].rstrip("/").rpartition("/")[2]
                return last.removesuffix(words[1] if len(words) == 2 else "") + "\n"
            case "seq":
                return _seq([int(word) for word in words])
            case "cat" | "tee" if not words and read is not None:
                return read
            case "wc" if read is not None and len(words) == 1:
                counts = {"-l": read.count("\n"), "-w": len(read.split()), "-c": len(read)}
                return f"{counts[words[0]]}\n"
            case "tr" if read is not None and len(words) == 2:
                return _tr(words, read)
            case "xargs" if read is not None and not words:
                return " ".join(read.split()) + "\n"
            case "cut" if read is not None:
                return _cut(words, read)
            case "grep" if read is not None and len(words) == 2 and words[0] == "-o":
                if re.fullmatch(r"[\w,;:]+", words[1]):
                    return f"{words[1]}\n" * read.count(words[1])
            case _:
                pass
    except (ValueError, KeyError, IndexError):
        pass
    return None


def _echo(words: Sequence[str]) -> str:
    end, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        end = "" if "n" in words[0] else end
        escapes = "e" in words[0]
        words = words[1:]
    text = " ".join(words)
    return (_unescaped(text) if escapes else text) + end


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.DOTALL)


def _printf(words: Sequence[str]) -> str | None:
    if words and words[0] == "--":
        words = words[1:]
    form, left = _unescaped(words[0]), list(words[1:])
    if re.search(r"%[^sd%]", form):
        return None
    pieces = re.split(r"(%[sd%])", form)
    result, rounds = "", 0
    while rounds == 0 or (left and rounds < _MOST and "%s" in form + form.replace("%d", "%s")):
        for piece in pieces:
            if piece in ("%s", "%d"):
                result += left.pop(0) if left else "" if piece == "%s" else "0"
            else:
                result += "%" if piece == "%%" else piece
        rounds += 1
    return result


def _seq(numbers: Sequence[int]) -> str | None:
    first, step, last = (
        (*numbers[:1], 1, *numbers[1:])
        if len(numbers) == 2
        else ((1, 1, *numbers) if len(numbers) == 1 else numbers)
    )
    found = range(first, last + (1 if step > 0 else -1), step)
    return "".join(f"{n}\n" for n in found) if len(found) <= _MOST else None


def _tr(words: Sequence[str], read: str) -> str | None:
    if words[0] == "-d":
        letters = _unescaped(words[1])
        return "".join(c for c in read if c not in letters) if len(letters) < 20 else None
    names = {"[:lower:]": "abcdefghijklmnopqrstuvwxyz", "a-z": "abcdefghijklmnopqrstuvwxyz"}
    names |= {"[:upper:]": names["a-z"].upper(), "A-Z": names["a-z"].upper()}
    one, other = (names.get(word, _unescaped(word)) for word in words)
    if not one or not other or "-" in one[1:-1] or "[" in one:
        return None
    other = other.ljust(len(one), other[-1])
    return read.translate({ord(a): b for a, b in zip(one, other, strict=False)})


def _cut(words: Sequence[str], read: str) -> str | None:
    match = re.fullmatch(r"-d ?(.) ?-f ?(\d{1,4})|-f ?(\d{1,4}) ?-d ?(.)", " ".join(words))
    if match is None:
        return None
    mark, field = match[1] or match[4], int(match[2] or match[3])
    lines = []
    for line in read.splitlines():
        cells = line.split(mark)
        lines.append(line if len(cells) == 1 else cells[field - 1] if field <= len(cells) else "")
    return "".join(f"{line}\n" for line in lines)
