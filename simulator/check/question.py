"""A launch as a question: its scenario, built, and the way back to the launch's own words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked, Drafted, asks_for, drafted, unresolved
from rollcast.simulator.launches.engine_defaults import priced_engine
from rollcast.simulator.launches.launched import Launched, Unresolved
from rollcast.simulator.launches.overrides import overrides, strategy_of
from rollcast.simulator.launches.parts import HOST_MEMORY, Part, missing, replaced
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.ledger import roofline_of
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.stacks.settings import Place, Setting
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.stacks.syntax.json_text import nested

STEPS = 4
"""Of a run that answers for the whole: batches are drawn anew in each."""
ENOUGH_ROLLOUTS = 8192
"""Of all steps of such a run, which has fewer steps if they are this large."""
CAP, MEAN_TOKENS = "workload.max_new_tokens", "workload.lengths.mean_tokens"
_CHANGED = Place("a change")
_SET = "given by --set"
_FLAGS = {
    "model": "--model (a preset of rollcast presets models, or a folder with its config.json)",
    "gpu": "--gpu (one of rollcast presets gpus)",
    "gpus": "--gpus (how many in all)",
}
_GPUS = {
    *("run.nodes", "run.gpus_per_node", "run.rollout_gpus", "run.rollout_nodes"),
    *("run.rollout_gpus_per_node", "cluster.trainer_gpus"),
}
_NEEDED = {
    *_GPUS,
    *("model", "workload.batch_groups", "workload.group_size", "workload.max_new_tokens"),
    *("run.batch_rollouts", "cluster.tensor_parallel", "cluster.replicas"),
}
"""Settings whose default nobody would take for what a variable holds."""
_WORDS = {"model": "which model", "gpu": "which GPU", "gpus": "how many GPUs"}


@dataclass(frozen=True)
class Question:
    """launch: as read. asked: what the user adds. settings: of ``--set``, which hold over all.
    draft: the scenario in parts. scenario: built; whether it fits is not checked."""

    launch: Launched
    asked: Asked
    settings: tuple[str, ...]
    draft: Drafted
    scenario: Scenario

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of the scenario."""
        return self.draft.parts

    @property
    def written(self) -> tuple[Part, ...]:
        """The parts, the steps that were simulated, and what the mean length may be where nobody
        says it: with them ``simulate`` says the same."""
        parts = list(self.parts)
        for key, tokens in zip(("mean_low", "mean_high"), self.open_lengths, strict=False):
            why = "assumed: of published runs nine of ten lie from mean_low to mean_high"
            parts.append(Part(f"workload.lengths.{key}", tokens, why, True))
        if self.value("steps") is None:
            parts.append(Part("steps", self.scenario.steps, "simulated for this answer"))
        return tuple(parts)

    @property
    def open_lengths(self) -> list[int]:
        """Ends of the mean length of responses where nobody says it: those of published runs."""
        mean = next((part for part in self.parts if part.key == MEAN_TOKENS), None)
        if mean is None or not mean.assumed:
            return []
        own, cap = figures("launches"), self.value(CAP)
        shares = own.least_mean_of_cap, own.most_mean_of_cap
        return [max(round(share * cap), 1) for share in shares]

    @property
    def name(self) -> str:
        """Of the launch's first file, else of its stack."""
        return name_of(self.launch)

    @property
    def unresolved(self) -> list[Unresolved]:
        """Of the launch, as `draft.unresolved` has it."""
        return unresolved(self.launch)

    @property
    def stack(self) -> str | None:
        """Whose settings these are; None of a scenario that says none."""
        return self.launch.stack

    @property
    def read_as(self) -> str:
        """What was recognised."""
        return self.launch.stack

    @cached_property
    def _takes(self) -> frozenset[str]:
        """Settings that the stack has, under its present strategy or another."""
        table, release = all_stacks()[self.launch.stack].launch, self.launch.release
        known = self.draft.settings
        runs = (known, *({**known, **strategy_of(name)} for name in ("fsdp2", "deepspeed")))
        return table.taken(runs, release)

    def saying(self, key: str, wanted: Any) -> Mapping[str, Any]:
        """Settings that give a key of the scenario this value; empty where there are none."""
        return overrides(key, wanted, self.draft.settings, self._takes)

    def lines(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Settings in the stack's own words, to paste. Raises KeyError where it has none."""
        launch, table = self.launch, all_stacks()[self.launch.stack].launch
        return table.written(settings, launch.release, self.draft.settings, launch.in_python)

    def value(self, key: str) -> Any:
        """Of a key of the scenario; None where no part says it."""
        return next((part.value for part in self.parts if part.key == key), None)

    def with_settings(self, changes: Mapping[str, Any]) -> Question:
        """The launch with other settings, by our key. Raises ScenarioError as `question`."""
        changed = {key: Setting(key, value, key, _CHANGED) for key, value in changes.items()}
        launch = replace(self.launch, settings={**self.launch.settings, **changed})
        return question(launch, self.asked, self.settings)

    def with_mean(self, tokens: int) -> Question:
        """The launch with responses of another mean length. Raises ScenarioError as `question`."""
        return question(self.launch, replace(self.asked, mean_tokens=tokens), self.settings)

    def as_if_it_fit(self) -> dict[str, Any]:
        """Keys for its times alone: GPUs with far more memory and the same KV pool."""
        scenario = self.scenario
        if scenario.gpu is None:
            return {}
        large = replace(scenario.gpu, memory_bytes=64 * scenario.gpu.memory_bytes)
        host = {HOST_MEMORY: None}
        return {"gpu": large, "engine.kv_tokens": scenario.engine.kv_tokens, **host}

    def with_keys(self, changes: Mapping[str, Any]) -> Scenario:
        """The scenario with other values of some keys. Raises ScenarioError as `built`."""
        parts = replaced(
            self.parts, [Part(key, value, "changed") for key, value in changes.items()]
        )
        return built(parts, self.name, self.settings)


def question(launch: Launched, asked: Asked, settings: Iterable[str] = ()) -> Question:
    """What a launch asks. Raises ScenarioError for what is missing, with the flags that give it,
    and for a scenario that cannot be, with the file and line of the setting."""
    draft, spelt = drafted(launch, asked), tuple(settings)
    _ask(launch, draft, spelt, asked.gpus)
    scenario = built(draft.parts, name_of(launch), spelt)
    if spelt:
        draft = replace(draft, parts=tuple(_as_set(draft.parts, scenario.raw.data)))
    notes = (note for note in _taken_notes(draft, scenario) if note not in launch.notes)
    launch = replace(launch, notes=(*launch.notes, *notes))
    return Question(launch, asked, spelt, draft, scenario)


def _taken_notes(draft: Drafted, scenario: Scenario) -> Iterator[str]:
    """That the launch splits its trainer, steps or generates in a way that is not known here."""
    cost, parts = roofline_of(scenario.cost), {part.key for part in draft.parts}
    if cost is None:
        return
    strategy, optimizer, engine = (
        _said(draft, key) for key in ("run.strategy", "run.optimizer", "run.engine")
    )
    if strategy is not None and "cost.roofline.trainer.backend" not in parts:
        yield _taken(strategy, cost.trainer_of.backend)
    if optimizer is not None and "cost.roofline.trainer.optimizer" not in parts:
        yield _taken(optimizer, cost.trainer_of.optimizer)
    if engine is not None and isinstance(engine.value, str) and priced_engine(engine.value) is None:
        yield _taken(engine, cost.engine)
    scorers = _said(draft, "run.reference_devices")  # RLinf's, of old log-probabilities, too
    apart = "run.reference_gpus" in draft.settings
    if scorers is not None and apart and "cost.roofline.trainer.reference_gpus" not in parts:
        yield (
            f"{scorers.source} gives GPUs {scorers.value} to log-probabilities, which are priced "
            "on the trainer's: these GPUs are not counted"
        )


def _said(draft: Drafted, key: str) -> Setting | None:
    said = draft.settings.get(key)
    return None if said is None or said.unsaid or said.implied else said


def _taken(said: Setting, as_what: object) -> str:
    return f"{said.source} is {said.value}, of which no costs are known: it is taken as {as_what}"


def _as_set(parts: Sequence[Part], data: Mapping[str, Any]) -> Iterator[Part]:
    """The parts with the values that ``--set`` gave them, and those that it added."""
    kept: dict[str, Any] = {part.key: part.value for part in parts}
    values = dict(_values(data, "", kept))
    for part in parts:
        if part.key not in values:
            if part.value is None:
                yield part
        elif part.value == values[part.key]:
            yield part
        else:
            yield Part(part.key, values[part.key], _SET)
    yield from (Part(key, value, _SET) for key, value in values.items() if key not in kept)


def _values(
    data: Mapping[str, Any], above: str, whole: Container[str]
) -> Iterator[tuple[str, Any]]:
    """Values by dotted key, but those in ``whole`` as they are, and not ``steps``, of `built`."""
    for name, value in data.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value and key not in whole:
            yield from _values(value, f"{key}.", whole)
        elif key != "steps":
            yield key, value


def name_of(launch: Launched) -> str:
    """Of the first file, else of the stack."""
    return launch.files[0].name if launch.files else launch.stack


def built(parts: Iterable[Part], name: str, settings: Sequence[str] = ()) -> Scenario:
    """The scenario of these parts. Raises ScenarioError whose field is where the value is from."""
    said = tuple(part for part in parts if part.value is not None)
    data = nested((part.key, part.value) for part in said)
    few = "steps" not in data and not any(one.startswith("steps=") for one in settings)
    data.setdefault("steps", STEPS)
    raw = override(RawScenario(data, name=name, folder=Path()), tuple(settings))
    try:
        scenario = build_scenario(raw)
        steps = max(1, ENOUGH_ROLLOUTS // scenario.plan.batch.rollouts)
        # a step that overlaps or carries work over is unlike a first one
        if few and not raw.data.get("policy") and steps < STEPS:
            scenario = build_scenario(override(raw, (f"steps={steps}",)))
        return scenario
    except ScenarioError as error:
        raise located(error, said) from None


def located(error: ScenarioError, parts: Iterable[Part]) -> ScenarioError:
    """An error of a scenario at the place of the launch that gave the value."""
    by_key = {part.key: part for part in parts}
    key = error.field
    while key:
        if key in by_key and not by_key[key].assumed:
            place = by_key[key].source.removeprefix("given by ")
            return ScenarioError(place, f"{error.message} [{error.field}]")
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return error


def _ask(launch: Launched, draft: Drafted, settings: Iterable[str], gpus: int | None) -> None:
    """Raises ScenarioError for what neither launch nor user says."""
    given = {setting.partition("=")[0].strip() for setting in settings}
    open_parts = [part for part in missing(draft.parts) if part.key not in given]
    wanted = [part.key for part in open_parts if part.key in _FLAGS]
    why = [
        part.source.partition("; give --")[0]
        for part in open_parts
        if part.key == "model" and not part.source.startswith("not in")
    ]
    cluster = {part.key: part for part in draft.parts if part.key.startswith("cluster.")}
    untold = cluster["cluster.replicas"].assumed or "cluster.trainer_gpus" not in cluster
    if untold and not given & {"cluster.replicas", "cluster.trainer_gpus"}:
        wanted.append("gpus")
    for item in launch.unresolved:
        ours = asks_for(launch, item)
        if (
            ours is None
            or ours not in _NEEDED
            or ours in launch.settings
            or (ours in _GPUS and gpus is not None)
        ):
            continue
        if ours in _GPUS or ours == "model":
            said = f"{item.key} is {item.text} in {item.place}"
            if not any(one.startswith(said) for one in why):
                why.append(f"{said}: {item.why}")
            wanted += ["gpus"] if ours in _GPUS and "gpus" not in wanted else []
        elif ours not in given:
            ways = (
                [] if item.why.endswith(" is not run") else ["the variable with --env NAME=VALUE"]
            )
            if ours.startswith(("workload.", "cluster.")):
                ways.append(f"--set {ours}=N")
            raise ScenarioError(
                f"{item.key} in {item.place}",
                f"is {item.text}, and {item.why}{'; give ' if ways else ''}{', or '.join(ways)}",
            )
    if not wanted:
        return
    because = f" ({'; '.join(why[:3])})" if why else ""
    words, trainer = dict(_WORDS), cluster.get("cluster.trainer_gpus")
    if trainer and not trainer.assumed and cluster["cluster.placement"].value == "disaggregated":
        words["gpus"] += f" beside the trainer's {trainer.value}"
    raise ScenarioError(
        name_of(launch),
        f"does not say {' and '.join(words[key] for key in wanted)}{because}; give "
        f"{' and '.join(_FLAGS[key] for key in wanted)}",
    )
