"""The model of the built-in task: a Qwen3 of 0.62M parameters, built from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcast.engine.tasks import tokenizer

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

CONTEXT_TOKENS = 2048


def build_model(seed: int = 0) -> Qwen3ForCausalLM:
    """A random model in float32: 3 layers, width 128, 4 heads and 2 KV heads of 32, MLP 384.

    Leaves PyTorch's global random state as it was.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer.VOCABULARY),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=False,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=tokenizer.END_ID,
        pad_token_id=tokenizer.PAD_ID,
        use_cache=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = Qwen3ForCausalLM  # its constructor carries no types
        model: Qwen3ForCausalLM = build(config)
    return model
