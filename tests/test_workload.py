"""Draws hang on their address alone, follow the model, and traces are replayed as they stand."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.values import read
from rollcast.simulator.workload.base import keyed_uniforms
from rollcast.simulator.workload.lengths import Component, LengthModel
from rollcast.simulator.workload.rewards import BetaBernoulli, ConstantReward
from rollcast.simulator.workload.section import WorkloadSection, build_workload
from rollcast.simulator.workload.synthetic import _CACHED_LANES, PromptTokens, SyntheticWorkload
from tests.laws import examples
from tests.refusals import refuses
from tests.scenarios import MINIMAL

LENGTHS = {"family": "lognormal", "median_tokens": 3200, "between_sd": 0.65, "within_sd": 0.3}
SPEC = {
    "batch_groups": 32,
    "group_size": 8,
    "prompt_tokens": 512,
    "max_new_tokens": 16384,
    "lengths": LENGTHS,
    "rewards": {"family": "beta_bernoulli", "mean": 0.5, "between_sd": 0.3},
}


def _built(**changes):
    spec = {**SPEC, **changes}
    return _read({k: v for k, v in spec.items() if v is not None}, seed=3)


def _read(spec, seed, folder=Path()):
    return build_workload(read(WorkloadSection, spec, "workload"), seed, folder)


def _philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 as Salmon et al. (SC 2011) define it, one block of four words."""
    mask = 2**64 - 1
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [
            (right >> 64) ^ counter[1] ^ key[0],
            right & mask,
            (left >> 64) ^ counter[3] ^ key[1],
            left & mask,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
    return counter


def test_uniforms_are_philox_at_their_address():
    drawn = keyed_uniforms(5, 77, (2, 3), block=11, lane=2, attempt=4)
    words = _philox([1, 11, 2, 4], [5, 77]) + _philox([2, 11, 2, 4], [5, 77])
    wanted = [((word >> 12) + 0.5) / 2.0**52 for word in words]
    assert drawn.ravel().tolist() == wanted[:6]


def test_a_longer_first_axis_keeps_the_earlier_uniforms():
    short, long = (keyed_uniforms(5, 77, (n, 4, 3), block=0) for n in (2, 5))
    assert np.array_equal(short, long[:2])
    assert long.min() > 0.0
    assert long.max() < 1.0


@pytest.fixture(scope="module")
def reference():
    """Groups 0..299 drawn in order, 20 rollouts each, by an object that did nothing else."""
    workload = _built()
    return [workload.draw(group, 20) for group in range(300)]


@settings(max_examples=examples(30), deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 299), st.integers(1, 20), st.sampled_from([0, 0, 1, 5])),
        min_size=1,
        max_size=25,
    )
)
def test_a_draw_hangs_on_its_address_alone(reference, asked):
    """Any order, any group size, any other draws in between: the same lengths and rewards."""
    workload = _built()
    for group, size, attempt in asked:
        drawn, wanted = workload.draw(group, size, attempt), reference[group]
        assert drawn.prompt_tokens == wanted.prompt_tokens
        assert len(drawn.new_tokens) == len(drawn.rewards) == size
        if attempt == 0:
            assert drawn.new_tokens == wanted.new_tokens[:size]
            assert drawn.rewards == wanted.rewards[:size]


def test_draws_survive_the_cache_and_a_caller_who_changes_them(reference):
    workload = _built()
    workload.draw(0, 20).new_tokens[0] = -1
    for attempt in range(2 * _CACHED_LANES):
        workload.draw(5, 8, attempt)
    assert len(workload._lanes) <= _CACHED_LANES
    assert workload.draw(0, 20) == reference[0]
    assert copy.deepcopy(workload).draw(7, 3).new_tokens == reference[7].new_tokens[:3]
    huge = workload.draw(0, 8 * _CACHED_LANES + 1)
    assert huge.new_tokens[:20] == reference[0].new_tokens
    assert workload.draw(0, 8 * _CACHED_LANES + 1) == huge


