"""Model, placement and policy that a launch or a log gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part, nobody, setting_part
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.stacks.exported import PLAN_FILE, read_exported
from rollcast.simulator.stacks.settings import Settings, value, whole
from rollcast.simulator.values.words import counted
from rollcast.simulator.values.yaml_file import read_yaml


def cluster_parts(known: Settings, overlapped: bool, what: str) -> list[Part]:
    """Placement, replicas, their GPUs, and those of the trainer. overlapped: whether rollouts are
    known to overlap training. what: the log or launch, in words for the sources."""
    sharding = whole(known, "cluster.tensor_parallel")
    engine = (sharding or 1) * (whole(known, "run.engine_pipeline_parallel") or 1)
    parts: list[Part | None] = [setting_part(known, "cluster.tensor_parallel")]
    nodes, per_node = whole(known, "run.nodes"), whole(known, "run.gpus_per_node")
    gpus = nodes * per_node if nodes and per_node else None
    counts = [known[k].source for k in ("run.nodes", "run.gpus_per_node") if k in known]
    where = " and ".join(dict.fromkeys(counts))
    beside = rollout_gpus(known)
    apart = _apart(known, beside, overlapped)
    if apart and beside:
        replicas, source = max(beside // engine, 1), f"{counted(beside, 'GPU')} for rollouts"
    elif gpus:
        replicas, source = max(gpus // engine, 1), f"{counted(gpus, 'GPU')} ({where})"
    else:
        replicas, source = 1, f"assumed: the {what} names no GPUs"
    parts += [
        setting_part(known, "cluster.replicas")
        or Part("cluster.replicas", replicas, source, source.startswith("assumed")),
        Part(
            "cluster.placement",
            "disaggregated" if apart else "colocated",
            *_placed(known, apart, overlapped),
        ),
    ]
    trainer = whole(known, "cluster.trainer_gpus") or gpus
    if trainer:
        parts.append(Part("cluster.trainer_gpus", trainer, where or f"of the {what}"))
    if not sharding:
        parts.append(
            Part("cluster.tensor_parallel", 1, f"assumed: the {what} says nothing else", True)
        )
    return [part for part in parts if part is not None]


def rollout_gpus(known: Settings) -> int | None:
    """GPUs that rollouts have for themselves, where that is said."""
    beside, nodes = whole(known, "run.rollout_gpus"), whole(known, "run.rollout_nodes")
    per = whole(known, "run.rollout_gpus_per_node") or whole(known, "run.gpus_per_node")
    return nodes * per if beside is None and nodes and per else beside


def _apart(known: Settings, beside: int | None, overlapped: bool) -> bool:
    """Whether rollouts have GPUs of their own."""
    placement = value(known, "cluster.placement")
    if placement in ("colocated", "disaggregated"):
        return bool(placement == "disaggregated")
    colocated = value(known, "run.colocated")
    if isinstance(colocated, bool):
        return not colocated
    return beside is not None or overlapped


def _placed(known: Settings, apart: bool, overlapped: bool) -> tuple[str, bool]:
    for key in ("cluster.placement", "run.mode", "run.colocated", "run.rollout_gpus"):
        if key in known:
            setting = known[key]
            source = setting.theirs if setting.implied else f"{setting.theirs} is {setting.value}"
            return f"{source} in {setting.place}", False
    if overlapped and apart:
        return "assumed: rollouts overlapped training", True
    return "assumed", True


_OLDEST = 10_000
"""The largest bound on staleness, in versions."""


def policy_part(known: Settings, overlapped: bool, stack: str, rules: Mapping[str, Any]) -> Part:
    """The policy of the run itself, as far as its settings say. overlapped: whether rollouts
    overlap training. rules: options of `fully_async` that ``stack`` runs (`StackLog.fully_async`).
    """
    own = known.get("policy")
    if own is not None and isinstance(own.value, str):
        source = f"{own.theirs} is {own.value} in {own.place}"
        return Part("policy", [] if own.value == SYNCHRONOUS else own.value, source)
    if (exported := _exported(known)) is not None:
        return exported
    over, batch = whole(known, "run.over_sampling_groups"), whole(known, "workload.batch_groups")
    if value(known, "run.partial_rollout") is True and over and batch and over >= batch:
        place = known["run.over_sampling_groups"].place
        source = f"partial rollouts, {over} groups for {batch} ({place})"
        return Part("policy", [{"april": {"over_sampling": over / batch}}], source)
    if not overlapped:
        return Part("policy", [], "rollouts and training took turns")
    if own is not None and own.implied:
        return Part("policy", own.value, own.source)
    bound = value(known, "run.max_staleness")
    if isinstance(bound, int | float) and not isinstance(bound, bool) and 0 < bound <= _OLDEST:
        setting = known["run.max_staleness"]
        syncs = whole(known, "run.sync_every") or 1
        if rules.get("max_staleness") == "syncs":
            bound = (bound + 1) * syncs - 1
        others = {key: its for key, its in rules.items() if key != "max_staleness"}
        options: dict[str, Any] = {"max_staleness": bound, **others, **_in_flight(known, rules)}
        if 1 < syncs <= bound + 1:
            options["sync_every"] = syncs
        source = f"{setting.source}; {' and '.join(rules)} as in {stack}"
        return Part("policy", [{"fully_async": options}], source)
    return Part("policy", ["one_step_off"], "assumed: rollouts overlapped training", True)


def _exported(known: Settings) -> Part | None:
    """By the plan beside an exported sampler, where it is still there."""
    sampler = known.get("run.sampler")
    if sampler is None or not isinstance(sampler.value, str):
        return None
    try:
        plan = Path(sampler.value).with_name(PLAN_FILE)
        exported = read_exported(plan)
        exported.chain()
    except (ScenarioError, ValueError):  # nobody's, no path, or a policy that is not here
        return None
    source = f"{plan}, beside the sampler of {sampler.source}"
    text = exported.policy
    return Part("policy", [] if text == SYNCHRONOUS else text, source)


_PROMPTS = "run.in_flight_prompts"


def _in_flight(known: Settings, rules: Mapping[str, Any]) -> dict[str, float]:
    """Batches in flight, where nothing else limits what is started, or verl's fully asynchronous
    servers have so many prompts each."""
    prompts, batch = (whole(known, key) for key in (_PROMPTS, "workload.batch_groups"))
    if prompts and batch:
        return {"in_flight": max(round(prompts / batch, 4), 1.0)}
    if rules["exceeded"] != "window" and "run.staleness_share" not in known:
        return {}
    sizes = [whole(known, key) for key in ("workload.batch_groups", "workload.group_size")]
    most = whole(known, "run.in_flight_rollouts")
    if most is not None and most > 0 and all(sizes):
        return {"in_flight": max(round(most / math.prod(filter(None, sizes)), 4), 1.0)}
    if rules.get("in_flight") == "max_staleness":
        return {"in_flight": max(float(known["run.max_staleness"].value), 1.0)}
    return {}


_HUB = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)(?:/|$)")
"""A folder of Hugging Face's cache."""
_OTHER_SHAPE = re.compile(r"\d-?layers?|draft|eagle|distill|tiny|random|embedding|flash")
"""In names of models that are no longer of the shape that they are named after."""


