"""Bytes of a logit in stacks' losses, as PyTorch allocates them, against what launches are told.

Each loss makes the tensors of its stack's source, in its order; kernels that a CPU has not
(flash-attn's cross-entropy, compiled ones) are functions that keep and write what those do.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from check.launches import asked, launched
from torch.profiler import ProfilerActivity, profile

from rollcast.simulator.check.question import question

TOKENS, WORDS, CHUNK = 4096, 256, 128
"""So many that a chunk and a token's labels are next to nothing beside all logits."""
NEAR = 0.4  # bytes a logit: of a chunk in 32 bit, and of labels

Loss = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
"""Of logits, which it takes out of their list, and labels."""


class Kernel(torch.autograd.Function):
    """Keeps its logits; its gradient is of their size, in their place or not."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, in_place: bool) -> torch.Tensor:
        ctx.save_for_backward(logits)
        ctx.in_place = in_place
        return torch.zeros(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        return logits.zero_() if ctx.in_place else torch.zeros_like(logits), None


class Chunked(torch.autograd.Function):
    """Log-probabilities of chunks in 32 bit. parts: whether gradients are a list before they are
    one tensor."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, parts: bool) -> torch.Tensor:
        ctx.save_for_backward(logits)
        ctx.parts = parts
        made = [
            part.float().log_softmax(-1).gather(-1, label[:, None])[:, 0]
            for part, label in zip(logits.split(CHUNK), labels.split(CHUNK), strict=True)
        ]
        return torch.cat(made)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        if ctx.parts:
            made = [part.float().softmax(-1).neg_() for part in logits.split(CHUNK)]
            return torch.cat(made), None, None
        whole = torch.empty(logits.shape)
        for start in range(0, TOKENS, CHUNK):
            within = slice(start, start + CHUNK)
            whole[within] = logits[within].float().softmax(-1).neg_()
        return whole, None, None


