"""The scenario of a log as data, and what else its settings say of costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.imported.generation import Engines
from calibration.imported.steps import Steps
from calibration.logs.draft import Part
from calibration.logs.run_log import RunLog
from calibration.logs.settings import Settings, value, whole
from simulator.scenario.file import RawScenario
from simulator.scenario.scenario import Scenario, build_scenario

_FAMILY = {"family": "lognormal", "median_tokens": 1, "between_sd": 0, "within_sd": 0}
TRAINER = "cost.roofline.trainer"


def mapping(parts: Iterable[Part]) -> dict[str, Any]:
    """The nested keys of the parts that have a value."""
    data: dict[str, Any] = {}
    for part in parts:
        if part.value is None:
            continue
        *above, last = part.key.split(".")
        place = data
        for name in above:
            place = place.setdefault(name, {})
        place[last] = part.value
    return data


def built(
    parts: Iterable[Part],
    cost: Mapping[str, Any],
    lengths: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> Scenario:
    """The scenario with these costs, and with drawn lengths in the place of its own. Raises
    ScenarioError."""
    data = mapping(parts)
    data["cost"] = dict(cost)
    counts = data["workload"]
    if lengths is not None or "trace" in counts.get("lengths", {}):
        counts["lengths"] = dict(lengths or _FAMILY)
        counts.setdefault("prompt_tokens", 1)
    return build_scenario(RawScenario(data, name=str(data.get("name", "log")), folder=folder))


def engines_of(scenario: Scenario) -> Engines:
    """The replicas of a scenario."""
    engine = scenario.engine
    return Engines(scenario.shape.replicas, engine.max_seqs, engine.max_batched_tokens,
                   engine.kv_tokens, engine.prefix_caching)  # fmt: skip


def setting(parts: Sequence[Part], key: str) -> Any:
    """The value of a part; None where there is none."""
    return next((part.value for part in parts if part.key == key), None)


def kv_part(parts: Sequence[Part]) -> Part | None:
    """A pool of KV that never runs full, where neither log nor model tells how large it is."""
    if setting(parts, "engine.kv_tokens") is not None:
        return None
    seqs = setting(parts, "engine.max_seqs") or 256
    cap = setting(parts, "workload.max_new_tokens")
    prompt = setting(parts, "workload.prompt_tokens") or 1024
    room = int(seqs) * (int(cap) + 2 * int(prompt) + 64)
    return Part("engine.kv_tokens", room, "assumed: as much as all rollouts need", True)


def cost_parts(log: RunLog, steps: Steps, parts: Sequence[Part]) -> list[Part]:
    """What the settings say of the costs' shape (``cost.roofline``)."""
    known, found = log.settings, []
    eager = known.get("run.enforce_eager")
    if eager is not None and isinstance(eager.value, bool):
        found.append(Part("cost.roofline.cuda_graphs", not eager.value,
                          f"{eager.theirs} is {eager.value} in {eager.place}"))  # fmt: skip
    passes = sum(steps.has(name) for name in ("log_prob_s", "reference_s"))
    if steps.has("update_s"):
        found.append(Part(f"{TRAINER}.log_prob_passes", passes,
                          "the passes that the log times"))  # fmt: skip
    minibatches = _minibatches(known, parts)
    if minibatches is not None:
        found.append(minibatches)
    dynamic, rows = value(known, "run.dynamic_batches"), whole(known, "run.micro_batch_rollouts")
    room = whole(known, "run.max_pass_tokens")
    if dynamic is True and room:
        place = known["run.max_pass_tokens"]
        found.append(Part(f"{TRAINER}.microbatch_tokens", room,
                          f"{place.theirs} in {place.place}"))  # fmt: skip
    elif dynamic is not True and rows:
        place = known["run.micro_batch_rollouts"]
        source = f"{place.theirs} in {place.place}"
        found.append(Part(f"{TRAINER}.batching", "padded", f"fixed rows a pass: {source}"))
        found.append(Part(f"{TRAINER}.microbatch_rollouts", rows, source))
    return found


def _minibatches(known: Settings, parts: Sequence[Part]) -> Part | None:
    """Optimiser steps of an update."""
    batch = setting(parts, "workload.batch_groups")
    size = setting(parts, "workload.group_size")
    for key, all_of_it in (("run.mini_batch_groups", batch), ("run.mini_batch_rollouts",
                                                               batch * size)):  # fmt: skip
        each = whole(known, key)
        if each:
            times = math.ceil(all_of_it / each) * (whole(known, "run.iterations") or 1)
            place = known[key]
            return Part(f"{TRAINER}.minibatches", max(times, 1),
                        f"the batch over {place.theirs} in {place.place}")  # fmt: skip
    return None