def model_part(settings: Settings, what: str) -> Part:
    """The folder that the model was loaded from where it is here, else the preset of its shape, by
    the path; without a value where none is known. what: the log or launch, in words for the
    sources."""
    path = value(settings, "model")
    if not isinstance(path, str) or not path:
        return nobody("model", "models", what)
    setting = settings["model"]
    said = f"{setting.theirs}: {path} in {setting.place}"
    if (Path(path) / "config.json").is_file():
        return Part("model", str(Path(path).resolve()), said)
    found = shape_of(path)
    if found is None and (shape := _told_shape(settings, path)) is not None:
        return Part("model", shape, f"{said}, of the shape that {settings[_LAYERS].source} begins")
    if found is None:
        return Part(
            "model",
            None,
            f"{setting.theirs} is {path} in {setting.place}, and no preset has its shape; give "
            "--model, a preset or a folder with its config.json",
        )
    name, preset = found
    return Part("model", preset, said if name == preset else f"{said}, of the shape of {preset}")


_LAYERS = "model.layers"
_WIDTHS = ("layers", "hidden", "heads", "intermediate", "vocab")


def _told_shape(settings: Settings, path: str) -> Mapping[str, Any] | None:
    """The shape of a dense model of which the launch gives the widths; None of any other."""
    widths = {name: whole(settings, f"model.{name}") for name in _WIDTHS}
    others = any(whole(settings, f"model.{name}") for name in ("experts", "kv_lora_rank"))
    heads, hidden = widths["heads"], widths["hidden"]
    if others or not all(widths.values()) or heads is None or hidden is None:
        return None
    flags = {
        name: value(settings, f"model.{name}") is True
        for name in ("tied_embeddings", "qkv_bias", "qk_norm")
    }
    if "model.tied_embeddings" not in settings:  # Megatron's own
        flags["tied_embeddings"] = True
    return {
        "name": path.rstrip("/").rpartition("/")[2],
        **widths,
        "kv_heads": whole(settings, "model.kv_heads") or heads,
        "head_dim": whole(settings, "model.head_dim") or hidden // heads,
        **flags,
    }


def shape_of(path: str) -> tuple[str, str] | None:
    """A name in a path, and the preset of the same shape: of the last folder that names any, the
    longest name. None where nothing does, or where the name says that the shape was changed."""
    cached = _HUB.search(path)
    folders = [cached[1]] if cached else [part for part in path.split("/") if part]
    for folder in reversed(folders):
        spelt = re.sub(r"(\d)_(\d)", r"\1.\2", folder.lower()).replace("_", "-")
        spelt = re.sub(r"qwen-(?=(?:2|2\.5|3)-)", "qwen", spelt).replace("qwen25-", "qwen2.5-")
        for name, preset in _names().items():
            if name not in spelt:  # quickly: there are more names than `re` keeps patterns
                continue
            found = re.search(rf"(?:^|-){re.escape(name)}(?=$|[-@:])", spelt)
            if found is not None:
                rest = spelt[: found.start()] + spelt[found.end() :]
                return None if _OTHER_SHAPE.search(rest) else (name, preset)
    return None


@cache
def _names() -> Mapping[str, str]:
    """Presets by name, their own among them, the longest first."""
    from rollcast.simulator.costs.presets.models import model_presets

    others: dict[str, str] = read_yaml(Path(__file__).with_name("model_names.yaml"))
    names = {**others, **{name: name for name in model_presets()}}
    return dict(sorted(names.items(), key=lambda item: -len(item[0])))
