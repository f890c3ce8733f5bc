"""The trainer: its attention kernel, and one small step with its memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from rollcast.engine.config import RunSpec
from rollcast.engine.doctor.findings import Finding, Verdict
from rollcast.engine.start import start_task, start_trainer

PROMPT_TOKENS, RESPONSE_TOKENS, GROUP = 64, 32, 4
LAYOUTS = {False: "dense", True: "with a shared prefix"}


def training(spec: RunSpec) -> Iterator[Finding]:
    """Loads the model, takes two steps of one group each way, and says what they took."""
    import torch

    _, path = start_task(spec)
    before = _peak()
    trainer = start_trainer(spec, path)
    model: Any = trainer.model  # type: ignore[attr-defined]
    yield kernel(model)
    held = _held(model)
    seconds: dict[bool, float] = {}
    for shared in (False, True):
        try:
            step(trainer, shared)  # kernels are loaded
            began = time.perf_counter()
            step(trainer, shared)
        except Exception as error:
            from rollcast.engine.errors import sentence

            verdict: Verdict = "warning" if shared else "fails"
            yield Finding(f"update {LAYOUTS[shared]}", verdict, sentence(error))
            continue
        seconds[shared] = time.perf_counter() - began
    cuda = model.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(model.device) if cuda else _peak() - before
    tokens = GROUP * (PROMPT_TOKENS + RESPONSE_TOKENS)
    says = f"{tokens} tokens take "
    says += ", ".join(f"{value:.2f} s {LAYOUTS[shared]}" for shared, value in seconds.items())
    named = {"shared_prefix" if shared else "dense": value for shared, value in seconds.items()}
    yield Finding("update", "ok", says, {"tokens": tokens, **named})
    says = f"a small update needs {_mb(peak)} at its peak, of which weights, gradients and "
    says += f"optimiser should be {_mb(held)}"
    # Activations of so few tokens, and on a CPU what the allocator keeps.
    slack = 1.5 * held + (1 << 30 if not cuda else 1 << 31)
    over = peak > held + slack
    figures = {"peak_bytes": peak, "held_bytes": held}
    yield Finding("trainer's memory", "warning" if over else "ok", says, figures)


def kernel(model: Any) -> Finding:
    """The kernel of the shared-prefix layout, which falls back silently."""
    import torch

    from rollcast.engine.trainer.kernels import PlainKernel, kernel_for

    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    chosen = kernel_for(torch.empty(1, 1, 1, width, dtype=model.dtype, device=model.device))
    name, plain = type(chosen).__name__, isinstance(chosen, PlainKernel)
    says = f"{name} for {str(model.dtype).removeprefix('torch.')} heads of {width}"
    if plain:
        says += (
            ": no fast kernel of this torch agrees with it here, so the shared-prefix layout "
            "(prefix_reuse) is 10 to 50 times slower than it could be; use the dense layout"
        )
    return Finding("attention kernel", "warning" if plain else "ok", says, {"kernel": name})


def step(trainer: Any, shared: bool) -> None:
    """One update of one made-up group, half of it right."""
    from rollcast.engine.edges import SampledGroup, SampledRollout

    rng = Random(0)

    def draw(count: int) -> list[int]:
        return [rng.randrange(trainer.vocab_size) for _ in range(count)]

    rollouts = [
        SampledRollout(
            draw(RESPONSE_TOKENS), [-5.0] * RESPONSE_TOKENS, [0] * RESPONSE_TOKENS, float(i % 2)
        )
        for i in range(GROUP)
    ]
    group = SampledGroup(draw(PROMPT_TOKENS), rollouts, [r.reward for r in rollouts])
    trainer.step([group], shared_prefix=shared, version=0)


def _held(model: Any) -> int:
    """Weights, gradients and AdamW's two moments, in the type of the weights."""
    return 4 * sum(int(p.numel() * p.element_size()) for p in model.parameters())


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _mb(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def model_in(path: Path) -> None:
    """Writes a random model of the built-in task, which nobody has to train for the doctor."""
    from rollcast.engine.quiet import no_bars
    from rollcast.engine.tasks.model import build_model
    from rollcast.engine.tasks.tokenizer import build_tokenizer

    with no_bars():
        build_model().save_pretrained(path)
        build_tokenizer().save_pretrained(path)
