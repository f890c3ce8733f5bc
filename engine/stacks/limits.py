"""What another stack's hooks cannot carry out of a plan, decision by decision, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import RunError, ScenarioError
from simulator.plan import AllDone, EnoughGroups, History, Oracle, StepPlan
from simulator.policies import decisions, name_of
from simulator.policy import Chain


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that a stack cannot do. asks: whether a plan asks for it. why: in words that go on
    after the decision's name. learnt: whether a policy that learns may come to ask for it later,
    if it says that it decides this."""

    asks: Callable[[StepPlan], bool]
    why: str
    learnt: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """A stack's bars by decision of a plan (`simulator.policies.decisions.DECISIONS`)."""

    stack: str
    bars: Mapping[str, Bar]

    def check_step(self, plan: StepPlan) -> None:
        """Raises RunError for a plan in the middle of a run that the stack cannot carry out."""
        for path, bar in self.bars.items():
            if bar.asks(plan):
                raise RunError(
                    f"step {plan.step} plans {path}, which {self.stack} cannot carry out: {bar.why}"
                )

    def check(self, policy: Chain, base: StepPlan) -> None:
        """Raises ScenarioError (``policy.NAME``) that names the first policy which asks for what
        the stack cannot do, or, learning, may come to ask for it."""
        members = decisions.made(policy, base, [name_of(member) for member in policy.policies])
        plan = members[-1].after if members else base
        for path, bar in self.bars.items():
            authors = [
                each.claim.name
                for each in members
                if path in decisions.changed(each.before, each.after)
                or (bar.learnt and each.learns and path in each.claim.decides)
            ]
            learns = bar.learnt and any(e.learns and path in e.claim.decides for e in members)
            if bar.asks(plan) or learns:
                raise ScenarioError(
                    ".".join(["policy", *authors[-1:]]),
                    f"decides {path}, which {self.stack} cannot carry out: {bar.why}",
                )


def _sizes_change(policy: Chain, base: StepPlan) -> bool:
    return len(policy.group_sizes(frozenset({base.batch.group_size}))) > 1


def check_sizes(policy: Chain, base: StepPlan) -> None:
    """Raises ScenarioError where a batch would hold now more and now fewer rollouts: a selection
    keeps so many of each group, and the number of groups changes with their size."""
    if _sizes_change(policy, base) and policy.plan(base, policy.init()).select:
        raise ScenarioError(
            "policy",
            "a selection beside changing group sizes makes batches of changing size, and the "
            "trainer's is fixed; leave one of the two out",
        )


_OWN_TRAINER = "how the trainer packs sequences is its own"
_LENGTHS = "nobody knows lengths beforehand in a real run"
_STREAM = "its trainer takes a batch at once"
_CHANGING = "batches would change in size, and the trainer's is fixed"

_EVERYWHERE: Mapping[str, Bar] = {
    "layout": Bar(lambda p: p.layout != "dense", _OWN_TRAINER, learnt=True),
    "stream_groups": Bar(lambda p: p.stream_groups is not None, _STREAM, learnt=True),
    "dispatch.placement": Bar(
        lambda p: p.dispatch.placement != "router", "its router decides on the replica"
    ),
    "surplus": Bar(lambda p: p.surplus == "train", _CHANGING),
    "prompts.skip": Bar(
        lambda p: bool(p.prompts.skip), "its data loader decides which prompt comes", learnt=True
    ),
    "prompts.chosen": Bar(
        lambda p: bool(p.prompts.chosen), "its data loader decides which prompt comes", learnt=True
    ),
    "launch.rollouts": Bar(
        lambda p: p.launch.rollouts != 1,
        "the slower rollouts of a group cannot be stopped by themselves",
    ),
}

SLIME = Limits(
    "slime",
    MappingProxyType(
        {
            **_EVERYWHERE,
            "launch.run_ahead": Bar(
                lambda p: p.launch.run_ahead > 1,
                "its train_async.py generates one batch ahead and no more",
            ),
            "interrupt": Bar(
                lambda p: p.keeps_running,
                "a rollout function returns before the weights change, and this has rollouts run "
                "on through updates (slime's own fully asynchronous rollout does that)",
            ),
            "sync_every": Bar(
                lambda p: p.sync_every > 1 and p.launch.run_ahead == 0,
                "train.py brings the weights after every update; train_async.py "
                "(--update-weights-interval) does with one_step_off",
            ),
            "dispatch.predictor": Bar(
                lambda p: isinstance(p.dispatch.predictor, Oracle | History),
                "its data source does not say which prompt comes again, and " + _LENGTHS,
                learnt=True,
            ),
        }
    ),
)
"""A rollout function and slime's arguments."""

VERL = Limits(
    "verl's V1 sampler",
    MappingProxyType(
        {
            **_EVERYWHERE,
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
                lambda p: p.dispatch.window is not None,
                "its agent loops start prompts as they come",
            ),
            "budget_tokens": Bar(
                lambda p: p.budget_tokens is not None,
                "a response's cap is the same in every step",
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
        }
    ),
)
"""A custom sampler of verl's V1 trainer, in the modes sync and colocate_async."""
