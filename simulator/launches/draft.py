"""The parts of a scenario that a launch gives, by what was read and what the user adds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollcast.simulator.costs.presets.models import model_presets
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import Step, cost_parts, preset_of
from rollcast.simulator.launches.dealt import check_batches, check_engines
from rollcast.simulator.launches.engine_defaults import (
    engine_part,
    seqs_part,
    share_part,
    shared_parts,
)
from rollcast.simulator.launches.launched import Launched, Unresolved
from rollcast.simulator.launches.parts import Part, nobody, replaced, setting_part
from rollcast.simulator.launches.run_parts import (
    cluster_parts,
    model_part,
    policy_part,
    rollout_gpus,
)
from rollcast.simulator.launches.turned import turn_parts
from rollcast.simulator.stacks.launch import ENTRY, Given
from rollcast.simulator.stacks.settings import (
    Place,
    Setting,
    Settings,
    meanings,
    value,
    whole,
    whole_number,
)
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.values.words import short

COUNTS = frozenset(
    {
        *("workload.batch_groups", "workload.group_size", "workload.max_new_tokens"),
        *("cluster.tensor_parallel", "run.nodes", "run.gpus_per_node"),
    }
)
"""Settings that are whole numbers, whatever else they say."""
_PARALLEL = ("tensor", "pipeline", "context", "sequence", "expert")
_SIZES = frozenset(
    {
        *("engine.max_seqs", "engine.max_batched_tokens", "cluster.trainer_gpus"),
        *(f"cost.roofline.trainer.{split}_parallel" for split in _PARALLEL),
        *("run.batch_rollouts", "run.rollout_gpus", "run.engine_pipeline_parallel"),
        *("run.max_prompt_tokens", "run.max_context_tokens", "run.max_total_tokens"),
        *("run.mini_batch_groups", "run.mini_batch_rollouts", "run.gradient_accumulation"),
        *("run.micro_batch_rollouts", "run.micro_batch_all", "run.max_pass_tokens"),
        *("run.log_prob_pass_tokens", "run.log_prob_micro_rollouts", "run.log_prob_micro_all"),
        *("run.critic_max_pass_tokens", "run.critic_micro_rollouts", "run.critic_micro_all"),
        "run.critic_sequence_parallel",
        *("run.lora_rank", "run.steps", "run.over_sampling_groups"),
    }
)
"""Settings that are whole numbers or, by a word, 0 or -1, left to the stack."""
_MAPPING, _NO_LIST = ".device_mapping", re.compile(r"\d+(?:-\d+)?")
"""ROLL's, which is Python: of a number, or of one less another, its own list cannot be made."""
_SHARES = frozenset({"run.gpu_memory_share", "run.cpu_optimizer_share"})
_KNOWN = "cost.roofline.settings_known"
_LEFT = frozenset({"auto", "none", "null", "max", "max_length"})
NODE_GPUS = 8
WHAT = "launch"
_ASSUMED_GROUPS, _ASSUMED_SIZE, _ASSUMED_CAP = 128, 8, 8192


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user adds on the command line. gpus: in all. steps: of the whole run. mean_tokens:
    of a response, of one turn where there are several. turns: the preset of rollouts with several.
    parts: keys of the scenario, which stand before what the launch says."""

    gpus: int | None = None
    steps: int | None = None
    mean_tokens: float | None = None
    prompt_tokens: int | None = None
    turns: str | None = None
    parts: tuple[Part, ...] = ()


NO_LIMIT = 100_000
"""Steps with which a launch says that epochs or somebody end it."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """parts: of the scenario, in the order in which it is written. settings: that hold in the run,
    the user's among them. steps: generations of the whole run, None where the launch sets
    no limit."""

    parts: tuple[Part, ...]
    settings: Settings
    steps: int | None

    @property
    def assumed(self) -> tuple[Part, ...]:
        """What neither launch nor user said."""
        return tuple(part for part in self.parts if part.assumed)


def drafted(launch: Launched, asked: Asked | None = None) -> Drafted:
    """The scenario of a launch. Every key that it needs is there, with None where nobody gives a
    value and none can be assumed honestly (``model``, ``gpu``, the number of GPUs)."""
    asked = asked or Asked()
    _check_counts(launch, asked.gpus)
    known = completed(launch, asked.gpus)
    if asked.gpus is not None:
        known = {**known, **_in_all(launch, known, asked.gpus)}
    check_batches(launch, known)
    size = _counted(known, "workload.group_size", _ASSUMED_SIZE)
    batch = _batch(known, int(size.value))
    usual = asked.prompt_tokens or figures("launches").prompt_tokens
    cap, longest = _together(known, _cap(known), int(usual))
    preset = preset_of(launch.stack, launch.release, value(known, "run.mode"))
    overlapped = overlaps(known)
    responses = _responses(int(cap.value), asked)
    if asked.turns is not None:
        turns = turn_parts(asked.turns, cap, longest or int(usual))
        responses = [*turns, *(part for part in responses if not part.assumed)]
    step = Step(int(batch.value) * int(size.value), int(size.value))
    own = setting_part(known, "gpu") or nobody("gpu", "gpus", WHAT)
    gpu = next((part.value for part in asked.parts if part.key == "gpu"), own.value)
    parts = [
        _model(launch, known),
        own,
        *_cluster(known, overlapped),
        *_engine(known),
        *engine_part(known, preset),
        *seqs_part(known, preset, gpu),
        batch,
        size,
        cap,
        *_prompts(known, asked, longest),
        *responses,
        policy_part(known, overlapped, launch.stack, _rules(launch)),
        *cost_parts(known, preset, step, gpu),
        *share_part(known, preset, gpu),
        *shared_parts(known),
    ]
    said = replaced(parts, asked.parts)
    if not unresolved(launch) and not any(part.assumed or part.value is None for part in said):
        said = (*said, Part(_KNOWN, True, f"the {WHAT} and its flags leave nothing open"))
    said = (*said, Part("seed", 0, "assumed", True))
    if longest is not None:
        said = tuple(_extended(part, longest, longest + int(cap.value)) for part in said)
    planned = whole(known, "run.steps")
    limited = planned if planned is not None and planned < NO_LIMIT else None
    return Drafted(said, known, asked.steps or limited)


def _extended(part: Part, prompt: int, tokens: int) -> Part:
    """A part of the scenario; of a model's preset whose positions end before the longest prompt,
    with as many as the launch needs: a preset stands for every model of its shape, of which some
    have longer contexts (Qwen3's of 2507, Qwen3-Coder)."""
    if part.key != "model" or not isinstance(part.value, str):
        return part
    preset = model_presets().get(part.value)
    if preset is None or preset.max_positions is None or prompt < preset.max_positions:
        return part
    changed = {"preset": part.value, "max_positions": tokens}
    return replace(part, value=changed, source=f"{part.source}; for its {tokens} tokens")


_CHOICE = Place("the choice")


def check_dealt(launch: Launched, gpus: int) -> None:
    """Raises ScenarioError where the launch's stack does not deal its batch out to so many GPUs."""
    try:
        known = completed(launch, gpus)
    except ScenarioError:  # which GPUs there can be is said elsewhere
        return
    check_batches(launch, known)


def check_chosen(launch: Launched, known: Settings, chosen: Mapping[str, Any]) -> None:
    """The same of a plan's choice. known: what holds in the run but for that. chosen: keys of the
    scenario with their values."""
    changed = {key: Setting(key, new, key, _CHOICE) for key, new in chosen.items()}
    check_batches(launch, {**known, **changed})


def _check_counts(launch: Launched, gpus: int | None) -> None:
    """Raises ScenarioError, with file and line, for a number that is none. gpus: what the user says
    in the place of nodes and their GPUs."""
    for key, setting in launch.settings.items():
        wanted = _wanted(key, setting.value, gpus)
        mapped = setting.theirs.endswith(_MAPPING) and not setting.implied
        if mapped and _NO_LIST.fullmatch(str(setting.value)):
            wanted = "a list of GPUs by number is wanted, such as list(range(0,8))"
        if wanted:
            raise ScenarioError(setting.source, f"is {short(setting.value)}; {wanted}")


def _wanted(key: str, said: Any, gpus: int | None) -> str:
    """What a setting must be that is something else; empty for one that may be what it is."""
    if said is None or (isinstance(said, bool) and key not in COUNTS):
        return ""
    number = isinstance(said, int | float)
    if key in COUNTS:
        of_gpus = key in ("run.nodes", "run.gpus_per_node")
        if whole_number(said) is not None or (of_gpus and gpus is not None):
            return ""
        ways = ", or --gpus (how many in all)" if of_gpus else ""
        return f"a whole number above 0 is wanted{ways}"
    if key in _SIZES:
        left = said in (0, -1) if number else str(said).lower() in _LEFT
        return "" if left or whole_number(said) else "a whole number above 0 is wanted"
    if key == "run.save_every" and not (whole_number(said) or str(said).lower() in _LEFT):
        share = number and -1 <= said < 1  # of all steps; 0 and -1 leave it out
        return "" if share else "a whole number above 0, or a share of all steps, is wanted"
    if key == "run.gpu_memory_share" and number and said == 0:
        return "a share above 0 is wanted"
    if key in _SHARES and not (number and 0 <= said <= 1):
        return "" if str(said).lower() in _LEFT else "a share from 0 to 1 is wanted"
    return ""


def completed(launch: Launched, gpus: int | None = None) -> Settings:
    """What holds in the run: the launch's settings, the user's GPUs, the stack's defaults for the
    rest, and what all of them imply. Raises ScenarioError (``--gpus``) for GPUs that make no whole
    nodes, or that the launch says otherwise."""
    stack = all_stacks()[launch.stack]
    begun = Given(ENTRY, launch.entry, Place(launch.entry), 9)
    own = stack.launch.read([*launch.given, begun])  # without what follows, put in their place
    said = {
        key: own[key] if setting.implied else setting
        for key, setting in launch.settings.items()
        if not setting.implied or key in own
    }
    if gpus is not None:
        said |= _gpus_of(launch, gpus)
    taken = Place(f"{launch.stack}'s defaults")
    decided = launch.settings.keys() & stack.launch.conditions  # said or implied
    said |= {key: launch.settings[key] for key in decided - said.keys()}
    known = {**stack.launch.unsaid(said, taken, release=launch.release), **said}
    if stack.implied is not None:
        known |= {setting.key: setting for setting in stack.implied(known)}
    return known


def _in_all(launch: Launched, known: Settings, gpus: int) -> Mapping[str, Setting]:
    """Engines and trainer such that both have ``gpus`` together, half each where neither is told.
    Raises ScenarioError where they cannot."""
    cluster = {part.key: part for part in cluster_parts(known, overlaps(known), WHAT)}
    tensor, trainer = (
        cluster[f"cluster.{key}"].value for key in ("tensor_parallel", "trainer_gpus")
    )

    def given(key: str, number: int) -> Mapping[str, Setting]:
        return {key: Setting(key, number, "--gpus", Place("the command line"))}

    def refused(why: str) -> ScenarioError:
        return ScenarioError("--gpus", f"is {gpus}, but {why}")

    engine = tensor * (whole(known, "run.engine_pipeline_parallel") or 1)
    if cluster["cluster.placement"].value == "colocated":
        if trainer != gpus:
            raise refused(f"the launch gives {trainer} to the trainer; leave --gpus out")
        if gpus % engine:
            source = cluster["cluster.tensor_parallel"].source
            raise refused(f"an engine takes {engine} ({source}); give a multiple of {engine}")
        told = cluster["cluster.replicas"].value * engine == gpus
        return {} if told else given("cluster.replicas", gpus // engine)
    nodes, each = (whole(launch.settings, f"run.{key}") for key in ("nodes", "gpus_per_node"))
    told = whole(launch.settings, "cluster.trainer_gpus") or (nodes and each and nodes * each)
    rollouts = rollout_gpus(known)
    if rollouts and told and rollouts + told != gpus and rollouts + trainer != gpus:
        raise _split_otherwise(known, gpus, rollouts, told)
    unsaid = rollouts is None
    if rollouts is None:
        rollouts = gpus - told if told else max(gpus // 2 // engine, 1) * engine
    if not 0 < rollouts < gpus:
        raise refused(f"the launch gives {told or rollouts} of them to one side alone")
    split = given("run.rollout_gpus", rollouts) if unsaid else {}
    return {**split, **given("cluster.trainer_gpus", gpus - rollouts)}


def _split_otherwise(known: Settings, gpus: int, rollouts: int, trainer: int) -> ScenarioError:
    """The launch gives both sides numbers of GPUs that do not make those of ``--gpus``."""
    place = next(known[k].place for k in ("run.rollout_gpus", "run.rollout_nodes") if k in known)
    return ScenarioError(
        "--gpus",
        f"is {gpus}, but {place} gives {rollouts} to rollouts and {trainer} to the trainer; "
        "change those, or leave --gpus out",
    )


def _gpus_of(launch: Launched, gpus: int) -> Mapping[str, Setting]:
    """Nodes and GPUs of each, in the place of those of the launch."""
    settings = launch.settings
    if gpus < 1:
        raise ScenarioError("--gpus", f"is {gpus}; give at least 1")
    rollouts = whole(settings, "run.rollout_gpus")
    trainers = whole(settings, "cluster.trainer_gpus")
    if rollouts and trainers and value(settings, "run.colocated") is False:
        if gpus != rollouts + trainers:
            raise _split_otherwise(settings, gpus, rollouts, trainers)
        return {}
    place = Place("the command line")
    told = launch.known.get("cluster.trainer_gpus")
    processes = 0 if told is None or told.unsaid else whole_number(told.value) or 0
    apart = value(launch.known, "run.colocated") is False and not rollouts
    if apart and 0 < processes < gpus:
        return {"run.rollout_gpus": Setting("run.rollout_gpus", gpus - processes, "--gpus", place)}
    per_node = whole(settings, "run.gpus_per_node") or NODE_GPUS
    per_node = min(per_node, gpus)
    if gpus % per_node:
        raise ScenarioError(
            "--gpus", f"{gpus} are no whole nodes of {per_node}; give a multiple of {per_node}"
        )
    return {
        key: Setting(key, number, "--gpus", place)
        for key, number in (("run.nodes", gpus // per_node), ("run.gpus_per_node", per_node))
    }


def _model(launch: Launched, known: Settings) -> Part:
    """Its path may hold a variable: the last folder may still name it."""
    asks = (item for item in launch.unresolved if asks_for(launch, item) == "model")
    item = None if "model" in launch.settings else next(asks, None)
    if item is None:
        return model_part(known, WHAT)
    part = model_part({"model": Setting("model", item.text, item.key, item.place)}, WHAT)
    if part.value is not None:
        return part
    return replace(
        part,
        source=f"{item.key} is {item.text} in {item.place}, and {item.why}; give --model, a preset "
        "or a folder with its config.json",
    )


def unresolved(launch: Launched) -> list[Unresolved]:
    """What no value was found for, of the settings that a forecast has a use for."""
    used = meanings().keys() - {"run.dataset"}
    return [item for item in launch.unresolved if asks_for(launch, item) in used]


def asks_for(launch: Launched, item: Unresolved) -> str | None:
    """Which of our settings an unresolved one is; None if it is none of ours."""
    found = all_stacks()[launch.stack].launch.ours.get(item.key)
    return None if found is None else found[0]


def overlaps(known: Settings) -> bool:
    """Whether rollouts overlap training."""
    said = value(known, "run.asynchronous")
    if isinstance(said, bool):
        return said
    bound = value(known, "run.max_staleness")
    return isinstance(bound, int | float) and not isinstance(bound, bool) and bound > 0


def _rules(launch: Launched) -> Mapping[str, Any]:
    said = value(launch.known, "run.exceeded")
    log = all_stacks()[launch.stack].log
    rules = {"exceeded": "wait"} if log is None else log.fully_async
    return {**rules, "exceeded": said} if said in ("drop", "wait", "capacity") else rules


def _counted(known: Settings, key: str, otherwise: int) -> Part:
    return setting_part(known, key) or Part(key, otherwise, f"assumed: not in the {WHAT}", True)


def _batch(known: Settings, size: int) -> Part:
    """Prompts of a step."""
    key = "workload.batch_groups"
    if (part := setting_part(known, key)) is not None:
        return part
    rollouts = whole(known, "run.batch_rollouts")
    if rollouts:
        source = f"{known['run.batch_rollouts'].source}, over the group's size"
        return Part(key, max(rollouts // size, 1), source)
    for stepped, each in (("run.mini_batch_groups", 1), ("run.mini_batch_rollouts", size)):
        if (of_a_step := whole(known, stepped)) and not known[stepped].unsaid:
            source = f"assumed: those of one optimiser step, {known[stepped].source}"
            return Part(key, max(of_a_step // each, 1), source, True)
    return Part(key, _ASSUMED_GROUPS, f"assumed: not in the {WHAT}", True)


def _cap(known: Settings) -> Part:
    """Tokens of the longest response: as said, or what a limit on both leaves beside the prompt."""
    key = "workload.max_new_tokens"
    if (part := setting_part(known, key)) is not None:
        return part
    prompt = whole(known, "run.max_prompt_tokens") or 0
    for total in ("run.max_total_tokens", "run.max_context_tokens"):
        if both := whole(known, total):
            left = both - prompt if both > prompt else both  # which a usual prompt cuts
            return Part(key, left, f"{known[total].source}, less the longest prompt")
    return Part(key, _ASSUMED_CAP, f"assumed: not in the {WHAT}", True)


def _together(known: Settings, cap: Part, usual: int) -> tuple[Part, int | None]:
    """The cap on responses, and the longest prompt, within a bound on both together, which cuts
    prompts to a usual one at the least and then responses; a bound below the cap is none of both.
    Where a function of the user's own makes rollouts, the cap is of a turn, and the bound of all.
    """
    longest = whole(known, "run.max_prompt_tokens")
    prompt = min(usual, longest or usual)
    session = whole(known, "run.max_context_tokens")
    if session and value(known, "run.own_rollouts") is not None and session - prompt > cap.value:
        source = f"{known['run.max_context_tokens'].source}, of all turns, less a usual prompt"
        return Part(cap.key, session - prompt, source), longest
    for total in ("run.max_total_tokens", "run.max_context_tokens"):
        both, tokens = whole(known, total), int(cap.value)
        if both and both >= tokens and both > prompt and (longest or prompt) + tokens > both:
            longest = max(both - tokens, prompt)
            if longest + tokens > both:
                source = f"{cap.source}, less a prompt of {known[total].source}"
                cap = Part(cap.key, both - longest, source, cap.assumed)
    return cap, longest


def _cluster(known: Settings, overlapped: bool) -> Iterable[Part]:
    parts = cluster_parts(known, overlapped, WHAT)
    check_engines(known, {part.key: part for part in parts})
    if (stages := whole(known, "run.engine_pipeline_parallel")) and stages > 1:
        source = known["run.engine_pipeline_parallel"].source
        parts.append(Part("cluster.pipeline_parallel", stages, source))
    return parts


def _engine(known: Settings) -> Iterable[Part]:
    found = {
        key: setting_part(known, f"engine.{key}")
        for key in ("max_seqs", "max_batched_tokens", "kv_tokens", "prefix_caching")
    }
    tokens, seqs = found["max_batched_tokens"], found["max_seqs"]
    if tokens is not None and tokens.value < (256 if seqs is None else seqs.value):
        found.pop("max_batched_tokens")  # an engine that counts tokens of one prompt's chunk
    return [part for part in found.values() if part is not None]


def _prompts(known: Settings, asked: Asked, longest: int | None) -> Iterable[Part]:
    """How long prompts are: their mean as the user says or as published runs had it, their longest
    as the launch says, and as far as a bound on prompt and response leaves room."""
    own, key = figures("launches"), "workload.prompt_tokens"
    mean, why, assumed = float(own.prompt_tokens), "assumed; give --prompt-tokens", True
    if asked.prompt_tokens is not None:
        mean, why, assumed = float(asked.prompt_tokens), "given by --prompt-tokens", False
    if longest is None or longest <= mean:
        tokens = min(mean, longest or mean)
        yield Part(key, max(round(tokens), 1), why, assumed)
        return
    median = max(mean * math.exp(-(own.prompt_sd**2) / 2), 1.0)
    of_mean = f"assumed: a mean of {mean:g}; give --prompt-tokens" if assumed else why
    yield Part(f"{key}.median_tokens", round(median, 1), of_mean, assumed)
    yield Part(f"{key}.sd", own.prompt_sd, "a usual spread between mean and longest")
    yield Part(f"{key}.max_tokens", longest, known["run.max_prompt_tokens"].source)


def _responses(cap: int, asked: Asked) -> list[Part]:
    """How long responses are on average, of which a launch says only the longest; of a mean that is
    the cap, that every one of them reaches it."""
    key, own = "workload.lengths.mean_tokens", figures("launches")
    if asked.mean_tokens == cap:
        why = "given by --mean-tokens: every response reaches the cap"
        lengths = {"family": "lognormal", "median_tokens": cap, "between_sd": 0.0}
        lengths |= {"within_sd": 0.0, "runaway": 1.0}
        return [Part(f"workload.lengths.{name}", its, why) for name, its in lengths.items()]
    if asked.mean_tokens is not None:
        return [Part(key, asked.mean_tokens, "given by --mean-tokens")]
    mean = max(round(own.mean_of_cap * cap), 1)
    said = f"assumed: {own.mean_of_cap:.0%} of the cap; give --mean-tokens"
    return [Part(key, mean, said, True)]
