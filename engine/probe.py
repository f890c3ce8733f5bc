"""Times the trainer and the engine on made-up work of many shapes.

The batches of a run are all alike, so the cost of an update per token, microbatch and rollout, or
of an iteration per prompt and prompt token, cannot be told apart from it. A probe varies them, in
random order, for two to three minutes, with speed probes between. Where replica and trainer have
processes of their own it also measures, in a minute, how they slow each other
(`engine.actors.beside`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from rollcast.engine.config import RunSpec
from rollcast.engine.edges import Engine, SampledGroup, SampledRollout, TrainMetrics
from rollcast.engine.engines import adapter
from rollcast.engine.log import Iterations
from rollcast.engine.start import start_actors, start_replica, start_task, start_trainer
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.fitted_file import PROBE_BURST, PROBE_SCHEMA, PROBE_UPDATE
from rollcast.simulator.results.schema import PREFIX_PASSES

PROMPT_TOKENS = (128, 512)
"""Prompt lengths beside the task's own, where the model's context has room for them."""

GROUP_SIZES = (4, 8, 16)
RESPONSE_TOKENS = (32, 96)
RESPONSE_SD = 0.7
BATCH_TOKENS = (4_000, 12_000)
WARM_UP = 2
REPEATS = 2

ENGINE_PROMPT_TOKENS = (8, 32, 96, 256)
"""Prompt lengths that the engine is asked, beside the task's own, as the model's context allows."""

ENGINE_ROLLOUTS = (1, 4, 16, 64, 256)
"""Rollouts submitted at once, up to the engine's ``max_seqs`` and to what its KV pool holds."""

ENGINE_NEW_TOKENS = 12
ENGINE_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """One made-up batch. response_tokens: the median of a lognormal; see ``RESPONSE_SD``."""

    groups: int
    group_size: int
    prompt_tokens: int
    response_tokens: int
    shared_prefix: bool


def shapes(own_prompt_tokens: int, context_tokens: int, longest: int) -> list[Shape]:
    """The batches of a probe. longest: tokens of a response."""
    prompts = sorted({own_prompt_tokens, *PROMPT_TOKENS})
    result = []
    for prompt in prompts:
        if prompt != own_prompt_tokens and prompt + longest > context_tokens:
            continue
        for size in GROUP_SIZES:
            for response in RESPONSE_TOKENS:
                for batch in BATCH_TOKENS:
                    groups = max(1, round(batch / (size * (prompt + response))))
                    for shared in (False, True):
                        result.append(Shape(groups, size, prompt, min(response, longest), shared))
    return list(dict.fromkeys(result))


@dataclass(frozen=True, slots=True)
class Burst:
    """Made-up rollouts submitted to the engine at once."""

    rollouts: int
    prompt_tokens: int


def bursts(
    own_prompt_tokens: int, longest_tokens: int, max_seqs: int, kv_tokens: int
) -> list[Burst]:
    """The engine's bursts. longest_tokens: of a prompt with its response."""
    room = longest_tokens - ENGINE_NEW_TOKENS
    prompts = sorted({own_prompt_tokens, *(n for n in ENGINE_PROMPT_TOKENS if n <= room)})
    counts = sorted({min(count, max_seqs) for count in ENGINE_ROLLOUTS})
    return [
        Burst(count, prompt)
        for prompt in prompts
        for count in counts
        if count == 1 or count * (prompt + ENGINE_NEW_TOKENS) <= kv_tokens
    ]


