"""A trainer over several ranks is the one of a single process: gradients, weights, state, failures.

The ranks are processes over gloo, started once for this file.
"""

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rank_cases import Case, Found, carried, drift, export, fail, looks, lose, train
from rank_processes import RankProcesses
from transformers import AutoModelForCausalLM

from rollcast.engine.adapter_options import LoraConfig
from rollcast.engine.edges import TrainerSave
from rollcast.engine.options import DAPO, GRPO, GSPO, TrainerConfig
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.microbatch import shares
from tests.laws import examples

torch.set_num_threads(1)

LOSSES = {"grpo": GRPO, "dapo": DAPO, "gspo": dataclasses.replace(GSPO, clip_low=0.2, clip_high=9)}
SHAPES = [(6, [5, 1, 8, 3]), (11, [2, 7, 4]), (3, [6, 6]), (1, [4, 2])]
STEP = [SHAPES]


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    processes = RankProcesses(4)
    yield processes
    processes.close()


def largest(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def require_equal(found: Found, truth: Found, within: float = 1e-9) -> None:
    assert largest(found.gradients, truth.gradients) < within
    assert largest(found.weights, truth.weights) < within
    for name in ("loss", "aux_loss", "grad_norm", "clip_fraction", "mean_ratio", "reference_kl"):
        ours, theirs = getattr(found.metrics, name) or 0.0, getattr(truth.metrics, name) or 0.0
        assert ours == pytest.approx(theirs, rel=max(within, 1e-9), abs=max(within, 1e-12)), name
    for name in ("rollouts", "trained_tokens", "masked_tokens", "updates", "computed_tokens"):
        assert getattr(found.metrics, name) == getattr(truth.metrics, name), name


_SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Ragged groups, whole or in parts, in every way to train on them."""
    parts = draw(st.lists(_SHAPES, min_size=1, max_size=2))
    whole = len(parts) == 1
    kind = draw(st.sampled_from(["qwen3", "llama", "qwen3_moe"] if whole else ["qwen3"]))
    config = TrainerConfig(
        loss=LOSSES[draw(st.sampled_from([*LOSSES]))],
        learning_rate=1e-3,
        max_grad_norm=draw(st.sampled_from([None, 0.05])),
        microbatch_tokens=draw(st.sampled_from([1, 17, 10_000])),
        minibatches=draw(st.integers(1, 3)) if whole else 1,
        epochs=draw(st.integers(1, 2)) if whole else 1,
        old_log_probs=draw(st.sampled_from(["sampled", "trainer"])),
        router_aux_coefficient=0.1 if kind == "qwen3_moe" else None,
        checkpoint=draw(st.sampled_from(["none", "prefix", "all"])),
        packing=draw(st.sampled_from(["never", "always"])),
    )
    if kind == "qwen3":
        loss = dataclasses.replace(config.loss, kl_coefficient=draw(st.sampled_from([None, 0.1])))
        config = dataclasses.replace(config, loss=loss)
    tied = {"tie_word_embeddings": draw(st.booleans())}
    shared, by_layer = draw(st.booleans()), draw(st.booleans())
    return Case([parts], kind, config, shared, overrides=tied, by_layer=by_layer)


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(cases(), st.integers(2, 3))
def test_an_update_is_that_of_one_process(ranks: RankProcesses, case: Case, count: int) -> None:
    found, *others = ranks.run(count, train, case)
    truth = train(case, False)
    require_equal(found, truth)
    for other in others:
        assert not other.weights
        assert not other.state
        assert not found.gradients or largest(other.gradients, found.gradients) == 0
        assert other.metrics.loss == found.metrics.loss


@pytest.mark.parametrize("shared", [False, True])
def test_in_float32_it_differs_by_rounding_alone(ranks: RankProcesses, shared: bool) -> None:
    case = Case([STEP], config=TrainerConfig(learning_rate=1e-3), shared=shared, float64=False)
    found, truth = ranks.run(3, train, case)[0], train(case, False)
    scale = max(float(g.abs().max()) for g in truth.gradients.values())
    assert scale > 0.01
    assert largest(found.gradients, truth.gradients) < 1e-6 * max(scale, 1.0)


def likeness(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The cosine between two ways."""
    ours, theirs = (torch.cat([way[name].flatten() for name in sorted(way)]) for way in (a, b))
    return float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))


