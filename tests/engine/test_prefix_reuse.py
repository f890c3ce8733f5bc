"""A shared prefix gives the gradient of dense training.

Documented tolerances, relative to the gradient's norm: 1e-9 in float64; in float32 and bfloat16
each layout against the float64 truth, 2e-5 and 1e-1 for these models (measured: up to 3e-6 and
4e-2), and the shared one off by at most twice as much as the dense one: rounding differs, so
neither is the other's truth. Log-probabilities: 1e-12, 2e-5 and 0.3 (measured: 1e-14, 3e-6, 0.08).
"""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import (
    KINDS,
    MOE_KINDS,
    build,
    gradients,
    make_groups,
    naive_log_probs,
    relative_error,
    response_log_probs,
    weights,
)

from rollcast.engine.errors import UnsupportedModelError
from rollcast.engine.options import GRPO, TrainerConfig
from rollcast.engine.trainer import attention as shared_attention
from rollcast.engine.trainer import kernels, prefix_reuse
from rollcast.engine.trainer.losses import LossTotals, policy_loss
from rollcast.engine.trainer.model import LogProbModel
from rollcast.engine.trainer.moe import Router, RouterBalance
from rollcast.engine.trainer.trainer import Trainer
from tests.laws import examples

torch.set_num_threads(1)

SHAPES = [(9, [5, 1, 7, 3, 4]), (2, [4, 6]), (1, [3, 2]), (12, [5])]
GROUPS = make_groups(SHAPES, seed=1)


def config(**changes: Any) -> TrainerConfig:
    defaults: dict[str, Any] = {"max_grad_norm": None, "suffix_microbatch_tokens": 9}
    return TrainerConfig(**(defaults | changes))


def naive_gradients(model: Any, groups: Any = GROUPS) -> dict[str, Any]:
    """GRPO's gradient, every rollout through the model's own forward by itself."""
    trainer = Trainer(model)
    examples = trainer._examples(groups, 9, None)
    totals = LossTotals.of(examples)
    model.zero_grad()
    for e in examples:
        log_probs = naive_log_probs(model, e.prompt, e.response)
        old = torch.tensor(e.sampled, dtype=log_probs.dtype)
        policy_loss(GRPO, totals, [e], log_probs, old).loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_dense_and_shared_are_the_naive_gradient_in_float64(kind):
    model = build(kind)
    truth = naive_gradients(model)
    for shared in (False, True):
        assert relative_error(gradients(model, GROUPS, config(), shared), truth) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_shared_log_probabilities_are_the_models_own(kind):
    model = build(kind)
    found = response_log_probs(Trainer(model, config()), GROUPS, True)
    for group, rows in zip(GROUPS, found, strict=True):
        for rollout, row in zip(group.rollouts, rows, strict=True):
            with torch.no_grad():
                expected = naive_log_probs(model, group.prompt, rollout.response)
            assert row == pytest.approx(expected.tolist(), abs=1e-12)


VARIANTS = {
    "one suffix a microbatch": {"suffix_microbatch_tokens": 1},
    "all suffixes at once": {"suffix_microbatch_tokens": 1000},
    "each prefix by itself": {"prefix_microbatch_tokens": 1},
    "all prefixes at once, suffixes apart": {
        "prefix_microbatch_tokens": 1000,
        "suffix_microbatch_tokens": 1,
    },
    "cache": {"prefix_backend": "cache"},
    "phase A again": {"checkpoint": "prefix"},
    "all again": {"checkpoint": "all"},
    "offload": {"offload_prefix": True},
    "offload and again": {"offload_prefix": True, "checkpoint": "all"},
    "head in chunks": {"head_chunk_tokens": 3},
}


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_exact(variant, kind):
    changes = VARIANTS[variant]
    if kind in MOE_KINDS:
        changes = {**changes, "router_aux_coefficient": 0.5}
    model = build(kind)
    plain = {k: v for k, v in changes.items() if k == "router_aux_coefficient"}
    truth = gradients(model, GROUPS, config(**plain), False)
    assert relative_error(gradients(model, GROUPS, config(**changes), True), truth) < 1e-12


