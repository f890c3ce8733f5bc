"""The trainer: time against a plain sum, balance, memory, shared prefixes, and real baselines."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.claims.prefix_reuse import activation_bytes_per_token, longest, saved_share
from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.costs.memory.processes import usable_bytes
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.costs.roofline.warnings import of_lengths
from rollcast.simulator.costs.trainer.dealing import Dealing
from rollcast.simulator.costs.trainer.options import LOADED_SHARE
from rollcast.simulator.costs.trainer.packing import Work, pack, prefix_work, suffix_work
from rollcast.simulator.errors import ScenarioError
from tests.data.extract import read, sampled
from tests.laws import examples
from tests.reference.dealing import dealt, dense_work, works_of
from tests.refusals import refuses

QWEN = load_model("qwen3-8b")
H100 = load_gpu("h100-sxm")

GROUPS = st.lists(
    st.tuples(st.integers(0, 800), st.lists(st.integers(1, 3000), max_size=8)),
    min_size=1,
    max_size=8,
)


def phases(trainer: RooflineTrainer, load: TrainLoad) -> dict[str, float]:
    return dict(trainer.train(load).phases_s)


# A byte of an elementwise kernel waits for memory, and to be issued.
# One H100 cannot hold the states of an 8B model: a GPU with room, and otherwise the same.
ROOMY = replace(H100, name="roomy", memory_bytes=400e9)


@settings(max_examples=examples(30), deadline=None)
@given(groups=GROUPS, shared=st.booleans())
def test_passes_are_forwards(groups: list[tuple[int, list[int]]], shared: bool) -> None:
    """The policy's pass for log-probabilities is a forward, and the reference's two of three passes
    are two; a backward with recomputation is three; one GPU exchanges nothing, and nothing takes no
    time."""
    load = TrainLoad(groups, shared_prefix=shared)
    found = phases(RooflineTrainer(QWEN, ROOMY, log_prob_passes=3), load)
    assert bool(found) == bool(load.rollouts)
    if found:
        assert found["log_prob"] == pytest.approx(found["forward"])
        assert found["reference"] == pytest.approx(2 * found["forward"])
        assert found["backward"] == pytest.approx(3 * found["forward"])
        assert "gradient_exchange" not in found


@pytest.mark.parametrize("shared", [False, True])
def test_microbatches_that_compute_longer_than_they_read_add_up(shared: bool) -> None:
    """And no GPU is faster than its peak: 6 N flop a token, and a forward to compute again."""
    small, large = [(2048, [4096] * 4)], [(1024, [3000, 8000])]
    trainer = RooflineTrainer(QWEN, ROOMY, prefix_microbatch_tokens=1)
    each = [phases(trainer, TrainLoad(load, shared))["forward"] for load in (small, large)]
    both = phases(trainer, TrainLoad([*small, *large], shared))
    assert both["forward"] == pytest.approx(sum(each), rel=1e-6)
    tokens = TrainLoad([*small, *large], shared).tokens
    layers = QWEN.attention_parameters + QWEN.dense_mlp_parameters
    least_s = 8 * layers * tokens / ROOMY.bf16_flop_per_s
    assert least_s < both["forward"] + both["backward"] < (5 if shared else 4) * least_s


def test_the_head_computes_logits_of_prompts_where_a_trainer_does() -> None:
    """Their product, of 2 flop a weight of the head, and no log-softmax."""
    load = TrainLoad([(3000, [1000] * 4)])
    every, responses = (
        phases(RooflineTrainer(QWEN, ROOMY, logits_of_prompts=of_prompts), load)["forward"]
        for of_prompts in (True, False)
    )
    product_s = 4 * 3000 * 2 * QWEN.vocab * QWEN.hidden
    product_s /= ROOMY.bf16_flop_per_s * ROOMY.gemm_flop_efficiency
    assert every - responses == pytest.approx(product_s)


def test_layers_are_computed_again_and_the_head_only_in_chunks() -> None:
    load = TrainLoad([(0, [4000] * 4)])
    chunked, whole = (
        phases(RooflineTrainer(QWEN, ROOMY, logits_chunk_tokens=tokens), load)
        for tokens in (1024, None)
    )
    headless = phases(RooflineTrainer(QWEN, ROOMY, logits=False, log_prob_passes=1), load)
    head_s = whole["forward"] - headless["log_prob"]
    assert head_s > 0.1 * whole["forward"]
    assert chunked["backward"] - whole["backward"] == pytest.approx(head_s)


def test_adapters_move_more_in_a_forward_and_compute_less_in_a_backward() -> None:
    load = TrainLoad([(1000, [4000] * 4)])
    bare = {"traffic_per_activation_byte": 0.0, "traffic_per_logit": 0.0}
    full, lora, full_bare, lora_bare = (
        phases(RooflineTrainer(QWEN, ROOMY, weights=w, **keys), load)  # type: ignore[arg-type]
        for keys in ({}, bare)
        for w in ("full", "lora")
    )
    assert lora["forward"] > full["forward"] > full_bare["forward"] == lora_bare["forward"]
    assert {"gradient_exchange", "optimizer"}.isdisjoint(lora)
    # Of a backward that computes again, one product of three; attention computes as much.
    assert 2 / 3 < lora_bare["backward"] / full_bare["backward"] < 0.75


def test_small_microbatches_wait_for_the_host_that_gathers_their_weights() -> None:
    """By layer, forward and microbatch; large ones do not, nor weights that are not sharded."""
    load = TrainLoad([(10, [20])] * 64)
    keys = {"batching": "one_sequence", "launch_s_per_layer": 1e-3}
    for gpus, each_s in ((1, 1e-3), (8, 3e-3)):
        gpu = replace(H100, interconnect_bytes_per_s=1e18) if gpus > 1 else ROOMY
        trainer = RooflineTrainer(QWEN, gpu, gpus, gather_launch_s_per_layer=2e-3, **keys)  # type: ignore[arg-type]
        launched_s = 64 / gpus * QWEN.layers * each_s
        found = phases(replace(trainer, overlap=1.0), load)
        if gpus > 1:
            assert found["forward"] == pytest.approx(launched_s, rel=1e-3)
        else:
            assert found["forward"] >= launched_s
    large = TrainLoad([(1000, [4000] * 8)])
    slow, fast = (
        phases(RooflineTrainer(QWEN, H100, 8, gather_launch_s_per_layer=s), large)["forward"]
        for s in (1e-3, 0.0)
    )
    assert slow == fast


def test_a_reference_that_each_microbatch_loads_takes_as_long_as_its_shard() -> None:
    load = TrainLoad([(10, [20])] * 64)
    kept = RooflineTrainer(
        QWEN, H100, 8, batching="one_sequence", log_prob_passes=2, reference_on_host=True
    )
    loaded = replace(kept, reference_loads="microbatch")
    rate = LOADED_SHARE * H100.host_link_bytes_per_s
    least_s = 8 * 4 * kept.layout.owned_parameters / rate
    found, before = phases(loaded, load), phases(kept, load)
    assert found.pop("reference") == pytest.approx(least_s)
    assert before.pop("reference") < least_s
    assert found == before
    assert "reference" in phases(replace(loaded, log_prob_passes=3), load)


@settings(max_examples=examples(40), deadline=None)
@given(groups=GROUPS, prompt=st.integers(1, 2000), response=st.integers(1, 2000))
def test_rows_padded_to_caps_are_rollouts_as_long_as_these(
    groups: list[tuple[int, list[int]]], prompt: int, response: int
) -> None:
    taught = [prompt_ for prompt_, responses in groups if responses]
    one = RooflineTrainer(QWEN, ROOMY, batching="padded_to_cap", microbatch_rollouts=1)
    longest = max(taught, default=1)
    capped = replace(one, padded_prompt_tokens=prompt, padded_tokens=longest + response)
    most = max((s for _, responses in groups for s in responses), default=0)
    whole = [(max(prompt, longest), [max(response, most)] * len(r)) for _, r in groups]
    assert phases(capped, TrainLoad(groups)) == pytest.approx(phases(one, TrainLoad(whole)))


@settings(max_examples=examples(40), deadline=None)
@given(groups=GROUPS, rows=st.integers(1, 9), budget=st.integers(1, 9000))
def test_passes_before_an_update_have_microbatches_of_their_own(
    groups: list[tuple[int, list[int]]], rows: int, budget: int
) -> None:
    """Those of a trainer whose update has them, and an update as without them."""
    load, keys = TrainLoad(groups), {"log_prob_passes": 2, "launch_s_per_layer": 1e-3}
    for one, own, other in (
        ("packed", {"microbatch_tokens": 2000}, {"microbatch_tokens": budget}),
        ("packed", {"microbatch_rollouts": 2}, {"microbatch_rollouts": rows}),
        ("padded", {"microbatch_rollouts": 2}, {"microbatch_rollouts": rows}),
    ):
        plain = RooflineTrainer(QWEN, ROOMY, batching=one, **own, **keys)  # type: ignore[arg-type]
        scored = replace(plain, **{f"log_prob_{key}": its for key, its in other.items()})  # type: ignore[arg-type]
        alike = {"microbatch_tokens": 10**9, **other}  # rows alone limit a pass
        wanted = phases(replace(plain, **alike), load)  # type: ignore[arg-type]
        before, found = phases(plain, load), phases(scored, load)
        for name in before:
            graded = name in ("log_prob", "reference")
            assert found[name] == pytest.approx((wanted if graded else before)[name])


def test_adapters_that_are_gathered_one_by_one_take_their_launches_but_for_a_reference() -> None:
    load = TrainLoad([(100, [900])] * 64)
    keys = {"weights": "lora", "log_prob_passes": 2, "microbatch_tokens": 2000}
    together = RooflineTrainer(QWEN, H100, 8, launch_s_per_layer=1e-3, **keys)  # type: ignore[arg-type]
    apart = replace(together, adapter_gather_launch_s_per_layer=0.05)
    before, found = phases(together, load), phases(apart, load)
    launched_s = 4 * QWEN.layers * 0.051  # four microbatches
    assert found["log_prob"] == pytest.approx(launched_s, rel=0.1)
    assert found["forward"] + found["backward"] == pytest.approx(4 * launched_s, rel=0.1)
    assert found["reference"] == before["reference"]
    full = replace(apart, weights="full", log_prob_passes=1)
    assert phases(full, load) == phases(replace(full, adapter_gather_launch_s_per_layer=0.0), load)


def test_attention_of_new_lengths_is_built_once_in_log_probs_and_once_in_the_update() -> None:
    load = TrainLoad([(100, [900])] * 64)  # eight rows on each GPU
    keys = {"batching": "one_sequence", "log_prob_passes": 2, "minibatches": 2}
    plain = RooflineTrainer(QWEN, H100, 8, **keys)  # type: ignore[arg-type]
    built = replace(plain, attention_build_s=0.5)
    before, found = phases(plain, load), phases(built, load)
    for name, seconds in before.items():
        added = {"log_prob": 4.0, "backward": 4.0}.get(name, 0.0)
        assert found[name] == pytest.approx(seconds + added), name
    taken = phases(replace(built, log_prob_passes=0), load)  # log-probabilities of the engine
    assert "log_prob" not in taken
    assert taken["backward"] == pytest.approx(found["backward"])
    unsaid = replace(plain, backend="megatron")
    assert len(of_lengths(unsaid)) == 1
    for said in ({"attention_build_s": 0.5}, {"batching": "packed"}, {"backend": "fsdp"}):
        assert of_lengths(replace(unsaid, **said)) == []  # type: ignore[arg-type]


def test_a_host_that_is_slower_takes_longer_to_launch_alone() -> None:
    """A Grace's, where nobody says it: of passes that launches bound, all; of others, nothing."""
    few, many = TrainLoad([(64, [64])]), TrainLoad([(64, [8192] * 8)])
    grace = replace(ROOMY, name="beside a Grace", host_link_bytes_per_s=4.5e11)
    keys = {"batching": "one_sequence", "launch_s_per_layer": 1e-3}
    for load, factor in ((few, figures("grace").launch_factor), (many, 1.0)):
        x86, beside = (
            phases(RooflineTrainer(QWEN, gpu, **keys), load)["forward"]  # type: ignore[arg-type]
            for gpu in (ROOMY, grace)
        )
        assert beside == pytest.approx(factor * x86)
        said = RooflineTrainer(QWEN, grace, host_factor=1.0, **keys)  # type: ignore[arg-type]
        assert phases(said, load)["forward"] == pytest.approx(x86)
    mixture, one = load_model("qwen3-30b-a3b"), {"expert_launch_s": 1e-3, "launch_s_per_layer": 0.0}
    for backend, factor in (("fsdp", 2.6), ("megatron", 1.3)):
        slow, fast = (
            phases(RooflineTrainer(mixture, gpu, 8, backend=backend, **one), few)["forward"]  # type: ignore[arg-type]
            for gpu in (grace, ROOMY)
        )
        assert slow == pytest.approx(factor * fast, rel=0.1)


