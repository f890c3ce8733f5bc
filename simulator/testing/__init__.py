"""Unit tests for policies: try one in a line, and hold against it the laws that ours are held to.

    from rollcast.testing import bound_holds, conserves, try_policy

    trial = try_policy("april(over_sampling=2)", lengths=[[3, 9, 4], [5, 5, 12]], group_size=3)
    conserves(trial)
    assert trial.makespan_s < 200

`check_policy_conforms` holds every law over a set of small and nasty clusters and workloads;
`simulator.testing.strategies` draws more of them, by Hypothesis.
"""

from rollcast.simulator.testing.conform import CASES, Case, check_policy_conforms
from rollcast.simulator.testing.laws import (
    bound_holds,
    conserves,
    never_on_two_replicas,
    same_again,
    same_decisions,
)
from rollcast.simulator.testing.listed import ListedWorkload
from rollcast.simulator.testing.monitor import Monitor
from rollcast.simulator.testing.trial import Trial, try_on, try_policy
from rollcast.simulator.testing.watched import TrainedOn, Watched

if not __debug__:
    raise ImportError("laws are assertions, which python -O leaves out: test policies without -O")

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
