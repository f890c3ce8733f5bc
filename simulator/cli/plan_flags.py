"""The flags of ``rollcast plan``, put into the scenario's section ``plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario, read_value
from rollcast.simulator.values.readers import in_their_units


def with_flags(
    raw: RawScenario,
    run: str | None = None,
    choose: Sequence[str] = (),
    limits: Sequence[str] = (),
    objective: str | None = None,
    quality: Sequence[str] = (),
    gpus: Sequence[int | str] = (),
    target: str | None = None,
) -> RawScenario:
    """The scenario with its section ``plan`` changed by the flags. gpus: of ``--gpus``. Raises
    ScenarioError naming the flag."""
    section = raw.data.get("plan")
    if section is not None and not isinstance(section, Mapping):
        return raw  # an error when it is read
    asked: dict[str, tuple[str, Any]] = {}
    if run is not None:
        example = "steps=500, or prompts=40000,epochs=2"
        asked["run"] = "--run", _pairs(run.split(","), "--run", example)
    if target is not None:
        if run is not None:
            raise ScenarioError("--target", "says how long the run is, as --run; give one of them")
        found = _pairs([target], "--target", "accuracy=0.7")
        if set(found) != {"accuracy"}:
            raise ScenarioError("--target", f"takes accuracy=0.7 alone, got {target!r}")
        asked["run"] = "--target", found
    if limits:
        asked["limits"] = "--limit", _pairs(limits, "--limit", "hours=120")
    if quality:
        asked["quality"] = "--quality", _pairs(quality, "--quality", "april=1.05")
    if choose:
        asked["choose"] = "--choose", parse_choose(choose)
    if gpus:
        _, others = asked.get("choose", ("", {}))
        if "gpus" in others:
            raise ScenarioError("--gpus", "is the same as --choose gpus; give one of them")
        asked["choose"] = "--gpus", {**others, "gpus": list(gpus)}
    if objective is not None:
        asked["objective"] = "--objective", objective
    plan, flags = dict(section or {}), dict[str, str]()
    for name, (flag, value) in asked.items():
        if name in ("limits", "quality", "choose"):
            flags |= {f"plan.{name}.{key}": flag for key in value}
            plan[name] = {**_mapping(plan.get(name)), **value}
        else:
            flags[f"plan.{name}"] = flag
            plan[name] = value
    if not asked:
        return raw
    data = {**raw.data, "plan": plan}
    return replace(raw, data=data, overridden={**raw.overridden, **flags})


def run_of_steps(steps: int | None, run: str | None) -> str | None:
    """``--run``, of which ``--steps N`` is another spelling. Raises ScenarioError for both."""
    if steps is None:
        return run
    if run is not None:
        raise ScenarioError("--steps", "says how long the run is, as --run; give one of them")
    return f"steps={steps}"


def steps_of_run(steps: int | None, run: str | None) -> int | None:
    """``--steps``, of which ``--run steps=N`` is another spelling. Raises ScenarioError for both,
    and for other lengths."""
    text = run_of_steps(steps, run)
    found = {} if text is None else _pairs(text.split(","), "--run", "steps=500")
    if found.keys() - {"steps"} or not isinstance(found.get("steps", 1), int):
        raise ScenarioError("--run", f"is {run}; give steps=500 here (rollcast plan takes others)")
    return found.get("steps")


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _pairs(texts: Sequence[str], flag: str, example: str) -> dict[str, Any]:
    """``key=value`` each, the value read as YAML."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ScenarioError(flag, f"{text!r} is not of the form key=value, such as {example}")
        if key in pairs:
            raise ScenarioError(flag, f"{key} is given twice")
        if not value.strip():
            raise ScenarioError(flag, f"{key} has no value; give one, such as {example}")
        pairs[key] = _value(value, flag)
    return pairs


def parse_choose(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values by key of ``key=value,value`` and ``key=key=value,value``, read as YAML. Raises
    ScenarioError (``--choose``)."""
    flag, choices = "--choose", dict[str, list[Any]]()
    for text in texts:
        *keys, values = text.split("=")
        key = "=".join(part.strip() for part in keys)
        if not all(key.split("=")):
            raise ScenarioError(flag, f"{text!r} is not of the form key=value,value")
        if key in choices:
            raise ScenarioError(flag, f"{key} is given twice")
        if "policy" in key.split("="):
            raise ScenarioError(flag, "give each policy with a --policy of its own")
        listed = in_their_units(_value(f"[{values}]", flag), key)
        if not isinstance(listed, list) or not listed:
            raise ScenarioError(flag, f"{key} has no values")
        choices[key] = listed
    return choices


def _value(text: str, flag: str) -> Any:
    try:
        return read_value(text, flag)
    except ScenarioError:
        raise ScenarioError(flag, f"cannot read {text!r}") from None
