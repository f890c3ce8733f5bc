"""What another stack's hooks cannot carry out of a plan, decision by decision, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.policies import decisions, name_of

_PLAIN = StepPlan(Batch(1, 1))


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that a stack cannot do. why: in words that go on after the decision's name. asks:
    whether a plan asks for it; without, each decision but a plan's own does. learnt: whether a
    policy that learns may come to ask for it later, if it says that it decides this."""

    why: str
    asks: Callable[[StepPlan], bool] | None = None
    learnt: bool = False

    def hit_by(self, plan: StepPlan, path: str) -> bool:
        """Whether the plan asks for it. path: of the decision."""
        if self.asks is not None:
            return self.asks(plan)
        return bool(decisions.value(plan, path) != decisions.value(_PLAIN, path))


@dataclass(frozen=True, slots=True)
class Limits:
    """A stack's bars by decision of a plan (`simulator.policies.decisions.DECISIONS`)."""

    stack: str
    bars: Mapping[str, Bar]

    def check_step(self, plan: StepPlan) -> None:
        """Raises RunError for a plan in the middle of a run that the stack cannot carry out."""
        for path, bar in self.bars.items():
            if bar.hit_by(plan, path):
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
            if bar.hit_by(plan, path) or learns:
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


_LOADER = Bar("its data loader decides which prompt comes", learnt=True)

EVERYWHERE: Mapping[str, Bar] = {
    "layout": Bar("its trainer decides how sequences are packed", learnt=True),
    "stream_groups": Bar("its trainer takes a batch at once", learnt=True),
    "dispatch.placement": Bar("its router decides on the replica"),
    "surplus": Bar(
        "batches would change in size, and the trainer's is fixed", lambda p: p.surplus == "train"
    ),
    "prompts.skip": _LOADER,
    "prompts.chosen": _LOADER,
    "launch.rollouts": Bar("single rollouts of a group cannot be stopped"),
}
"""What no stack's hooks can carry out."""
