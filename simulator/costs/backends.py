"""What each stack's trainer does where nobody says otherwise, by its backend.

The figures are ``trainers`` in the ``costs.yaml`` of the stacks' folders, as options of
``cost.roofline.trainer``. What a stack's own file does not say of a backend is as in the folder
``unknown``: the most common among stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args

from rollcast.simulator.costs.presets.provenance import Provenance
from rollcast.simulator.costs.stacks import ALIASES, FOLDERS, OWN_TRAINERS, UNKNOWN
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.stack import priced
from rollcast.simulator.values import join, nearest, short

Backend = Literal["fsdp", "fsdp2", "ddp", "megatron", "dtensor", "deepspeed"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_SPLITS = (
    *("tensor_parallel", "context_parallel", "sequence_parallel"),
    *("pipeline_parallel", "expert_parallel"),
)


@dataclass(frozen=True, slots=True)
class TrainerDefaults:
    """A backend as a stack runs it.

    splits: the options among ``tensor_parallel``, ... by which it can split a model. options: of
    ``cost.roofline.trainer``, by key. sources: of these, by key.
    """

    backend: Backend
    splits: tuple[str, ...]
    options: Mapping[str, Any]
    sources: Mapping[str, Provenance]


@cache
def backends_of(stack: str) -> Mapping[Backend, TrainerDefaults]:
    """The backends of a stack (a name of `STACKS`) with its defaults, its own default first."""
    anywhere = priced()[UNKNOWN].costs["trainers"]
    own = FOLDERS[stack].costs.get("trainers", anywhere)
    release = OWN_TRAINERS[stack]
    return MappingProxyType(
        {
            backend: _defaults(
                backend, {**anywhere[backend], **own[backend], **release.get(backend, {})}
            )
            for backend in own
        }
    )


def _defaults(backend: Backend, entries: Mapping[str, Any]) -> TrainerDefaults:
    figures = {key: entry for key, entry in entries.items() if key != "splits"}
    return TrainerDefaults(
        backend,
        tuple(entries["splits"]),
        {key: entry["value"] for key, entry in figures.items()},
        {key: Provenance(entry["kind"], entry["source"]) for key, entry in figures.items()},
    )


def unsaid_options(stack: str | None, given: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The options of a trainer that take a stack's defaults, ``backend`` among them.

    given: the trainer's options that the user set. Without a stack only a ``backend`` that is given
    sets anything. Raises ScenarioError below ``field`` for a backend that the stack does not have,
    or that cannot split a model as given.
    """
    wanted = given.get("backend")
    if stack is None and wanted is None:
        return {}
    stack = stack or UNKNOWN
    known = backends_of(stack)
    splits = [key for key in _SPLITS if _several(given.get(key))]
    if wanted is None:
        chosen = _that_splits(known, splits) or next(iter(known.values()))
    elif isinstance(wanted, str) and wanted in known:
        chosen = known[wanted]  # type: ignore[index]
    else:
        raise _no_backend(stack, wanted, field)
    missing = [key for key in splits if key not in chosen.splits]
    if missing:
        raise _no_split(stack, chosen, missing, given, field)
    options = {"backend": chosen.backend, **chosen.options}
    for key in _that_contradict(options, given):
        options.pop(key, None)
    return options


def _that_contradict(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """The defaults that make no sense beside what is given."""
    if given.get("shard") is False:  # the older of two keys for one thing
        yield "sharding"
    batching = given.get("batching") or defaults.get("batching", "packed")
    if not str(batching).startswith("padded"):
        yield "microbatch_rollouts"
    if given.get("traffic_per_logit") is not None:  # other kernels than the stack's
        yield "graded_traffic_per_logit"
    if given.get("launch_s_per_layer") is not None:
        yield "newer_host_share"
    if given.get("recompute_layers"):
        yield "recompute"


def _several(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 1


def _that_splits(
    known: Mapping[Backend, TrainerDefaults], splits: list[str]
) -> TrainerDefaults | None:
    """The first backend that can split a model in all of these ways."""
    return next((one for one in known.values() if set(splits) <= set(one.splits)), None)


def _no_backend(stack: str, wanted: object, field: str) -> ScenarioError:
    place, own = join(field, "backend"), ", ".join(backends_of(stack))
    if isinstance(wanted, str) and wanted in BACKENDS:
        said = f"{stack} has no trainer on {wanted}; it has {own}"
    else:
        said = (
            f"unknown backend {short(wanted)}; {nearest(str(wanted), BACKENDS)} {stack} has {own}"
        )
    return ScenarioError(place, f"{said}; stack: {UNKNOWN} takes any backend that is known")


def _no_split(
    stack: str, chosen: TrainerDefaults, missing: list[str], given: Mapping[str, Any], field: str
) -> ScenarioError:
    key = missing[0]
    able = [name for name, one in backends_of(stack).items() if key in one.splits]
    instead = f"give backend: {' or '.join(able)}" if able else f"set {key} to 1"
    return ScenarioError(
        join(field, key),
        f"is {given[key]}, but {chosen.backend} under {stack} does not split a model so; {instead}",
    )


def listed() -> str:
    """The backends of every stack, its default first, in words."""
    known: dict[str, list[str]] = {}
    for stack in FOLDERS:
        if stack not in ALIASES:
            known.setdefault(", ".join(backends_of(stack)), []).append(stack)
    return "; ".join(f"{backends} ({', '.join(stacks)})" for backends, stacks in known.items())
