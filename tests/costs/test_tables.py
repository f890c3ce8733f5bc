"""Table costs: interpolation of a grid from a provider, here one with a known closed form."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs import Extremes, Iteration, RooflineCost, TablesCost, TrainLoad
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.tables import BATCHES, CONTEXTS, aiconfigurator_provider
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses


@dataclass
class Bilinear:
    """5 ms + 0.02 ms a rollout + 20 ns a token of context; prefill 3 us a token, 0.1 ns a pair."""

    calls: list[tuple[int, int]] = field(default_factory=list)

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        self.calls.append((batch, context_tokens))
        return 5 + 0.02 * batch + 2e-5 * batch * context_tokens

    def prefill_ms(self, batch: int, tokens: int, prefix_tokens: int) -> float:
        pairs = batch * (tokens * prefix_tokens + tokens * (tokens + 1) / 2)
        return 4 + 3e-3 * batch * tokens + 1e-7 * pairs


class Noisy(Bilinear):
    """A table with a dip, as measured tables have."""

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        return super().decode_ms(batch, context_tokens) - (3 if context_tokens == 4096 else 0)


ROOFLINE = RooflineCost(
    load_model("qwen3-8b"), load_gpu("h100-sxm"), trainer_gpus=8, host_s=0.0, host_per_rollout_s=0.0
)


@settings(deadline=None)
@given(batch=st.integers(1, 512), share=st.floats(0, 1))
def test_decode_reproduces_a_bilinear_table(batch: int, share: float) -> None:
    """Exact between knots: such a table is linear in batch at fixed context per rollout."""
    cost = TablesCost(ROOFLINE, Bilinear())
    context = round(batch * (CONTEXTS[0] + share * (CONTEXTS[-1] - CONTEXTS[0])))
    expected = (5 + 0.02 * batch + 2e-5 * context) / 1e3
    assert cost.decode_curve(batch).seconds(context) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None)
@given(batch=st.integers(1, 600), context=st.integers(0, 10**7), more=st.integers(0, 10**6))
def test_a_dip_in_the_table_never_makes_more_context_faster(
    batch: int, context: int, more: int
) -> None:
    curve = TablesCost(ROOFLINE, Noisy()).decode_curve(batch)
    assert curve.ticks(context) <= curve.ticks(context + more)


def test_the_grid_is_read_once_and_only_where_needed() -> None:
    provider = Bilinear()
    cost = TablesCost(ROOFLINE, provider)
    for _ in range(3):
        cost.decode_curve(100)
    assert sorted(provider.calls) == [(b, c) for b in (96, 128) for c in CONTEXTS]


@settings(deadline=None)
@given(
    tokens=st.integers(16, 16_384), computed=st.integers(0, 30_000), decoding=st.integers(0, 200)
)
def test_prefill_reproduces_a_linear_table(tokens: int, computed: int, decoding: int) -> None:
    cost = TablesCost(ROOFLINE, Bilinear())
    pairs = tokens * computed + tokens * (tokens + 1) // 2
    context = decoding * 1000
    work = Iteration(decoding + 1, context + computed + tokens, tokens, pairs, 1, computed + tokens)
    expected = (4 + 3e-3 * (tokens + decoding) + 1e-7 * pairs) / 1e3
    expected += 2e-8 * (context - decoding * CONTEXTS[0])  # decode attention beyond the first knot
    assert cost.mixed_iteration_s(work) == pytest.approx(expected, rel=1e-6)


def test_host_code_is_added_and_the_rest_is_the_roofline() -> None:
    hosted = TablesCost(replace(ROOFLINE, host_s=1e-3, host_per_rollout_s=1e-5), Bilinear())
    plain = TablesCost(ROOFLINE, Bilinear())
    extra_s = hosted.decode_curve(32).seconds(99_999) - plain.decode_curve(32).seconds(99_999)
    assert extra_s == pytest.approx(1e-3 + 32e-5)
    load = TrainLoad([(100, [1000] * 8)])
    assert plain.train(load) == ROOFLINE.train(load)
    assert plain.sync_s == ROOFLINE.sync_s
    assert plain.switch_to_train_s == ROOFLINE.switch_to_train_s
    assert plain.switch_to_rollout_s == ROOFLINE.switch_to_rollout_s


def test_a_host_that_works_ahead_counts_where_it_takes_longer() -> None:
    ahead = TablesCost(replace(ROOFLINE, host_s=8e-3, host_overlaps=True), Bilinear())
    for context in (1_000, 200_000):
        expected = max(8e-3, 5e-3 + 0.02e-3 * 20 + 2e-8 * context)
        assert ahead.decode_curve(20).seconds(context) == pytest.approx(expected)
        work = Iteration(21, context + 64, 64, 64 * 65 // 2, 1, 64)
        alone_s = TablesCost(ROOFLINE, Bilinear()).mixed_iteration_s(work)
        assert ahead.mixed_iteration_s(work) == pytest.approx(max(8e-3, alone_s))


def test_warnings_name_the_ranges_left() -> None:
    cost = TablesCost(ROOFLINE, Bilinear())
    assert cost.warnings(Extremes(512, 10**8, 16_384, 10**6, 32_768)) == []
    said = cost.warnings(Extremes(513, 10**8, 16_385, 10**6, 32_769))
    assert [w.split(":")[0] for w in said] == [
        "513 rollouts running on a replica",
        "32,769 tokens in a rollout",
        "16,385 tokens prefilled in an iteration",
    ]


@pytest.mark.parametrize("grid", [(), (1,), (2, 1), (0, 1), (1, 1)])
def test_grids_rise(grid: tuple[int, ...]) -> None:
    with pytest.raises(ScenarioError, match=r"cost\.tables\.batches"):
        TablesCost(ROOFLINE, Bilinear(), batches=grid)


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiconfigurator_core.sdk.engine", None)
    with refuses("cost.tables", r"pip install 'rollcast\[tables\]'"):
        aiconfigurator_provider(load_model("qwen3-8b"), load_gpu("h100-sxm"), 1)


@pytest.mark.parametrize(("model", "gpu"), [("qwen3-4b", "h100-sxm"), ("qwen3-8b", "mi300x")])
def test_what_has_no_tables_is_named(model: str, gpu: str) -> None:
    with pytest.raises(ScenarioError, match="no tables for"):
        aiconfigurator_provider(load_model(model), load_gpu(gpu), 1)


@pytest.mark.filterwarnings("ignore")
def test_the_real_tables_agree_with_the_roofline() -> None:
    pytest.importorskip(
        "aiconfigurator_core.sdk.engine",
        reason="aiconfigurator is not installed (rollcast[tables])",
    )
    provider = aiconfigurator_provider(ROOFLINE.model, ROOFLINE.gpu, 1)
    cost = TablesCost(ROOFLINE, provider)
    for batch in (1, 24, BATCHES[-1]):
        for context in (1000, 10_000):
            tables_s = cost.decode_curve(batch).seconds(batch * context)
            roofline_s = ROOFLINE.decode_curve(batch).seconds(batch * context)
            assert tables_s == pytest.approx(roofline_s, rel=0.15)
    chunk = Iteration(1, 8192, 4096, 4096 * 4096 + 4096 * 4097 // 2, 1, 8192)
    real_s = provider.prefill_ms(1, 4096, 4096) / 1e3
    assert cost.mixed_iteration_s(chunk) == pytest.approx(real_s, rel=0.10)
    assert ROOFLINE.mixed_iteration_s(chunk) == pytest.approx(real_s, rel=0.15)


def test_tables_price_neither_stages_nor_speculation() -> None:
    with refuses("cluster.pipeline_parallel", "one stage"):
        TablesCost(replace(ROOFLINE, pipeline_parallel=2), Bilinear())
    said = Speculative(method="ngram", tokens=2, acceptance=0.5)
    with refuses("cost.tables.roofline.speculative", "one token a rollout"):
        TablesCost(replace(ROOFLINE, speculative=said), Bilinear())
