"""The page's settings and the scenario they make. Values are finite lists that contain the
scenario's own, so that results can be cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs.presets.gpus import gpu_presets
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import registry
from rollcast.simulator.policies.chains import read_terms, spell_term
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.scenario.sections import validate
from rollcast.simulator.values import declared
from rollcast.simulator.workload.length_specs import DrawnLengths, PresetLengths, length_presets
from rollcast.simulator.workload.solved import solved_lengths

Form = Literal["slider", "toggle", "select"]
Values = Mapping[str, Any]

OVER_SAMPLING, STALENESS = "over_sampling", "max_staleness"
_FOLLOWED = (OVER_SAMPLING, STALENESS)
STANDARD = (
    "sync",
    "april",
    "tail_batching",
    "one_step_off",
    "fully_async",
    "pipeline_rl",
    "colocate_async",
)
"""Policies shown beside the scenario's own, in order."""

_POWERS = tuple(2**i for i in range(11))
TOGETHER, APART = "colocated", "disaggregated"
_EIGHTHS = 8
_OF_THE_SPLIT = {"gpus", "placement", "tensor_parallel", "trainer_share"}


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting. values: in order; start: the scenario's own; write: text of a value."""

    name: str
    label: str
    part: str
    form: Form
    values: tuple[Any, ...]
    start: Any
    write: Callable[[Any], str] = str
    meaning: str = ""

    @property
    def position(self) -> int:
        """Of the scenario's own value."""
        return self.values.index(self.start)


def knobs(scenario: Scenario) -> list[Knob]:
    """The settings of a scenario, by part of the page."""
    return [*_gpus(scenario), *_policy(scenario), *_workload(scenario), *_run(scenario)]


def starts(shown: Iterable[Knob]) -> dict[str, Any]:
    """The scenario's own values."""
    return {knob.name: knob.start for knob in shown}


def _slider(
    part: str,
    name: str,
    label: str,
    values: Iterable[Any],
    start: Any,
    write: Callable[[Any], str] = str,
    meaning: str = "",
) -> Knob:
    """A slider over ``values`` and the scenario's own."""
    return Knob(name, label, part, "slider", _with(values, start), start, write, meaning)


def _gpus(scenario: Scenario) -> list[Knob]:
    shape, data = scenario.shape, scenario.raw.data
    tensor = (data.get("cluster") or {}).get("tensor_parallel") or 1
    preset = _gpu_preset(data)
    placement = TOGETHER if shape.colocated else APART
    trainer = shape.trainer_gpus / shape.gpus
    shares = [i / _EIGHTHS for i in range(1, _EIGHTHS)]
    return [
        *(
            [Knob("gpu", "GPU", "GPUs", "select", tuple(gpu_presets()), preset)]
            if preset is not None
            else []
        ),
        _slider("GPUs", "gpus", "GPUs in all", _POWERS, shape.gpus),
        Knob(
            "placement",
            "Placement",
            "GPUs",
            "toggle",
            (TOGETHER, APART),
            placement,
            meaning="whether replicas and trainer take turns on the same GPUs",
        ),
        Knob(
            "tensor_parallel",
            "Tensor parallel",
            "GPUs",
            "toggle",
            _with((1, 2, 4, 8), tensor),
            tensor,
            meaning="GPUs of one replica",
        ),
        _slider(
            "GPUs",
            "trainer_share",
            "Trainer's share",
            shares,
            trainer if trainer < 1 else 0.5,
            lambda value: f"{100 * value:.3g} %",
            "of the GPUs, where it has its own",
        ),
    ]


def _policy(scenario: Scenario) -> list[Knob]:
    parameters = _parameters(scenario.policy_name)
    chains = _chains(scenario.policy_name)
    start = chains[0] if chains[0] != "sync" else chains[1]
    return [
        Knob("policy", "Shown in the timeline", "Policy", "select", chains, start),
        _slider(
            "Policy",
            OVER_SAMPLING,
            "Over-sampling",
            [1 + i / 10 for i in range(21)],
            parameters.get(OVER_SAMPLING, 2.0),
            "{:g}x".format,
            "groups launched, over the batch: april, tail_batching",
        ),
        _slider(
            "Policy",
            STALENESS,
            "Staleness allowed",
            (0, 1, 2, 3, 4, 6, 8),
            parameters.get(STALENESS, 2),
            "{:g} versions".format,
            "fully_async, colocate_async",
        ),
    ]


