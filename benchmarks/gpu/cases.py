"""The cases, the most telling first: a measurement may be cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollcast.engine.options import Checkpoint, TrainerConfig
from rollcast.simulator.costs.presets.models import Model, load_model

Kind = Literal[
    "facts",
    "matmul",
    "copies",
    "attention",
    "launches",
    "layers",
    "experts",
    "host_adam",
    "gradients",
    "update",
    "plain",
    "log_prob",
    "weights",
    "allocator",
]
Dtype = Literal["float32", "bfloat16"]
Varied = Literal["rows", "tokens", "steps"]
"""Microbatches padded to their own longest row, packed ones, or padded to the longest of a step."""
TINY_TOKENS = 32  # a tiny case has so many times fewer


def shape(spec: Model) -> dict[str, Any]:
    """A model's shape, in the keys of transformers' configurations."""
    return {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied_embeddings,
    }


def tiny_model(model: Model) -> Model:
    """The same family at sizes that run on a CPU within seconds."""
    small = replace(
        model,
        layers=2,
        hidden=64,
        heads=2,
        kv_heads=2,
        head_dim=32,
        intermediate=128,
        vocab=512,
        max_positions=4096,
    )
    return replace(small, experts=8, moe_intermediate=32) if model.experts else small


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement. model: a preset, whose weights are random. groups: of ``rollouts`` with
    prompts and responses of so many tokens. shared: the layout with a shared prefix, together:
    tokens of prefixes that are computed together. dtype: of weights and moments. passes: what
    passes compute in. rows_masked: of the plain trainer, whether rows are padded on the left, by a
    mask. varied, expandable: of the allocator's cases, how the sizes of microbatches differ, and
    whether its segments may grow."""

    name: str
    kind: Kind
    model: str = ""
    prompt: int = 512
    response: int = 512
    rollouts: int = 8
    groups: int = 4
    shared: bool = False
    together: int = 1
    dtype: Dtype = "float32"
    passes: Dtype = "bfloat16"
    microbatch: int = 16384
    checkpoint: Checkpoint = "none"
    head_chunk: int | None = None
    scored: bool = False
    rows_masked: bool = False
    varied: Varied = "rows"
    expandable: bool = False
    tiny: bool = False

    @property
    def spec(self) -> Model:
        """The model's shapes."""
        model = load_model(self.model)
        return tiny_model(model) if self.tiny else model

    @property
    def autocast(self) -> bool:
        """Whether passes cast float32 weights."""
        return self.dtype == "float32" and self.passes == "bfloat16"

    def config(self) -> TrainerConfig:
        """Of our trainer."""
        return TrainerConfig(
            dtype=self.dtype,
            learning_rate=1e-6 if self.dtype == "float32" else 1e-4,
            microbatch_tokens=self.microbatch,
            prefix_microbatch_tokens=self.together,
            checkpoint=self.checkpoint,
            head_chunk_tokens=self.head_chunk,
            autocast=self.autocast,
            old_log_probs="trainer" if self.scored else "sampled",
        )

    @property
    def rows(self) -> int:
        """Rollouts of the largest microbatch."""
        width = self.response if self.shared else self.prompt + self.response - 1
        return min(self._mixed, max(1, self.microbatch // width))

    @property
    def prefixes(self) -> int:
        """Prefixes of a pass over them."""
        return min(self.groups, max(1, self.together // (self.prompt - 1)))

    @property
    def _mixed(self) -> int:
        """Rollouts that may share a microbatch."""
        return self.rollouts * (self.prefixes if self.shared else self.groups)

    @property
    def microbatches(self) -> int:
        """Forward and backward passes of an update, without those over prefixes."""
        parts = -(-self.groups // self.prefixes) if self.shared else 1
        return parts * -(-self._mixed // self.rows)

    def small(self) -> Case:
        """The same of a tiny model and few tokens, for a test on CPUs."""
        tokens = {
            name: max(4, getattr(self, name) // TINY_TOKENS)
            for name in ("prompt", "response", "microbatch")
        }
        if self.together > 1:
            tokens["together"] = max(1, self.together // TINY_TOKENS)
        return replace(self, **tokens, groups=min(2, self.groups), tiny=True)


SMALL, MIDDLE, LARGE, LLAMA = "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "llama-3.2-1b"
MIXTURE = "qwen3-30b-a3b"


def _ceilings() -> Iterator[Case]:
    yield Case(name="facts", kind="facts")
    yield Case(name="matmul", kind="matmul")
    yield Case(name="copies", kind="copies")
    yield Case(name="attention", kind="attention")


def _layouts() -> Iterator[Case]:
    """Prefix reuse against dense, in pairs."""
    layouts = {"dense": 1, "shared": 1, "together": 4096}
    sizes = ((2048, 16, 1), (512, 8, 2), (4096, 16, 1), (1024, 8, 2), (512, 8, 8), (256, 8, 16))
    for prompt, rollouts, groups in sizes:
        for layout, together in layouts.items():
            if layout == "together" and groups == 1:
                continue
            times = f"x{groups}" if groups > 2 else ""
            yield Case(
                name=f"1.5b {prompt}x{rollouts}{times} {layout}",
                kind="update",
                model=MIDDLE,
                prompt=prompt,
                response=256,
                rollouts=rollouts,
                groups=groups,
                shared=layout != "dense",
                together=together,
                microbatch=8192,
            )


def _settings() -> Iterator[Case]:
    """One setting of the 1.5B model after the other."""
    base = Case(name="1.5b", kind="update", model=MIDDLE)
    yield replace(base, name="1.5b 16k all", checkpoint="all", scored=True)
    yield replace(base, name="1.5b 16k none")
    yield replace(base, name="1.5b 4k none", microbatch=4096, groups=2)
    yield replace(base, name="1.5b 4k all", microbatch=4096, checkpoint="all", groups=2)
    yield replace(base, name="1.5b 4k none, whole head", microbatch=4096, head_chunk=4096, groups=2)
    plain = replace(base, kind="plain", groups=2)
    yield replace(plain, name="1.5b plain 4k all", microbatch=4096, checkpoint="all")
    yield replace(plain, name="1.5b plain 4k none", microbatch=4096)
    yield replace(plain, name="1.5b plain 16k all", checkpoint="all")
    yield replace(
        plain, name="1.5b plain 4k all, padded", microbatch=4096, checkpoint="all", rows_masked=True
    )
    one = replace(base, checkpoint="all", prompt=256, groups=1)
    yield replace(one, name="1.5b rows of 16k", response=16128, rollouts=2)
    yield replace(one, name="1.5b rows of 4k", response=3840, rollouts=4)
    yield replace(one, name="1.5b rows of 1k", response=768, rollouts=16)
    yield replace(base, name="1.5b bf16 weights 16k none", dtype="bfloat16")
    yield replace(base, name="1.5b fp32 passes 4k all", passes="float32", groups=1, microbatch=4096)


def _others() -> Iterator[Case]:
    base = Case(name="", kind="update", model=SMALL)
    yield replace(base, name="0.5b 16k none")
    yield replace(base, name="0.5b 16k all", checkpoint="all")
    reuse = replace(base, prompt=2048, response=256, rollouts=16, groups=1, microbatch=16384)
    yield replace(reuse, name="0.5b 2048x16 dense")
    yield replace(reuse, name="0.5b 2048x16 shared", shared=True)
    yield replace(base, name="0.5b plain 4k none", kind="plain", microbatch=4096, groups=2)
    yield replace(base, name="llama 1b 16k none", model=LLAMA)
    yield replace(base, name="llama 1b 4k all", model=LLAMA, microbatch=4096, checkpoint="all")
    four = replace(base, model=LARGE, dtype="bfloat16", checkpoint="all", groups=2)
    yield replace(four, name="4b bf16 weights 8k all", microbatch=8192)
    reuse = replace(four, prompt=2048, response=256, rollouts=8, groups=1, microbatch=4096)
    yield replace(reuse, name="4b 2048x8 dense")
    yield replace(reuse, name="4b 2048x8 shared", shared=True)
    scored = Case(
        name="7b log-probs dense",
        kind="log_prob",
        model="qwen2.5-7b",
        prompt=2048,
        response=256,
        dtype="bfloat16",
        groups=1,
    )
    yield scored
    yield replace(scored, name="7b log-probs shared", shared=True)
    edge = replace(base, model=MIDDLE, groups=2)
    yield replace(edge, name="1.5b plain 16k none", kind="plain")
    yield replace(four, name="4b fp32 weights 4k all", dtype="float32", microbatch=4096, groups=1)


def _late() -> Iterator[Case]:
    yield Case(name="host adam", kind="host_adam")
    yield Case(name="0.5b weights to host", kind="weights", model=SMALL)


def _allocator() -> Iterator[Case]:
    """What PyTorch's allocator needs beyond the peak of what is allocated."""
    base = Case(name="", kind="allocator", model=SMALL, prompt=128, response=896, groups=8)
    base = replace(base, microbatch=2048)
    wide = replace(base, model=MIDDLE, dtype="bfloat16", microbatch=1024)
    shapes = {"0.5b": base, "1.5b bf16": wide, "0.5b all": replace(base, checkpoint="all")}
    varied: tuple[Varied, ...] = ("rows", "tokens", "steps")
    for expandable in (False, True):
        for size, one in shapes.items():
            for how in varied:
                name = f"allocator {size}, {how}{', expandable' if expandable else ''}"
                yield replace(one, name=name, varied=how, expandable=expandable)


def all_cases(tiny: bool = False) -> list[Case]:
    """Every case in its order; ``tiny`` of models and batches for a test on CPUs."""
    first = Case(
        name="gradients",
        kind="gradients",
        model=SMALL,
        prompt=1024,
        response=256,
        groups=1,
        microbatch=4096,
    )
    cases = [*_ceilings(), first, *_layouts()]
    floors = [Case(name="launches", kind="launches")]
    floors.append(Case(name="layers", kind="layers", model=MIDDLE, dtype="bfloat16"))
    floors.append(Case(name="experts", kind="experts", model=MIXTURE, dtype="bfloat16"))
    cases += [*_settings(), *floors, *_others(), *_late(), *_allocator()]
    return [case.small() for case in cases] if tiny else cases
