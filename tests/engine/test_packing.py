"""Rows of packed sequences: losses and gradients are those of padded rows. Over several ranks:
`test_ranks`."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import build, gradients, make_groups, relative_error
from transformers import AttentionInterface

from rollcast.engine.errors import UnsupportedModelError
from rollcast.engine.options import DAPO, TrainerConfig
from rollcast.engine.trainer import packed
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.microbatch import dense_width, pack_rows, plan_packing
from rollcast.engine.trainer.packed import Segments
from rollcast.engine.trainer.trainer import Trainer
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.fitted import Packing
from tests.laws import examples

SHAPES = [(9, [5, 1, 7, 3, 4]), (2, [14, 6]), (1, [3, 2]), (12, [5])]
KINDS = {
    "qwen3": {},
    "llama": {"tie_word_embeddings": True},
    "qwen3_moe": {},
    "mixtral": {"sliding_window": 4},
    "window": {
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    },
}


def made(kind: str, dtype: Any = None) -> Any:
    return build("qwen3" if kind == "window" else kind, dtype or torch.float64, **KINDS[kind])


def config(packing: Any, **changes: Any) -> TrainerConfig:
    fixed = {"learning_rate": 1e-3, "max_grad_norm": None, "packing": packing}
    return TrainerConfig(**{**fixed, **changes})


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_gradient_is_that_of_padded_rows(kind: str) -> None:
    groups = make_groups(SHAPES, seed=1)
    more: dict[str, Any] = {"checkpoint": "all", "old_log_probs": "trainer"}
    if kind == "qwen3_moe":
        more["router_aux_coefficient"] = 0.1
    for tokens in (40, 10_000):
        given = {**more, "microbatch_tokens": tokens}
        padded = gradients(made(kind), groups, config("never", **given), False)
        rows = gradients(made(kind), groups, config("always", **given), False)
        assert relative_error(rows, padded) < 1e-9


@settings(max_examples=examples(6), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 60),
    st.booleans(),
)
def test_steps_are_those_of_padded_rows(shapes: Any, tokens: int, shared: bool) -> None:
    groups, found = make_groups(shapes, seed=2), {}
    loss = dataclasses.replace(DAPO, drop_zero_variance=False)
    for packing in ("never", "always"):
        given = config(packing, microbatch_tokens=tokens, loss=loss)
        trainer = Trainer(made("llama"), given)
        for _ in range(2):
            metrics = trainer.step(groups, shared_prefix=shared, version=0)
        found[packing] = trainer.weights(), metrics
    (ours, rows), (theirs, padded) = found["always"], found["never"]
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 1e-9
    for name in ("loss", "grad_norm", "entropy", "mismatch_mean"):
        assert getattr(rows, name) == pytest.approx(getattr(padded, name), rel=1e-9, abs=1e-12)
    assert rows.computed_tokens == padded.computed_tokens
    assert rows.padding_tokens <= padded.padding_tokens
    if not shared:
        assert rows.padding_tokens == 0


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 80))
def test_rows_are_filled_within_the_budget(lengths: list[int], budget: int) -> None:
    rollouts = [Example(0, [1], [2] * n, [0.0] * n, [True] * n, 1.0) for n in lengths]
    batches = pack_rows(rollouts, dense_width, budget)
    assert sorted(map(id, (e for batch in batches for e in batch))) == sorted(map(id, rollouts))
    sums = [sum(map(dense_width, batch)) for batch in batches]
    assert all(n <= budget or len(b) == 1 for n, b in zip(sums, batches, strict=True))
    pairs = [a + b for i, a in enumerate(sums) for b in sums[:i]]
    assert all(two > budget for two in pairs)  # no two of them would fit into one


def test_bfloat16_is_as_near_to_the_truth_as_padded_rows() -> None:
    groups = make_groups(SHAPES, seed=1)
    truth = gradients(made("qwen3"), groups, config("never"), False)
    errors = {
        packing: relative_error(
            gradients(made("qwen3", torch.bfloat16), groups, config(packing), False), truth
        )
        for packing in ("never", "always")
    }
    assert errors["always"] < 2 * errors["never"] < 0.05


def test_what_would_run_into_the_next_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("qwen3")
    assert packed.packable(model)
    model.config.layer_types = ["linear_attention", "full_attention"]
    assert not packed.packable(model)
    monkeypatch.setattr("rollcast.engine.trainer.passes.packable", lambda model: False)
    with pytest.raises(UnsupportedModelError, match="no softmax attention") as caught:
        Trainer(made("qwen3"), config("always"))
    assert caught.value.field == "engine.trainer.packing"
    assert not Trainer(made("qwen3"), config("auto"))._passes._packs


def test_a_model_that_gives_other_log_probabilities_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one would whose attention looked at the sequence before."""

    attend = packed.packed_attention

    def through(*given: Any, rollcast_segments: Any, **options: Any) -> Any:
        whole = Segments([rollcast_segments.ids[0].tolist()], torch.device("cpu"))
        return attend(*given, rollcast_segments=whole, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, packed.NAME, through)
    with pytest.raises(UnsupportedModelError, match="other log-probabilities in a packed row"):
        Trainer(made("llama"), config("always"))


def test_packing_is_the_trainers() -> None:
    """Tokens with padding, and microbatches, of a batch whose prefixes are computed together."""
    shapes = [(9, [5, 1, 7]), (4, [6, 2]), (12, [3, 3, 8, 1]), (1, [4, 4]), (6, [9])]
    rows = [
        Example(group, (1,) * prompt, (1,) * n, (0.0,) * n, (True,) * n, 0.0)
        for group, (prompt, responses) in enumerate(shapes)
        for n in responses
    ]
    for together in (1, 14, 100):
        budgets = {"budget_tokens": 20, "suffix_budget_tokens": 15}
        plan = plan_packing(rows, shared_prefix=True, prefix_budget_tokens=together, **budgets)
        fed = Packing(20, 1, 15, together).fed(TrainLoad(shapes, shared_prefix=True))
        assert fed[:2] == (plan.tokens + plan.padding_tokens, plan.microbatches)
