"""What an RL stack adds to its engine and trainer: its loop, syncs, switches, rest of a step.

The figures are presets in the ``costs.yaml`` of the stacks' folders (`simulator.stacks`), each
fitted to the published phase that it names, never to whole steps. What a folder does not say is as
in the folder ``unknown``: a prior over stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.phase_figures import FixedSeconds, PhaseFactors
from rollcast.simulator.costs.presets.provenance import Kind, Provenance, read_presets
from rollcast.simulator.costs.sync.sleep import Sleep
from rollcast.simulator.costs.sync.weight_sync import Mechanism
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import STEP_PHASES
from rollcast.simulator.stacks.stack import Stack as Folder
from rollcast.simulator.stacks.stack import priced
from rollcast.simulator.values import check_unknown_keys, choice, nearest, short

UNKNOWN = "unknown"
"""The preset of a stack that nobody knows: what others are taken to be where they do not say."""

Spread = tuple[float, float]
Loads = Literal["nobody", "first", "ranks", "ranks_twice"]
"""Processes that hold a whole model while it is loaded: none, the first one, each of them, or each
of them twice where ZeRO-1 and 2 make one buffer of its weights."""
Saves = Literal["nothing", "weights", "states"]
"""What each process copies to host memory, of its part under FSDP, to save a checkpoint."""

_GROUPS = ("settings", "rest", "loop", "fixed", "phase_factors")
_ON_MEGATRON = "megatron_"
_MEASURED = frozenset({"measured", "fitted"})


@dataclass(frozen=True, slots=True)
class StackPreset:
    """A stack in figures.

    engine: None for one of its own, of which nothing is known. colocated, disaggregated: how
    weights travel; per_tensor_s of that, the mechanism's where None, and apart_per_tensor_s to GPUs
    of their own, where it differs; export_per_tensor_s of Megatron's mixtures, where experts are
    converted one by one; quantise_per_tensor_s where engines have fewer bits than the trainer.
    adapter, apart_adapter: how adapters travel. merged: placements in which they are merged and all
    weights sent; in others the engine serves them. rest_s: of a step outside every phase;
    rest_per_token_s: of it, each token of the batch. loop_s, loop_per_rollout_s: that its loop adds
    to an engine's iteration, beside the engine's own host. fixed, phase_factors: of the phases of a
    step; megatron_factors: of a trainer on Megatron, before those. Spreads: factors within which
    the truth is taken to lie. cuda_graphs: None if unknown.
    max_seqs: of an engine, where the stack sets it. kv_memory_utilization: its share of a GPU,
    where the stack has a default; apart_kv_memory_utilization on GPUs of its own, where that
    differs. client_factor: on what its one HTTP client takes for a step's rollouts, 0: none. ray:
    whether Ray runs its workers. engine_in_trainer: whether a colocated engine is in
    the trainer's process. process_a_role: whether models beside the policy have processes of their
    own. loads: who has the whole model in host memory while it is loaded. gathers_base: whether
    each process has the weights below adapters whole in host memory in the first sync. saves: what
    each of them copies there to save a checkpoint.
    swaps_reference: whether the policy's weights wait there too where the reference's are swapped
    in. always_sleeps: whether a colocated engine sleeps whatever the launch says. wakes_whole:
    whether an engine that slept has its KV pool again while weights are sent. sleeps_late: whether
    a trainer takes its states back while its engine may not have freed anything. beside_trainer:
    whether a colocated engine's share for KV is of what weights, its own and the trainer's, leave,
    and these stay while it generates. starts_last: whether a colocated engine starts beside the
    trainer's weights, which leave less of a share of what is free. starts_beside_cache: whether
    it does so beside what sharing these weights left with the allocator, too.
    sources: of the groups of figures, and ``settings`` of engine, graphs, sleep, offload and
    sync. measured: whether any figure is from a run of the stack itself.
    """

    engine: Engine | None
    colocated: Mechanism
    disaggregated: Mechanism
    rest_s: float
    rest_spread: Spread
    loop_s: float
    loop_per_rollout_s: float
    loop_spread: Spread
    fixed: FixedSeconds
    fixed_spread: Spread
    phase_factors: PhaseFactors
    megatron_factors: PhaseFactors
    measured: bool
    sources: Mapping[str, Provenance] = field(compare=False)
    cuda_graphs: bool | None = True
    engine_sleep: Sleep = "discard"
    offload_optimizer: bool = True
    per_tensor_s: float | None = None
    apart_per_tensor_s: float | None = None
    export_per_tensor_s: float = 0.0
    quantise_per_tensor_s: float = 0.0
    adapter: Mechanism = "adapter"
    apart_adapter: Mechanism | None = None
    merged: Sequence[str] = ()
    max_seqs: int | None = None
    kv_memory_utilization: float | None = None
    apart_kv_memory_utilization: float | None = None
    client_factor: float = 0.0
    ray: bool = False
    engine_in_trainer: bool = False
    process_a_role: bool = False
    loads: Loads = "nobody"
    saves: Saves = "nothing"
    rest_per_token_s: float = 0.0
    gathers_base: bool = False
    swaps_reference: bool = False
    wakes_whole: bool = False
    sleeps_late: bool = False
    starts_last: bool = False
    starts_beside_cache: bool = False
    beside_trainer: bool = False
    always_sleeps: bool = False

    def factors_on(self, backend: str | None) -> PhaseFactors:
        """The factors with a trainer's backend."""
        own = self.megatron_factors if backend == "megatron" else PhaseFactors()
        return own.or_else(self.phase_factors)