@pytest.mark.parametrize(("count", "shared"), [(2, False), (4, True)])
def test_mixed_precision_is_one_process_within_its_rounding(
    ranks: RankProcesses, count: int, shared: bool
) -> None:
    """Float32 shards, bfloat16 passes, float32 reduction. At a rate below bfloat16's resolution the
    weights go where float32's go, and bfloat16 weights do not."""
    config = TrainerConfig(learning_rate=2e-5, max_grad_norm=None)
    case = Case([STEP], config=config, float64=False)
    truth = drift(case, 6, ranks=False)
    ours = dataclasses.replace(case, mixed=True, shared=shared)
    found, *others = ranks.run(count, drift, ours, 6)
    pure = drift(dataclasses.replace(case, pure=True), 6, ranks=False)
    off, pure_off = (
        max(abs(a - b) for a, b in zip(other.losses, truth.losses, strict=True))
        for other in (found, pure)
    )
    assert off < 0.02 < pure_off
    assert likeness(found.moved, truth.moved) > 0.95
    assert likeness(pure.moved, truth.moved) < 0.8
    assert found.types == {"torch.float32"}
    (policy,) = found.policies
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert all(other.losses == found.losses for other in others)


@pytest.mark.parametrize("shared", [False, True])
def test_an_update_makes_nothing_whole_but_a_norm(ranks: RankProcesses, shared: bool) -> None:
    """Neither weights, nor gradients, nor moments are gathered outside of FSDP's own passes."""
    case = Case([STEP], float64=False, shared=shared, config=TrainerConfig(minibatches=2))
    for found in ranks.run(2, drift, case, 2):
        assert found.made_whole == 1
        assert found.gathered == [8, 8]  # bytes of a norm in each of two updates


@pytest.mark.parametrize("shared", [False, True])
def test_four_ranks_by_layer_are_one_process(ranks: RankProcesses, shared: bool) -> None:
    """More ranks than some have microbatches for: these make passes of no gradient."""
    config = TrainerConfig(learning_rate=1e-3, microbatch_tokens=17, checkpoint="all")
    if shared:
        config = dataclasses.replace(config, checkpoint="prefix", offload_prefix=True)
    case = Case([[SHAPES[:2]], STEP], config=config, shared=shared)
    require_equal(ranks.run(4, train, case)[0], train(case, False))


@pytest.mark.parametrize("by_layer", [True, False])
def test_adapters_over_ranks_are_those_of_one_process(
    ranks: RankProcesses, by_layer: bool, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="peft is not installed (rollcast[lora])")
    loss = dataclasses.replace(GRPO, kl_coefficient=0.2)
    config = TrainerConfig(loss=loss, lora=LoraConfig(rank=3), learning_rate=1e-2)
    case = Case([STEP], config=config, by_layer=by_layer, shared=True, folder=tmp_path)
    found = ranks.run(3, train, case)[0]
    require_equal(found, train(dataclasses.replace(case, folder=None), False))
    assert found.save is not None
    again = Case([[], STEP], config=config, start=found.save)
    assert largest(train(again, False).weights, found.weights) > 1e-3


def test_more_ranks_than_groups(ranks: RankProcesses) -> None:
    case = Case([[[(5, [3, 4])]]], shared=True, config=TrainerConfig(learning_rate=1e-3))
    require_equal(ranks.run(3, train, case)[0], train(case, False))


