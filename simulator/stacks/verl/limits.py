"""What verl cannot carry out of a plan, and why."""

from __future__ import annotations

from rollcast.simulator.core.plan import AllDone, EnoughGroups
from rollcast.simulator.stacks.limits import EVERYWHERE, Bar, Limits

_LOOPS = "its agent loops start prompts as they come"
LIMITS = Limits(
    "verl's V1 sampler",
    {
        **EVERYWHERE,
        "launch.run_ahead": Bar(
            "its trainer mode decides that; exported as settings are one_step_off alone, and "
            "fully_async alone with max_staleness, in_flight, sync_every and exceeded (capacity "
            "or wait)"
        ),
        "launch.refill": Bar("its trainer launches a batch of prompts at every step by itself"),
        "launch.source": Bar("its agent loops go on with every prompt that they have begun"),
        "batch.group_size": Bar(
            "its trainer has launched the prompts before the sampler is asked",
            lambda p: False,
            learnt=True,
        ),
        "dispatch.order": Bar(_LOOPS),
        "dispatch.predictor": Bar(_LOOPS, learnt=True),
        "dispatch.window": Bar(_LOOPS),
        "budget_tokens": Bar("a response's cap is the same in every step"),
        "stop": Bar(
            "it resumes what it interrupts (trainer_mode=colocate_async) and cannot stop a "
            "prompt for good; let a step end with everything done (dynamic_sampling: "
            "refill_when=drained), or add april, which keeps what it interrupts",
            lambda p: (
                not isinstance(p.stop, AllDone)
                and not (isinstance(p.stop, EnoughGroups) and p.unfinished == "resume")
            ),
        ),
        "surplus": Bar(
            "a sampler can keep groups or clear them, and nothing else",
            lambda p: p.surplus not in ("carry", "drop"),
        ),
        "advantages": Bar(
            "advantages come from the rollouts that the sampler returns",
            lambda p: bool(p.select) and p.advantages != "after_selection",
        ),
        "staleness.max_versions": Bar(
            "it does not say how old a rollout in flight is; verl's own sampler bounds that, "
            "and colocate_async alone is exported as its settings"
        ),
        "staleness.mask_off_policy": Bar("a sampler returns keys and masks nothing"),
        "sync_every": Bar("its colocated trainers sync after every update"),
    },
)
"""A custom sampler of verl's V1 trainer, in the modes sync and colocate_async."""
