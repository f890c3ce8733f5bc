"""What environments said is in the context that is trained on, and not in the loss."""

import dataclasses
import random
from typing import Any

import pytest
import torch
from tiny_models import build, gradients, make_groups, naive_log_probs, relative_error

from rollcast.engine.options import DAPO, GRPO, GSPO, TrainerConfig
from rollcast.engine.trainer.trainer import Trainer

torch.set_num_threads(1)

LOSSES = {"grpo": GRPO, "dapo": DAPO, "gspo": dataclasses.replace(GSPO, clip_low=0.3, clip_high=9)}


def conversations(noise: float = 0.0) -> list[Any]:
    """Groups of several turns each; ``noise`` is in what nobody sampled."""
    draw, groups = random.Random(1), []
    for group in make_groups([(6, [9, 12, 5]), (4, [11, 8])], seed=2):
        rollouts = []
        for rollout in group.rollouts:
            observed = [place % 4 == 2 or place in (3, 6) for place in range(len(rollout.response))]
            observed[-1] = False
            log_probs = [
                noise * draw.random() if seen else p
                for p, seen in zip(rollout.log_probs, observed, strict=True)
            ]
            rollouts.append(dataclasses.replace(rollout, log_probs=log_probs, observed=observed))
        rewards = [1.0, 0.0, 0.5][: len(rollouts)]
        rollouts = [
            dataclasses.replace(r, reward=reward)
            for r, reward in zip(rollouts, rewards, strict=True)
        ]
        groups.append(dataclasses.replace(group, rollouts=rollouts, baseline_rewards=rewards))
    return groups


def by_hand(model: Any, config: Any, groups: Any) -> dict[str, Any]:
    """The gradient of the loss over sampled tokens alone, rollout by rollout."""
    model.zero_grad()
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    total = sum(len(r.observed) - sum(r.observed) for _, r in rollouts)
    loss = torch.zeros((), dtype=torch.float64)
    for group, rollout in rollouts:
        rewards = torch.tensor(group.baseline_rewards, dtype=torch.float64)
        advantage = (rollout.reward - rewards.mean()) / (rewards.std() + config.advantage_epsilon)
        said = ~torch.tensor(rollout.observed)
        new = naive_log_probs(model, group.prompt, rollout.response)[said]
        log_ratio = new - torch.tensor(rollout.log_probs, dtype=torch.float64)[said]
        if config.sequence_ratio:
            log_ratio = log_ratio.mean().expand_as(log_ratio)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        terms = -torch.minimum(ratio * advantage, clipped * advantage)
        if config.aggregation == "token_mean":
            loss = loss + terms.sum() / total
        else:
            loss = loss + terms.mean() / len(rollouts)
    loss.backward()
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_what_was_sampled(name: str, shared: bool) -> None:
    model = build("qwen3")
    truth = by_hand(model, LOSSES[name], conversations())
    for tokens in (1, 30, 10_000):
        config = TrainerConfig(loss=LOSSES[name], max_grad_norm=None, microbatch_tokens=tokens)
        found = gradients(model, conversations(noise=1e3), config, shared)
        assert relative_error(found, truth) < 1e-9
    unmasked = [
        dataclasses.replace(
            group, rollouts=[dataclasses.replace(r, observed=()) for r in group.rollouts]
        )
        for group in conversations()
    ]
    assert relative_error(gradients(model, unmasked, config, shared), truth) > 1e-3


def test_what_was_observed_is_neither_trained_nor_masked_for_its_age() -> None:
    groups = conversations()
    old = [
        dataclasses.replace(
            group,
            rollouts=[
                dataclasses.replace(r, versions=[0] * 4 + [1] * (len(r.response) - 4))
                for r in group.rollouts
            ],
        )
        for group in groups
    ]
    trainer = Trainer(build("qwen3"), TrainerConfig())
    metrics = trainer.step(old, shared_prefix=False, version=1, mask_before_version=1)
    sampled = sum(not seen for g in groups for r in g.rollouts for seen in r.observed)
    of_old = sum(not seen for g in groups for r in g.rollouts for seen in r.observed[:4])
    assert metrics.trained_tokens == sampled - of_old
    assert metrics.masked_tokens == of_old


def test_a_mask_of_another_length_is_refused() -> None:
    (group, *_) = conversations()
    rollout = dataclasses.replace(group.rollouts[0], observed=[True])
    wrong = dataclasses.replace(group, rollouts=[rollout, *group.rollouts[1:]])
    trainer = Trainer(build("qwen3"), TrainerConfig())
    with pytest.raises(ValueError, match="group 0, rollout 0: 9 tokens, and a mask of 1"):
        trainer.step([wrong], shared_prefix=False, version=0)