def test_a_restart_keeps_the_prompt_and_draws_its_responses_afresh():
    model = LengthModel.lognormal(1e5, 0.8, 0.2)
    workload = SyntheticWorkload(
        model, BetaBernoulli(0.5, 0.49), PromptTokens(100, 0.5, 1000), 1 << 24, 0
    )
    first, second = (
        [workload.draw(group, 8, attempt) for group in range(1500)] for attempt in (0, 1)
    )
    assert [d.prompt_tokens for d in first] == [d.prompt_tokens for d in second]
    logs = [np.log([d.new_tokens for d in draws]) for draws in (first, second)]
    # Two responses to one prompt correlate by between^2 / (between^2 + within^2), in one attempt
    # and across attempts alike.
    share = 0.64 / 0.68
    across = np.corrcoef(logs[0][:, 0], logs[1][:, 0])[0, 1]
    inside = np.corrcoef(logs[0][:, 0], logs[0][:, 7])[0, 1]
    assert across == pytest.approx(share, abs=0.01)
    assert inside == pytest.approx(share, abs=0.01)
    assert np.corrcoef(logs[0][:-1, 0], logs[0][1:, 0])[0, 1] == pytest.approx(0.0, abs=0.09)
    means = [np.mean([d.rewards for d in draws], axis=1) for draws in (first, second)]
    assert np.corrcoef(*means)[0, 1] > 0.95  # nearly all-or-nothing prompts stay so


@pytest.mark.parametrize("kind", ["lognormal", "gamma", "weibull", "mixture"])
def test_draws_follow_the_marginal_distribution(kind):
    if kind == "mixture":
        parts = (Component("gamma", 60.0, 0.4, 0.5), Component("lognormal", 700.0, 0.3, 0.2))
        model = LengthModel(parts, (0.25, 0.75), runaway=0.05)
    else:
        model = LengthModel((Component(kind, 300.0, 0.5, 0.4),), (1.0,), runaway=0.05)
    workload = SyntheticWorkload(model, ConstantReward(), 8, 1000, 9)
    groups = 20_000
    sample = [workload.draw(group, 1).new_tokens[0] for group in range(groups)]
    at = np.arange(1, 1000)
    above = 1.0 - np.searchsorted(np.sort(sample), at, side="right") / groups
    gap = above - model.marginal(1000).sf(at)
    assert np.abs(gap).max() < 1.95 / math.sqrt(groups)  # Kolmogorov, p = 0.001


def test_drift_lengthens_later_steps_and_leaves_rewards():
    workload = _built(lengths={**LENGTHS, "drift_per_step": 0.05, "runaway": 0.1})
    early, late = workload.draw(4, 20), workload.draw(4, 20, version=10)
    assert late.rewards == early.rewards
    for before, after in zip(early.new_tokens, late.new_tokens, strict=True):
        longer = (before - 1) * math.exp(0.5), before * math.exp(0.5) + 1
        assert longer[0] <= after <= longer[1] or after == 16384
    assert workload.draw(4, 20) == early
    always = _built(lengths={**LENGTHS, "drift_per_step": 1, "runaway": 0.1})
    assert always.draw(4, 3, version=10**6).new_tokens == [16384] * 3
    never = _built(lengths={**LENGTHS, "drift_per_step": -1})
    assert never.draw(4, 3, version=10**6).new_tokens == [1] * 3
    flat = _built()
    assert flat.draw(4, 20, version=10) == flat.draw(4, 20)


def test_prompts_are_drawn_within_their_bounds():
    workload = _built(prompt_tokens={"median_tokens": 300, "sd": 1.0, "max_tokens": 600})
    prompts = [workload.draw(group, 1).prompt_tokens for group in range(3000)]
    assert workload.max_prompt_tokens == max(prompts) == 600
    assert min(prompts) >= 1
    assert np.median(prompts) == pytest.approx(300, rel=0.08)
    assert _built().max_prompt_tokens == _built().draw(0, 1).prompt_tokens == 512