@pytest.mark.parametrize(
    ("model", "gpu", "share"),
    [
        ("qwen3-8b", "a100-80gb", 1.0),
        ("qwen3-8b", "h100-sxm", 0.63),
        ("qwen3-8b", "gb200", 2.6 * 0.63),
        ("qwen3-30b-a3b", "h100-sxm", 1.0),
    ],
)
def test_launches_measured_beside_an_older_host_are_fewer_seconds_beside_a_newer(
    model: str, gpu: str, share: float
) -> None:
    """Megatron's, of dense layers: what Grace takes is over a Xeon beside an H100. Given ones are
    as they are given."""

    def launch_s(**options: float) -> float:
        keys = {"stack": "verl", "trainer": {"backend": "megatron", **options}}
        section = RooflineSection.from_mapping(keys, "cost.roofline")
        cost = RooflineCost.from_options(load_model(model), load_gpu(gpu), section, trainer_gpus=8)
        return cost.trainer_of._launch_s / load_model(model).layers

    figure = backends_of("verl")["megatron"].options["launch_s_per_layer"]
    assert launch_s() == pytest.approx(share * figure)
    assert launch_s(launch_s_per_layer=1e-3) == pytest.approx(1e-3 * (2.6 if gpu == "gb200" else 1))


def test_a_static_pipeline_pads_packed_microbatches_to_the_longest() -> None:
    """Of 10, 8 and 3 tokens in 12 each, 10 and 8 + 3 are two microbatches of 11."""
    load = TrainLoad([(1, [9, 7, 2])])
    keys = {"backend": "megatron", "microbatch_tokens": 12, "static_pipeline": True}
    piped = RooflineTrainer(QWEN, ROOMY, 2, pipeline_parallel=2, **keys)  # type: ignore[arg-type]
    assert [work[0] for work in piped._microbatches(load)[0]] == [11, 11]
    assert sum(work.padding for work in piped._microbatches(load)[0]) == 1
    alone = RooflineTrainer(QWEN, ROOMY, 1, **keys)  # type: ignore[arg-type]
    assert sorted(work[0] for work in alone._microbatches(load)[0]) == [10, 11]
    longer = replace(piped, microbatch_tokens=8)
    assert [work[0] for work in longer._microbatches(load)[0]] == [10, 10, 10]