class OneHot(torch.autograd.Function):
    """Of NeMo-RL before 0.3.1: its backward makes two tensors of 64 bit integers."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        lower = logits - logits.amax(-1, keepdim=True)
        lower = lower - lower.exp().sum(-1, keepdim=True).log_()
        logprobs, softmax = lower.clone(), lower.exp_()
        logprobs = logprobs.gather(-1, labels[:, None])[:, 0]
        if logits.requires_grad:
            ctx.save_for_backward(softmax, labels)
        return logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        softmax, labels = ctx.saved_tensors
        chosen = (labels >= 0)[:, None] * torch.nn.functional.one_hot(labels, WORDS)
        return chosen.float().sub_(softmax).mul_(gradients[0][:, None]), None


class VocabParallel(torch.autograd.Function):
    """Of AReaL where words are split: keeps a softmax in 32 bit, and writes where it is."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        lower = logits - logits.amax(-1, keepdim=True)
        softmax = lower.exp()
        softmax.div_(softmax.sum(-1, keepdim=True))
        ctx.save_for_backward(softmax)
        return lower.gather(-1, labels[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (softmax,) = ctx.saved_tensors
        return softmax.mul_(gradients[0][:, None]).neg_(), None


def flash(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """SkyRL's and RLinf's under FSDP."""
    return Kernel.apply(made.pop().div_(0.7), True)  # type: ignore[no-any-return, no-untyped-call]


def with_entropy(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """SkyRL's where the loss has an entropy."""
    logits, entropies = made[0], []
    logprobs = flash(made, labels)
    for start in range(0, TOKENS, CHUNK):
        log_softmax = logits[start : start + CHUNK].log_softmax(-1)
        entropies.append(-(log_softmax.exp() * log_softmax).sum(-1))
    return logprobs + torch.cat(entropies)


def compiled_chunks(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """AReaL's."""
    logits, starts = made.pop(), range(0, TOKENS, CHUNK)
    return torch.cat([Kernel.apply(logits[i : i + CHUNK], False) for i in starts])  # type: ignore[no-untyped-call]


def split_chunks(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """AReaL's with tensor parallelism."""
    logits = made.pop()
    found = [
        VocabParallel.apply(logits[i : i + CHUNK].float(), labels[i : i + CHUNK])  # type: ignore[no-untyped-call]
        for i in range(0, TOKENS, CHUNK)
    ]
    return torch.cat(found)


def widened(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """SkyRL's under Megatron."""
    return Chunked.apply(made.pop().float().div_(0.7), labels, False)  # type: ignore[no-any-return, no-untyped-call]


def listed(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """NeMo-RL's by chunks: in 32 bit before an update's."""
    wide = made.pop()
    wide = wide.float() if wide.requires_grad else wide
    return Chunked.apply(wide, labels, True)  # type: ignore[no-any-return, no-untyped-call]


def one_hot(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """NeMo-RL's before 0.3.1, whose worker keeps the model's output."""
    logits = made.pop()
    found: torch.Tensor = OneHot.apply(logits.float(), labels)  # type: ignore[no-untyped-call]
    found.kept = logits  # type: ignore[attr-defined]
    return found


class Entropy(torch.autograd.Function):
    """Of slime until 0.3.1: keeps its logits and their softmax, where it writes its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        softmax = (logits - logits.amax(-1, keepdim=True)).exp_()
        softmax.div_(softmax.sum(-1, keepdim=True))
        ctx.save_for_backward(logits, softmax)
        return torch.einsum("ij,ij->i", softmax, logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        logits, softmax = ctx.saved_tensors
        return softmax.mul_(logits).mul_(gradients[0][:, None])


def measured_entropy(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """slime's."""
    return Measured.apply(made.pop().float(), labels)  # type: ignore[no-any-return, no-untyped-call]


def graded_entropy(made: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """slime's until 0.3.1: each function has a copy, of which the first writes where it is."""
    wide = made.pop().float()
    found: torch.Tensor = InPlace.apply(wide.clone(), labels)  # type: ignore[no-untyped-call]
    if wide.requires_grad:
        found = found + Entropy.apply(wide.clone())  # type: ignore[no-untyped-call]
    return found


class Measured(VocabParallel):
    """Of slime: one tensor is the logits less their largest, and their softmax."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        softmax = logits - logits.amax(-1, keepdim=True)
        found = softmax.gather(-1, labels[:, None])[:, 0].clone()
        softmax.exp_().div_(softmax.sum(-1, keepdim=True))
        ctx.save_for_backward(softmax)
        return found


class InPlace(VocabParallel):
    """Megatron's cross-entropy: its softmax is where its logits were."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        softmax = logits.detach()
        softmax.sub_(softmax.amax(-1, keepdim=True))
        found = softmax.gather(-1, labels[:, None])[:, 0].clone()
        softmax.exp_().div_(softmax.sum(-1, keepdim=True))
        ctx.save_for_backward(softmax)
        return found


def peak_bytes(loss: Loss, graded: bool) -> float:
    """Of a logit: 16 bit logits, the loss, and its backward up to them."""
    hidden = torch.randn(TOKENS, 4, dtype=torch.bfloat16, requires_grad=graded)
    words, labels = torch.randn(4, WORDS, dtype=torch.bfloat16), torch.zeros(TOKENS).long()

    def work() -> None:
        with torch.set_grad_enabled(graded):
            found = loss([hidden @ words], labels)
            if graded:
                found.sum().backward()

    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        work()
    now = most = 0
    for event in measured.profiler.kineto_results.events():  # type: ignore[union-attr]
        now += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, now)
    return most / TOKENS / WORDS


SKYRL = {"trainer.policy.model.path": "Qwen/Qwen2.5-7B"}
RLINF = {"actor.training_backend": "fsdp", "rollout.model_dir": "Qwen2.5-7B"}
AREAL = {"actor.path": "Qwen/Qwen2.5-7B"}
SLIME = {"hf-checkpoint": "Qwen2.5-7B", "rollout-batch-size": 32, "n-samples-per-prompt": 8}
NEMO = {"policy.model_name": "Qwen/Qwen2.5-7B"}
SPLIT = {"policy.dtensor_cfg.enabled": True, "policy.dtensor_cfg.tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("loss", "stack", "said", "release"),
    [
        (flash, "skyrl", SKYRL, "0.3"),
        (flash, "rlinf", RLINF, None),
        (with_entropy, "skyrl", {**SKYRL, "trainer.algorithm.use_entropy_loss": True}, "0.3"),
        (widened, "skyrl", {**SKYRL, "trainer.strategy": "megatron"}, "0.3"),
        (compiled_chunks, "areal", {**AREAL, "allocation_mode": "sglang:d4+fsdp:d4"}, "1.0"),
        (split_chunks, "areal", {**AREAL, "allocation_mode": "sglang:d4+fsdp:d2t2"}, "1.0"),
        (measured_entropy, "slime", SLIME, "0.3.1"),
        (graded_entropy, "slime", SLIME, "0.2"),
        (listed, "nemo_rl", {**NEMO, "policy.logprob_chunk_size": 1024}, "0.5"),
        (one_hot, "nemo_rl", {**NEMO, **SPLIT}, "0.3"),
    ],
)
def test_a_loss_needs_the_bytes_that_its_launch_is_told(
    loss: Loss, stack: str, said: dict[str, Any], release: str | None
) -> None:
    trainer = question(launched(said, stack, release), asked(gpus=8)).scenario.cost.trainer
    assert peak_bytes(loss, True) == pytest.approx(trainer.logit_bytes, abs=NEAR)
    scored = trainer.ungraded_logit_bytes
    assert peak_bytes(loss, False) == pytest.approx(scored, abs=NEAR)
