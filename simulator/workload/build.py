"""What the cluster works on: the tokens that each rollout produces and the reward it gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simulator import checks
from simulator.errors import ScenarioError
from simulator.fields import Fields
from simulator.results.fitted_file import read_fitted
from simulator.workload.draws import GroupDraw
from simulator.workload.from_trace import TraceWorkload
from simulator.workload.length_specs import LARGEST_SD, lengths_from_spec
from simulator.workload.lengths import LARGEST_CAP
from simulator.workload.measured import FIELD as MEASURED_FIELD
from simulator.workload.measured import ResampledWorkload, measured_workload
from simulator.workload.rewards import BetaBernoulli, rewards_from_spec
from simulator.workload.synthetic import PromptTokens, SyntheticWorkload
from simulator.workload.traces import FIELD as TRACE_FIELD
from simulator.workload.traces import read_trace

__all__ = [
    "GroupDraw",
    "PromptTokens",
    "SyntheticWorkload",
    "TraceWorkload",
    "Workload",
    "build_workload",
    "prompts_from_spec",
]


class Workload(Protocol):
    """Draws that hang on their address only, so that every policy meets the same ones."""

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """No prompt is longer, tokens."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each thing that was done to what was given, for the run's result."""
        ...

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``, which answers ``prompt`` (None: one of its own,
        of the same number) for the ``visit``-th time, from 0.

        attempt: 0 for the first try; a restart keeps the prompt and draws its responses afresh.
        version: updates that the weights had had when the group was first launched.
        """
        ...


_DEFAULT_REWARDS = BetaBernoulli(0.5, 0.3)
_WORKLOAD_KEYS = (
    "batch_groups",
    "group_size",
    "prompts",
    "prompt_tokens",
    "max_new_tokens",
    "lengths",
    "rewards",
)


def build_workload(
    spec: Mapping[str, Any], seed: int, folder: Path | None = None
) -> SyntheticWorkload | TraceWorkload | ResampledWorkload:
    """The workload of a scenario's ``workload`` section.

    spec: ``lengths`` (see `length_specs.lengths_from_spec`, or ``{trace: path, repeat: false,
    within_sd: sd}``, or ``{file: path}`` of a fitted file), ``rewards`` (see
    `rewards.rewards_from_spec`; Beta-Bernoulli with mean 0.5 and spread 0.3 where left out),
    ``prompt_tokens`` (a number, or ``{median_tokens, sd, max_tokens}``), ``max_new_tokens`` and
    ``group_size``. folder: what a relative path starts from. Raises ScenarioError naming the key.
    """
    fields = Fields(spec, "workload", _WORKLOAD_KEYS)
    cap = fields.whole("max_new_tokens")
    if cap > LARGEST_CAP:
        raise ScenarioError("workload.max_new_tokens", f"{cap} is above {LARGEST_CAP} tokens")
    lengths = fields.get("lengths")
    if lengths is None:
        raise ScenarioError("workload.lengths", "missing; give a family, a preset or a trace")
    if isinstance(lengths, Mapping) and "trace" in lengths:
        return _trace_workload(fields, cap, seed, folder or Path())
    if isinstance(lengths, Mapping) and "file" in lengths:
        return _measured_workload(fields, cap, seed, folder or Path())
    prompts = prompts_from_spec(fields.get("prompt_tokens"))
    model = lengths_from_spec(lengths)
    rewards = rewards_from_spec(fields.get("rewards")) if "rewards" in fields else _DEFAULT_REWARDS
    return SyntheticWorkload(model, rewards, prompts, cap, seed)


def prompts_from_spec(spec: object) -> PromptTokens:
    """The prompt lengths that ``workload.prompt_tokens`` describes. Raises ScenarioError."""
    name = "workload.prompt_tokens"
    if not isinstance(spec, Mapping):
        if spec is None:
            raise ScenarioError(name, "missing; give a number of tokens")
        return PromptTokens(checks.whole(spec, name, minimum=1))
    fields = Fields(spec, name, ("family", "median_tokens", "sd", "max_tokens"))
    if "family" in fields:
        fields.choice("family", ("lognormal",))
    median = fields.number("median_tokens", minimum=1.0)
    sd = fields.number("sd", maximum=LARGEST_SD)
    longest = fields.whole("max_tokens", minimum=math.ceil(median))
    return PromptTokens(median, sd, longest)


def _measured_workload(fields: Fields, cap: int, seed: int, folder: Path) -> ResampledWorkload:
    path = Fields(fields.get("lengths"), "workload.lengths", ("file",)).get("file")
    if not isinstance(path, str | Path):
        raise ScenarioError(MEASURED_FIELD, f"{path!r} is not the path of a file")
    place = folder / path
    try:
        content = read_fitted(place, MEASURED_FIELD)
    except ScenarioError as error:
        hint = "for a table of lengths or a log of requests, give trace: in place of file:"
        raise ScenarioError(MEASURED_FIELD, f"{error.message}; {hint}") from None
    for key in ("prompt_tokens", "rewards"):
        if key in fields:
            message = f"{place.name} has its own; leave this out"
            raise ScenarioError(f"workload.{key}", message)
    return measured_workload(content, place.name, cap, seed)


def _trace_workload(fields: Fields, cap: int, seed: int, folder: Path) -> TraceWorkload:
    options = Fields(fields.get("lengths"), "workload.lengths", ("trace", "repeat", "within_sd"))
    path = options.get("trace")
    if not isinstance(path, str | Path):
        raise ScenarioError(TRACE_FIELD, f"{path!r} is not the path of a file")
    trace = read_trace(folder / path)
    if "prompt_tokens" in fields:
        raise ScenarioError(
            "workload.prompt_tokens", f"{trace.name} has its own prompt lengths; leave this out"
        )
    rewards = rewards_from_spec(fields.get("rewards")) if "rewards" in fields else None
    if rewards is None and not trace.has_rewards:
        rewards = _DEFAULT_REWARDS
    within_sd = options.number("within_sd", maximum=LARGEST_SD) if "within_sd" in options else None
    if within_sd is None:
        trace = trace.dealt(fields.whole("group_size"))
    return TraceWorkload(
        trace, cap, rewards=rewards, within_sd=within_sd, repeat=options.flag("repeat"), seed=seed
    )