def _workload(scenario: Scenario) -> list[Knob]:
    workload = scenario.raw.data["workload"]
    size, part = scenario.plan.batch.group_size, "Rollouts"
    caps = [2**i for i in range(8, 18)]
    result = [
        _slider(
            part,
            "workload.group_size",
            "Group size",
            _POWERS[:8],
            size,
            meaning="rollouts of each prompt",
        ),
        _slider(
            part,
            "workload.max_new_tokens",
            "Cap on a response",
            caps,
            workload["max_new_tokens"],
            "{:,} tokens".format,
        ),
    ]
    lengths = _one_kind(workload.get("lengths"))
    if lengths is None:
        return [*result, *_mean_length(part, workload)]
    median = lengths["median_tokens"]
    medians = [median * by for by in (0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.2, 1.4, 2, 2.8, 4)]
    result.append(
        _slider(
            part,
            "workload.lengths.median_tokens",
            "Median length",
            medians,
            median,
            "{:,.0f} tokens".format,
        )
    )
    for key, label in (
        ("between_sd", "Spread between prompts"),
        ("within_sd", "Spread within a prompt"),
    ):
        spreads = [i / 20 for i in range(31)]
        meaning = "standard deviation of the log length"
        name = f"workload.lengths.{key}"
        result.append(_slider(part, name, label, spreads, lengths[key], "{:.3g}".format, meaning))
    return result


def _mean_length(part: str, workload: Mapping[str, Any]) -> list[Knob]:
    """A slider of the mean, where it is the only figure of the lengths."""
    solved = solved_lengths(workload)
    if solved is None or set(solved["known"]) != {"mean_tokens"}:
        return []
    mean = solved["known"]["mean_tokens"]
    means = [mean * by for by in (0.25, 0.5, 0.7, 0.85, 1.2, 1.4, 2, 2.8, 4)]
    means = [value for value in means if 2 <= value < 0.95 * solved["cap_tokens"]]
    key = "workload.lengths.mean_tokens"
    return [_slider(part, key, "Mean length", means, mean, "{:,.0f} tokens".format)]


def _run(scenario: Scenario) -> list[Knob]:
    part, steps = "The run", (20, 50, 100, 200, 500, 1000, 2000, 5000)
    label = "Steps of the whole run"
    result = [_slider(part, "steps", label, steps, _whole(scenario), "{:,}".format)]
    if scenario.gpu is not None and scenario.trainer_gpu is None:  # two prices have no slider
        presets = [gpu.usd_per_hour for gpu in gpu_presets().values()]
        result.append(
            _slider(
                part,
                "usd_per_hour",
                "Price of a GPU",
                [*(i / 4 for i in range(41)), *presets],
                scenario.gpu.usd_per_hour,
                lambda value: f"${value:.2f} an hour" if value else "none",
            )
        )
    return result


def _whole(scenario: Scenario) -> int:
    """Updates of the whole run: of ``plan.run`` where the scenario has one."""
    asked = validate(scenario.raw.data).plan
    if asked is None or asked.run is None or asked.run.accuracy is not None:
        return max(scenario.steps, 1)
    batch = scenario.plan.batch
    return asked.run.updates(batch.groups, batch.group_size)


def _with(values: Iterable[Any], current: Any) -> tuple[Any, ...]:
    return tuple(sorted({*values, current}))


def _gpu_preset(data: Mapping[str, Any]) -> str | None:
    gpu = data.get("gpu")
    name = gpu.get("preset") if isinstance(gpu, Mapping) else gpu
    return name if isinstance(name, str) and name in gpu_presets() else None


def price_of(preset: str) -> float:
    """US dollars an hour of a GPU preset."""
    return gpu_presets()[preset].usd_per_hour


