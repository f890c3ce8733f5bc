"""How policies are spelt, and what is said of a spelling that is wrong."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.core.policy import Policy, chain
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import (
    APRIL,
    PODS,
    POLICIES,
    SAGC,
    DynamicSampling,
    OneStepOff,
    PartialRollout,
    PrefixReuse,
    TailBatching,
    build_chain,
    build_policy,
    parse_policy,
    spell,
)
from tests.refusals import refuses

NAN, INF = float("nan"), float("inf")


def rejected(call: Callable[[], object], field: str, *words: str) -> None:
    with refuses(field) as caught:
        call()
    assert all(word in caught.value.message for word in words)


# Values


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("april", "over_sampling", 0.99),
        ("april", "over_sampling", NAN),
        ("april", "surplus", "keep"),
        ("april", "mask_off_policy", 1),
        ("sagc", "candidates", []),
        ("sagc", "candidates", [8, 8]),
        ("sagc", "candidates", [8, 2.5]),
        ("sagc", "lambda0", 11),  # above lambda_max
        ("sagc", "first", 5),  # no candidate
        ("sagc", "seed", 2**64),
        ("pods", "keep", 0),
        ("pods", "keep", "4"),
        ("dynamic_sampling", "refill_groups", "all"),
        ("fully_async", "max_staleness", -0.5),
        ("seer", "window", 0),
        ("longest_first", "predictor", "none"),
        ("difficulty", "hard", 0.95),  # not below easy
        ("colocate_async", "max_staleness", 0.5),
    ],
)
def test_a_value_out_of_range_names_its_key(name: str, key: str, value: Any) -> None:
    rest = {"keep": 4} if name == "pods" else {}
    calls: list[Callable[[], object]] = [lambda: POLICIES[name](**(rest | {key: value}))]
    if value is not None:
        calls.append(lambda: build_policy(name, rest | {key: value}))
    for call in calls:
        with pytest.raises(ScenarioError) as caught:
            call()
        assert caught.value.field.partition("[")[0] == f"policy.{name}.{key}"  # or an entry of it


def test_a_parameter_set_to_null_counts_as_left_out_where_null_means_nothing() -> None:
    assert build_policy("april", {"over_sampling": None}) == APRIL()
    assert build_policy("dynamic_sampling", {"surplus": None}) == DynamicSampling(surplus=None)
    rejected(lambda: build_policy("pods", {"keep": None}), "policy.pods.keep", "missing")


# Names


def test_an_unknown_policy_or_parameter_is_named_with_the_nearest() -> None:
    rejected(lambda: build_policy("aprill"), "policy.aprill", "did you mean april?")
    rejected(lambda: build_policy("dapo"), "policy.dapo", "dapo_filter")
    rejected(lambda: build_policy("zzz"), "policy.zzz", "valid: april", "tail_batching")
    rejected(
        lambda: build_policy("april", {"oversampling": 2}),
        "policy.april.oversampling",
        "did you mean over_sampling?",
    )
    rejected(lambda: build_policy("prefix_reuse", {"on": True}), "policy.prefix_reuse.on")
    rejected(lambda: build_policy("april", {3: 2}), "policy.april.3")  # type: ignore[dict-item]
    rejected(lambda: build_policy(7), "policy.7")  # type: ignore[arg-type]
    rejected(lambda: build_policy("pods"), "policy.pods.keep", "missing")
    rejected(lambda: build_policy("april", [2.0]), "policy.april", "mapping")  # type: ignore[arg-type]


def test_errors_start_with_the_field_given() -> None:
    params = {"over_sampling": 0}
    rejected(
        lambda: build_policy("april", params, "runs[2].policy"),
        "runs[2].policy.april.over_sampling",
    )
    rejected(
        lambda: build_policy("dapo_filter", {"refill_groups": 0}),
        "policy.dapo_filter.refill_groups",
    )


def test_every_policy_has_a_name() -> None:
    names = """april colocate_async difficulty dynamic_sampling fully_async longest_first
        one_step_off partial_rollout pipeline_rl pods prefix_reuse rhyme_rl sagc seer sorted_rl
        streaming tail_batching token_budget dapo_filter"""
    assert list(POLICIES) == names.split()
    for name, kind in POLICIES.items():
        assert type(build_policy(name, {"keep": 2} if name == "pods" else None)) is kind


# Chains


def test_a_list_builds_a_chain_in_its_order() -> None:
    spec = [
        {"april": {"over_sampling": 1.5}},
        "sagc",
        {"pods": {"keep": 4}},
        {"prefix_reuse": None},
    ]
    assert build_chain(spec) == chain(APRIL(1.5), SAGC(), PODS(4), PrefixReuse())
    assert build_chain([]) == build_chain(None) == build_chain(["sync"]) == chain()
    assert build_chain([{"pods": {"keep": 8}}, {"pods": {"keep": 4}}]) == chain(PODS(8), PODS(4))


def test_a_seed_reaches_the_policies_that_draw() -> None:
    spec = ["sagc", {"pods": {"keep": 4, "seed": 3}}, "prefix_reuse"]
    assert build_chain(spec, seed=9) == chain(SAGC(seed=9), PODS(4, seed=3), PrefixReuse())
    assert parse_policy("sagc+pods(keep=4,seed=3)+prefix_reuse", seed=9) == build_chain(
        spec, seed=9
    )


@pytest.mark.parametrize("spec", [{"april": {}}, 5, True])
def test_a_chain_is_a_list(spec: Any) -> None:
    rejected(lambda: build_chain(spec), "policy", "must be a list")


@pytest.mark.parametrize("item", [{}, {"april": {}, "sagc": {}}, 5, None, ["april"]])
def test_an_item_is_one_policy(item: Any) -> None:
    rejected(lambda: build_chain(["sagc", item]), "policy[1]", "one name with its parameters")


# Spellings


def test_a_spelling_builds_a_chain() -> None:
    assert parse_policy("sync") == parse_policy(" sync + sync ") == chain()
    assert parse_policy("april") == chain(APRIL())
    text = "april(over_sampling=1.5, surplus=drop, mask_off_policy=true) + sagc(candidates=[4,8])"
    assert parse_policy(text) == chain(
        APRIL(1.5, "drop", mask_off_policy=True), SAGC(candidates=(4, 8))
    )
    assert parse_policy("pods(keep=4,rule='random')+prefix_reuse()") == chain(
        PODS(4, "random"), PrefixReuse()
    )
    assert parse_policy("dapo_filter(refill_groups=none)") == chain(DynamicSampling())


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "april(", "april()(", "april(2)", "april+", "+april", "april sagc"),
        *("april,sagc", "april-sagc", "one-step-off", "april(**{})", "(lambda: 1)()", "2"),
        *("april(over_sampling=2, over_sampling=3)", "april(over_sampling=__import__('os'))"),
        *("april(over_sampling=1+1j.real)", "april.plan()", "april(over_sampling=(((", "april\x00"),
        *("x" * 5000, "(" * 1500, "sagc(candidates=" + "[" * 900 + "]" * 900 + ")"),
    ],
)
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_policy(text)
    assert caught.value.field.split(".")[0] == "policy"
    assert len(str(caught.value)) < 400


@given(st.text(alphabet="aprilsgcod()+=,[]'\"0123._ \\", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ScenarioError):
        assert parse_policy(text) == parse_policy(f" {text} ")


members = st.one_of(
    st.builds(
        APRIL, st.floats(1, 1000), st.sampled_from(["carry", "train", "drop"]), st.booleans()
    ),
    st.builds(PartialRollout, st.floats(1, 1000)),
    st.builds(TailBatching, st.floats(1, 1000), st.floats(1, 1000)),
)
others = st.one_of(
    st.builds(PODS, st.integers(1, 10**6), st.sampled_from(["max_variance", "random"])),
    st.builds(SAGC, candidates=st.just((2, 8)), alpha=st.floats(0, 1), seed=st.integers(0, 9)),
    st.builds(DynamicSampling, st.none() | st.integers(1, 99), st.just("drained")),
    st.just(PrefixReuse()),
    st.just(OneStepOff()),
)


@given(st.lists(others, max_size=4, unique_by=type), st.none() | members)
def test_a_chain_spells_itself(rest: list[Policy], launcher: Policy | None) -> None:
    built = chain(*rest, *([launcher] if launcher else []))
    assert parse_policy(spell(built)) == built


def test_spellings_are_short() -> None:
    assert spell(chain()) == "sync"
    assert spell(chain(APRIL(), PODS(4))) == "april+pods(keep=4)"
    assert spell(SAGC(candidates=(4, 8))) == "sagc(candidates=[4, 8])"
    assert spell(DynamicSampling(refill_when="drained")) == "dynamic_sampling(refill_when=drained)"
    with pytest.raises(ValueError, match="not among the named"):
        spell(Policy())
