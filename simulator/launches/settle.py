"""From all that was found to a launch: rights, what is said twice, and what the stack adds."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched, Unresolved
from rollcast.simulator.launches.one_read import COMMAND
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.launch import ENTRY, Given, Launch
from rollcast.simulator.stacks.settings import Place, Setting, Settings
from rollcast.simulator.stacks.stack import Stack, all_stacks
from rollcast.simulator.values.words import short

COMMAND_LINE = "the command line"
"""In the place of a file, of what the user calls with."""


def spelt(launch: Launch, key: str) -> str:
    """A key as the table of a stack spells it, where it is there in another spelling."""
    role, dot, rest = key.partition(".")
    other = key.replace("-", "_")
    spellings = [key, other, f"{launch.renamed.get(role, role)}{dot}{rest}"]
    if launch.form == "--key value":  # argparse takes what a flag begins with
        spellings += [f"{key}s", f"{other}s"]
    return next((one for one in spellings if one in launch.ours), key)


def negated(launch: Launch, item: Given) -> Given:
    """``--no-key`` as the key's false, where the stack has no such key but the other."""
    for start in ("no-", "no_"):
        key = spelt(launch, item.key.removeprefix(start))
        flips = item.key.startswith(start) and item.value is True and key in launch.ours
        if flips and spelt(launch, item.key) not in launch.ours:
            return item._replace(key=key, value=False)
    return item._replace(key=spelt(launch, item.key))


_OF_JOB = frozenset({"run.nodes", "run.gpus_per_node"})
"""What a job is given, also where its launch counts it when it runs (``nvidia-smi -L | wc -l``)."""


def settled(
    stack: Stack,
    found: Iterable[Given],
    around: Mapping[str, Setting],
    entry: str,
    sources: Sources,
    notes: Iterable[str],
) -> Launched:
    """A launch. found: what was given, `Unknown` values included. around: what the machine's own
    words say, such as ``#SBATCH --nodes``, by our key, for what the stack is not told. Raises
    ScenarioError for a setting of the stack's with two values of equal right."""
    launch, said = stack.launch, list(notes)
    best = _best(launch, [negated(launch, item) for item in found], said)
    given = tuple(item for item in best if not isinstance(item.value, Unknown))
    unresolved = tuple(
        Unresolved(item.key, item.value.text, item.place, item.value.why)
        for item in best
        if isinstance(item.value, Unknown)
    )
    begun = Given(ENTRY, entry, Place(sources.files[0].name if sources.files else entry), 9)
    read = dict(launch.read([*given, begun]))
    missing = {launch.ours[item.key][0] for item in unresolved if item.key in launch.ours}
    for ours, setting in around.items():
        if ours not in read and (ours not in missing or ours in _OF_JOB):
            read[ours] = setting
    if stack.implied:
        read.update({one.key: one for one in stack.implied(read)})
    if (engine := _of_engine(sources)) is not None:
        read[engine.key] = engine
    release = told(stack, given, sources)
    defaults = _defaults(stack, read, release.release, missing)
    if release.release is None:
        release = _undated(stack, read, defaults, release.words)
    said.extend(_filtered(read))
    return Launched(
        stack=stack.name,
        settings=read,
        release=release.release,
        told=release.words,
        defaults=defaults,
        given=given,
        unknown=tuple(
            item for item in given if item.key not in launch.ours and not launch.ignores(item.key)
        ),
        unresolved=unresolved,
        entry=entry,
        files=tuple(sources.files),
        notes=tuple([release.words] * bool(release.words) + said),
    )


def _filtered(read: Settings) -> Iterator[str]:
    """What no launch says of groups that are filtered: how many others a step launches for them."""
    own = read.get("run.filter_groups")
    if own is None or own.value in (None, False, "", "none"):
        return
    more = read.get("run.over_sampling_groups") or read.get("run.over_sampling_share")
    launched = f" ({more.theirs} is {more.value})" if more is not None and more.value else ""
    yield (
        f"{own.place}: groups are filtered ({own.theirs}); prompts that a step launches beyond its "
        f"batch{launched} are not counted, of whose share a launch says nothing; --set "
        "workload.batch_groups=N counts as many"
    )


