"""The parts of a scenario that a log gives: a pure function of a `RunLog`.

A `Part` is a key of a scenario with its value and where that is from: a line of a file, a figure of
the run's tables, an assumption, or nothing at all (then the key is left to the user). What is
fitted later replaces parts (`replaced`) and leaves the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.stacks.settings import Settings, value, whole

if TYPE_CHECKING:
    import pandas as pd

LENGTHS_FILE = "lengths.csv"
BETWEEN_SD, WITHIN_SD = 0.65, 0.30
"""Spreads of log lengths, assumed where no rollouts are dumped: about those of four runs with dumps
(between prompts 0.63 to 0.73, within 0.25 to 0.38)."""
_REWARD_SD = 0.3
_MOST_STEPS = 60
_OLDEST = 10_000
"""The largest bound on staleness, in versions."""


@dataclass(frozen=True, slots=True)
class Part:
    """A key of a scenario. value: None if unknown. source: a comment. assumed: not of the log."""

    key: str
    value: Any
    source: str
    assumed: bool = False


def given(model: str | None = None, gpu: str | None = None) -> tuple[Part, ...]:
    """What the user says, which the log seldom does: presets, or for the model the path of a
    config.json or its folder. Raises ScenarioError (``--model``, ``--gpu``) for anything else."""
    from rollcast.simulator.costs.presets.gpus import load_gpu
    from rollcast.simulator.costs.presets.models import load_model, model_presets

    parts = []
    if model is not None:
        load_model(model, "--model")
        here = model if model in model_presets() else str(Path(model).resolve())
        parts.append(Part("model", here, "given by --model"))
    if gpu is not None:
        load_gpu(gpu, "--gpu")
        parts.append(Part("gpu", gpu, "given by --gpu"))
    return tuple(parts)


def draft(log: RunLog, given: Iterable[Part] = ()) -> tuple[Part, ...]:
    """The parts of a scenario, in the order in which it is written; those that are ``given`` stand
    before what the log says. Every key that a scenario needs is there, with None where neither
    gives a value and none can be assumed honestly (``model``, ``gpu``)."""
    by_key = {part.key: part for part in given}
    poll_s = log.steps["poll_s"].median()
    parts = [
        Part("name", log.name, "of the log"),
        by_key.get("model") or _model(log.settings),
        by_key.get("gpu") or _setting(log.settings, "gpu") or _nobody("gpu", "gpus"),
        *_cluster(log),
        *(
            _setting(log.settings, f"engine.{key}")
            for key in ("max_seqs", "max_batched_tokens", "kv_tokens", "prefix_caching")
        ),
        *_workload(log),
        _policy(log),
        Part(
            "poll_s",
            float(poll_s),
            f"polling interval of {log.stack}'s trainer",
        )
        if poll_s > 0
        else None,
        Part("steps", min(max(len(log.steps), 1), _MOST_STEPS), f"the log holds {len(log.steps)}"),
        Part("seed", 0, "assumed", True),
    ]
    return tuple(part for part in parts if part is not None)


def replaced(parts: Iterable[Part], others: Iterable[Part]) -> tuple[Part, ...]:
    """``parts`` with ``others`` in the place of those of that key or below it; new ones last."""
    result = list(parts)
    for other in others:
        inside = [
            i
            for i, p in enumerate(result)
            if p.key == other.key or p.key.startswith(f"{other.key}.")
        ]
        at = inside[0] if inside else len(result)
        result = [p for i, p in enumerate(result) if i not in inside]
        result.insert(at, other)
    return tuple(result)


def nested(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Mappings within mappings, of values by dotted key."""
    tree: dict[str, Any] = {}
    for key, item in items:
        place = tree
        *above, last = key.split(".")
        for name in above:
            place = place.setdefault(name, {})
        place[last] = item
    return tree


