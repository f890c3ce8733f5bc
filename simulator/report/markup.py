"""HTML and SVG that escapes all text but `Markup`.

Attribute names: a trailing underscore is dropped, others become hyphens (``class_``, ``data_tip``).
None omits an attribute, True writes its name alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from rollcast.simulator.values.words import visible_lines

Value = str | float | bool | None


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | float | Iterable["Content"] | None
"""Content of an element: `Markup` unchanged, other text escaped, None empty, or a list."""

_EMPTY = frozenset({"meta", "br", "path", "line", "circle", "rect", "link", "input"})


def tag(name: str, /, *content: Content, **attributes: Value) -> Markup:
    """An element, ``content`` inside."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    inside = joined(content)
    if name in _EMPTY and not inside:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inside}</{name}>")


def joined(content: Content) -> Markup:
    """Content in sequence, escaped unless markup."""
    if content is None:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(html.escape(visible_lines(content)))
    if isinstance(content, int | float):
        return Markup(str(content))
    return Markup("".join(joined(part) for part in content))


def number(value: float) -> str:
    """A coordinate to two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else visible_lines(str(value))
    return f' {name}="{html.escape(text)}"'
