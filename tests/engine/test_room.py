"""A model that cannot fit its devices is refused by arithmetic, before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.errors import sentence
from rollcast.engine.options import TrainerConfig
from rollcast.engine.room import Devices, parameters, require_room, require_split, state_bytes
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses

GPU = 80_000_000_000


@pytest.mark.parametrize(
    ("count", "dtype", "devices", "field"),
    [
        (8_000_000_000, "bfloat16", Devices(GPU, 0.9), None),  # 16 of 72, 64 of 80
        (8_000_000_000, "float32", Devices(GPU, 0.9), "cluster.trainer_gpus"),  # 128 of 80
        (8_000_000_000, "float32", Devices(GPU, 0.9, ranks=2), None),
        (8_000_000_000, "bfloat16", Devices(GPU, 0.3, shared=True), "cluster.trainer_gpus"),
        (8_000_000_000, "offload", Devices(GPU, 0.3, ranks=2, shared=True), None),
        (70_000_000_000, "bfloat16", Devices(GPU, 0.9), "cluster.tensor_parallel"),  # 140 of 72
        (70_000_000_000, "bfloat16", Devices(GPU, 0.9, width=2, ranks=8), None),
    ],
)
def test_what_cannot_fit_is_refused(
    count: int, dtype: str, devices: Devices, field: str | None
) -> None:
    """dtype: the trainer's; the engine computes in bfloat16."""
    if dtype == "offload":
        trainer = TrainerConfig(offload=True)
    else:
        trainer = TrainerConfig(dtype=dtype, learning_rate=1e-4)  # type: ignore[arg-type]
    if field is None:
        require_room(count, "bfloat16", trainer, devices)
        return
    with refuses(field):
        require_room(count, "bfloat16", trainer, devices)


@pytest.mark.parametrize(
    ("tokens", "checkpoint", "gpu", "field"),
    [
        (16_384, "auto", GPU, None),  # 26 GB, all recomputed
        (16_384, "none", GPU, "engine.trainer.microbatch_tokens"),  # 113 GB
        (65_536, "all", GPU // 2, "engine.trainer.microbatch_tokens"),
        (65_536, "all", GPU, None),
    ],
)
def test_an_update_too_large_is_refused_by_the_ledger(
    tmp_path: Path, tokens: int, checkpoint: Any, gpu: int, field: str | None
) -> None:
    """Qwen2.5-7B on eight GPUs. Where the family is unknown, its states alone decide."""
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    sizes |= {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064}
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    trainer = TrainerConfig(microbatch_tokens=tokens, checkpoint=checkpoint)
    given = (7_600_000_000, "bfloat16", trainer, Devices(gpu, 0.9, ranks=8))
    if field is None:
        require_room(*given, tmp_path)
        return
    with refuses(field, "activations"):
        require_room(*given, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    require_room(*given, tmp_path)


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_states_are_those_of_the_ledger(ranks: int) -> None:
    """Of `rollcast check`: float32 shards of weights, gradients and both moments."""
    model = load_model("qwen2.5-7b", "model")
    ledger = RooflineTrainer(model=model, gpu=load_gpu("h100-sxm"), gpus=ranks)._states
    assert sum(ledger.values()) == pytest.approx(
        state_bytes(int(model.parameters), TrainerConfig(), ranks), rel=0.01
    )


def test_parameters_are_those_of_the_files(tiny_path: Path, tiny_model: Any) -> None:
    assert parameters(tiny_path) == sum(p.numel() for p in tiny_model.parameters())


def test_files_that_cannot_be_read_forbid_nothing(tmp_path: Path) -> None:
    assert parameters(tmp_path) == 0
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert parameters(tmp_path) == 0


def test_heads_that_cannot_be_split_are_named(tiny_path: Path, tmp_path: Path) -> None:
    heads = json.loads((tiny_path / "config.json").read_text())["num_attention_heads"]
    require_split(tiny_path, heads)
    require_split(tmp_path, 3)  # whoever loads it says what is wrong
    with pytest.raises(ScenarioError, match=f"does not divide the {heads} attention heads"):
        require_split(tiny_path, heads + 1)


def test_more_memory_than_there_is_and_what_pydantic_counts() -> None:
    error = RuntimeError(
        "[enforce fail] can't allocate: you tried to allocate 5120000000000 bytes."
    )
    assert sentence(error) == "it needs 5,120.0 GB of memory at once, which this machine lacks"
    lines = "1 validation error for VllmConfig\n  Value error, 2 heads among 3 [type=value_error]"
    assert sentence(ValueError(lines)) == "ValueError: Value error, 2 heads among 3"
