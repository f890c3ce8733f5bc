"""Whole launches, file by file, and what is read in them: the cases of ``launches.yaml``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcast.simulator.check.question import question
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked, completed
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import Settings

CASES = yaml.safe_load(Path(__file__).with_name("launches.yaml").read_text("utf-8"))


def read(folder: Path, case: Mapping[str, Any]) -> Launched:
    if "command" in case:
        return read_launch(None, [*case["command"].split(), *case.get("more", ())])
    for name, text in case["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("VERL ", "python3 -m verl.trainer.main_ppo "), "utf-8")
    path = folder / case.get("launch", path)
    return read_launch(path, case.get("words", ()), environment=case.get("environment"))


def of(settings: Settings, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key].value if key in settings else None for key in keys}


@pytest.mark.parametrize("name", CASES)
def test_a_launch_says_what_it_says(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if "refused" in case:
        with pytest.raises(ScenarioError) as caught:
            read(tmp_path, case)
        assert case["refused"] in str(caught.value)
        return
    launch = read(tmp_path, case)
    assert launch.stack == case.get("stack", launch.stack)
    for part, found in (
        ("settings", of(launch.settings, case.get("settings", {}))),
        ("known", of(launch.known, case.get("known", {}))),
        ("held", of(completed(launch, case.get("gpus")), case.get("held", {}))),
        ("raw", {key: launch.raw().get(key) for key in case.get("raw", {})}),
        ("places", {key: str(launch.settings[key].place) for key in case.get("places", {})}),
    ):
        assert found == case.get(part, {})
    assert [item.key for item in launch.unknown] == case.get(
        "unknown", [item.key for item in launch.unknown]
    )
    if "unresolved" in case:
        why = {item.key: item.why for item in launch.unresolved}
        assert {k: why.get(k) if case["unresolved"].get(k) else None for k in why} == case[
            "unresolved"
        ]
    for words in case.get("notes", ()):
        assert any(words in note for note in launch.notes)
    assert not (case.get("quiet") and launch.notes)
    for words in case.get("silent", ()):
        assert not any(words in note for note in launch.notes)
    if "scenario" in case:
        asked = Asked(parts=given(None, "h100-sxm"), gpus=case.get("gpus"))
        made = question(launch, asked)
        assert {key: made.value(key) for key in case["scenario"]} == case["scenario"]
        for words in case.get("told", ()):
            assert any(words in note for note in made.launch.notes)
        for words in case.get("untold", ()):
            assert not any(words in note for note in made.launch.notes)
