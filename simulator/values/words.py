"""How errors about values are worded: which key, what it must be, what it is, the nearest names;
and text from a file as it is shown to people, in which nothing can steer a terminal or a page."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import date, time
from typing import Any

from rollcast.simulator.errors import ScenarioError

A_MAPPING = "a mapping of keys to values"


def join(field: str, key: str) -> str:
    """The dotted name of ``key`` inside ``field``."""
    return f"{field}.{key}" if field and key else field or key


def nearest(name: str, valid: Iterable[str], listed: str = "") -> str:
    """A phrase that offers the valid names that ``name`` begins, or those nearest to it, or lists
    all of them. listed: a
    command that lists them, where they are too many for a sentence."""
    names, typed = sorted(set(valid)), name.lower()[:100]
    begun = [valid for valid in names if len(typed) > 1 and valid.startswith(f"{typed}-")]
    close = begun or difflib.get_close_matches(typed, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close[:6])}?"
    return f"{listed} lists the valid ones" if listed else f"valid: {', '.join(names)}"


def counted(number: int, what: str) -> str:
    """A count of things, such as "1 group" and "2,420 groups"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def counted_are(number: int, what: str) -> str:
    """The same with its verb: "1 step is" and "10 steps are"."""
    return f"{counted(number, what)} {'is' if number == 1 else 'are'}"


def check_unknown_keys(given: Mapping[Any, Any], valid: Iterable[str], field: str) -> None:
    """Raises ScenarioError for the first key of ``given`` that is not among ``valid``."""
    names = list(valid)
    for key in given:
        if key not in names:
            raise ScenarioError(join(field, str(key)), f"unknown key; {nearest(str(key), names)}")


def missing(field: str, wanted: str) -> ScenarioError:
    """The error of an option that must be given."""
    return ScenarioError(field, f"missing; give {wanted}")


def wrong(field: str, wanted: str, value: object) -> ScenarioError:
    """The error of an option that is not what it must be."""
    return ScenarioError(field, f"must be {wanted}, got {short(value)}")


def require(kind: Any, value: object, field: str, wanted: str) -> None:
    """Raises ScenarioError for an argument of another type. kind: as `isinstance` takes it."""
    if not isinstance(value, kind):
        raise wrong(field, wanted, value)


def short(value: object) -> str:
    """A value as it is shown in an error."""
    if isinstance(value, date | time):  # as YAML and TOML have them
        return value.isoformat()
    try:
        text = repr(value)
    except ValueError:  # of a whole number with thousands of digits
        return "a number too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def figure(value: float) -> str:
    """A number as it is shown in a range."""
    return str(value) if isinstance(value, int) else f"{value:g}"


# Control characters of 7 and 8 bits, and what turns the direction of writing or ends a line, which
# would show a name as another one.
_OBEYED = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_AS_ESCAPES = {code: repr(chr(code))[1:-1] for code in _OBEYED}
_IN_LINES = {code: sign for code, sign in _AS_ESCAPES.items() if chr(code) not in "\t\n"}


def visible(text: str) -> str:
    r"""One line of text, with control characters escaped as in Python: ``\x1b``, ``\n``."""
    return text.translate(_AS_ESCAPES)


def visible_lines(text: str) -> str:
    """The same, where new lines and tabs are no harm."""
    return text.translate(_IN_LINES)