@pytest.mark.parametrize(
    ("gpu", "heads", "tokens", "ms"),
    [
        ("h20", 96, 8192, 3.1985),
        ("h20", 64, 8192, 2.0062),
        ("b200", 64, 8192, 0.797),
        ("b200", 64, 32768, 3.096),
        ("gb200", 96, 8192, 1.2792),
        ("gb200", 64, 8192, 0.8857),
        ("h100-sxm", 8, 65536, 1.954),
        ("h100-sxm", 8, 32768, 0.997),
    ],
)
def test_kernels_of_gated_delta_nets_take_what_others_measured(
    gpu: str, heads: int, tokens: int, ms: float
) -> None:
    """A forward of flash-linear-attention with heads of 128 (BENCHMARK_H20.md and _GB200.md of
    FlashKDA, pull requests 3866 and 4078 of FlashInfer), projections aside."""
    model = load_model("qwen3.5-9b")
    kernels = RooflineTrainer(model, load_gpu(gpu), 1)._attention_s(Work(tokens, 0, 0.0))
    each_s = kernels / (model.linear_layers * model.linear_value_heads)
    assert heads * each_s == pytest.approx(1e-3 * ms, rel=0.15)


@settings(max_examples=examples(40), deadline=None)
@given(groups=GROUPS, cap=st.integers(1, 2000), whole=st.booleans())
def test_prompts_of_padded_rows_have_their_cap(
    groups: list[tuple[int, list[int]]], cap: int, whole: bool
) -> None:
    """As if one prompt of each microbatch, or batch, had as many tokens."""
    batching = "padded_to_batch" if whole else "padded"
    one = RooflineTrainer(QWEN, ROOMY, batching=batching, microbatch_rollouts=1)
    capped = replace(one, padded_prompt_tokens=cap)
    longest = [(max(prompt, cap), responses) for prompt, responses in groups]
    assert phases(capped, TrainLoad(groups)) == phases(one, TrainLoad(longest))


