"""Models by their names on the Hugging Face hub. There is no network here: what is in its cache is
used, and what is not is one sentence."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.config import build_run
from rollcast.engine.hub import asks_the_hub, fetch, is_hub_name
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import override, read_scenario
from tests.refusals import refuses

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine.yaml"
NAME = "somebody/Tiny-0.1B"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and nobody to ask."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def keep(cache: Path, *names: str) -> Path:
    """A model in the cache, as the hub's client lays it out."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = cache / "models--somebody--Tiny-0.1B"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    for name in names:
        (snapshot / name).write_text("{}")
    return snapshot


def test_what_is_a_name_and_what_is_a_folder(tmp_path: Path) -> None:
    assert is_hub_name(NAME, tmp_path)
    for other in (
        "model",
        "./somebody/model",
        "../a/b",
        "/a/b",
        "a/b/c",
        "~/b",
        "a/",
        "/b",
        "a b/c",
    ):
        assert not is_hub_name(other, tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert not is_hub_name(NAME, tmp_path)  # a folder of that name comes first
    (tmp_path / "scenario.yaml").write_text(f"engine: {{model: {NAME}}}")
    assert asks_the_hub({"engine": {"model": NAME}}, EXAMPLE.parent)
    for scenario in ({}, {"engine": 3}, {"engine": {"model": 5}}, {"engine": {"model": "m"}}):
        assert not asks_the_hub(scenario, EXAMPLE.parent)


def test_a_name_is_taken_from_the_cache(cache: Path) -> None:
    snapshot = keep(cache, "config.json", "model.safetensors", "tokenizer.json")
    assert fetch(NAME) == snapshot


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "HF_HUB_OFFLINE forbids to download it"),
        (("config.json",), r"without config\.json or safetensors"),
        (("config.json", "pytorch_model.bin"), r"without config\.json or safetensors"),
    ],
)
def test_a_name_that_cannot_be_had_offline(
    cache: Path, files: tuple[str, ...], message: str
) -> None:
    if files:
        keep(cache, *files)
    with refuses("engine.model", message):
        fetch(NAME)


def test_a_name_that_cannot_be_had_from_the_network(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def unreachable(name: str, *, local_files_only: bool, **options: Any) -> str:
        raise OSError("cannot reach the hub\nand a long story")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ScenarioError, match=r"downloaded: OSError: cannot reach the hub$"):
        fetch(NAME)


def test_what_is_downloaded_without_weights_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(tmp_path))
    with pytest.raises(ScenarioError, match=r"without config\.json or safetensors"):
        fetch(NAME)


def test_a_scenario_may_have_its_model_by_name() -> None:
    spec = build_run(override(read_scenario(EXAMPLE), [f"engine.model={NAME}"]))
    assert spec.model == NAME
    with pytest.raises(ScenarioError, match="nor is it a name on the hub"):
        build_run(override(read_scenario(EXAMPLE), ["engine.model=nowhere"]))
