"""The release of its stack that a launch tells: by a pinned install or an image that it names, by
what its repository holds, else as far as its keys exist in some releases alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.stacks.launch import Given, Launch
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.stack import Stack

_VERSION = r"v?(\d+(?:\.\d+){1,2})"
_PINS = (
    r"(?<![\w-])NAME(?:\[[^\]\n]*\])?\s*==\s*" + _VERSION,
    r"/NAME(?:\.git)?@" + _VERSION,
    r"(?:-b|--branch|--branch=)[ =]?" + _VERSION + r"\s[^\n]*/NAME\b",
    r"/NAME(?:-\w+)?:" + _VERSION,  # an image
    r":[\w.-]*?(?<![A-Za-z])NAME-?" + _VERSION,  # a tag of another's image
)
_BESIDE = (
    *("requirements*.txt", "requirements/*.txt", "pyproject.toml", "setup.py", "environment.y*ml"),
    *("Dockerfile*", "docker/Dockerfile*", "install*.sh", "scripts/install*.sh"),
)
_MOST_BYTES, _MOST_FILES = 400_000, 30


@dataclass(frozen=True, slots=True)
class Told:
    """release: None where it is not told, or any that is new enough. words: a sentence for the
    user on what was taken, empty where there is nothing to say."""

    release: str | None
    words: str = ""


def told(stack: Stack, given: Sequence[Given], sources: Sources) -> Told:
    """What a launch tells of its release. given: all that it was given. A release that lacks one
    of the keys given is not believed."""
    lowest, highest = stack.launch.told_by(given)
    by_keys = _by_keys(stack, lowest, highest)
    said = next(_said(stack, sources), None)
    if said is None:
        return by_keys
    release, place = said
    alien = next((item for item in given if not stack.launch.known_in(item.key, release)), None)
    if alien is not None:
        more = by_keys.words or f"defaults of the newest {stack.name}"
        words = f"{place} says {stack.name} {release}, which has no {alien.key}; {more}"
        return Told(None, words)
    return Told(release, f"defaults of {stack.name} {release}, as {place} says")


def _by_keys(stack: Stack, lowest: Given | None, highest: Given | None) -> Told:
    """As far as the keys tell: from, and before, some release."""
    name = stack.name
    if highest is not None:
        until = stack.launch.bounds(highest.key).until
        return Told(None, f"defaults of {name} before {until}, which has no {highest.key} any more")
    if lowest is not None:
        since = stack.launch.bounds(lowest.key).since
        return Told(None, f"defaults of the newest {name}: {lowest.key} tells {since} or newer")
    return Told(None)


def _said(stack: Stack, sources: Sources) -> Iterator[tuple[str, Place]]:
    """Releases that files say, the likeliest first: those of the launch, then those beside it."""
    packages = stack.launch.packages
    pins = [
        re.compile(form.replace("NAME", re.escape(name))) for name in packages for form in _PINS
    ]
    for path in list(sources.files):
        yield from _matches(pins, _text(path), sources.name(path))
    for root in sources.roots():
        yield from _own(stack.launch, root, sources)
    beside = (path for root in sources.roots() for form in _BESIDE for path in root.glob(form))
    for _, path in zip(range(_MOST_FILES), beside, strict=False):
        yield from _matches(pins, _text(path), sources.name(path))


def _own(launch: Launch, root: Path, sources: Sources) -> Iterator[tuple[str, Place]]:
    """The version of the stack's own sources, if they are there."""
    for name in launch.versions:
        text, form = _text(root / name), _ASSIGNED
        if name in _PROJECTS:
            names = "|".join(map(re.escape, launch.packages))
            form = re.compile(_PROJECTS[name].replace("NAMES", names))
        yield from _matches([form], text, sources.name(root / name))


_ASSIGNED = re.compile(r"(?m)^(?:__version__\s*=\s*[\"'])?" + _VERSION)
_PROJECTS = {
    "pyproject.toml": r"(?s)\[project\][^\[]*?\nname\s*=\s*[\"'](?:NAMES)[\"'](?:(?!\n\[).)*?\n"
    r"version\s*=\s*[\"']" + _VERSION,
    "setup.py": r"(?s)\bname\s*=\s*[\"'](?:NAMES)[\"'].{0,200}?\bversion\s*=\s*[\"']" + _VERSION,
}
"""Forms of files that other projects have too: the project's name has to be the stack's."""


def _matches(forms: Sequence[re.Pattern[str]], text: str, name: str) -> Iterator[tuple[str, Place]]:
    found = (form.search(text) for form in forms)
    for match in sorted((one for one in found if one), key=lambda one: one.start()):
        yield match[1], Place(name, text.count("\n", 0, match.start(1)) + 1)


def _text(path: Path) -> str:
    """The start of a file, empty for none that can be read."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