def missing(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Those that the user has to give."""
    return tuple(part for part in parts if part.value is None)


def lengths_table(log: RunLog) -> pd.DataFrame | None:
    """The trace of complete groups that were trained on: group, index, prompt_tokens, new_tokens,
    and reward where all have one. None where the tokens of some rollout are not known."""
    table = log.rollouts
    if not len(table) or table["new_tokens"].isna().any() or (table["new_tokens"] < 1).all():
        return None
    kept = table[(table["trained"] != 0) & (table["new_tokens"] >= 1)]
    sizes = kept.groupby("group")["index"].transform("size")
    size = int(sizes.mode().iloc[0]) if len(kept) else 0
    kept = kept[sizes == size]
    if kept.empty:
        return None
    prompt = kept["prompt_tokens"]
    kept = kept.assign(
        prompt_tokens=kept.groupby("group")["prompt_tokens"]
        .transform("first")
        .fillna(max(round(float(prompt.median())), 1) if prompt.notna().any() else _prompt(log)[0])
        .clip(lower=1)
        .round()
        .astype("int64"),
        new_tokens=kept["new_tokens"].round().astype("int64"),
    )
    columns = ["group", "index", "prompt_tokens", "new_tokens"]
    rewards = kept["reward"].notna().all()
    return kept[[*columns, "reward"] if rewards else columns].reset_index(drop=True)


# Parts


def _setting(settings: Settings, key: str) -> Part | None:
    """A setting, if its value is one that a scenario can hold."""
    if key not in settings:
        return None
    setting = settings[key]
    kind = {"engine.prefix_caching": bool, "gpu": str}.get(key)
    if (whole(settings, key) is None) if kind is None else not isinstance(setting.value, kind):
        return None
    return Part(key, setting.value, setting.source)


def _nobody(key: str, presets: str) -> Part:
    return Part(key, None, f"not in the log; give --{key}, one of rollcast presets {presets}")


_SUFFIX = re.compile(r"(?:-(?:base|instruct|thinking|chat|it|hf|zero|\d{4}|bf16|v\d[\d.]*))*")


def _model(settings: Settings) -> Part:
    from rollcast.simulator.costs.presets.models import model_presets

    path = value(settings, "model")
    if not isinstance(path, str):
        return _nobody("model", "models")
    setting = settings["model"]
    last = path.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    for name in sorted(model_presets(), key=len, reverse=True):
        if last.startswith(name) and _SUFFIX.fullmatch(last[len(name) :]):
            return Part("model", name, f"{setting.theirs}: {path} in {setting.place}")
    return Part(
        "model",
        None,
        f"{setting.theirs} is {path} in {setting.place}, which is no "
        "preset; give --model, a preset or a folder with its config.json",
    )


def _cluster(log: RunLog) -> list[Part]:
    """Placement, replicas, their GPUs, and those of the trainer."""
    known = log.settings
    sharding = whole(known, "cluster.tensor_parallel")
    tensor = sharding or 1
    parts: list[Part | None] = [_setting(known, "cluster.tensor_parallel")]
    nodes, per_node = whole(known, "run.nodes"), whole(known, "run.gpus_per_node")
    gpus = nodes * per_node if nodes and per_node else None
    where = ", ".join(str(known[k].place) for k in ("run.nodes", "run.gpus_per_node") if k in known)
    beside = whole(known, "run.rollout_gpus")
    rollout_nodes = whole(known, "run.rollout_nodes")
    if beside is None and rollout_nodes:
        per = whole(known, "run.rollout_gpus_per_node") or per_node
        beside = rollout_nodes * per if per else None
    apart = _apart(log, beside)
    if apart and beside:
        replicas, source = max(beside // tensor, 1), f"{beside} GPUs for rollouts"
    elif gpus:
        replicas, source = max(gpus // tensor, 1), f"{gpus} GPUs ({where})"
    else:
        replicas, source = 1, "assumed: the log names no GPUs"
    parts += [
        _setting(known, "cluster.replicas")
        or Part("cluster.replicas", replicas, source, source.startswith("assumed")),
        Part("cluster.placement", "disaggregated" if apart else "colocated", *_placed(log, apart)),
    ]
    trainer = whole(known, "cluster.trainer_gpus") or gpus
    if trainer:
        parts.append(Part("cluster.trainer_gpus", trainer, where or "of the log"))
    if not sharding:
        parts.append(Part("cluster.tensor_parallel", 1, "assumed", True))
    return [part for part in parts if part is not None]


def _apart(log: RunLog, beside: int | None) -> bool:
    """Whether rollouts have GPUs of their own."""
    placement = value(log.settings, "cluster.placement")
    if placement in ("colocated", "disaggregated"):
        return bool(placement == "disaggregated")
    colocated = value(log.settings, "run.colocated")
    if isinstance(colocated, bool):
        return not colocated
    return beside is not None or log.overlapped


def _placed(log: RunLog, apart: bool) -> tuple[str, bool]:
    for key in ("cluster.placement", "run.mode", "run.colocated", "run.rollout_gpus"):
        if key in log.settings:
            setting = log.settings[key]
            source = setting.theirs if setting.implied else f"{setting.theirs} is {setting.value}"
            return f"{source} in {setting.place}", False
    if log.overlapped and apart:
        return "assumed: rollouts overlapped training", True
    return "assumed", True


def _workload(log: RunLog) -> list[Part]:
    steps = log.steps
    size = _setting(log.settings, "workload.group_size")
    if size is None and len(log.rollouts):
        sizes = log.rollouts.groupby("group").size()
        size = Part("workload.group_size", int(sizes.mode().iloc[0]), "the dumped groups")
    size = size or Part("workload.group_size", 8, "assumed", True)
    cap, longest = _setting(log.settings, "workload.max_new_tokens"), steps["max_new_tokens"].max()
    if cap is None and math.isnan(longest):
        cap = Part("workload.max_new_tokens", 16384, "assumed", True)
    elif cap is None:
        tokens, source = max(math.ceil(longest), 1), "assumed: the longest response of the log"
        cap = Part("workload.max_new_tokens", tokens, source, True)
    parts = [_batch(log, int(size.value)), size, cap]
    table = lengths_table(log)
    if table is not None:
        source = f"{table['group'].nunique()} groups dumped by the run"
        parts.append(Part("workload.lengths.trace", LENGTHS_FILE, source))
        parts.append(Part("workload.lengths.repeat", True, "a longer run starts over"))
        return parts
    parts.append(Part("workload.prompt_tokens", *_prompt(log)))
    parts.extend(_drawn(log, int(cap.value)))
    reward = steps["mean_reward"].mean()
    if 0 < reward < 1:
        parts += [
            Part("workload.rewards.family", "beta_bernoulli", "assumed", True),
            Part("workload.rewards.mean", round(float(reward), 4), "mean reward of the steps"),
            Part("workload.rewards.between_sd", _reward_sd(float(reward)), "assumed", True),
        ]
    return parts


def _reward_sd(mean: float) -> float:
    """The scenario's default, where a share of so much can spread so far."""
    return round(min(_REWARD_SD, 0.6 * math.sqrt(mean * (1 - mean))), 4)


def _batch(log: RunLog, size: int) -> Part:
    """Prompts of a step."""
    key = "workload.batch_groups"
    if (part := _setting(log.settings, key)) is not None:
        return part
    if (rollouts := _setting(log.settings, "run.batch_rollouts")) is not None:
        source = f"{rollouts.source}, over the group's size"
        return Part(key, max(int(rollouts.value) // size, 1), source)
    groups, trained = log.steps["groups"].median(), log.steps["rollouts"].median()
    if not math.isnan(groups):
        return Part(key, max(round(groups), 1), "groups of the median step")
    if not math.isnan(trained):
        source = "rollouts of the median step, over the group's size"
        return Part(key, max(round(trained / size), 1), source)
    return Part(key, 32, "assumed", True)


def _prompt(log: RunLog) -> tuple[int, str, bool]:
    """A prompt's tokens, where from, and whether assumed."""
    mean = log.steps["mean_prompt_tokens"].median()
    if not math.isnan(mean):
        return max(round(mean), 1), "mean of the median step", False
    return 512, "assumed", True


def _drawn(log: RunLog, cap: int) -> list[Part]:
    """Lengths of a log-normal distribution at the run's mean, with assumed spreads."""
    key = "workload.lengths"
    spread = math.hypot(BETWEEN_SD, WITHIN_SD)
    mean = float(log.steps["mean_new_tokens"].mean())
    source = f"the mean of the steps' means, {mean:.0f}, under the assumed spreads"
    if math.isnan(mean) or mean < 1:
        mean, source = cap / 4, "assumed: a quarter of the cap, at the mean"
    median = max(mean * math.exp(-spread * spread / 2), 1.0)
    return [
        Part(f"{key}.family", "lognormal", "assumed", True),
        Part(f"{key}.median_tokens", round(min(median, cap), 1), source, "assumed:" in source),
        Part(f"{key}.between_sd", BETWEEN_SD, "assumed", True),
        Part(f"{key}.within_sd", WITHIN_SD, "assumed", True),
    ]


def _policy(log: RunLog) -> Part:
    """The policy of the run itself, as far as its settings say."""
    known = log.settings
    own = known.get("policy")
    if own is not None and isinstance(own.value, str):
        source = f"{own.theirs} is {own.value} in {own.place}"
        return Part("policy", [] if own.value == SYNCHRONOUS else own.value, source)
    over, batch = whole(known, "run.over_sampling_groups"), whole(known, "workload.batch_groups")
    if value(known, "run.partial_rollout") is True and over and batch and over >= batch:
        place = known["run.over_sampling_groups"].place
        source = f"partial rollouts, {over} groups for {batch} ({place})"
        return Part("policy", [{"april": {"over_sampling": over / batch}}], source)
    if not log.overlapped:
        return Part("policy", [], "rollouts and training took turns")
    if own is not None and own.implied:
        return Part("policy", own.value, own.source)
    bound = value(known, "run.max_staleness")
    if isinstance(bound, int | float) and not isinstance(bound, bool) and 0 < bound <= _OLDEST:
        setting = known["run.max_staleness"]
        options: dict[str, Any] = {"max_staleness": bound, "exceeded": log.exceeded}
        syncs = whole(known, "run.sync_every")
        if syncs is not None and 1 < syncs <= bound + 1:
            options["sync_every"] = syncs
        source = f"{setting.source}; exceeded as {log.stack} does"
        return Part("policy", [{"fully_async": options}], source)
    return Part("policy", ["one_step_off"], "assumed: rollouts overlapped training", True)


# As a file


def to_yaml(parts: Sequence[Part], head: str = "") -> str:
    """A scenario's text, each value with its source, missing ones as comments. head: at the top."""
    lines = [f"# {line}" for line in head.splitlines()]
    lines.extend(_lines(nested((part.key, part) for part in parts), 0))
    return "\n".join(lines) + "\n"


def _lines(tree: Mapping[str, Any], depth: int) -> Iterable[str]:
    indent = "  " * depth
    for key, item in tree.items():
        if isinstance(item, Part):
            source = " ".join("".join(c if c.isprintable() else " " for c in item.source).split())
            if item.value is None:
                yield f"{indent}# {key}: {source}"
            else:
                yield f"{indent}{key}: {_spelt(item.value)}  # {source}"
        else:
            yield f"{indent}{key}:"
            yield from _lines(item, depth + 1)


def _spelt(item: Any) -> str:
    """A value on one line of YAML."""
    import yaml

    text = yaml.safe_dump(item, default_flow_style=True, width=1e6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