@pytest.mark.parametrize("call", [(-1, 8, 0), (0, 0, 0), (0, 8, -1)])
def test_a_draw_that_makes_no_sense_is_refused(call, tmp_path):
    for workload in (_built(), _trace(tmp_path, GROUPED)):
        with pytest.raises(ValueError, match=r"attempt|no group of 0 rollouts"):
            workload.draw(*call)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "0"])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed):
    with pytest.raises(ScenarioError, match="whole number"):
        _read(SPEC, seed)


GROUPED = "group,index,prompt_tokens,new_tokens,reward\n" + "".join(
    f"{group},{index},{100 + group},{10 * group + index + 1},{index / 4}\n"
    for group in range(3)
    for index in range(4)
)
FLAT = "prompt_tokens,new_tokens\n" + "".join(f"{n},{100 * n}\n" for n in range(1, 11))


def _trace(folder, text, cap=16384, rewards=None, size=4, seed=0, **options):
    (folder / "trace.csv").write_text(text, encoding="utf-8")
    spec = {
        "max_new_tokens": cap,
        "batch_groups": 1,
        "group_size": size,
        "lengths": {"trace": "trace.csv", **options},
        "rewards": rewards,
    }
    return _read(spec, seed, folder)


def test_a_grouped_trace_is_replayed_as_it_stands(tmp_path):
    workload = _trace(tmp_path, GROUPED)
    draw = workload.draw(2, 4)
    assert (draw.prompt_tokens, draw.new_tokens) == (102, [21, 22, 23, 24])
    assert draw.rewards == [0.0, 0.25, 0.5, 0.75]
    assert workload.draw(2, 2).new_tokens == [21, 22]
    assert workload.draw(2, 4, version=9) == draw
    assert (workload.max_new_tokens, workload.max_prompt_tokens) == (16384, 102)
    assert workload.warnings == ()
    again = workload.draw(2, 4, attempt=1)  # another response of the same prompt, with its reward
    assert again.new_tokens == [22, 23, 24, 21]
    assert again.rewards == [0.25, 0.5, 0.75, 0.0]


def test_a_trace_that_is_too_short_says_by_how_much(tmp_path):
    workload = _trace(tmp_path, GROUPED)
    with pytest.raises(ScenarioError, match=r"holds 3 groups .* asked for group 4; .*repeat: true"):
        workload.draw(3, 4)
    with refuses("workload.lengths.trace", "holds 4 rollouts for group 1 and 8 were asked"):
        workload.draw(1, 8)
    repeating = _trace(tmp_path, GROUPED, repeat=True)
    assert repeating.draw(3 * 5 + 1, 4) == repeating.draw(1, 4)


def test_lengths_beyond_the_cap_are_cut_and_counted(tmp_path):
    workload = _trace(tmp_path, GROUPED, cap=21)
    assert workload.draw(2, 4).new_tokens == [21, 21, 21, 21]
    assert workload.warnings == (
        "trace.csv: max_new_tokens (21) cuts 3 of 12 responses, which are longer",
    )


@pytest.mark.parametrize(
    ("share", "cap", "said"), [(30, 500, True), (30, 60, False), (0, 500, False)]
)
def test_a_cap_below_that_of_the_run_is_said(tmp_path, share, cap, said):
    rows = [*range(1, 60), *[60] * share, 60]
    text = "new_tokens\n" + "\n".join(map(str, rows))
    (tmp_path / "trace.csv").write_text(text)
    spec = {"batch_groups": 1, "group_size": 1, "prompt_tokens": 9, "max_new_tokens": cap}
    workload = _read({**spec, "lengths": {"trace": "trace.csv"}}, 0, tmp_path)
    assert any("34% of the responses have exactly 60" in w for w in workload.warnings) == said


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        (
            [[10], [10], [30], [30]],
            1,
            ("2 of 4 groups, whose mean is 10 tokens", "file is 20"),
        ),
        ([[10, 30], [10, 30]], 1, ("2 of 2 groups, at most the first 1 rollout of each",)),
        ([[10, 30], [30, 10], [20, 20]], 1, ()),
    ],
)
def test_a_run_whose_part_of_a_trace_is_unlike_the_whole_says_so(tmp_path, rows, size, said):
    (tmp_path / "t.json").write_text(json.dumps(rows))
    workload = {**MINIMAL["workload"], "batch_groups": 2, "group_size": size}
    workload["lengths"] = {"trace": "t.json"}
    (tmp_path / "s.yaml").write_text(json.dumps({**MINIMAL, "steps": 1, "workload": workload}))
    warnings = simulate(load(tmp_path / "s.yaml")).summary["warnings"]
    about = [warning for warning in warnings if "whole file" in warning]
    assert len(about) == bool(said)
    assert all(part in about[0] for part in said)