def _preset(name: str, own: Mapping[str, Any]) -> StackPreset:
    """A preset as in a file. Raises ScenarioError for a wrong word, KeyError for a missing
    figure."""
    field = f"presets.stacks.{name}"
    check_unknown_keys(own, (*_GROUPS, "trainers"), field)
    prior = priced()[UNKNOWN].costs["presets"][UNKNOWN]
    entry = {**prior, **own}
    entry["phase_factors"] = {**prior["phase_factors"], **entry["phase_factors"]}
    settings, rest, loop, fixed, factors = (dict(entry[group]) for group in _GROUPS)
    sources = {group: _provenance(entry[group], field) for group in _GROUPS}
    words_of = {"engine": Engine, "engine_sleep": Sleep, "loads": Loads, "saves": Saves}
    for key, words in words_of.items():
        if settings.get(key) is not None:
            choice(settings[key], f"{field}.{key}", get_args(words))
    sync = settings.pop("sync")
    for placement in ("colocated", "disaggregated"):
        choice(sync[placement], f"{field}.sync.{placement}", get_args(Mechanism))
    for key in sync.keys() & {"adapter", "apart_adapter"}:
        choice(sync[key], f"{field}.sync.{key}", get_args(Mechanism))
    for figures in (settings, rest, loop, fixed, factors):
        for key in ("kind", "source"):
            figures.pop(key)
    spreads = {
        f"{group}_spread": tuple(figures.pop("spread"))
        for group, figures in (("rest", rest), ("loop", loop), ("fixed", fixed))
    }
    on_megatron = {key for key in factors if key.startswith(_ON_MEGATRON)}
    megatron = {key.removeprefix(_ON_MEGATRON): factors.pop(key) for key in on_megatron}
    groups = own.keys() & {"rest", "loop", "fixed", "phase_factors"}
    return StackPreset(
        **settings,
        **sync,
        **rest,
        **loop,
        **spreads,  # type: ignore[arg-type]
        fixed=FixedSeconds(**fixed),
        phase_factors=PhaseFactors(**factors),
        megatron_factors=PhaseFactors(**megatron),
        measured=name != UNKNOWN and any(sources[group].kind in _MEASURED for group in groups),
        sources=MappingProxyType(sources),
    )