def _one_kind(spec: Any) -> dict[str, float] | None:
    """Median and spreads of lengths with one median, else None."""
    if not isinstance(spec, Mapping):
        return None
    known: Mapping[str, Any] = spec
    if "preset" in spec:
        preset = length_presets()[spec["preset"]]
        if len(preset.model.components) > 1:
            return None
        known = {**preset.lengths, **spec}
    keys = ("median_tokens", "between_sd", "within_sd")
    kinds = (*DrawnLengths.__dataclass_fields__, *PresetLengths.__dataclass_fields__)
    if not set(spec) <= set(kinds) or any(known.get(key) is None for key in keys):
        return None
    return {key: float(known[key]) for key in keys}


# Policies


def _chains(current: str) -> tuple[str, ...]:
    """The scenario's own policy, then the standard ones."""
    terms = [term.name for term in read_terms(current)]
    others = [name for name in STANDARD if terms != [name]]
    return (current, *others)


def _parameters(chain: str) -> dict[str, Any]:
    """A chain's parameters that have a slider."""
    return {
        key: value
        for term in read_terms(chain)
        for key, value in term.given.items()
        if key in _FOLLOWED
    }


def tried(scenario: Scenario, values: Values) -> dict[str, str]:
    """The chains to simulate with the sliders' values, by their name in the select."""
    return {chain: _set(chain, values) for chain in _chains(scenario.policy_name)}


def _set(chain: str, values: Values) -> str:
    """The chain with the sliders' values."""
    parts = []
    for term in read_terms(chain):
        if term.name == registry.SYNCHRONOUS:
            parts.append(term.name)
            continue
        kind = registry.find(term.name, "policy")
        known = {option.key: option.default for option in declared(kind)}
        given = {**term.given, **{key: values[key] for key in _FOLLOWED if key in known}}
        changed = [(key, value) for key, value in given.items() if known.get(key) != value]
        parts.append(spell_term(term.name, changed))
    return "+".join(parts)


# The scenario


def chosen(scenario: Scenario, values: Values, scale: float = 1.0) -> RawScenario:
    """The scenario with the moved settings. scale: factor on the number of GPUs.

    Raises ScenarioError for GPUs without such a split.
    """
    first = starts(knobs(scenario))
    moved = {key: value for key, value in values.items() if value != first[key]}
    settings: list[tuple[str, Any]] = []
    if scale != 1 or moved.keys() & _OF_THE_SPLIT:
        settings += _split(scenario, values, scale)
    if "gpu" in moved:
        settings.append(("gpu", values["gpu"]))
    settings += [(key, value) for key, value in moved.items() if key.startswith("workload.")]
    texts = [f"{key}={json.dumps(value)}" for key, value in settings]
    return override(scenario.raw, texts, option="the page's")


def _split(scenario: Scenario, values: Values, scale: float) -> Sequence[tuple[str, Any]]:
    gpus = int(values["gpus"] * scale)
    stages = (scenario.raw.data.get("cluster") or {}).get("pipeline_parallel") or 1
    tensor = values["tensor_parallel"]
    replica = tensor * stages
    if values["placement"] == TOGETHER:
        replicas, left = divmod(gpus, replica)
        if left or not replicas:
            message = f"{gpus} GPUs cannot be divided into replicas of {replica}"
            raise ScenarioError("cluster.tensor_parallel", message)
        trainer = gpus
        if scenario.shape.colocated:  # a trainer on some of the replicas' GPUs stays on that share
            trainer = max(1, round(gpus * scenario.shape.trainer_gpus / scenario.shape.gpus))
    else:
        replicas = round((gpus - gpus * values["trainer_share"]) / replica)
        replicas = min(max(replicas, 1), (gpus - 1) // replica)
        trainer = gpus - replicas * replica
        if replicas < 1:
            message = f"{gpus} GPUs do not hold a replica of {replica} and a trainer beside it"
            raise ScenarioError("cluster.placement", message)
    return (
        ("cluster.placement", values["placement"]),
        ("cluster.replicas", replicas),
        ("cluster.tensor_parallel", tensor),
        ("cluster.trainer_gpus", trainer),
    )


def described(shape: ClusterShape) -> str:
    """The split in words."""
    several = "s" if shape.replicas > 1 else ""
    text = f"{shape.replicas} replica{several} of {shape.gpus_per_replica} GPU"
    text += "s" if shape.gpus_per_replica > 1 else ""
    split = "on the same GPUs" if shape.colocated else f"on {shape.trainer_gpus} of its own"
    return f"{text}, the trainer {split}"
