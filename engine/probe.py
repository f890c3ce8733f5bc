"""Times the trainer on made-up batches of many shapes, in every layout.

A synchronous run trains on batches that are all alike, so what an update costs per token, per
microbatch and per rollout cannot be told apart from it, and a layout that it never used not at all.
A probe asks the trainer directly, in about two minutes, without an engine or a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from engine.config import RunSpec
from engine.environment import prepare
from engine.start import start_task, start_trainer
from engine.trainer.batch import SampledGroup, SampledRollout
from simulator.errors import ScenarioError

if TYPE_CHECKING:
    from engine.trainer.config import TrainMetrics

SCHEMA = "rollcast-probe/1"
PROMPT_TOKENS = (128, 512)
"""Prompt lengths beside the task's own, where the model's context has room for them."""

GROUP_SIZES = (4, 8, 16)
RESPONSE_TOKENS = (32, 96)
RESPONSE_SD = 0.7
BATCH_TOKENS = (4_000, 12_000)
WARM_UP = 2
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """One made-up batch. response_tokens: the median of a lognormal; see ``RESPONSE_SD``."""

    groups: int
    group_size: int
    prompt_tokens: int
    response_tokens: int
    shared_prefix: bool


def shapes(own_prompt_tokens: int, context_tokens: int, longest: int) -> list[Shape]:
    """The batches of a probe. longest: cap on a response, tokens."""
    prompts = sorted({own_prompt_tokens, *PROMPT_TOKENS})
    found = []
    for prompt in prompts:
        if prompt != own_prompt_tokens and prompt + longest > context_tokens:
            continue
        for size in GROUP_SIZES:
            for response in RESPONSE_TOKENS:
                for batch in BATCH_TOKENS:
                    groups = max(1, round(batch / (size * (prompt + response))))
                    for shared in (False, True):
                        found.append(Shape(groups, size, prompt, min(response, longest), shared))
    return list(dict.fromkeys(found))


def probe(spec: RunSpec, on_update: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Times every shape ``REPEATS`` times, in random order, and returns what a probe's file holds.

    on_update: called with the number done and the number of all. Raises ScenarioError where model
    or trainer cannot be had.
    """
    prepare()
    from engine.provenance import provenance

    task, path = start_task(spec)
    trainer = start_trainer(spec, path)
    config = trainer.model.config
    own = len(task.prompt(0, spec.seed).token_ids)
    longest = min(spec.max_new_tokens, 4 * max(RESPONSE_TOKENS))
    context = int(getattr(config, "max_position_embeddings", own + longest))
    wanted = shapes(own, context, longest) * REPEATS
    rng = Random(spec.seed)
    rng.shuffle(wanted)
    rows: list[dict[str, Any]] = []
    for number, shape in enumerate([*wanted[:WARM_UP], *wanted]):
        groups = list(_batch(shape, config.vocab_size, longest, rng))
        metrics = trainer.step(groups, shared_prefix=shape.shared_prefix, version=0)
        if number >= WARM_UP:
            rows.append(_row(shape, groups, metrics))
            if on_update is not None:
                on_update(len(rows), len(wanted))
    return {
        "schema": SCHEMA,
        "provenance": provenance(spec.engine.device),
        "engine": spec.raw.data.get("engine"),
        "updates": rows,
    }


def _batch(shape: Shape, vocabulary: int, longest: int, rng: Random) -> Iterator[SampledGroup]:
    for _ in range(shape.groups):
        prompt = [rng.randrange(vocabulary) for _ in range(shape.prompt_tokens)]
        rollouts = []
        for index in range(shape.group_size):
            length = round(shape.response_tokens * rng.lognormvariate(0.0, RESPONSE_SD))
            length = min(max(length, 1), longest)
            response = [rng.randrange(vocabulary) for _ in range(length)]
            # Half of a group is right, so that all of it is trained on.
            rollouts.append(
                SampledRollout(response, [-5.0] * length, [0] * length, float(index % 2))
            )
        yield SampledGroup(prompt, tuple(rollouts), tuple(r.reward for r in rollouts))


def _row(shape: Shape, groups: list[SampledGroup], metrics: TrainMetrics) -> dict[str, Any]:
    if metrics.updates == 0:
        raise ScenarioError("engine.trainer", "the probe's batch was not trained on")
    return {
        "layout": "shared_prefix" if shape.shared_prefix else "dense",
        "groups": [[len(g.prompt), [len(r.response) for r in g.rollouts]] for g in groups],
        "rollouts": metrics.rollouts,
        "microbatches": metrics.microbatches,
        "computed_tokens": metrics.computed_tokens,
        "padding_tokens": metrics.padding_tokens,
        "log_prob_s": metrics.log_prob_s,
        "total_s": metrics.total_s,
    }
