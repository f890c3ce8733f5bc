"""The policies. Each is a module of its own; `simulator.policies.registry` finds them by name,
`simulator.policies.chains` builds and checks chains of them, `simulator.policies.outside` brings
those from elsewhere."""

from __future__ import annotations

from simulator.policies.april import APRIL
from simulator.policies.chains import (
    build_chain,
    build_policy,
    check_policy,
    label,
    parse_labelled,
    parse_policy,
    spell,
)
from simulator.policies.dynamic_sampling import DynamicSampling
from simulator.policies.fully_async import FullyAsync
from simulator.policies.one_step_off import OneStepOff
from simulator.policies.partial_rollout import PartialRollout
from simulator.policies.pods import PODS
from simulator.policies.prefix_reuse import PrefixReuse
from simulator.policies.registry import built_in, name_of
from simulator.policies.sagc import SAGC
from simulator.policies.tail_batching import TailBatching

POLICIES = built_in()
"""Every policy of this package by its name in a scenario; ``dapo_filter`` is another name of
dynamic_sampling."""

__all__ = [
    "APRIL",
    "PODS",
    "POLICIES",
    "SAGC",
    "DynamicSampling",
    "FullyAsync",
    "OneStepOff",
    "PartialRollout",
    "PrefixReuse",
    "TailBatching",
    "build_chain",
    "build_policy",
    "check_policy",
    "label",
    "name_of",
    "parse_labelled",
    "parse_policy",
    "spell",
]
