"""Models beside the policy in an update: references, critics and reward models of any size."""

import math
from dataclasses import replace
from typing import Any

import pytest

from rollcast.simulator.costs import RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import GRADES
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from tests.costs.test_parallel import state_bytes

QWEN, SMALL = load_model("qwen3-8b"), "qwen3-0.6b"
H100 = load_gpu("h100-sxm")
LOAD = TrainLoad([(500, [3500] * 16)])


def trainer(**options: Any) -> RooflineTrainer:
    return RooflineTrainer(QWEN, H100, 8, **{"microbatch_tokens": 4000, **options})


def phases(**options: Any) -> dict[str, float]:
    return dict(trainer(**options).train(LOAD).phases_s)


def before_update(**options: Any) -> float:
    """Seconds of all forwards before the update."""
    found = phases(**options)
    return sum(found.get(name, 0.0) for name in GRADES)


def test_a_reference_of_another_size_is_one_more_forward() -> None:
    small = RooflineTrainer(load_model(SMALL), H100, 8, microbatch_tokens=4000)
    forward_s = dict(small.train(LOAD).phases_s)["log_prob"]
    found, bare = phases(reference_model=SMALL), phases()
    assert found.pop("reference") == pytest.approx(forward_s)
    assert found == bare
    same = phases(reference_model="qwen3-8b")
    assert same == pytest.approx(phases(log_prob_passes=2))
    assert same["reference"] == pytest.approx(same["log_prob"])


def test_a_reference_on_gpus_of_its_own_overlaps() -> None:
    bare = phases()["log_prob"]
    alone = RooflineTrainer(QWEN, H100, 2, microbatch_tokens=4000)
    own = dict(alone.train(LOAD).phases_s)["log_prob"]
    assert own > bare
    found = phases(reference_gpus=2)
    assert found["log_prob"] == bare
    assert found["reference"] == pytest.approx(own - bare)  # what it takes beyond the policy's
    assert phases(reference_gpus=8) == phases()
    engine = phases(reference_gpus=2, log_prob_passes=0)
    assert engine["reference"] == pytest.approx(own)  # the policy's are the engine's
    assert "log_prob" not in engine


def test_a_critic_of_another_size() -> None:
    found, bare = phases(critic=True, critic_model=SMALL), phases()
    same = phases(critic=True)
    assert 0 < found["critic"] < sum(same.values()) - sum(bare.values())
    assert 0 < found["values"] < same["values"]
    assert found["log_prob"] == same["log_prob"] == bare["log_prob"]
    apart = phases(critic=True, critic_gpus=8)
    assert sum(apart.values()) == pytest.approx(sum(bare.values()))  # no logits: it is done first
    slow = phases(critic=True, critic_gpus=4)
    assert slow["critic"] > 0
    assert slow["values"] > 0
    assert slow["backward"] == bare["backward"]


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_critic_has_microbatches_of_its_own(gpus: int) -> None:
    """Padded to the caps, where the policy's are packed, in optimiser steps of a part, too: as
    long as rollouts that are all as long as the caps."""
    caps = {"padded_prompt_tokens": 800, "critic_batching": "padded_to_cap"}
    short = TrainLoad([(500, [700 + n]) for n in range(64)])
    long = TrainLoad([(800, [1200])] * 64)
    critic = {"critic": True, "critic_gpus": gpus, "minibatches": 4}
    own = RooflineTrainer(QWEN, H100, 8, microbatch_tokens=8000, padded_tokens=1700, **critic)
    padded, packed = (dict(t.train(short).phases_s) for t in (replace(own, **caps), own))
    full = dict(replace(own, batching="padded_to_cap").train(long).phases_s)
    assert padded["log_prob"] == packed["log_prob"]
    assert sum(padded.values()) > 1.1 * sum(packed.values())
    if gpus == 0:
        assert padded["values"] == pytest.approx(full["values"])
        assert padded["values"] > 1.5 * packed["values"]
        bare = dict(replace(own, critic=False).train(short).phases_s)
        assert padded["forward"] == bare["forward"]
        assert padded["critic"] > sum(packed[n] - bare[n] for n in ("forward", "backward"))


@pytest.mark.parametrize(
    "own",
    [
        {"recompute": "none"},
        {"microbatch_tokens": 4000},
        {"microbatch_rollouts": 1},
        {"sequence_parallel": 1},
    ],
)
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_critic_is_set_by_itself(own: dict[str, Any], gpus: int) -> None:
    """verl, workers/critic/dp_critic.py: checkpointing, microbatches and Ulysses of its own."""
    load = TrainLoad([(500, [700 + n]) for n in range(64)])
    keys: dict[str, Any] = {"critic": True, "critic_gpus": gpus, "sequence_parallel": 2}
    policy = RooflineTrainer(QWEN, H100, 8, microbatch_tokens=8000, **keys)
    critics = {f"critic_{name}": value for name, value in own.items()}
    [(_, trainer)] = replace(policy, **critics).others
    alone = {"microbatch_tokens": None} | own if "microbatch_rollouts" in own else own
    assert {name: getattr(trainer, name) for name in alone} == alone
    split = 1 if gpus else 2  # states of its own GPUs are spread over all
    if "sequence_parallel" not in own:
        assert trainer.sequence_parallel == split
    phases = dict(replace(policy, **critics).train(load).phases_s)
    same = dict(policy.train(load).phases_s)
    policys = ("log_prob", "forward", "backward") if gpus else ("log_prob",)
    assert all(phases[name] == pytest.approx(same[name]) for name in policys)
    if not gpus:
        assert phases["values"] + phases["critic"] != pytest.approx(
            same["values"] + same.get("critic", 0.0)
        )
    with pytest.raises(ScenarioError, match="critic is false"):
        replace(policy, critic=False, critic_gpus=0, **critics)


