"""A model of one's own, of any architecture that transformers has: it trains, is kept, and loads.

Two of six on transformers' engine here; all six, on both engines and with adapters: ``make
architectures``.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rollcast.engine.config import build_run
from rollcast.engine.run import run_scenario
from rollcast.engine.tasks import tokenizer
from rollcast.simulator.scenario.file import RawScenario

COMMON: dict[str, Any] = {
    "vocab_size": len(tokenizer.VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": tokenizer.END_ID,
    "pad_token_id": tokenizer.PAD_ID,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {}),
    "gemma3": (
        "Gemma3",
        {"query_pre_attn_scalar": 32, "sliding_window": 32, "tie_word_embeddings": True},
    ),
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
EVERY = bool(os.environ.get("ROLLCAST_ARCHITECTURES"))
SAMPLE = [("gemma3", "transformers", False), ("mixtral", "transformers", False)]
CASES = [
    *((name, "transformers", lora) for name in ARCHITECTURES for lora in (False, True)),
    *((name, "vllm", False) for name in ARCHITECTURES),
]


def model_in(folder: Path, name: str) -> Any:
    kind, more = ARCHITECTURES[name]
    config_kind = f"{kind}TextConfig" if name == "gemma3" else f"{kind}Config"
    torch.manual_seed(0)
    config = getattr(transformers, config_kind)(**(COMMON | more))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(folder)
    tokenizer.build_tokenizer().save_pretrained(folder)
    return model


def scenario(folder: Path, engine: str, lora: bool) -> RawScenario:
    texts = [f"count to {i}" for i in range(24)]
    lines = [json.dumps({"prompt": text}) + "\n" for text in texts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    task = {"prompts": str(folder / "prompts.jsonl"), "reward": "run_rewards:even"}
    trainer: dict[str, Any] = {"learning_rate": 1e-3, **({"lora": {"rank": 4}} if lora else {})}
    return RawScenario(
        {
            "cluster": {"placement": "colocated", "replicas": 1},
            "engine": {
                "name": engine,
                "model": str(folder / "model"),
                "max_seqs": 16,
                "max_batched_tokens": 512,
                "kv_tokens": 4096,
                "block_tokens": 32,
                "task": task,
                "trainer": trainer,
            },
            "workload": {"batch_groups": 3, "group_size": 4, "max_new_tokens": 24},
            "policy": [{"april": {"over_sampling": 1.5}}],
            "steps": 2,
        }
    )


@pytest.mark.parametrize(("name", "engine", "lora"), CASES if EVERY else SAMPLE)
def test_it_trains_is_kept_and_loads(tmp_path: Path, name: str, engine: str, lora: bool) -> None:
    pytest.importorskip("vllm" if engine == "vllm" else "transformers")
    if lora:
        pytest.importorskip("peft")
    start = model_in(tmp_path / "model", name).state_dict()
    spec = build_run(scenario(tmp_path, engine, lora))
    real = run_scenario(spec, tmp_path / "out", plot=False)
    assert [metrics.updates for _, metrics in real.log.updates] == [1, 1]
    assert all(metrics.grad_norm > 0 for _, metrics in real.log.updates)
    # Engine and trainer agree on the first tokens, and on the weights after each sync.
    assert real.log.updates[0][1].mismatch_mean < 1e-4
    assert max(real.log.sync_differences) < 1e-4
    kept = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert type(kept).__name__ == f"{ARCHITECTURES[name][0]}ForCausalLM"
    weights = kept.state_dict()
    assert weights.keys() == start.keys()
    moved = [n for n in start if not torch.equal(weights[n], start[n])]
    assert any("self_attn" in n for n in moved)
    assert lora or any("embed" in n for n in moved)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    assert found.decode(found.encode("12+3")) == "12+3"
