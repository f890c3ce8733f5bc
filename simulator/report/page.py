"""A self-contained page: inline style and script, nothing fetched."""

from __future__ import annotations

from functools import cache
from importlib import resources

from rollcast.simulator.report.markup import Content, Markup, joined, tag

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