def test_each_rank_holds_a_part_of_weights_and_moments(ranks: RankProcesses) -> None:
    found = ranks.run(3, train, Case([STEP]))
    alone = train(Case([STEP]), False)
    for name, tensor in alone.weights.items():
        rows, width = tensor.shape[0], tensor[0].numel()
        part = -(-rows // 3)
        expected = [max(0, min(part, rows - rank * part)) * width for rank in range(3)]
        assert [rank.held[name] for rank in found] == [(size, size) for size in expected], name


def test_a_save_is_gone_on_from_by_any_number_of_ranks(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    config = TrainerConfig(learning_rate=1e-2, minibatches=2, epochs=2, seed=3)
    steps = [[[(4 + n, [3, 5 + n, 2]), (2, [6, 1]), (7, [n + 1])]] for n in range(4)]
    truth = train(Case(steps, config=config, folder=tmp_path / "truth"), False)
    save: TrainerSave | None = None
    for number, count in enumerate([1, 2, 1, 3]):
        # A case draws its batches by the number of the step: those before are given as none.
        given: Any = [*[[]] * number, steps[number]]
        case = Case(given, config=config, start=save, folder=tmp_path / f"{number}")
        found = train(case, False) if count == 1 else ranks.run(count, train, case)[0]
        save = found.save
        assert len(save.files) == count  # each rank wrote its own
    assert largest(found.weights, truth.weights) < 1e-9
    assert largest(found.state, truth.state) < 1e-9
    assert save.plain == truth.save.plain


def test_several_ranks_keep_one_model(ranks: RankProcesses, tmp_path: Path) -> None:
    case = Case([STEP], float64=False, overrides={"tie_word_embeddings": True})
    trained = ranks.run(2, export, case, tmp_path / "model", "float32")[0]
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(kept).__name__ == "Qwen3ForCausalLM"
    assert largest(dict(kept.state_dict()), trained) == 0


@pytest.mark.parametrize("sent", ["float32", "bfloat16"])
def test_vllms_buckets_carry_the_weights_of_ranks_bit_for_bit(
    ranks: RankProcesses, sent: str
) -> None:
    """Between two processes, of a trainer over three; tied weights go once."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed (engine/engine-cpu.lock)")
    module = Path(found.origin).parent / "distributed" / "weight_transfer" / "packed_tensor.py"
    limit = 4000
    case = Case([STEP], float64=False, mixed=sent == "bfloat16", sends=sent)
    (given, sizes), _, (got, theirs) = ranks.run(3, carried, case, module, limit)
    assert given
    assert [*got] == [*given]
    for name, tensor in given.items():
        assert got[name].dtype == tensor.dtype == getattr(torch, sent)
        assert torch.equal(got[name].view(torch.uint8), tensor.view(torch.uint8))
    assert sizes == theirs
    assert len(sizes) > 3
    largest_bytes = max(tensor.numel() * tensor.element_size() for tensor in given.values())
    assert max(sizes) <= limit + largest_bytes


def test_what_is_asked_without_an_update(ranks: RankProcesses) -> None:
    sequences = [[1, 5, 7, 30, 2], [4, 4, 9]]
    for shared in (False, True):
        case = Case([STEP], shared=shared)
        (plain, responses), *others = ranks.run(2, looks, case, sequences)
        expected, theirs = looks(case, sequences, False)
        flat = [x for row in plain for x in row]
        assert flat == pytest.approx([x for row in expected for x in row], abs=1e-5)
        for ours, truth in zip(responses, theirs, strict=True):
            assert [*map(pytest.approx, truth)] == ours
        assert others == [([], responses)]


TORN = "RuntimeError: no memory left"


@pytest.mark.parametrize(
    ("how", "shared", "count", "kind", "message"),
    [
        ("0", False, 3, "NonFiniteLoss", "is nan"),
        ("8", True, 3, "NonFiniteLoss", "is nan"),
        ("forward", True, 2, "RunError", TORN),
        ("backward", False, 2, "RunError", TORN),
        ("backward", True, 2, "RunError", TORN),
        ("gradient", False, 2, "NonFiniteLoss", "the norm of the gradient is"),
    ],
)
def test_what_fails_in_one_rank_fails_in_all_and_leaves_nothing(
    ranks: RankProcesses, how: str, shared: bool, count: int, kind: str, message: str
) -> None:
    config = TrainerConfig(learning_rate=1e-2)
    if how.isdecimal():
        config = dataclasses.replace(config, minibatches=2, epochs=2)
    by_layer = how.isdecimal() or how == "gradient"
    case = Case([STEP], shared=shared, config=config, by_layer=by_layer)
    found = ranks.run(count, fail, case, how)
    raised, said, off = found[0]
    assert {(kind_, said_) for kind_, said_, _ in found} == {(kind, said)}
    assert raised == kind
    assert message in said
    assert off == 0.0


def example(group: int, prompt: int, response: int) -> Example:
    return Example(group, [1] * prompt, [2] * response, [0.0] * response, [True] * response, 1.0)


@settings(max_examples=examples(200), deadline=None)
@given(_SHAPES, st.integers(1, 6), st.booleans())
def test_shares_are_a_balanced_partition(shapes: Any, count: int, shared: bool) -> None:
    examples = [example(g, p, r) for g, (p, rs) in enumerate(shapes) for r in rs]
    found = shares(examples, count, shared_prefix=shared)
    assert len(found) == count
    assert sorted(map(id, (e for share in found for e in share))) == sorted(map(id, examples))
    for share in found:
        assert [*share] == [e for e in examples if e in share]
    if shared:
        for group in range(len(shapes)):
            assert sum(any(e.group == group for e in share) for share in found) == 1
    else:
        loads = [sum(e.input_tokens for e in share) for share in found]
        most = max(e.input_tokens for e in examples)
        assert max(loads) - min(loads) <= most


def test_a_rank_that_dies_is_said_by_the_others(ranks: RankProcesses) -> None:
    """The last of all tests here: the process is not replaced."""
    with pytest.raises(EOFError):
        ranks.run(2, lose, Case([STEP]))
    # The pipe of the lost one is at its end; the other one has answered.
    said, trouble = ranks.answer(0)
    assert not trouble
    assert "rank 0 cannot go on with the others" in said
