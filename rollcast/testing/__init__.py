"""Unit tests for policies; see `simulator.testing`, whose names these are. ``strategies`` are for
Hypothesis, and imported by name."""

from rollcast._own import own

own("simulator")

from simulator.testing import (  # noqa: E402
    CASES,
    Case,
    ListedWorkload,
    Monitor,
    TrainedOn,
    Trial,
    Watched,
    bound_holds,
    check_policy_conforms,
    conserves,
    never_on_two_replicas,
    same_again,
    same_decisions,
    try_on,
    try_policy,
)

__all__ = [
    "CASES",
    "Case",
    "ListedWorkload",
    "Monitor",
    "TrainedOn",
    "Trial",
    "Watched",
    "bound_holds",
    "check_policy_conforms",
    "conserves",
    "never_on_two_replicas",
    "same_again",
    "same_decisions",
    "try_on",
    "try_policy",
]