@settings(max_examples=examples(40), deadline=None)
@given(groups=GROUPS, minibatches=st.integers(1, 12), gpus=st.sampled_from([4, 8]))
def test_optimiser_steps_are_updates_of_their_share(
    groups: list[tuple[int, list[int]]], minibatches: int, gpus: int
) -> None:
    """The log-prob passes of the whole batch, then every share as an update of its own; shares
    without a rollout take no step."""
    one = RooflineTrainer(QWEN, H100, gpus)
    split = replace(one, minibatches=minibatches)
    load = TrainLoad(groups)
    shares = [TrainLoad(groups[i::minibatches]) for i in range(minibatches)]
    expected: dict[str, float] = {}
    if minibatches == 1:
        expected = phases(one, load)
    elif load.rollouts:
        expected["log_prob"] = phases(one, load)["log_prob"]
        for share in shares:
            for name, seconds in phases(replace(one, log_prob_passes=0), share).items():
                expected[name] = expected.get(name, 0.0) + seconds
    found = phases(split, load)
    assert found == pytest.approx(expected)
    steps = sum(share.rollouts > 0 for share in shares)
    if load.rollouts:
        assert found["optimizer"] == pytest.approx(steps * phases(one, load)["optimizer"])
        assert split.train(load).peak_bytes <= one.train(load).peak_bytes


