"""What the policies beyond one batch at a time bring, in a simulated world of linear costs."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from rollcast.simulator.core.plan import Prompts
from rollcast.simulator.core.spans import TRAINED, Run
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw
from tests.running import run

BATCH, SIZE, STEPS = 8, 4, 12
SHARED: dict[str, Any] = {"placement": "colocated", "replicas": 2}
APART: dict[str, Any] = {"placement": "disaggregated", "replicas": 2, "trainer_gpus": 1}


@cache
def ran(policy: str, apart: bool = False, prompts: int | None = None, seqs: int = 8) -> Run:
    """Twelve steps of 8 x 4 rollouts on two replicas of ``seqs`` slots; the spread of lengths is
    between prompts rather than within one."""
    scenario = from_raw(
        RawScenario(
            {
                "cluster": APART if apart else SHARED,
                "engine": {"max_seqs": seqs, "max_batched_tokens": 512, "kv_tokens": 60_000},
                "workload": {
                    "batch_groups": BATCH,
                    "group_size": SIZE,
                    "prompt_tokens": 20,
                    "max_new_tokens": 2000,
                    "lengths": {
                        "family": "lognormal",
                        "median_tokens": 200,
                        "between_sd": 1.0,
                        "within_sd": 0.2,
                    },
                    "rewards": {"family": "beta_bernoulli", "mean": 0.5, "between_sd": 0.4},
                },
                "cost": {
                    "linear": {
                        "iteration_s": 1e-2,
                        "per_rollout_s": 1e-4,
                        "per_context_token_s": 1e-7,
                        "per_prefill_token_s": 1e-5,
                        "train_per_token_s": 5e-4,
                        "sync_s": 0.1,
                    }
                },
                "steps": STEPS,
            }
        )
    )
    plan = replace(scenario.plan, prompts=Prompts(dataset=prompts))
    return run(scenario.world(), parse_policy(policy, seed=1), plan, STEPS)


def rollout_s(result: Run, steps: range) -> float:
    return sum(result.steps[step].rollout_s for step in steps)


def staleness(result: Run) -> int:
    """The largest number of versions that a token trained on was behind its update."""
    segments = result.segments
    trained = segments["outcome"] == TRAINED
    return int((segments["trained_step"][trained] - segments["version"][trained]).max())


def test_pipeline_rl_computes_nothing_again_and_mixes_versions() -> None:
    piped, restarted = ran("pipeline_rl", apart=True), ran("fully_async", apart=True)
    assert piped.ledger.reprefilled_tokens == 0 < restarted.ledger.reprefilled_tokens
    segments = piped.segments
    whole = segments["finished"].astype(bool)
    assert (segments["versions"][whole] > 1).any()
    assert not segments["resumed"].any()
    assert piped.end_s < ran("one_step_off", apart=True).end_s < ran("sync", apart=True).end_s


def test_longest_first_ends_sooner() -> None:
    policies = ("sync", "seer", "longest_first")
    base, seer, oracle = (rollout_s(ran(each, seqs=3), range(STEPS)) for each in policies)
    assert oracle < seer < 0.95 * base
    for each in policies[1:]:  # the same tokens in another order
        assert ran(each, seqs=3).ledger.trained_tokens == ran("sync", seqs=3).ledger.trained_tokens
    assert staleness(ran("seer")) == 0


def test_rhyme_rl_gains_once_prompts_come_again() -> None:
    epoch = 3 * BATCH
    base, rhyme = ran("sync", prompts=epoch), ran("rhyme_rl", prompts=epoch)
    first, later = range(3), range(3, STEPS)
    assert rollout_s(rhyme, later) < rollout_s(base, later)
    learnt = 1 - rollout_s(rhyme, later) / rollout_s(base, later)
    assert learnt > 1 - rollout_s(rhyme, first) / rollout_s(base, first)
    oracle = rollout_s(ran("longest_first", prompts=epoch), later)
    assert oracle <= rollout_s(rhyme, later)
    assert [record.policy["known_prompts"] for record in rhyme.steps[:5]] == [0, 8, 16, 24, 24]


@pytest.mark.parametrize("mode", ["on_policy", "partial"])
def test_sorted_rl_trains_on_a_load_in_order_of_length(mode: str) -> None:
    result = ran(f"sorted_rl(load=3, mode={mode})", seqs=64)
    segments = result.segments
    trained = segments["outcome"] == TRAINED
    sizes = defaultdict(list)
    for step, group, tokens in zip(
        *(segments[name][trained].tolist() for name in ("trained_step", "group", "total_tokens")),
        strict=True,
    ):
        assert group // (3 * BATCH) == step // 3  # a load is used up before the next one comes
        sizes[step].append(tokens)
    means = [fmean(sizes[step]) for step in range(STEPS)]
    for load in range(0, STEPS, 3):
        assert means[load] < means[load + 1] < means[load + 2]
    if mode == "on_policy":
        assert staleness(result) == 0
        assert result.ledger.dropped_tokens > 0
    else:
        assert 0 < staleness(result) <= 2
        assert result.ledger.dropped_tokens == 0


def test_a_token_budget_bounds_what_a_stay_samples() -> None:
    result = ran("token_budget(tokens=150, over_sampling=4)", seqs=128)
    assert result.segments["new_tokens"].max() == 150
    assert result.ledger.dropped_tokens == 0
    assert staleness(result) > 0
    longest = max(record.rollout_s for record in result.steps[2:])
    assert longest < min(record.rollout_s for record in ran("sync", seqs=128).steps)


def equal(result: Run, steps: range) -> float:
    """The share of groups trained on in these steps whose rewards are all the same."""
    segments = result.segments
    rewards = defaultdict(list)
    for group, step, reward, outcome in zip(
        *(segments[name].tolist() for name in ("group", "trained_step", "reward", "outcome")),
        strict=True,
    ):
        if outcome == TRAINED and step in steps:
            rewards[group].append(reward)
    return fmean(len(set(each)) == 1 for each in rewards.values())


def test_difficulty_leaves_more_groups_with_a_gradient() -> None:
    epoch = 4 * BATCH
    base, chosen = ran("sync", prompts=epoch), ran("difficulty", prompts=epoch)
    assert equal(chosen, range(4)) == equal(base, range(4))  # nothing is known in the first epoch
    assert equal(chosen, range(4, STEPS)) < equal(base, range(4, STEPS)) / 2
    pools = chosen.steps[-2].policy  # the last step found every prompt evicted, and began anew
    assert pools["easy_prompts"] > 0 < pools["hard_prompts"]


def test_streaming_trains_on_the_same_sooner() -> None:
    streamed, base = ran("streaming", apart=True), ran("sync", apart=True)
    assert streamed.end_s < base.end_s
    assert streamed.ledger == base.ledger
    assert staleness(streamed) == 0
    batches = [
        [sorted(group for group, _ in decision["selected"]) for decision in result.decisions]
        for result in (streamed, base)
    ]
    assert batches[0] == batches[1]
    whole = ran(f"streaming(groups={BATCH})", apart=True)
    assert whole.end_s == base.end_s
