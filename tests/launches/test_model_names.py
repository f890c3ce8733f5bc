"""Models by the names that paths have."""

import json
from pathlib import Path

import pytest
import yaml

from rollcast.simulator.costs.presets.models import load_model, model_presets
from rollcast.simulator.launches import run_parts
from rollcast.simulator.stacks.settings import Place, Setting

NAMED = yaml.safe_load((Path(__file__).parents[1] / "data" / "names.yaml").read_text("utf-8"))[
    "models"
]


@pytest.mark.parametrize("path", NAMED)
def test_a_path_names_the_shape(path: str) -> None:
    found = run_parts.shape_of(path)
    assert (None if found is None else found[1]) == NAMED[path]


def test_names_stand_for_presets_that_are_there() -> None:
    names = yaml.safe_load(
        Path(run_parts.__file__).with_name("model_names.yaml").read_text("utf-8")
    )
    assert set(names.values()) <= set(model_presets())
    assert not set(names) & set(model_presets())


def test_a_folder_that_is_here_goes_before_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "qwen2.5-7b"
    folder.mkdir()
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    said = {"model": Setting("model", str(folder), "model.path", Place("run.sh", 3))}
    part = run_parts.model_part(said, "launch")
    assert load_model(part.value).layers == 2
    assert "run.sh, line 3" in part.source


def test_a_model_of_the_same_shape_is_told() -> None:
    said = {"model": Setting("model", "Qwen/Qwen2-7B", "model.path", Place("run.sh", 3))}
    assert run_parts.model_part(said, "launch").source.endswith("of the shape of qwen2.5-7b")
