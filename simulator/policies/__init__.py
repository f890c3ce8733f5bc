"""The policies. Each is a module of its own; `simulator.policies.registry` finds them by name,
`simulator.policies.chains` builds and checks chains of them, `simulator.policies.outside` brings
those from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcast.simulator.policies.chains import build_chain as build_chain
from rollcast.simulator.policies.chains import build_policy as build_policy
from rollcast.simulator.policies.chains import check_policy as check_policy
from rollcast.simulator.policies.chains import is_synchronous as is_synchronous
from rollcast.simulator.policies.chains import label as label
from rollcast.simulator.policies.chains import parse_labelled as parse_labelled
from rollcast.simulator.policies.chains import parse_policy as parse_policy
from rollcast.simulator.policies.chains import spell as spell
from rollcast.simulator.policies.registry import built_in
from rollcast.simulator.policies.registry import name_of as name_of

if TYPE_CHECKING:
    from rollcast.simulator.core.policy import Policy
    from rollcast.simulator.policies.april import APRIL as APRIL
    from rollcast.simulator.policies.colocate_async import ColocateAsync as ColocateAsync
    from rollcast.simulator.policies.difficulty import Difficulty as Difficulty
    from rollcast.simulator.policies.dynamic_sampling import DynamicSampling as DynamicSampling
    from rollcast.simulator.policies.fully_async import FullyAsync as FullyAsync
    from rollcast.simulator.policies.longest_first import LongestFirst as LongestFirst
    from rollcast.simulator.policies.one_step_off import OneStepOff as OneStepOff
    from rollcast.simulator.policies.partial_rollout import PartialRollout as PartialRollout
    from rollcast.simulator.policies.pipeline_rl import PipelineRL as PipelineRL
    from rollcast.simulator.policies.pods import PODS as PODS
    from rollcast.simulator.policies.prefix_reuse import PrefixReuse as PrefixReuse
    from rollcast.simulator.policies.rhyme_rl import RhymeRL as RhymeRL
    from rollcast.simulator.policies.sagc import SAGC as SAGC
    from rollcast.simulator.policies.seer import Seer as Seer
    from rollcast.simulator.policies.sorted_rl import SortedRL as SortedRL
    from rollcast.simulator.policies.streaming import Streaming as Streaming
    from rollcast.simulator.policies.tail_batching import TailBatching as TailBatching
    from rollcast.simulator.policies.token_budget import TokenBudget as TokenBudget

    POLICIES: Mapping[str, type[Policy]]
    """Every policy of this package by its name in a scenario; ``dapo_filter`` is another name of
    dynamic_sampling."""


def __getattr__(name: str) -> Any:
    """The policies' classes, and the table of them: a run that needs two does not read them all."""
    if name == "POLICIES":
        return built_in()
    for kind in built_in().values() if name[0].isupper() else ():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
