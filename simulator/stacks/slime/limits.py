"""What slime cannot carry out of a plan, and why."""

from __future__ import annotations

from rollcast.simulator.core.plan import History, Oracle
from rollcast.simulator.stacks.limits import EVERYWHERE, Bar, Limits

LIMITS = Limits(
    "slime",
    {
        **EVERYWHERE,
        "launch.run_ahead": Bar(
            lambda p: p.launch.run_ahead > 1,
            "its train_async.py generates one batch ahead and no more",
        ),
        "interrupt": Bar(
            lambda p: p.keeps_running,
            "a rollout function returns before the weights change, but this plan lets "
            "rollouts continue through updates (slime's own fully asynchronous rollout "
            "does that)",
        ),
        "sync_every": Bar(
            lambda p: p.sync_every > 1 and p.launch.run_ahead == 0,
            "train.py syncs the weights after every update; other intervals need "
            "train_async.py (--update-weights-interval) with one_step_off",
        ),
        "dispatch.predictor": Bar(
            lambda p: isinstance(p.dispatch.predictor, Oracle | History),
            "its data source does not say which prompt comes again, and nobody knows lengths "
            "beforehand in a real run",
            learnt=True,
        ),
    },
)
"""A rollout function and slime's arguments."""