def test_offloading_leaves_weights_where_they_are(monkeypatch):
    """Under FSDP a copy of those would be another whole model, in host memory."""
    sizes: list[int] = []

    class Counting(torch.autograd.graph.save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            pack = self.pack_hook
            self.pack_hook = lambda kept: (sizes.append(kept.numel()), pack(kept))[1]

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Counting)
    layer = torch.nn.Linear(50, 20)
    with prefix_reuse.offloaded(False):
        layer(torch.ones(3, 50, requires_grad=True)).square().sum().backward()
    assert sorted(sizes) == [60, 150]


ALIKE = [(9, [5, 1]), (9, [3, 4]), (4, [2, 2, 6]), (4, [1, 1, 3]), (9, [2, 2, 4])]
"""Prefixes and rows of the same size, which one call of the kernel takes."""


@settings(max_examples=examples(12), deadline=None)
@example(shapes=ALIKE, dense_tokens=30, suffix_tokens=1000, prefix_tokens=1000)
@example(shapes=ALIKE, dense_tokens=30, suffix_tokens=7, prefix_tokens=20)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1, max_size=5)),
        min_size=1,
        max_size=3,
    ),
    dense_tokens=st.integers(1, 60),
    suffix_tokens=st.integers(1, 30),
    prefix_tokens=st.integers(1, 60),
)
def test_any_shape_is_exact(shapes, dense_tokens, suffix_tokens, prefix_tokens):
    groups = make_groups(shapes, seed=5)
    if all(len({r.reward for r in group.rollouts}) == 1 for group in groups):
        return  # the gradient is 0, and has no relative error
    model = build("llama")
    small = config(
        microbatch_tokens=dense_tokens,
        suffix_microbatch_tokens=suffix_tokens,
        prefix_microbatch_tokens=prefix_tokens,
    )
    truth = gradients(model, groups, config(), False)
    assert relative_error(gradients(model, groups, small, True), truth) < 1e-11


def test_without_phase_c_the_gradient_is_wrong(monkeypatch):
    model = build("qwen3")
    truth = gradients(model, GROUPS, config(), False)
    for parameter in model.parameters():
        parameter.grad = None
    monkeypatch.setattr(prefix_reuse.PrefixReuse, "finish", lambda *_: None)
    assert relative_error(gradients(model, GROUPS, config(), True), truth) > 0.05


TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (1e-1, 0.3)}


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_low_precision_is_as_near_to_the_truth_as_dense(dtype, kind):
    # The truth is that of the rounded weights, so that only the computation is compared.
    low = build(kind, dtype)
    exact = build(kind)
    exact.load_state_dict({k: v.double() for k, v in low.state_dict().items()})
    truth = naive_gradients(exact)
    dense = relative_error(gradients(low, GROUPS, config(), False), truth)
    shared = relative_error(gradients(low, GROUPS, config(), True), truth)
    gradient_tolerance, log_prob_tolerance = TOLERANCE[dtype]
    assert dense < gradient_tolerance
    assert shared < min(gradient_tolerance, 2 * dense)
    found = response_log_probs(Trainer(low, config()), GROUPS, True)
    for rows, expected in zip(found, response_log_probs(Trainer(exact), GROUPS), strict=True):
        for row, wanted in zip(rows, expected, strict=True):
            assert row == pytest.approx(wanted, abs=log_prob_tolerance, rel=0)


def test_autocast_is_as_near_to_the_truth_as_dense():
    single = build("qwen3", torch.float32)
    exact = build("qwen3")
    exact.load_state_dict({k: v.double() for k, v in single.state_dict().items()})
    truth = naive_gradients(exact)
    dense = relative_error(gradients(single, GROUPS, config(autocast=True), False), truth)
    shared = relative_error(gradients(single, GROUPS, config(autocast=True), True), truth)
    assert 1e-4 < dense < 5e-2  # it really computes in bfloat16
    assert shared < 2 * dense
    again = config(autocast=True, checkpoint="all")
    assert relative_error(gradients(single, GROUPS, again, True), truth) < 2 * dense


