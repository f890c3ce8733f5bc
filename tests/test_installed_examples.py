"""The examples are found from Python, wherever the package lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.simulator.cli import init
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.studies.simulate import load

ROOT = Path(__file__).parent.parent


def test_every_example_of_the_checkout_is_offered_as_it_is_written() -> None:
    assert init.names() == sorted(file.stem for file in (ROOT / "examples").glob("*.yaml"))
    for name in init.names():
        assert init.text(name) == (ROOT / "examples" / f"{name}.yaml").read_text("utf-8")
    assert load(init.folder() / "trace.yaml").name == "trace"


@pytest.mark.parametrize("name", ["aprl", "april.yaml", "../april"])
def test_another_name_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(ScenarioError, match="did you mean april"):
        init.text(name)


def test_the_examples_of_a_wheel_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone else's folder ``examples`` may lie in site-packages, too."""
    for place, text in (("rollcast/examples", "steps: 1\n"), ("examples", "steps: 2\n")):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "april.yaml").write_text(text, encoding="utf-8")
    where = [tmp_path / "rollcast" / "examples", tmp_path / "examples"]
    monkeypatch.setattr(init, "_FOLDERS", where)
    assert (init.names(), init.text("april")) == (["april"], "steps: 1\n")
    (where[0] / "april.yaml").unlink()
    assert init.text("april") == "steps: 2\n"
    (where[1] / "april.yaml").unlink()
    with pytest.raises(ScenarioError, match="missing from this installation"):
        init.names()
