"""A scenario as a question, beside a launch: the changes that help are its own keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.simulator.check.question import Question
from rollcast.simulator.launches.draft import Asked, Drafted
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.scenario.file import RawScenario, with_values
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.stacks.syntax.yaml_text import spelt


@dataclass(frozen=True)
class ScenarioQuestion(Question):
    """Its launch and draft say nothing beyond the scenario."""

    @property
    def stack(self) -> str | None:
        """Of its costs."""
        name: str | None = self.value("cost.roofline.stack")
        return name

    @property
    def read_as(self) -> str:
        """What was recognised."""
        return "a scenario"

    def saying(self, key: str, wanted: Any) -> Mapping[str, Any]:
        """The key itself."""
        return {key: wanted}

    def lines(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """As on the command line."""
        return [f"--set {key}={spelt(value)}" for key, value in settings.items()]

    def with_settings(self, changes: Mapping[str, Any]) -> ScenarioQuestion:
        """The scenario with other values of some keys. Raises ScenarioError."""
        return of_scenario(with_values(self.scenario.raw, changes), self.draft.steps)

    def with_keys(self, changes: Mapping[str, Any]) -> Scenario:
        """The same, built."""
        return build_scenario(with_values(self.scenario.raw, changes)) if changes else self.scenario


def of_scenario(raw: RawScenario, steps: int | None = None) -> ScenarioQuestion:
    """What a scenario asks. steps: of the whole run; None: those of its ``plan``, if any. Raises
    ScenarioError with key and line."""
    scenario = build_scenario(raw)
    run = (raw.data.get("plan") or {}).get("run") or {}
    launch = Launched("scenario", {}, files=(Path(raw.name),))
    draft = Drafted(tuple(_parts(raw, raw.data, "")), {}, steps or run.get("steps"))
    return ScenarioQuestion(launch, Asked(), (), draft, scenario)


def _parts(raw: RawScenario, tree: Mapping[str, Any], above: str) -> Iterator[Part]:
    """Its values by dotted key, each with its line."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from _parts(raw, value, f"{key}.")
        else:
            line = raw.lines.get(key)
            source = f"{raw.name}, line {line}" if line else raw.overridden.get(key, "changed")
            yield Part(key, value, source)