def of_release(launch: Launched, release: str) -> Launched:
    """A launch as one of another release of its stack than it tells."""
    stack = all_stacks()[launch.stack]
    ours = stack.launch.ours
    missing = {ours[item.key][0] for item in launch.unresolved if item.key in ours}
    read = stack.launch.releases
    newest = re.search(r"to (\d[\d.]*)$", read)
    words = ""
    if newest and tuple(map(int, re.findall(r"\d+", release))) > tuple(
        map(int, newest[1].split("."))
    ):
        words = f"{stack.name} {release} is newer than any that was read ({read})"
    return replace(
        launch,
        release=release,
        told=words,
        defaults=_defaults(stack, launch.settings, release, missing),
        notes=(*filter(None, [words]), *(note for note in launch.notes if note != launch.told)),
    )


def _defaults(
    stack: Stack, read: Settings, release: str | None, missing: Container[str]
) -> Settings:
    taken = stack.launch.unsaid(read, Place(stack.name), stack.implied, release)
    return {ours: one for ours, one in taken.items() if ours not in missing}


def _best(launch: Launch, found: Sequence[Given], notes: list[str]) -> list[Given]:
    """Of each key what has the most right, and came last. Raises ScenarioError."""
    best: dict[str, Given] = {}
    for item in found:
        had = best.get(item.key)
        if had is not None and had.sure < item.sure:
            continue
        if had is not None and had.sure == item.sure:
            _compare(launch, had, item, notes)
            if _lost(had, item):
                continue
        best.pop(item.key, None)
        best[item.key] = item
    return list(best.values())


def _lost(had: Given, item: Given) -> bool:
    """Whether a file says what another computes in a run: a script's call of what it read."""
    computed = isinstance(item.value, Unknown) and not isinstance(had.value, Unknown)
    return computed and item.sure != COMMAND


def _compare(launch: Launch, had: Given, item: Given, notes: list[str]) -> None:
    """What is said twice with equal right: a note; an error where a configuration has two values.
    Of a command's words the last hold, as Hydra's and argparse's do."""
    two = f"{item.key} is set to {_shown(had.value)} in {had.place}"
    if had.place == item.place and had.value == item.value:
        return
    again = f"line {item.place.line}" if had.place.file == item.place.file else str(item.place)
    if had.value == item.value and type(had.value) is type(item.value):
        notes.append(f"{two}, and in {again}")
        return
    differ = f"{two}, and to {_shown(item.value)} in {again}"
    if had.place.file == item.place.file == COMMAND_LINE:  # which has no lines
        differ = f"{two}, and then to {_shown(item.value)}"
    both = isinstance(had.value, Unknown) or isinstance(item.value, Unknown)
    words = had.sure == item.sure == COMMAND
    if item.key in launch.ours and not both and not words:
        raise ScenarioError(str(item.place), f"{differ}; keep one")
    notes.append(f"{differ}; the {'first' if _lost(had, item) else 'last'} is taken")


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Unknown) else short(value).strip("'")


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
_MOST_BYTES, _MOST_FILES, _MOST_SHOWN = 400_000, 30, 3


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
    said = next(_said(stack.launch.packages, stack.launch.versions, sources), None)
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


_NO_COST = frozenset({"run.temperature", "run.logging_steps"})
"""What neither time nor memory depends on."""