def test_a_trace_without_rewards_draws_them_by_address(tmp_path):
    rewards = {"family": "normal", "mean": 0, "within_sd": 1}
    one, other = (_trace(tmp_path, FLAT, rewards=rewards, seed=seed) for seed in (0, 1))
    assert one.draw(0, 4).new_tokens == other.draw(0, 4).new_tokens == [100, 200, 300, 400]
    assert one.draw(1, 4).rewards != other.draw(1, 4).rewards
    assert one.draw(1, 2).rewards == one.draw(1, 4).rewards[:2]
    assert set(_trace(tmp_path, FLAT).draw(0, 4).rewards) <= {0.0, 1.0}
    assert "dealt into 2 groups of 4 consecutive rows, 2 left over" in one.warnings[0]


def test_within_sd_builds_a_group_around_each_request(tmp_path):
    workload = _trace(tmp_path, FLAT, within_sd=0.1, cap=2000, repeat=True)
    draw = workload.draw(6, 400)
    assert draw.prompt_tokens == 7
    logs = np.log(draw.new_tokens)
    assert math.exp(np.median(logs)) == pytest.approx(700, rel=0.03)
    assert logs.std() == pytest.approx(0.1, rel=0.15)
    assert workload.draw(6, 5).new_tokens == draw.new_tokens[:5]
    assert workload.draw(16, 5).prompt_tokens == 7
    assert workload.draw(16, 5).new_tokens != draw.new_tokens[:5]
    assert max(workload.draw(9, 400).new_tokens) <= 2000
    exact = _trace(tmp_path, FLAT, within_sd=0)
    assert exact.draw(2, 3).new_tokens == [300, 300, 300]
    correlated = {"family": "normal", "mean": 0, "within_sd": 1, "length_correlation": 1}
    draw = _trace(tmp_path, FLAT, within_sd=0.1, rewards=correlated).draw(6, 400)
    assert np.corrcoef(np.log(draw.new_tokens), draw.rewards)[0, 1] < -0.99


@pytest.mark.parametrize(
    ("text", "rewards", "options", "field", "says"),
    [
        (GROUPED, None, {"within_sd": 0.2}, "lengths.within_sd", "its own|their own"),
        (GROUPED, {"family": "constant"}, {}, "rewards", "its own rewards"),
        (FLAT, None, {"within_sd": -1}, "lengths.within_sd", "from 0 to 5"),
        (FLAT, None, {"repeat": "yes"}, "lengths.repeat", "true or false"),
        (FLAT, None, {"size": None}, "group_size", "missing"),
        (FLAT, None, {"size": 11}, "lengths.trace", "too few"),
        (
            FLAT,
            {"family": "normal", "mean": 0, "within_sd": 1, "length_correlation": 0.1},
            {},
            "rewards.length_correlation",
            "random effects",
        ),
        (
            FLAT,
            {"family": "normal", "mean": 0, "within_sd": 1, "difficulty_length_correlation": 0.1},
            {"within_sd": 0.1},
            "rewards.difficulty_length_correlation",
            "random effects",
        ),
    ],
)
def test_contradictions_around_a_trace_name_their_key(
    tmp_path, text, rewards, options, field, says
):
    with refuses(f"workload.{field}", says):
        _trace(tmp_path, text, rewards=rewards, **options)


def test_a_trace_brings_its_own_prompts(tmp_path):
    (tmp_path / "t.csv").write_text(FLAT, encoding="utf-8")
    spec = {**SPEC, "lengths": {"trace": str(tmp_path / "t.csv")}}
    with refuses("workload.prompt_tokens", "its own prompt lengths"):
        _read(spec, 0)