# --- packing and balance ---


@given(lengths=st.lists(st.integers(1, 500), max_size=40), budget=st.integers(1, 600))
def test_packing_keeps_every_token_and_the_budget(lengths: list[int], budget: int) -> None:
    works = [dense_work(0, n) for n in lengths]
    packed = pack(works_of(works), budget)
    assert sum(w.tokens for w in packed) == sum(lengths)
    assert sum(w.pairs for w in packed) == sum(w.pairs for w in works)
    assert all(w.tokens <= max(budget, max(lengths)) for w in packed)
    for one, following in itertools.pairwise(packed):
        assert one.tokens + following.tokens > budget or following.tokens > budget


@given(lengths=st.lists(st.integers(1, 500), max_size=40), rows=st.integers(1, 9))
def test_packing_keeps_rows(lengths: list[int], rows: int) -> None:
    packed = pack(works_of([dense_work(0, n) for n in lengths]), 10**9, rows)
    parts = [lengths[i : i + rows] for i in range(0, len(lengths), rows)]
    assert [w.tokens for w in packed] == [sum(part) for part in parts]


DEALINGS = st.builds(
    Dealing,
    gpus=st.integers(1, 5),
    batching=st.sampled_from(
        ["packed", "padded", "padded_to_batch", "padded_to_cap", "one_sequence"]
    ),
    balanced=st.booleans(),
    rows=st.integers(0, 3),
    window=st.sampled_from([0, 300]),
    padded_logits=st.booleans(),
    prompt=st.sampled_from([0, 400]),
    capped=st.sampled_from([0, 3000]),
)


