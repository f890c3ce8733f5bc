"""Nothing that users can do is lost: today's program against the list in ``data/users_can.json``.

What goes on purpose stands under ``removed`` with its reason. New things need no entry; once they
are released they belong into the list.
"""

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import rollcast
from rollcast.calibration.logs.readers import readers
from rollcast.engine.options import SECTIONS
from rollcast.simulator.cli import init
from rollcast.simulator.cli.app import app
from rollcast.simulator.cli.presets import preset_rows
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.scenario.reference import find, reference
from rollcast.simulator.stacks.stack import exporters

LIST: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "users_can.json").read_text())
REMOVED: dict[str, str] = LIST["removed"]


def commands() -> Iterator[str]:
    for point in entry_points(group="rollcast.commands"):
        point.load()(app)
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield name
        for parameter in command.params:
            argument = parameter.param_type_name == "argument"
            given = [parameter.name] if argument else parameter.opts + parameter.secondary_opts
            yield from (f"{name} {option}" for option in given)


def keys_of_examples() -> Iterator[str]:
    def walk(value: Any, start: str) -> Iterator[str]:
        for key, item in value.items() if isinstance(value, dict) else ():
            yield f"{start}{key}"
            yield from walk(item, f"{start}{key}.")
        for item in value if isinstance(value, list) else ():
            yield from walk(item, start)

    for name in init.names():
        scenario = yaml.safe_load(init.text(name))
        yield from (f"{name}.yaml {key}" for key in walk(scenario, ""))


TODAY = {
    "commands": commands,
    "policies": lambda: POLICIES,
    "readers": lambda: (reader.name for reader in readers()),
    "exports": exporters,
    "presets": lambda: (
        f"{kind} {row['name']}" for kind in LIST["presets"] for row in preset_rows(kind)
    ),
    "face": lambda: rollcast.__all__,
    "examples": keys_of_examples,
}


def listed(subject: str) -> set[str]:
    """The names of a subject; those below another name after it."""
    names = LIST[subject]
    if isinstance(names, list):
        return set(names)
    return {*(f"{above} {name}" for above, below in names.items() for name in below)}


@pytest.mark.parametrize("subject", TODAY)
def test_all_that_users_could_do_is_still_there(subject: str) -> None:
    assert listed(subject) - set(TODAY[subject]()) - set(REMOVED) == set()


def test_every_key_is_still_there() -> None:
    entries = reference(SECTIONS)
    for key in set(LIST["keys"]) - set(REMOVED):
        assert find(key, entries)


def test_what_was_removed_is_gone_and_has_a_reason() -> None:
    keys = {entry.key for entry in reference(SECTIONS)}
    assert all(REMOVED.values())
    assert not keys & set(REMOVED)
