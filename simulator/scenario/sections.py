"""The sections of a scenario and their types, with complaints that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simulator.checks import join, nearest
from simulator.errors import ScenarioError

MAX_GPUS = 65_536
MAX_STEPS = 1_000_000
MAX_ROLLOUTS = 4_000_000
MAX_PROMPTS = 100_000_000


def _integral(value: Any) -> Any:
    """1e4 and 16384.0 are whole numbers to a person, though floats to YAML."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_integral)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ClusterSection(_Section):
    """Which GPUs. ``trainer_gpus`` left out is every rollout GPU where colocated, else as many."""

    placement: Literal["colocated", "disaggregated"] = "colocated"
    replicas: Whole = Field(default=1, ge=1, le=MAX_GPUS)
    tensor_parallel: Whole = Field(default=1, ge=1, le=1024)
    trainer_gpus: Whole | None = Field(default=None, ge=1, le=MAX_GPUS)
    routing: Literal["round_robin", "least_loaded", "group_affinity"] = "least_loaded"


class EngineSection(_Section):
    """The limits of each replica; ``kv_tokens`` left out follows from GPU memory.

    model, task, trainer, sampling, dtype, device (of trainer and replica) and
    gpu_memory_utilization (the share that vLLM takes) are of the real engine alone
    (`engine.config`): one file serves both worlds, and the simulator has no use for them.
    """

    max_seqs: Whole = Field(default=256, ge=1, le=1_000_000)
    max_batched_tokens: Whole = Field(default=8192, ge=1, le=10_000_000)
    kv_tokens: Whole | None = Field(default=None, ge=1, le=10**12)
    block_tokens: Whole = Field(default=16, ge=1, le=65_536)
    prefix_caching: bool = True
    model: str | None = None
    task: dict[str, Any] | None = None
    trainer: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    dtype: str = "float32"
    device: str = "cpu"
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)


class WorkloadSection(_Section):
    """The counts of the workload; the rest is read by `simulator.workload.build.build_workload`.

    prompts: different ones, which come again in the same order once all have come; None is endless.
    """

    batch_groups: Whole = Field(ge=1, le=MAX_ROLLOUTS)
    group_size: Whole = Field(ge=1, le=MAX_ROLLOUTS)
    prompts: Whole | None = Field(default=None, ge=1, le=MAX_PROMPTS)
    prompt_tokens: Any = None
    max_new_tokens: Any = None
    lengths: Any = None
    rewards: Any = None


class ScenarioModel(_Section):
    """The top level of a scenario file."""

    name: str | None = None
    model: str | dict[str, Any] | None = None
    gpu: str | dict[str, Any] | None = None
    cluster: ClusterSection = ClusterSection()
    engine: EngineSection = EngineSection()
    workload: WorkloadSection
    policy: Any = None  # its own reader says better what is wrong with it
    cost: str | dict[str, Any] = "roofline"
    steps: Whole = Field(default=10, ge=1, le=MAX_STEPS)
    seed: Whole = Field(default=0, ge=0, le=2**63 - 1)


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "": ScenarioModel,
    "cluster": ClusterSection,
    "engine": EngineSection,
    "workload": WorkloadSection,
}
_NAMES_OR_MAPPINGS = ("model", "gpu", "cost")


def validate(data: Mapping[str, Any]) -> ScenarioModel:
    """The sections of a scenario, typed; a key set to null counts as absent.

    Raises ScenarioError for an unknown key, if there is one, else for the first that is wrong.
    """
    given = _without_nulls(data, ScenarioModel)
    for section in ("cluster", "engine", "workload"):
        if isinstance(given.get(section), dict):
            given[section] = _without_nulls(given[section], _SECTIONS[section])
    try:
        return ScenarioModel.model_validate(given)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = min(details, key=lambda d: (d["type"] != "extra_forbidden", d["loc"]))
        raise _complaint(
            first["type"], first["loc"], first["input"], first.get("ctx", {})
        ) from None


def _without_nulls(data: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    known = section.model_fields
    return {key: value for key, value in data.items() if value is not None or key not in known}


def _complaint(
    kind: str, location: tuple[Any, ...], given: Any, context: Mapping[str, Any]
) -> ScenarioError:
    """A complaint of pydantic's as a sentence that names the key and what would be right."""
    section = str(location[0]) if len(location) > 1 else ""
    key = str(location[1 if section in _SECTIONS and section else 0])
    section = section if section in _SECTIONS else ""
    field = join(section, key)
    if kind == "extra_forbidden":
        known = _SECTIONS[section].model_fields
        return ScenarioError(field, f"unknown key; {nearest(key, known)}")
    if kind == "missing":
        return ScenarioError(field, "missing; give its value")
    return ScenarioError(
        field, f"must be {_wanted(kind, field, given, context)}, got {short(given)}"
    )


def _wanted(kind: str, field: str, given: Any, context: Mapping[str, Any]) -> str:
    """What a value of ``field`` must be, after pydantic's ``kind`` of complaint."""
    if field in _NAMES_OR_MAPPINGS:
        return "a name or a mapping of keys to values"
    if kind.startswith(("int_", "finite_")):
        return "a whole number"
    if kind == "greater_than_equal":
        return f"at least {context['ge']}"
    if kind == "less_than_equal":
        return f"at most {context['le']}"
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        hint = nearest(given, expected.split(", ")) if isinstance(given, str) else ""
        return f"one of {expected}" + (f" ({hint})" if hint.startswith("did") else "")
    wanted = {"bool_type": "true or false", "string_type": "text"}
    return wanted.get(kind, "a mapping of keys to values")


def short(value: Any) -> str:
    """A value as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