@pytest.mark.parametrize("kind", MOE_KINDS)
def test_moe_auxiliary_loss_is_one_of_the_whole_batch(kind):
    model, coefficient = build(kind), 0.7
    truth = naive_gradients(model)
    # Every sequence alone, its router logits joined as if it were one long batch.
    logits: list[Any] = []
    for group in GROUPS:
        for rollout in group.rollouts:
            ids = torch.tensor([[*group.prompt, *rollout.response[:-1]]])
            logits.append(model.model(ids, output_router_logits=True).router_logits)
    layers = [torch.cat([sequence[i] for sequence in logits]) for i in range(2)]
    routed = torch.cat(layers).softmax(-1)
    chosen = torch.nn.functional.one_hot(routed.topk(2).indices, 4).sum(1).double().mean(0)
    loss = 4 * (chosen * routed.mean(0)).sum()
    (coefficient * loss).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:  # the head has none
            truth[name] += parameter.grad
    model.zero_grad()

    small = config(router_aux_coefficient=coefficient, microbatch_tokens=20)
    for shared in (False, True):
        assert relative_error(gradients(model, GROUPS, small, shared), truth) < 1e-12
        metrics = Trainer(build(kind), small).step(GROUPS, shared_prefix=shared, version=9)
        assert metrics.aux_loss == pytest.approx(coefficient * loss.item(), rel=1e-9)


def test_router_sums_are_hugging_faces_loss():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    logits = tuple(torch.randn(30, 8) for _ in range(3))
    router = Router(experts=8, top_k=2, coefficient=1.0)
    balance, sums = RouterBalance(router), router.sums(logits, None)
    balance.count(sums)
    expected = load_balancing_loss_func(logits, 8, 2)
    assert balance.loss(sums).item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(RuntimeError, match="counted"):
        RouterBalance(router).loss(sums)


def test_router_coefficient_is_the_models_own_only_where_it_asks_for_it():
    quiet = build("mixtral").config
    assert Router.of(quiet, None) is None
    assert Router.of(build("qwen3").config, 0.5) is None
    asking = build("mixtral", output_router_logits=True, router_aux_loss_coef=0.03).config
    assert Router.of(asking, None) == Router(4, 2, 0.03)


def test_the_models_attention_is_its_own_again_afterwards():
    model = build("qwen3")
    own = model.config._attn_implementation
    trainer = Trainer(model, config())
    trainer.step(GROUPS, shared_prefix=True, version=9)
    assert model.config._attn_implementation == own != shared_attention.NAME
    broken = make_groups(SHAPES, seed=1)
    bad = [float("nan")] * len(broken[0].rollouts[0].response)
    object.__setattr__(broken[0].rollouts[0], "log_probs", bad)
    with pytest.raises(Exception, match="nan"):
        trainer.step(broken, shared_prefix=True, version=9)
    assert model.config._attn_implementation == own


SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("kind", "overrides", "word"),
    [
        ("qwen3", SLIDING, "sliding_attention"),
        ("mixtral", {"sliding_window": 4}, "sliding_attention"),
        ("llama", {"attention_dropout": 0.1}, "dropout"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router noise"),
    ],
)
def test_refuses_what_it_cannot_share_and_trains_it_dense(kind, overrides, word):
    model = build(kind, torch.float32, **overrides)
    trainer = Trainer(model, config())
    with pytest.raises(UnsupportedModelError, match=word):
        trainer.step(GROUPS, shared_prefix=True, version=9)
    assert trainer.step(GROUPS, shared_prefix=False, version=9).updates == 1


def test_refuses_a_model_whose_logits_are_not_its_head():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 61}
    capped = Gemma2Config(**shape, **heads, final_logit_softcapping=0.01)
    with pytest.raises(UnsupportedModelError, match="capping"):
        Trainer(Gemma2ForCausalLM(capped))