@given(groups=GROUPS, one=DEALINGS, other=DEALINGS, budget=st.integers(1, 9000))
def test_a_load_is_dealt_as_if_one_sequence_after_another(
    groups: list[tuple[int, list[int]]], one: Dealing, other: Dealing, budget: int
) -> None:
    """To the last bit, whatever the load was dealt to before."""
    load = TrainLoad(groups)
    for dealing in (one, other, one):
        assert dealing.microbatches(load, budget) == dealt(dealing, load, budget)
        longest = max((sum(pair) for pair in _pairs(groups)), default=1)
        assert dealing.pads or dealing.longest(load) == (longest, 0)


def _pairs(groups: list[tuple[int, list[int]]]) -> list[tuple[int, int]]:
    return [(prompt, response) for prompt, group in groups for response in group]


def gpu_tokens(trainer: RooflineTrainer, load: TrainLoad) -> list[int]:
    assigned = trainer._microbatches(load)
    return [sum(w.tokens for w in works) for works in assigned]


@settings(max_examples=examples(40), deadline=None)
@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=7), gpus=st.integers(1, 3))
def test_balance_is_within_graham_of_the_best(lengths: list[int], gpus: int) -> None:
    """Longest processing time is at most 4/3 - 1/(3m) of the best of all assignments."""
    trainer = RooflineTrainer(QWEN, ROOMY, gpus=gpus)
    held = gpu_tokens(trainer, TrainLoad([(0, lengths)]))
    assert sum(held) == sum(lengths)
    best = min(
        max(sum(n for n, g in zip(lengths, a, strict=True) if g == gpu) for gpu in range(gpus))
        for a in itertools.product(range(gpus), repeat=len(lengths))
    )
    assert max(held) <= (4 / 3 - 1 / (3 * gpus)) * best + 1e-9


def test_shared_prefixes_keep_a_group_on_one_gpu() -> None:
    groups = [(10, [100, 200, 300]), (20, [400]), (30, [50, 60])]
    trainer = RooflineTrainer(QWEN, ROOMY, gpus=8)
    held = sorted(gpu_tokens(trainer, TrainLoad(groups, shared_prefix=True)), reverse=True)
    assert held == [910, 420, 150]  # rows of one width
    dense = gpu_tokens(trainer, TrainLoad(groups))
    assert sorted(dense, reverse=True) == [420, 310, 210, 110, 90, 80]


@given(prompt=st.integers(0, 500), lengths=st.lists(st.integers(1, 500), min_size=1, max_size=9))
def test_shared_prefix_saves_exactly_the_repeated_prompt(prompt: int, lengths: list[int]) -> None:
    dense = [dense_work(prompt, s) for s in lengths]
    shared = [prefix_work(prompt), *(suffix_work(prompt, s) for s in lengths)]
    n = len(lengths)
    assert sum(w.tokens for w in dense) - sum(w.tokens for w in shared) == (n - 1) * prompt
    saved_pairs = sum(w.pairs for w in dense) - sum(w.pairs for w in shared)
    assert saved_pairs == pytest.approx((n - 1) * prompt**2 / 2)


