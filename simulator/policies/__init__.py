"""The policies. Each is a module of its own; `simulator.policies.registry` finds them by name,
`simulator.policies.chains` builds and checks chains of them, `simulator.policies.outside` brings
those from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcast.simulator.policies.chains import (
    build_chain,
    build_policy,
    check_policy,
    label,
    parse_labelled,
    parse_policy,
    spell,
)
from rollcast.simulator.policies.registry import built_in, name_of

if TYPE_CHECKING:
    from rollcast.simulator.policies.april import APRIL
    from rollcast.simulator.policies.colocate_async import ColocateAsync
    from rollcast.simulator.policies.difficulty import Difficulty
    from rollcast.simulator.policies.dynamic_sampling import DynamicSampling
    from rollcast.simulator.policies.fully_async import FullyAsync
    from rollcast.simulator.policies.longest_first import LongestFirst
    from rollcast.simulator.policies.one_step_off import OneStepOff
    from rollcast.simulator.policies.partial_rollout import PartialRollout
    from rollcast.simulator.policies.pipeline_rl import PipelineRL
    from rollcast.simulator.policies.pods import PODS
    from rollcast.simulator.policies.prefix_reuse import PrefixReuse
    from rollcast.simulator.policies.rhyme_rl import RhymeRL
    from rollcast.simulator.policies.sagc import SAGC
    from rollcast.simulator.policies.seer import Seer
    from rollcast.simulator.policies.sorted_rl import SortedRL
    from rollcast.simulator.policies.streaming import Streaming
    from rollcast.simulator.policies.tail_batching import TailBatching
    from rollcast.simulator.policies.token_budget import TokenBudget
    from rollcast.simulator.policy import Policy

    POLICIES: Mapping[str, type[Policy]]
    """Every policy of this package by its name in a scenario; ``dapo_filter`` is another name of
    dynamic_sampling."""

__all__ = [
    "APRIL",
    "PODS",
    "POLICIES",
    "SAGC",
    "ColocateAsync",
    "Difficulty",
    "DynamicSampling",
    "FullyAsync",
    "LongestFirst",
    "OneStepOff",
    "PartialRollout",
    "PipelineRL",
    "PrefixReuse",
    "RhymeRL",
    "Seer",
    "SortedRL",
    "Streaming",
    "TailBatching",
    "TokenBudget",
    "build_chain",
    "build_policy",
    "check_policy",
    "label",
    "name_of",
    "parse_labelled",
    "parse_policy",
    "spell",
]


def __getattr__(name: str) -> Any:
    """The policies' classes, and the table of them: a run that needs two does not read them all."""
    if name == "POLICIES":
        return built_in()
    for kind in built_in().values() if name in __all__ else ():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
