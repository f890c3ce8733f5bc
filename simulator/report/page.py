"""HTML and SVG that escapes all text but `Markup`, and a self-contained page of it.

Attribute names: a trailing underscore is dropped, others become hyphens (``class_``, ``data_tip``).
None omits an attribute, True writes its name alone. A page has inline style and script; nothing is
fetched.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from functools import cache
from importlib import resources

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


# Nothing may be fetched and nothing sent, whatever a page says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, *content: Content, subtitle: str = "") -> str:
    """A whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        Markup(f"<style>{style()}</style>"),
    )
    heading = tag(
        "header", tag("h1", title), tag("p", subtitle, class_="subtitle") if subtitle else None
    )
    foot = tag(
        "footer",
        tag("p", "A forecast by rollcast. Every figure is simulated, unless it says measured."),
    )
    body = tag(
        "body",
        tag("main", heading, content, foot, class_="page"),
        Markup(f"<script>{script()}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">{joined([head, body])}</html>\n'


@cache
def style() -> str:
    """The style sheet of all pages."""
    return resource(__package__, "page.css")


@cache
def script() -> str:
    """The script of all pages: tooltips and copying."""
    return resource(__package__, "page.js")


def resource(package: str, name: str) -> str:
    """The text of a style sheet or script."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    if "</" in text:
        raise RuntimeError(f"{name} would end the element that it stands in")
    return text.strip()
