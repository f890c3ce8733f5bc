"""Tiny Hugging Face models for the trainer's tests, exact in float64, and a naive reference of what
one update's loss is: every rollout alone, through the model's own forward."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollcast.engine.adapter_options import LoraConfig
from rollcast.engine.edges import SampledGroup, SampledRollout
from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer.adapters import inject
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.passes import Work
from rollcast.engine.trainer.trainer import Trainer

VOCABULARY = 61
KINDS = ("qwen3", "llama", "qwen3_moe", "mixtral")
MOE_KINDS = ("qwen3_moe", "mixtral")


def build(kind: str, dtype: torch.dtype = torch.float64, seed: int = 0, **overrides: Any) -> Any:
    """A random model of 2 layers, 4 query and 2 key-value heads of 16."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.25,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    names = {"qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe", "mixtral": "Mixtral"}
    if kind == "qwen3_moe":
        common |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        common |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind == "mixtral":
        common |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(seed)
    config = getattr(transformers, f"{names[kind]}Config")(**(common | overrides))
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{names[kind]}ForCausalLM")(config).to(dtype)
    if dtype == torch.float64:
        _keep_float64(model)
    return model


def adapt(model: Any, lora: LoraConfig) -> None:
    """Adapters that change something, as after some training."""
    torch.manual_seed(2)
    inject(model, lora, model.dtype)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.05)


def _keep_float64(model: nn.Module) -> None:
    """Norms and routers cast to float32 inside, which would hide errors below 1e-7."""
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = _norm.__get__(module)
        elif name.endswith("TopKRouter"):
            module.forward = _route.__get__(module)


def _norm(self: Any, hidden: Tensor) -> Tensor:
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * hidden * scale


def _route(self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    top, chosen = logits.softmax(-1).topk(self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):
        top = top / top.sum(-1, keepdim=True)
    return logits, top, chosen


def make_groups(
    shapes: Sequence[tuple[int, Sequence[int]]], seed: int = 0, version: int = 0
) -> list[SampledGroup]:
    """One group for each (prompt tokens, response tokens of each rollout)."""
    draw = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(n)]

    groups = []
    for prompt, responses in shapes:
        rollouts = [
            SampledRollout(
                tokens(n),
                [-4 + draw.uniform(-0.6, 0.6) for _ in range(n)],
                [version] * n,
                draw.choice([0.0, 1.0, 0.5]),
            )
            for n in responses
        ]
        groups.append(SampledGroup(tokens(prompt), rollouts, [r.reward for r in rollouts]))
    return groups


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradients(
    model: nn.Module,
    groups: Sequence[SampledGroup],
    config: TrainerConfig,
    shared_prefix: bool,
    mask_before_version: int | None = None,
) -> dict[str, Tensor]:
    """The gradient with which the trainer's first update of ``groups`` is made."""
    trainer = Trainer(model, config)  # type: ignore[arg-type]
    found: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            found.setdefault(name, parameter.grad.detach().clone())

    trainer._optimizer.register_step_pre_hook(keep)
    before = weights(model)
    trainer.step(
        groups, shared_prefix=shared_prefix, version=9, mask_before_version=mask_before_version
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return found


def response_log_probs(
    trainer: Trainer, groups: Sequence[SampledGroup], shared_prefix: bool = False
) -> list[list[list[float]]]:
    """Of each response token as an update computes it, by group and rollout."""
    newest = max(max(r.versions) for group in groups for r in group.rollouts)
    examples = trainer._examples(groups, newest, None)
    work = Work(shared_prefix, Clock(trainer.model.device))
    trainer._passes.observe(examples, work, keep=True)
    rows = iter(examples)
    return [[work.old[next(rows)].tolist() for _ in group.rollouts] for group in groups]


def relative_error(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm of the truth, all parameters together."""
    assert found.keys() == truth.keys()
    wrong = sum(float((found[n].double() - truth[n].double()).pow(2).sum()) for n in truth)
    size = sum(float(truth[n].double().pow(2).sum()) for n in truth)
    return float((wrong / size) ** 0.5)


def naive_log_probs(model: nn.Module, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """Of one rollout by itself, through the model's own logits."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    table = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    where = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return table[where, torch.tensor(list(response))]
