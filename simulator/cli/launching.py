"""The options of a launch, and what is read with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.simulator.errors import ScenarioError

if TYPE_CHECKING:
    from rollcast.simulator.check.question import Question
    from rollcast.simulator.launches.draft import Drafted
    from rollcast.simulator.planner.question import Check
    from rollcast.simulator.scenario.file import RawScenario, Trust

_SCENARIOS = (".yaml", ".yml")
_WORKLOAD = re.compile(r"^workload\s*:", re.MULTILINE)
"""What every scenario has, and no launch."""
MOST = 1e8


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line adds to a launch."""

    gpu: str | None = None
    gpus: int | None = None
    model: str | None = None
    mean_tokens: float | None = None
    prompt_tokens: int | None = None
    steps: int | None = None
    stack: str | None = None
    environment: Sequence[str] = ()
    host_memory: str | None = None
    turns: str | None = None

    @property
    def given(self) -> list[str]:
        """The flags that were given."""
        names = {"environment": "env"}
        values = {name: value for name, value in vars(self).items() if value}
        return [f"--{names.get(name, name).replace('_', '-')}" for name in values]


def asked(
    path: Path | None,
    options: LaunchOptions,
    command: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Question:
    """The question of a launch. Raises ScenarioError for what cannot be read, or is missing."""
    from rollcast.simulator.check.question import question
    from rollcast.simulator.launches.draft import Asked
    from rollcast.simulator.launches.parts import given
    from rollcast.simulator.launches.read import read_launch
    from rollcast.simulator.launches.settle import of_release

    for flag, number, what in (
        ("--mean-tokens", options.mean_tokens, "tokens"),
        ("--prompt-tokens", options.prompt_tokens, "tokens"),
        ("--steps", options.steps, "steps"),
    ):
        if number is not None and not 1 <= number <= MOST:
            raise ScenarioError(
                flag, f"is {number:.12g}; give {what}, at least 1, at most {MOST:,.0f}"
            )
    name, release = _released(options.stack)
    launch = read_launch(path, command, name, _variables(options.environment))
    if release is not None:
        launch = of_release(launch, release)
    more = Asked(
        options.gpus,
        options.steps,
        options.mean_tokens,
        options.prompt_tokens,
        options.turns,
        given(options.model, options.gpu, options.host_memory),
    )
    return question(launch, more, settings)


def scenario_in(path: Path, options: LaunchOptions, trust_modules: Trust) -> RawScenario | None:
    """The scenario in a file; None where it is no scenario's, and thus a launch.

    trust_modules: whether modules that it names may be imported. Raises ScenarioError for flags of
    a launch, and as `read_scenario` does.
    """
    from rollcast.simulator.scenario.file import MAX_BYTES, read_scenario

    text = ""
    try:
        if path.suffix in _SCENARIOS and path.is_file():  # a pipe may never end
            with path.open("rb") as file:
                text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    if not _WORKLOAD.search(text):
        return None
    if options.given:
        raise ScenarioError(
            options.given[0],
            "is of a launch; in a scenario change the file, or use --set and --choose",
        )
    return read_scenario(path, trust_modules)


def scenario_or_launch(
    path: Path, options: LaunchOptions, gpus: Sequence[int | str], trust_modules: Trust
) -> tuple[RawScenario, Check | None, Question | None]:
    """A scenario's file as it is, or the scenario of a launch, with a check of what is chosen and
    what is asked of the launch.

    gpus: to choose from, as in ``plan.choose.gpus``. trust_modules, errors: of `scenario_in`.
    """
    from rollcast.simulator.launches.draft import check_chosen, check_dealt
    from rollcast.simulator.scenario.file import RawScenario

    if (raw := scenario_in(path, options, trust_modules)) is not None:
        return raw, None, None
    counted = [_counted(value) for value in gpus]
    if options.gpu is None and counted:
        options = replace(options, gpu=counted[0][1])
    found = asked(path, replace(options, gpus=counted[0][0] if counted else None))
    for count, _ in counted[1:]:
        check_dealt(found.launch, count)
    data = dict(found.scenario.raw.data)
    steps = found.draft.steps
    plan = {} if steps is None else {"run": {"steps": steps}}
    sources = {part.key: part.source for part in found.parts}
    raw = RawScenario({**data, "plan": plan} if plan else data, {}, found.name, Path(), sources)
    return raw, partial(check_chosen, found.launch, found.draft.settings), found


def batch_note(found: Question, gpus: Sequence[int | str]) -> str | None:
    """That the launch's batch grows with its GPUs, where a plan over so many of them keeps that of
    the first count; None where it does not."""
    from rollcast.simulator.launches.draft import drafted

    counts = [_counted(value)[0] for value in gpus]
    for count in counts[:0:-1]:
        try:
            other = _batch(drafted(found.launch, replace(found.asked, gpus=count)))
        except ScenarioError:  # so many GPUs are refused where they are tried
            continue
        if other and other != _batch(found.draft):
            return (
                f"every choice trains on {_batch(found.draft):,} rollouts a step, the launch's "
                f"batch with --gpus {counts[0]}; with --gpus {count} its batch is {other:,}. The "
                "first count decides"
            )
    return None


def _batch(draft: Drafted) -> int | None:
    values = {part.key: part.value for part in draft.parts}
    groups, size = values.get("workload.batch_groups"), values.get("workload.group_size")
    return groups * size if isinstance(groups, int) and isinstance(size, int) else None


def lines_of(launch: Question, keys: Mapping[str, Any]) -> Sequence[str]:
    """Keys of the scenario in the words of the launch's stack; empty where it lacks one."""
    settings: dict[str, Any] = {}
    for key, value in keys.items():
        settings |= launch.saying(key, value)
    with suppress(KeyError, ScenarioError):
        return launch.lines(settings)
    return ()


def _counted(value: int | str) -> tuple[int, str | None]:
    from rollcast.simulator.scenario.plan_section import gpus_of

    try:
        return gpus_of(value)
    except ScenarioError as error:
        raise ScenarioError("--gpus", error.message) from None


def gpus_to_choose(text: str | None) -> list[int | str]:
    """Of ``8,16`` or ``64xh100,32xh200``. Raises ScenarioError (``--gpus``)."""
    listed: list[int | str] = []
    for part in () if text is None else text.split(","):
        value = int(part) if part.strip().isascii() and part.strip().isdigit() else part.strip()
        _counted(value)
        listed.append(value)
    return listed


def _released(stack: str | None) -> tuple[str | None, str | None]:
    """A stack's name and its release, of ``verl-0.5``."""
    name, _, release = (stack or "").rpartition("-")
    if name and release[:1].isdigit():
        return name.replace("-", "_").lower(), release
    return stack and stack.replace("-", "_").lower(), None


def _variables(texts: Sequence[str]) -> dict[str, str]:
    """Values by name of ``NAME=VALUE``. Raises ScenarioError (``--env``)."""
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ScenarioError("--env", f"{text!r} is not of the form NAME=VALUE")
        variables[name] = value
    return variables