def test_reward_models_are_forwards_without_logits() -> None:
    bare, judged = phases(log_prob_passes=0), phases(log_prob_passes=0, reward_passes=3)
    valued = phases(log_prob_passes=0, critic=True)
    assert judged.pop("reward") == pytest.approx(3 * valued["values"])
    assert judged == bare
    for name in ("forward", "backward"):
        assert bare[name] < valued[name] < 2 * bare[name]


def test_reward_models_of_another_size() -> None:
    one = phases(reward_passes=1, reward_model=SMALL)["reward"]
    two = phases(reward_passes=2, reward_model=SMALL)["reward"]
    assert 0 < one < phases(reward_passes=1)["reward"]
    assert two == pytest.approx(2 * one, rel=0.01)  # weights are gathered a pass
    assert phases(reward_passes=2, reward_model="qwen3-8b")["reward"] > two


def test_roles_apart_work_at_the_same_time() -> None:
    one = before_update(reference_gpus=2)
    other = before_update(reward_passes=1, reward_gpus=1)
    both = before_update(reference_gpus=2, reward_passes=1, reward_gpus=1)
    assert both == max(one, other) > before_update()


def test_reward_models_on_the_critics_gpus_follow_it() -> None:
    small: dict[str, Any] = {"critic": True, "critic_model": "qwen2.5-3b", "critic_gpus": 1}
    critic, reward = before_update(**small), before_update(reward_passes=1, reward_gpus=1)
    both = {**small, "reward_passes": 1}
    beside = before_update(**both, reward_gpus=1)
    assert beside == max(critic, reward) > before_update()
    assert before_update(**both, reward_with_critic=True) == pytest.approx(critic + reward)


def test_minibatches_leave_the_forwards_before_the_update_as_they_are() -> None:
    options = {"log_prob_passes": 2, "critic": True, "reward_passes": 1}
    load = TrainLoad([(500, [3500] * 4)] * 4)
    once, four = (
        dict(trainer(**options, minibatches=count).train(load).phases_s) for count in (1, 4)
    )
    for name in GRADES:
        assert four[name] == once[name] > 0
    assert four["optimizer"] > once["optimizer"]


def test_memory_beside_the_policy() -> None:
    bare = trainer()
    judged = trainer(reference_model=SMALL, reward_passes=1, reward_model=SMALL)
    valued = trainer(critic=True, critic_model=SMALL)
    apart = trainer(critic=True, critic_gpus=8, reference_gpus=8)
    held = [state_bytes(one) for one in (bare, apart, judged, valued)]
    assert held[0] == held[1] < held[2] < held[3]
    assert math.fsum(judged._trained_bytes) == math.fsum(bare._trained_bytes)
    assert math.fsum(valued._trained_bytes) > math.fsum(bare._trained_bytes)


def test_models_beside_a_split_policy_are_sharded() -> None:
    split = trainer(tensor_parallel=8, critic=True, critic_model="qwen2.5-0.5b", critic_gpus=3)
    assert split.train(LOAD).total_s > 0  # 14 heads, 3 GPUs: neither divides


def test_a_critic_that_does_not_fit_on_its_gpus() -> None:
    with pytest.raises(ScenarioError, match="out of memory"):
        trainer(critic=True, critic_model="llama-3.1-70b", critic_gpus=1).train(LOAD)


def test_gpus_of_their_own_are_paid_for() -> None:
    keys = {
        "model": "qwen3-8b",
        "gpu": "h100-sxm",
        "cluster": {"replicas": 8},
        "workload": {
            "batch_groups": 2,
            "group_size": 4,
            "prompt_tokens": 100,
            "max_new_tokens": 200,
            "lengths": {
                "family": "lognormal",
                "median_tokens": 100,
                "between_sd": 0.5,
                "within_sd": 0.5,
            },
        },
        "steps": 1,
    }
    said = {"reference_gpus": 2, "critic": True, "critic_gpus": 6}
    hours = []
    for options in ({}, said):
        cost = {"roofline": {"trainer": options}}
        summary = simulate(from_raw(RawScenario({**keys, "cost": cost}))).summary
        hours.append((summary["gpus"], summary["gpu_hours"] / summary["makespan_s"] * 3600))
    assert hours == [(8, pytest.approx(8)), (16, pytest.approx(16))]
