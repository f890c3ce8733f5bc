"""What verl cannot carry out of a plan, and why."""

from __future__ import annotations

from rollcast.simulator.core.plan import AllDone, EnoughGroups
from rollcast.simulator.stacks.limits import EVERYWHERE, Bar, Limits

LIMITS = Limits(
    "verl's V1 sampler",
    {
        **EVERYWHERE,
        "launch.run_ahead": Bar(
            lambda p: p.launch.run_ahead > 0,
            "its trainer mode decides that; one_step_off and fully_async alone are exported as "
            "settings",
        ),
        "launch.refill": Bar(
            lambda p: p.launch.refill != "none",
            "its trainer launches a batch of prompts at every step by itself",
        ),
        "launch.source": Bar(
            lambda p: p.launch.source != "buffer_first",
            "its agent loops go on with every prompt that they have begun",
        ),
        "batch.group_size": Bar(
            lambda p: False,
            "its trainer has launched the prompts before the sampler is asked",
            learnt=True,
        ),
        "dispatch.order": Bar(
            lambda p: p.dispatch.order != "fifo", "its agent loops start prompts as they come"
        ),
        "dispatch.predictor": Bar(
            lambda p: p.dispatch.predictor is not None,
            "its agent loops start prompts as they come",
            learnt=True,
        ),
        "dispatch.window": Bar(
            lambda p: p.dispatch.window is not None, "its agent loops start prompts as they come"
        ),
        "budget_tokens": Bar(
            lambda p: p.budget_tokens is not None, "a response's cap is the same in every step"
        ),
        "stop": Bar(
            lambda p: (
                not isinstance(p.stop, AllDone)
                and not (isinstance(p.stop, EnoughGroups) and p.unfinished == "resume")
            ),
            "it resumes what it interrupts (trainer_mode=colocate_async) and cannot stop a "
            "prompt for good; let a step end with everything done (dynamic_sampling: "
            "refill_when=drained), or add april, which keeps what it interrupts",
        ),
        "surplus": Bar(
            lambda p: p.surplus not in ("carry", "drop"),
            "a sampler can keep groups or clear them, and nothing else",
        ),
        "advantages": Bar(
            lambda p: bool(p.select) and p.advantages != "after_selection",
            "advantages come from the rollouts that the sampler returns",
        ),
        "staleness.max_versions": Bar(
            lambda p: p.staleness.max_versions is not None,
            "it does not say how old a rollout in flight is; verl's own sampler bounds that, "
            "and colocate_async alone is exported as its settings",
        ),
        "staleness.mask_off_policy": Bar(
            lambda p: p.staleness.mask_off_policy, "a sampler returns keys and masks nothing"
        ),
        "sync_every": Bar(
            lambda p: p.sync_every > 1, "its colocated trainers sync after every update"
        ),
    },
)
"""A custom sampler of verl's V1 trainer, in the modes sync and colocate_async."""
