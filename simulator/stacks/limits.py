"""What another stack's hooks cannot carry out of a plan, decision by decision, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.policies import decisions, name_of


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
                member.claim.name
                for member in members
                if path in decisions.changed(member.before, member.after)
                or (bar.learnt and member.learns and path in member.claim.decides)
            ]
            learns = bar.learnt and any(
                member.learns and path in member.claim.decides for member in members
            )
            if bar.asks(plan) or learns:
                raise ScenarioError(
                    ".".join(["policy", *authors[-1:]]),
                    f"decides {path}, which {self.stack} cannot carry out: {bar.why}",
                )


def check_sizes(policy: Chain, base: StepPlan) -> None:
    """Raises ScenarioError where a batch would hold now more and now fewer rollouts: a selection
    keeps so many of each group, and the number of groups changes with their size."""
    sizes = policy.group_sizes(frozenset({base.batch.group_size}))
    if len(sizes) > 1 and policy.plan(base, policy.init()).select:
        raise ScenarioError(
            "policy",
            "a selection beside changing group sizes makes batches of changing size, and the "
            "trainer's is fixed; leave one of the two out",
        )


_OWN_TRAINER = "its trainer decides how sequences are packed"
_STREAM = "its trainer takes a batch at once"
_CHANGING = "batches would change in size, and the trainer's is fixed"

EVERYWHERE: Mapping[str, Bar] = {
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
        lambda p: p.launch.rollouts != 1, "single rollouts of a group cannot be stopped"
    ),
}
"""What no stack's hooks can carry out."""
