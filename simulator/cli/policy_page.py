"""A policy's page on the terminal: its mechanism, and every parameter with what it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcast.simulator.cli.console import console
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import outside, registry
from rollcast.simulator.policies.described import describe
from rollcast.simulator.values import Option, nearest

if TYPE_CHECKING:
    from rich.console import Console

_WIDEST = 100  # longer lines are hard to read


def policy_facts(name: str) -> dict[str, Any]:
    """The page as JSON types. name: a known policy or ``module:Class``. Raises ScenarioError."""
    known = registry.names()
    if name not in known and not outside.is_reference(name):
        raise ScenarioError("presets policies", f"unknown name {name!r}; {nearest(name, known)}")
    kind = registry.find(name, f"presets policies {name}")
    about = describe(kind)
    facts: dict[str, Any] = {
        "name": name,
        "what it does": about.mechanism,
        "source": about.source,
        "how": list(about.paragraphs),
        "parameters": [_parameter(option) for option in outside.options_of(kind)],
    }
    short_name = getattr(kind, "NAME", "")
    other = name in registry.built_in() and short_name != name
    return {**facts, "another name of": short_name} if other else facts


def _parameter(option: Option) -> dict[str, Any]:
    facts = {"name": option.key, "must be": option.reader.wanted, "unit": option.unit}
    if not option.required:
        facts["default"] = option.default
    return {**facts, "meaning": option.doc.sentence, "default from": option.doc.source}


def show_policy(name: str) -> None:
    """Prints a policy's page."""
    screen = console()
    facts = policy_facts(name)
    _say(screen, f"{name}: {facts['what it does']}", style="bold")
    if facts["source"]:
        _say(screen, f"Source: {facts['source']}.")
    if "another name of" in facts:
        _say(screen, f"Another name of {facts['another name of']}.")
    for number, text in enumerate(facts["how"]):
        listed = text.startswith("- ")
        if not (listed and number and facts["how"][number - 1].startswith("- ")):
            screen.print()
        _say(screen, text.removeprefix("- "), "  - " if listed else "")
    screen.print()
    if not facts["parameters"]:
        _say(screen, "It has no parameters.")
    for parameter in facts["parameters"]:
        _say(screen, _heading(parameter), style="bold")
        if parameter["meaning"]:
            _say(screen, parameter["meaning"], "    ")
        if parameter["default from"]:
            _say(screen, f"default from: {parameter['default from']}", "    ")


def _heading(parameter: dict[str, Any]) -> str:
    default = parameter.get("default", _NONE)
    given = "required" if default is _NONE else f"default {_spelt(default)}"
    unit = f" ({parameter['unit']})" if parameter["unit"] else ""
    return f"{parameter['name']}: {parameter['must be']}{unit}; {given}"


_NONE = object()


def _spelt(value: Any) -> str:
    """As a scenario would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_spelt, value))}]"
    return str(value)


def _say(screen: Console, text: str, lead: str = "", style: str = "") -> None:
    """A paragraph, whose later lines stand below its first."""
    import textwrap

    width = min(screen.width, _WIDEST)
    after = " " * len(lead)
    for line in textwrap.wrap(
        text, width, initial_indent=lead, subsequent_indent=after, break_on_hyphens=False
    ):
        screen.print(line, style=style or None, markup=False)