@settings(max_examples=examples(30), deadline=None)
@given(
    groups=st.lists(
        st.tuples(st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=6)),
        min_size=1,
        max_size=4,
    ),
    budget=st.integers(30, 90),
    together=st.sampled_from([1, 25, None]),
)
@example(groups=[(9, [1]), (9, [1, 1]), (9, [1, 8])], budget=30, together=25)
def test_every_pass_of_a_shared_prefix_takes_its_launches_at_least(
    groups: list[tuple[int, list[int]]], budget: int, together: int | None
) -> None:
    """One for prompts that are computed together as rows of one width, longest first, and one for
    each microbatch of their responses, rows of one width too."""
    waiting, passes = sorted(groups, key=lambda group: -group[0]), 0
    while waiting:
        beside, room = [waiting.pop(0)], together or budget // 2
        while waiting and beside[0][0] * (len(beside) + 1) <= room:
            beside.append(waiting.pop(0))
        passes += 1
        lengths = sorted((n for _, responses in beside for n in responses), reverse=True)
        while lengths:
            passes, width, rows = passes + 1, lengths[0], 1
            while rows < len(lengths) and width * (rows + 1) <= budget:
                rows += 1
            del lengths[:rows]
    keys = {"microbatch_tokens": budget, "recompute": "none", "prefix_microbatch_tokens": together}
    trainer = RooflineTrainer(QWEN, ROOMY, shared_launch_s_per_layer=10.0, **keys)  # type: ignore[arg-type]
    shared = phases(trainer, TrainLoad(groups, shared_prefix=True))
    assert shared["forward"] == pytest.approx(10 * QWEN.layers * passes)
    assert shared["backward"] == pytest.approx(2 * shared["forward"])
    dense = TrainLoad(groups)
    assert phases(trainer, dense) == phases(RooflineTrainer(QWEN, ROOMY, **keys), dense)  # type: ignore[arg-type]


@pytest.mark.parametrize("stack", [None, "verl", "slime", "nemo-rl", "trl", "rollcast"])
def test_a_shared_prefix_pays_on_a_gpu_where_prompts_are_long(stack: str | None) -> None:
    """As on an H100 and an H200, one prefix a pass (benchmarks/data/gpu): not with 512 tokens and
    eight responses of 256. Several in a pass wait for no more launches than dense ones."""
    model, gpu = load_model("qwen2.5-1.5b"), load_gpu("h200-sxm")

    def gain(prompt: int, rollouts: int, groups: int, together: int | None = 1) -> float:
        options = {"recompute": "none", "batching": "packed", "microbatch_tokens": 8192}
        options["prefix_microbatch_tokens"] = together  # type: ignore[assignment]
        keys = {"trainer": options} | ({"stack": stack} if stack else {})
        section = RooflineSection.from_mapping(keys, "cost.roofline")
        cost = RooflineCost.from_options(model, gpu, section, trainer_gpus=1)
        load = [(prompt, [256] * rollouts)] * groups
        dense, shared = (cost.trainer_of.train(TrainLoad(load, s)).total_s for s in (False, True))
        return dense / shared

    # NeMo-RL's dense passes take a log-softmax of prompts, too, kernel by kernel.
    assert gain(512, 8, 2) < 1 or stack == "nemo-rl"
    assert gain(512, 8, 16, together=None) > 1
    assert 2 < gain(2048, 16, 1) < gain(4096, 16, 1)


def test_speed_up_of_a_shared_prefix_stays_below_its_token_bound() -> None:
    load = [(10_240, [2048] * 16)] * 8
    trainer = RooflineTrainer(load_model("qwen3-4b"), H100, gpus=8)
    dense, shared = (trainer.train(TrainLoad(load, shared_prefix=s)).total_s for s in (False, True))
    bound = 16 * 12_288 / (10_240 + 16 * 2048)
    assert 2 < dense / shared < bound