def _undated(stack: Stack, read: Settings, defaults: Settings, words: str) -> Told:
    """With the defaults that depend on the release, which is not told."""
    found = [
        (setting, older)
        for setting, older in stack.launch.undated(read, defaults)
        if setting.key not in _NO_COST
    ]
    if not found:
        return Told(None, words)
    some = [
        f"{setting.theirs} is {_shown(setting.value)}"
        f" ({_shown(older.ours(older.default))} before {older.until})"
        for setting, older in found
        if not setting.theirs.startswith("(")  # what it does, for which it has no setting
    ][:_MOST_SHOWN]
    if (more := len(found) - len(some)) > 0:
        what = "more" if some else "default" + "s" * (more > 1)
        some.append(f"{more} {what} depend{'s' * (more == 1)} on it")
    said = f"{words or f'the release of {stack.name} is not told'}; {', '.join(some)}"
    return Told(None, f"{said}; give --stack {stack.name}-RELEASE")


_ENGINE = "run.engine_release"
_AT_LEAST = r"(?<![\w-])vllm(?:\[[^\]\n]*\])?\s*>=\s*" + _VERSION
_IN_VERL_S_TAGS = r":vllm(0\d\d)\."  # vllm011.latest


def _of_engine(sources: Sources) -> Setting | None:
    """The release of vLLM that a launch's own files pin, else all files beside it that pin one
    alike; with ``>=`` before it where they say the least alone."""
    for forms, sign in (
        ([*_pins(("vllm",)), re.compile(_IN_VERL_S_TAGS)], ""),
        ([re.compile(_AT_LEAST)], ">="),
    ):
        of_launch, beside = _texts(sources)
        found = next((one for file in of_launch for one in _matches(forms, *file)), None)
        if found is None:
            others = [one for file in beside for one in _matches(forms, *file)]
            alike = len({_minor(release) for release, _ in others}) == 1
            found = others[0] if alike else None
        if found is not None:
            release, place = found
            return Setting(_ENGINE, f"{sign}{_minor(release)}", "vllm", place)
    return None


def _minor(release: str) -> str:
    """The first two numbers of a release."""
    if "." not in release:
        return f"0.{int(release)}"
    return ".".join(release.split(".")[:2])


def _pins(packages: Iterable[str]) -> list[re.Pattern[str]]:
    return [
        re.compile(form.replace("NAME", re.escape(name))) for name in packages for form in _PINS
    ]


def _texts(sources: Sources) -> tuple[Iterator[tuple[str, str]], Iterator[tuple[str, str]]]:
    """Texts and names of a launch's own files, and of those beside it that say what is
    installed."""
    roots = list(sources.roots())
    if not any((root / ".git").exists() for root in roots):  # what lies far above is another's
        roots = roots[:2]
    there = sources.first.exists()  # which a command is not
    folders = dict.fromkeys([*sources.near, *roots] if there else [])
    paths = (path for folder in folders for form in _BESIDE for path in folder.glob(form))
    beside = (path for _, path in zip(range(_MOST_FILES), paths, strict=False))
    own = list(sources.files)
    return (
        ((_text(path), sources.name(path)) for path in own),
        ((_text(path), sources.name(path)) for path in beside if path not in own),
    )


def _said(
    packages: Sequence[str], versions: Sequence[str], sources: Sources
) -> Iterator[tuple[str, Place]]:
    """Releases that files say, the likeliest first: those of the launch, then those beside it.
    versions: files of the package's own sources that say its version."""
    pins, (of_launch, beside) = _pins(packages), _texts(sources)
    for file in of_launch:
        yield from _matches(pins, *file)
    for root in dict.fromkeys([*sources.near, *sources.roots()]):
        yield from _own(packages, versions, root, sources)
    for file in beside:
        yield from _matches(pins, *file)


def _own(
    packages: Sequence[str], versions: Sequence[str], root: Path, sources: Sources
) -> Iterator[tuple[str, Place]]:
    """The version of the package's own sources, if they are there."""
    for name in versions:
        text, form = _text(root / name), _ASSIGNED
        if name in _PROJECTS:
            names = "|".join(map(re.escape, packages))
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
