"""Contexts beyond what the model can take."""

import pytest

from rollcast.simulator.costs.presets.models import model_from_config, model_presets
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw
from tests.refusals import refuses

TEXT = """
model: {model}
gpu: h100-sxm
cluster: {{replicas: 2, tensor_parallel: 4}}
workload:
  batch_groups: 4
  group_size: 2
  prompt_tokens: {prompt}
  max_new_tokens: {cap}
  lengths: {{family: lognormal, median_tokens: 50, between_sd: 0.1, within_sd: 0.1}}
{more}
steps: 1
"""
TURNS = """  turns: {{family: lognormal, median: 2, between_sd: 0, within_sd: 0, max_turns: 3,
          observation_tokens: 10}}
  max_context_tokens: {context}"""


def warnings(
    model: str = "qwen3-8b", prompt: int = 100, cap: int = 1000, more: str = ""
) -> list[str]:
    text = TEXT.format(model=model, prompt=prompt, cap=cap, more=more)
    return [said for said in from_raw(parse_scenario(text)).warnings if "supports contexts" in said]


def test_a_cap_on_contexts_beyond_the_models_is_refused() -> None:
    assert warnings(more=TURNS.format(context=40960)) == []
    with refuses("workload.max_context_tokens", "qwen3-8b supports contexts of up to 40960 tokens"):
        warnings(more=TURNS.format(context=40961))


def test_a_prompt_without_room_is_refused() -> None:
    with refuses("workload.prompt_tokens"):
        warnings(prompt=40960)


def test_responses_that_may_not_fit_are_warned_of() -> None:
    assert warnings(prompt=8192, cap=32768) == []
    [said] = warnings(prompt=8192, cap=32769)
    assert "40961" in said


def test_stretched_positions_are_said_with_the_model() -> None:
    stretched = "{preset: qwen3-8b, max_positions: 131072}"
    assert warnings(stretched, more=TURNS.format(context=131072)) == []
    with pytest.raises(ScenarioError):
        warnings(stretched, more=TURNS.format(context=131073))


def test_every_preset_knows_its_positions() -> None:
    assert all(model.max_positions for model in model_presets().values())


CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 128,
}


def scaling(kind: str, factor: float, original: int) -> dict[str, object]:
    known = {"factor": factor, "original_max_position_embeddings": original}
    return {"rope_type": kind, **known}


@pytest.mark.parametrize(
    ("more", "positions"),
    [
        ({}, None),
        ({"max_position_embeddings": 40960}, 40960),
        ({"max_position_embeddings": 40960, "rope_scaling": scaling("yarn", 4.0, 32768)}, 131072),
        (
            {"max_position_embeddings": 1000, "rope_scaling": {"type": "linear", "factor": 2.0}},
            2000,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": scaling("llama3", 8.0, 8192)}, 131072),
    ],
)
def test_positions_of_a_config(more: dict[str, object], positions: int | None) -> None:
    assert model_from_config({**CONFIG, **more}).max_positions == positions
