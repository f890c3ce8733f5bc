"""What ``rollcast presets`` says of policies is told from their own code, and reads well."""

import json
import subprocess
from dataclasses import dataclass

import pytest

from rollcast.simulator.policies import POLICIES
from rollcast.simulator.policies.described import describe
from rollcast.simulator.values import declared
from tests.conftest import Cli
from tests.processes import ROLLCAST, on_a_terminal


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_says_in_a_sentence_what_it_does_and_where_from(name: str) -> None:
    about = describe(POLICIES[name])
    assert about.mechanism.endswith(".")
    assert 20 < len(about.mechanism) < 200
    assert about.source
    text = " ".join((about.mechanism, about.source, *about.paragraphs))
    assert "``" not in text
    assert "Raises" not in text
    for option in declared(POLICIES[name]):
        assert option.doc.meaning, option.key
        assert option.reader.wanted != "a value", option.key


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_list_and_every_page_fit_and_are_whole(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = cli("presets", "policies")[1]
    assert max(map(len, said.splitlines())) <= int(columns)
    cells = [[c.strip() for c in line.split("\u2502")] for line in said.splitlines()]
    listed = {cell[1] for cell in cells if len(cell) > 3}
    assert set(POLICIES) <= listed
    for name, kind in POLICIES.items():
        page = cli("presets", "policies", name)[1]
        assert max(map(len, page.splitlines())) <= int(columns)
        flat, about = words(page), describe(kind)
        for text in (about.mechanism, about.source, *about.paragraphs):
            assert words(text) in flat
        for option in declared(kind):
            for text in (option.key, option.reader.wanted, option.doc.sentence, option.doc.source):
                assert words(text) in flat


def test_a_page_of_json(cli: Cli) -> None:
    facts = json.loads(cli("presets", "policies", "sagc", "--json")[1])
    found = {p["name"]: p for p in facts["parameters"]}
    assert list(found) == [option.key for option in declared(POLICIES["sagc"])]
    assert found["alpha"]["default"] == 0.1
    assert found["alpha"]["must be"] == "a number from 0 to 1"
    [keep, *_] = json.loads(cli("presets", "policies", "pods", "--json")[1])["parameters"]
    assert "default" not in keep
    alias = json.loads(cli("presets", "policies", "dapo_filter", "--json")[1])
    assert alias["another name of"] == "dynamic_sampling"


def test_a_pipe_gets_plain_text_and_a_terminal_bold() -> None:
    command = [*ROLLCAST, "presets", "policies", "april"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in plain
    assert "over_sampling: a number from 1 to 1000" in plain
    assert b"\x1b[1m" in on_a_terminal(command)


@dataclass(frozen=True)
class _Undocumented:
    share: float = 0.5


class _Odd:
    """Does a thing (as of v1.2; see [3]) and no more. But wait. (c) is a mark:

    - one, over
      two lines
    - two with ``code`` and `module.name`
    """


def test_descriptions_of_odd_classes() -> None:
    about = describe(_Undocumented)
    assert (about.mechanism, about.source, about.paragraphs) == ("", "", ())
    about = describe(_Odd)
    assert about.mechanism == "Does a thing (as of v1.2; see [3]) and no more."
    assert about.source == ""
    assert about.paragraphs == (
        "But wait. (c) is a mark:",
        "- one, over two lines",
        "- two with code and module.name",
    )
