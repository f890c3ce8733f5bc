"""Models by the names that paths have."""

import json
from pathlib import Path

import pytest
import yaml

from rollcast.simulator.costs.presets.models import load_model, model_presets
from rollcast.simulator.launches import run_parts
from rollcast.simulator.stacks.settings import Place, Setting

NAMED = {
    "m/qwen25-7b-agent/qwen25-7b/": "qwen2.5-7b",
    "allenai/tulu-2-13b": "llama-2-13b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "OpenRLHF/Llama-3-8b-sft-mixture": "llama-3.1-8b",
    "/models/Qwen3-4B_torch_dist": "qwen3-4b",
    "zai-org/GLM-4.5-Air": "glm-4.5-air",
    "zai-org/GLM-4.7-Flash": "glm-4.7-flash",
    "PrimeIntellect/DeepSeek-V4-Flash-0731-bf16": "deepseek-v4-flash",
    "moonshotai/Kimi-K2.5": "kimi-k2-thinking",
    "/data/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots/ab12/": "qwen2.5-0.5b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-VL-4B-Instruct": "qwen3-vl-4b",
    "checkpoints/qwen2.5-7b/global_step_100/actor": "qwen2.5-7b",
    "ckpt/Qwen2_5-1.5B": "qwen2.5-1.5b",
    # of another shape, or unknown
    "deepseek-ai/DeepSeek-R1-Distill-Yi-9B": None,
    "/models/GLM-5_4layer": None,
    "zai-org/GLM-5.2": None,
    "zai-org/GLM-4.6-Flash": None,
    "./models": None,
}


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