def _provenance(figure: Mapping[str, Any], field: str) -> Provenance:
    choice(figure["kind"], f"{field}.kind", get_args(Kind))
    return Provenance(figure["kind"], figure["source"])


_ENTRIES = {
    known: (folder, entry)
    for folder in priced().values()
    for name, entry in folder.costs.get("presets", {}).items()
    for known in (name, *entry.get("also", ()))
}
OWN_TRAINERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {name: entry.get("trainers", {}) for name, (_, entry) in _ENTRIES.items()}
)
"""What a preset alone says of its trainers, by backend and option."""

FOLDERS: Mapping[str, Folder] = MappingProxyType(
    {name: folder for name, (folder, _) in _ENTRIES.items()}
)
"""The folder of every preset of every stack, by its name in ``cost.roofline.stack``."""

STACKS: Mapping[str, StackPreset] = MappingProxyType(
    {
        name: _preset(name, {key: its for key, its in entry.items() if key != "also"})
        for name, (_, entry) in _ENTRIES.items()
    }
)
"""The presets by the same names."""


def loop_of(name: str, engine: str | None) -> StackPreset:
    """The preset whose loop a stack has around an engine: its own around the engine that it has by
    default, whatever the version, else the prior over stacks: another engine runs otherwise."""
    stack = STACKS[name]
    own = stack.engine is None or engine is None or _kind(stack.engine) == _kind(engine)
    return stack if own else STACKS[UNKNOWN]


def _kind(engine: str) -> str:
    """An engine without its version."""
    return engine.partition("-")[0]


ALIASES = frozenset(alias for _, entry in _ENTRIES.values() for alias in entry.get("also", ()))
"""Names of versions that share the preset of another name."""

if TYPE_CHECKING:
    Stack = str
else:
    Stack = Literal[tuple(STACKS)]


def known_stack(name: object, field: str) -> str:
    """The name of a preset. Raises ScenarioError with the nearest names and what to give for a
    stack that has none."""
    if isinstance(name, str) and name in STACKS:
        return name
    text = str(name)
    stack, _, version = text.rpartition("-")
    if stack in STACKS and version[:1].isdigit():
        told_apart = ", ".join(sorted(known for known in STACKS if known.startswith(f"{stack}-")))
        instead = (
            f"versions of {stack} are {told_apart}; {stack} is its newest"
            if told_apart
            else f"versions of {stack} are not told apart: give {stack}"
        )
    else:
        instead = nearest(text, STACKS)
    raise ScenarioError(
        field, f"unknown stack {short(name)}; {instead}; stack: {UNKNOWN} is an average over stacks"
    )


@cache
def _far_off() -> Mapping[str, tuple[str, ...]]:
    """By stack's folder, sentences on phases of its published runs that are forecast badly."""
    sentences: dict[str, list[str]] = {}
    for one in read_presets("far_off.yaml")["cases"]:
        what = STEP_PHASES[one["phase"]].words
        sentences.setdefault(one["stack"], []).append(
            f"stack {one['stack']}: in {one['runs']} published figures {what} took {one['low']} to "
            f"{one['high']} times the forecast; its interval says more than the figure"
        )
    return {stack: tuple(of) for stack, of in sentences.items()}


def told_of(name: str) -> tuple[str, ...]:
    """Sentences on a stack: that nothing of it was measured, and which of its phases published runs
    took far longer or shorter for."""
    unmeasured = no_step_measured(name)
    return (*([unmeasured] if unmeasured else []), *_far_off().get(FOLDERS[name].name, ()))


def no_step_measured(name: str) -> str:
    """The sentence on a stack of which nothing was measured; '' for others."""
    stack = STACKS[name]
    if stack.measured:
        return ""
    low, high = stack.loop_spread
    return (
        f"stack {name}: no step of it was measured; its loop's costs are those of other stacks, "
        f"{1e3 * stack.loop_s:g} ms an iteration and {1e6 * stack.loop_per_rollout_s:g} us a "
        f"rollout, {low:g} to {high:g} times"
    )
