"""What there is to choose from: splits of GPUs, ties, and what cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.choices import (
    MOST_SPLITS,
    Choice,
    cluster_of,
    enumerated,
    ways_to_split,
)
from rollcast.simulator.planner.planner import question
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.plan_section import PlanSection
from rollcast.simulator.scenario.scenario import outline
from rollcast.simulator.values import read
from tests.planner.test_plan import SCENARIO

OF_TWO = SCENARIO.replace("replicas: 8, tensor_parallel: 1", "replicas: 4, tensor_parallel: 2")
RAW = parse_scenario(OF_TWO)
CLUSTER = cluster_of(outline(RAW), 8)


@given(
    st.integers(1, 600),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(["colocated", "disaggregated"]),
    st.sampled_from([4, 8]),
)
def test_every_split_holds_all_gpus_in_whole_nodes(
    gpus: int, replica: int, placement: str, node: int
) -> None:
    try:
        found = ways_to_split(gpus, replica, placement, node)
    except ScenarioError as error:
        if error.field not in ("gpus", "tensor_parallel"):
            raise
        return
    assert 1 <= len(found) <= MOST_SPLITS + node
    assert len(set(found)) == len(found)
    for replicas, trainer in found:
        assert replicas >= 1
        assert trainer >= 1
        rollout = replicas * replica
        assert (
            (rollout == trainer == gpus)
            if placement == "colocated"
            else (rollout + trainer == gpus)
        )
        if placement == "disaggregated" and gpus > node:
            assert trainer % node == 0


def test_splits_by_hand() -> None:
    assert ways_to_split(16, 4, "colocated", 8) == [(4, 16)]
    assert ways_to_split(24, 4, "disaggregated", 8) == [(4, 8), (2, 16)]
    assert ways_to_split(4, 2, "disaggregated", 8) == [(1, 2)]
    assert ways_to_split(4, 1, "disaggregated", 8) == [(3, 1), (2, 2), (1, 3)]
    for arguments, said in (
        ((12, 1, "colocated", 8), "nodes of 8; take 8 or 16"),
        ((24, 3, "colocated", 8), "do not fit into nodes"),
        ((24, 12, "colocated", 8), "do not fit into nodes"),
        ((4, 8, "colocated", 8), "4 GPUs cannot be divided into replicas of 8"),
        ((8, 8, "disaggregated", 8), "cannot be split"),
    ):
        with pytest.raises(ScenarioError, match=said):
            ways_to_split(*arguments)


def test_the_settings_of_a_choice_are_the_scenarios() -> None:
    choose = {
        "gpus": [16],
        "placement": ["disaggregated"],
        "tensor_parallel": [4],
        "workload.group_size": [8],
    }
    [choice] = enumerated(CLUSTER, choose, ["mine = april"])
    assert isinstance(choice, Choice)
    assert choice.chosen == {
        "gpus": 16,
        "placement": "disaggregated",
        "tensor_parallel": 4,
        "workload.group_size": 8,
        "trainer_gpus": 8,
    }
    scenario = choice.scenario(RAW)
    shape = scenario.shape
    assert (shape.replicas, shape.gpus_per_replica, shape.trainer_gpus) == (2, 4, 8)
    assert scenario.plan.batch.group_size == 8
    assert scenario.policy_name == "mine"
    assert choice.name.endswith("mine = april")


def test_keys_that_go_together_and_keys_alone() -> None:
    both = "cluster.replicas=cluster.trainer_gpus"
    found = enumerated(CLUSTER, {both: [4, 8], "cluster.tensor_parallel": [1, 2]}, ["sync"])
    assert len(found) == 4
    assert [c.settings["cluster.replicas"] for c in found if isinstance(c, Choice)] == [4, 4, 8, 8]


def test_numbers_of_gpus_with_their_kinds() -> None:
    """64 of one kind or 32 of the other, and 8 of the scenario's own."""
    chosen = {"gpus": ["64xh100-sxm", "32 x H200", 8], "placement": ["colocated"]}
    asked = question(RAW, read(PlanSection, {"choose": chosen}, "plan"), ["sync"])
    found = enumerated(asked.cluster, asked.choose, ["sync"])
    held = {
        (scenario.shape.held_gpus, scenario.gpu.name)
        for choice in found
        if isinstance(choice, Choice) and choice.settings["cluster.tensor_parallel"] == 4
        for scenario in [choice.scenario(RAW)]
        if scenario.gpu is not None
    }
    assert held == {(64, "h100-sxm"), (32, "h200-sxm"), (8, RAW.data["gpu"])}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"gpus": ["8xh100", "8 h100-sxm"]}, "the same GPUs twice"),
        ({"gpus": ["8xh100"], "gpu": ["h200-sxm"]}, "give one of them"),
        ({"gpus": ["8xnone"]}, "unknown GPU 'none'"),
        ({"gpus": ["h100"]}, "each alone or with its kind"),
        ({"gpus": ["0xh100"]}, "1 or more"),
        ({"gpus": [True]}, "1 or more"),
    ],
)
def test_gpus_that_cannot_be_chosen(chosen: dict[str, list[object]], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        question(RAW, read(PlanSection, {"choose": chosen}, "plan"))


def test_what_is_not_chosen_stays() -> None:
    found = enumerated(CLUSTER, {"placement": ["colocated", "disaggregated"]}, ["sync"])
    assert [c.settings for c in found if isinstance(c, Choice)] == [
        {
            "cluster.placement": "colocated",
            "cluster.tensor_parallel": 2,
            "cluster.replicas": 4,
            "cluster.trainer_gpus": 8,
        },
        *(
            {
                "cluster.placement": "disaggregated",
                "cluster.tensor_parallel": 2,
                "cluster.replicas": (8 - n) // 2,
                "cluster.trainer_gpus": n,
            }
            for n in (2, 4, 6)
        ),
    ]
    [alone] = enumerated(CLUSTER, {}, ["sync"])
    assert isinstance(alone, Choice)
    assert alone.settings == {}


def test_policies_apart_go_with_gpus_apart() -> None:
    choose = {"placement": ["colocated", "disaggregated"]}
    found = enumerated(CLUSTER, choose, ["sync", "one_step_off"], frozenset({"one_step_off"}))
    kinds = {(c.settings["cluster.placement"], c.policy) for c in found if isinstance(c, Choice)}
    assert ("colocated", "one_step_off") not in kinds
    assert ("disaggregated", "one_step_off") in kinds


def test_a_scenario_whose_own_policy_a_choice_does_not_allow() -> None:
    raw = parse_scenario(OF_TWO.replace("colocated", "disaggregated") + "policy: [one_step_off]")
    [choice] = enumerated(CLUSTER, {"placement": ["colocated"]}, ["sync"])
    assert isinstance(choice, Choice)
    assert choice.scenario(raw).shape.colocated


def test_keys_of_the_scenarios_policy_are_policies() -> None:
    raw = parse_scenario(OF_TWO + "policy: [april: {over_sampling: 2}]")
    section = read(PlanSection, {"choose": {"policy.april.over_sampling": [1.5, 3]}})
    asked = question(raw, section)
    assert [*asked.policies] == ["april(over_sampling=1.5)", "april(over_sampling=3)"]
    assert set(asked.choose) == {"gpus", "placement", "tensor_parallel"}  # left open
    both = read(PlanSection, {"choose": {"policy.april.over_sampling": [1.5], "policy": ["sync"]}})
    with pytest.raises(
        ScenarioError, match=r"choose.policy.april.over_sampling: is a parameter of the"
    ):
        question(raw, both)


def test_other_models_gpus_are_held_too() -> None:
    roles = OF_TWO + "cost: {roofline: {trainer: {reference_gpus: 8}}}\n"
    scenario = outline(parse_scenario(roles))
    cluster = cluster_of(scenario, 8)
    assert (cluster.gpus, cluster.other_gpus) == (16, 8)
    [choice] = enumerated(cluster, {"gpus": [24]}, ["sync"])
    assert isinstance(choice, Choice)
    assert choice.settings["cluster.replicas"] == 8


def test_too_many() -> None:
    with pytest.raises(ScenarioError, match="too many"):
        enumerated(CLUSTER, {"a": list(range(200)), "b": list(range(200))}, ["sync"])


def test_a_label_does_not_hide_the_synchronous_policy() -> None:
    for text, synchronous in (
        ("sync", True),
        ("base = sync", True),
        ("base=sync", True),
        ("base: sync", True),
        ("base:sync", True),
        ("sync()", True),
        ("sync+april", False),
        ("april(over_sampling=1.5)", False),
        ("sync = april", False),
    ):
        assert Choice({}, {}, text).synchronous is synchronous