def probe(
    spec: RunSpec,
    on_step: Callable[[int, int], None] | None = None,
    *,
    beside_only: bool = False,
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Times every shape and burst; returns the content of a probe's file.

    on_step: called with the numbers done and in all. beside_only: only how replica and trainer slow
    each other. limit_s: seconds after which no further one is begun; their order is random. Raises
    ScenarioError or EngineError where something cannot start, ScenarioError (``--beside``) where
    these two are not apart.
    """
    adapter(spec.engine.name).prepare(local_files=not isinstance(spec.model, str))
    from rollcast.engine.provenance import provenance

    beside = _beside(spec)
    if beside_only and beside is None:
        message = "needs a replica and a trainer apart from it (cluster.placement: disaggregated)"
        raise ScenarioError("--beside", message)
    done = [] if beside_only else _shapes_and_bursts(spec, on_step, limit_s)
    return {
        "schema": PROBE_SCHEMA,
        "provenance": provenance(spec.engine.device),
        "engine": spec.raw.data.get("engine"),
        "updates": [row for row in done if "layout" in row],
        "bursts": [row for row in done if "iterations" in row],
        **({} if beside is None else {"beside": beside}),
    }


def _shapes_and_bursts(
    spec: RunSpec, on_step: Callable[[int, int], None] | None, limit_s: float | None
) -> list[dict[str, Any]]:
    """A row each, with a speed probe after it."""
    task, path = start_task(spec)
    trainer = start_trainer(spec, path)
    replica = start_replica(spec, path)
    prompt_tokens = len(task.prompt(0, spec.seed).token_ids)
    longest = min(spec.max_new_tokens, 4 * max(RESPONSE_TOKENS))
    context = trainer.context_tokens or prompt_tokens + longest
    limits = replica.limits
    asked = bursts(prompt_tokens, limits.max_model_len, spec.engine.max_seqs, limits.kv_tokens)
    rng = Random(spec.seed)
    wanted: list[Shape | Burst] = [
        *shapes(prompt_tokens, context, longest) * REPEATS,
        *asked * ENGINE_REPEATS,
    ]
    rng.shuffle(wanted)
    done: list[dict[str, Any]] = []
    began_s = time.perf_counter()
    try:
        for number, item in enumerate([*wanted[:WARM_UP], *wanted]):
            if limit_s is not None and time.perf_counter() - began_s > limit_s:
                break
            if isinstance(item, Shape):
                groups = list(_batch(item, trainer.vocab_size, longest, rng))
                metrics = trainer.step(groups, shared_prefix=item.shared_prefix, version=0)
                row = _row(item, groups, metrics)
            else:
                row = {
                    "rollouts": item.rollouts,
                    "prompt_tokens": item.prompt_tokens,
                    "iterations": _burst(replica, item, number, rng),
                }
            if number >= WARM_UP:
                done.append({**row, "pulse": asdict(trainer.pulse())})
                if on_step is not None:
                    on_step(len(done), len(wanted))
    finally:
        replica.shutdown()
    return done


def _beside(spec: RunSpec) -> list[dict[str, Any]] | None:
    """What a replica and the trainer cost each other in processes of their own; None in turns."""
    if spec.shape.colocated:
        return None
    from rollcast.engine.actors.beside import measure

    # Environments take their time: with them no two rounds would have the same iterations. And
    # with another routing no replica could be given the same work again, alone.
    world = start_actors(spec, first_turns=spec.turns is not None, routing="group_affinity")
    try:
        batch = spec.plan.batch
        return [asdict(round_) for round_ in measure(world, batch.groups, batch.group_size)]
    finally:
        world.close()


def _burst(replica: Engine, burst: Burst, number: int, rng: Random) -> dict[str, list[float]]:
    """The iterations of a burst by column, as a run's iterations.csv has them."""
    for index in range(burst.rollouts):
        prompt = [rng.randrange(replica.limits.vocab_size) for _ in range(burst.prompt_tokens)]
        replica.submit(
            f"{number}/{index}",
            prompt,
            max_new_tokens=ENGINE_NEW_TOKENS,
            seed=index,
            ignore_eos=True,
        )
    log, began_s = Iterations(), time.perf_counter()
    while replica.unfinished:
        start_s = time.perf_counter() - began_s
        replica.step()
        assert replica.last_iteration is not None
        log.add(replica.version, start_s, replica.last_iteration)
    return {name: log[name].tolist() for name in PROBE_BURST}


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
        **{name: getattr(metrics, name) for name in (*PROBE_UPDATE, PREFIX_PASSES)},
    }