def test_refuses_a_cache_with_checkpointing():
    model = build("qwen3")
    trainer = Trainer(model, config(prefix_backend="cache", checkpoint="all"))
    with pytest.raises(UnsupportedModelError, match="cache"):
        trainer.step(GROUPS, shared_prefix=True, version=9)


def test_refuses_a_model_that_gives_other_log_probabilities(monkeypatch):
    # As if suffix positions started at 0: the check on a few tokens must see it.
    plain = LogProbModel.decode

    def lost(self: Any, ids: Any, **kwargs: Any) -> Any:
        kwargs.pop("position_ids", None)
        return plain(self, ids, **kwargs)

    monkeypatch.setattr(LogProbModel, "decode", lost)
    trainer = Trainer(build("qwen3", torch.float32), config())
    with pytest.raises(UnsupportedModelError, match="other log-probabilities"):
        trainer.step(GROUPS, shared_prefix=True, version=9)


def test_phase_c_needs_phase_b():
    reuse = prefix_reuse.PrefixReuse(LogProbModel(build("qwen3")))
    with reuse.engaged():
        prefix = reuse.begin([[1, 2, 3]])
        with pytest.raises(RuntimeError, match="phase B"):
            reuse.finish(prefix)


@pytest.mark.parametrize("trained", ["lm_head", "layers.1"])
def test_frozen_parts_stay_frozen(trained):
    model = build("qwen3", torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    before = weights(model)
    trainer = Trainer(model, config(learning_rate=1e-2))
    trainer.step(GROUPS, shared_prefix=True, version=9)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) is (trained not in name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_fast_kernel_is_trusted_here(dtype):
    chosen = kernels.kernel_for(torch.zeros(1, 1, 1, 16, dtype=dtype))
    assert isinstance(chosen, kernels.CpuFlashKernel)


def test_plain_kernel_in_chunks_is_softmax_attention():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 11, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    scores = kernels.Scores(q, k, v, 8**-0.5, True)
    for kernel in (kernels.PlainKernel(), kernels.PlainKernel(max_scores=2 * 3 * 11 * 4)):
        with torch.no_grad():
            out, lse = kernel.forward(scores)
            found = kernel.backward(scores, grad, out, lse)
        assert torch.allclose(out, expected, atol=1e-12)
        for got, leaf in zip(found, (q, k, v), strict=True):
            assert torch.allclose(got, leaf.grad, atol=1e-12)


class _ForgetsTheMerge(kernels.PlainKernel):
    """A backward that computes its own log-sum-exp: right alone, wrong for merged parts."""

    def backward(self, a, grad, out, lse):
        return super().backward(a, grad, *self.forward(a))


class _Absent(kernels.PlainKernel):
    def forward(self, a):
        raise AttributeError("no such operator")


@pytest.mark.parametrize("kind", [_ForgetsTheMerge, _Absent])
def test_a_wrong_kernel_is_not_trusted(kind):
    cpu = torch.device("cpu")
    assert kernels.agrees_with_plain(kernels.PlainKernel(7), cpu, torch.float32, 16)
    assert not kernels.agrees_with_plain(kind(), cpu, torch.float32, 16)


def test_the_layout_without_a_fast_kernel_is_exact_too(monkeypatch):
    monkeypatch.setattr(shared_attention, "kernel_for", lambda q: kernels.PlainKernel(64))
    model = build("qwen3")
    truth = gradients(model, GROUPS, config(), False)
    assert relative_error(gradients(model, GROUPS, config(), True), truth) < 1e-12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cuda(dtype):
    low = build("qwen3", dtype)
    exact = build("qwen3")
    exact.load_state_dict({k: v.double() for k, v in low.state_dict().items()})
    truth = naive_gradients(exact)
    low = low.to("cuda")
    found = gradients(low, GROUPS, config(offload_prefix=True), True)
    error = relative_error({n: g.cpu() for n, g in found.items()}, truth)
    assert error < max(1e-3, TOLERANCE[dtype][0])  # float32 matrix products may use TF32
