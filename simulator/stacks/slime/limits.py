"""What slime cannot carry out of a plan, and why."""

from __future__ import annotations

from rollcast.simulator.core.plan import History, Oracle
from rollcast.simulator.stacks.limits import EVERYWHERE, Bar, Limits

LIMITS = Limits(
    "slime",
    {
        **EVERYWHERE,
        "launch.run_ahead": Bar(
            "its train_async.py generates one batch ahead and no more",
            lambda p: p.launch.run_ahead > 1,
        ),
        "interrupt": Bar(
            "a rollout function returns before the weights change, but this plan lets rollouts "
            "continue through updates (slime's own fully asynchronous rollout does that)",
            lambda p: p.keeps_running,
        ),
        "sync_every": Bar(
            "train.py syncs the weights after every update; other intervals need "
            "train_async.py (--update-weights-interval) with one_step_off",
            lambda p: p.sync_every > 1 and p.launch.run_ahead == 0,
        ),
        "dispatch.predictor": Bar(
            "its data source does not say which prompt comes again, and nobody knows lengths "
            "beforehand in a real run",
            lambda p: isinstance(p.dispatch.predictor, Oracle | History),
            learnt=True,
        ),
    },
)
"""A rollout function and slime's arguments."""
