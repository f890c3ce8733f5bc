"""What pyproject.toml asks for: what was tested, and no version that was not."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.lowest import lowest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LOCKED = {
    name.removesuffix("-cpu"): version.partition("+")[0]
    for name, _, version in (
        line.partition("==") for line in (ROOT / "engine/engine-cpu.lock").read_text().splitlines()
    )
}


@pytest.mark.parametrize("text", [*EXTRAS["engine"], *EXTRAS["ray"]])
def test_the_engine_is_tested_with_versions_that_its_extra_takes(text: str) -> None:
    asked = Requirement(text)
    found = {name.lower(): version for name, version in LOCKED.items()}.get(asked.name.lower())
    assert found is None or asked.specifier.contains(found)


def test_vllm_is_of_the_minor_version_that_was_tested() -> None:
    [vllm] = [Requirement(text) for text in EXTRAS["engine"] if text.startswith("vllm")]
    assert vllm.specifier.contains("0.32.1")
    assert not vllm.specifier.contains("0.33.0")


def test_the_lowest_versions_of_every_dependency_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [Requirement(text).name for text in project["dependencies"]]
    assert [text.partition("==")[0] for text in lowest(project["dependencies"])] == names
