"""A run of the loop, and of the command line, in one call."""

import pytest

from rollcast.simulator.cli.app import main
from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import World
from rollcast.simulator.runs.drive import OnStep, Parts, drive


def run(
    world: World,
    policy: Policy,
    plan: StepPlan,
    steps: int,
    on_step: OnStep = None,
    poll_s: float = 0.0,
    trial_timeout_s: float | None = None,
) -> Run:
    """Runs ``steps`` updates of ``plan`` under ``policy`` on ``world``."""
    return drive(Parts(policy, plan, poll_s, trial_timeout_s), world, steps, on_step)


def exit_code(*words: object) -> int:
    """Of ``rollcast WORDS`` in this process."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)