# --- memory ---


@settings(max_examples=examples(30), deadline=None)
@given(gpus=st.integers(3, 64), recompute=st.sampled_from(["full", "none"]))
def test_the_largest_microbatch_is_the_largest(gpus: int, recompute: str) -> None:
    trainer = RooflineTrainer(QWEN, H100, gpus=gpus, recompute=recompute)  # type: ignore[arg-type]
    tokens = trainer.largest_microbatch_tokens()
    usable = usable_bytes(H100)
    assert trainer.peak_bytes(tokens) <= usable < trainer.peak_bytes(tokens + 2)
    assert trainer.train(TrainLoad([(0, [tokens])])).peak_bytes <= usable
    trainer.train(TrainLoad([(0, [tokens + 2])]))  # more likely not, but that is not clear
    with pytest.raises(ScenarioError, match=f"largest microbatch that fits is {tokens:,} tokens"):
        trainer.train(TrainLoad([(0, [3 * tokens])]))


def test_out_of_memory_says_what_to_change() -> None:
    with pytest.raises(ScenarioError, match="before the first token") as caught:
        RooflineTrainer(QWEN, H100).train(TrainLoad([(1, [1])]))
    assert caught.value.field == "cluster.trainer_gpus"
    assert "sharding" not in str(caught.value)
    with pytest.raises(ScenarioError, match="sharding: fsdp"):
        RooflineTrainer(QWEN, H100, 2, sharding="none").train(TrainLoad([(1, [1])]))
    wide = RooflineTrainer(QWEN, H100, gpus=8, microbatch_tokens=10**6)
    wide.train(TrainLoad([(1, [1])]))  # two tokens fit, however many a microbatch may have
    with refuses("cluster.trainer_gpus", "longest rollout alone, of 1,000,001 tokens"):
        wide.train(TrainLoad([(1, [10**6])]))


def test_the_published_saving_needs_a_prompt_of_six_tenths() -> None:
    """-59.1 % and 17,920 -> 29,696 tokens (arXiv 2606.01143) do not come with their split. At one
    split, 6 : 4, both follow from this model within 4 %; at the paper's 10K / 2K neither does."""
    llama = load_model("llama-3.1-8b")
    budget = 17_920.5 * activation_bytes_per_token(llama)
    assert saved_share(llama, 600, 400) == pytest.approx(0.591, rel=0.04)
    dense, shared = longest(llama, budget, 0.6)
    assert (dense, shared) == (17_920, pytest.approx(29_696, rel=0.04))
    assert saved_share(llama, 10_240, 2048) == pytest.approx(0.797, abs=0.005)
    assert longest(llama, budget, 10 / 12)[1] < 22_000


# --- against measurements ---


def test_prime_rl_memory() -> None:
    """Peak memory of full-weight RL with recomputation on H200, held out: within 15 %."""
    names = {"Qwen3-0.6B": "qwen3-0.6b", "Qwen3-4B-Instruct-2507": "qwen3-4b"}
    names["Qwen3-30B-A3B-Instruct-2507"] = "qwen3-30b-a3b"
    wanted = {"gpu": "NVIDIA H200", "type": "rl", "success": "True", "ac": "Recompute"}
    rows = read(sampled("trainer_baselines"))
    table = [r for r in rows if wanted.items() <= r.items() and not r["lora_rank"]]
    assert len(table) == 4
    for row in table:
        model, tokens = load_model(names[row["model"].removeprefix("Qwen/")]), int(row["seq_len"])
        options = {"log_prob_passes": 0, "microbatch_tokens": tokens}
        trainer = RooflineTrainer(model, load_gpu("h200-sxm"), int(row["num_gpus"]), **options)  # type: ignore[arg-type]
        peak_gib = trainer.peak_bytes(tokens) / 2**30
        assert peak_gib == pytest.approx(float(row["peak_mem_gib"]), rel=0.15)
