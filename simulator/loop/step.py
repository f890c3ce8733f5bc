"""One step as the loop sees it: its plan, record, decision log, and groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rollcast.simulator.core.plan import StepPlan, describe
from rollcast.simulator.core.policy import GroupOutcome, StepOutcome
from rollcast.simulator.core.rollout import Group
from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.core.world import TrainBatch, TrainGroup
from rollcast.simulator.loop.accounting import reward_of
from rollcast.simulator.loop.selection import is_straggler


class Step:
    """A step from its opening to its update.

    launched: whether its first launch was made. look_s: of the trainer's last or next poll; None
    without polling or before it. closed: whether the rollout phase is over. streamed: groups that
    the trainer has already. chosen: prompts that the plan wants first, not launched yet. late:
    groups that completed at the close, with whether they count, for the next step's ``completed``.
    rejected_in_a_row: groups rejected since the last accepted one. begun_in_vain: groups launched
    from nothing since the last completion.
    """

    def __init__(
        self, plan: StepPlan, record: StepRecord, completed: Sequence[tuple[Group, bool]] = ()
    ) -> None:
        self.plan = plan
        self.has_budget = plan.has_budget
        self.record = record
        self.launched = False
        self.look_s: float | None = None
        self.closed = False
        self.streamed: list[TrainGroup] = []
        self.chosen = deque(plan.prompts.chosen)
        self.rejected_in_a_row = 0
        self.begun_in_vain = 0
        self.late: list[tuple[Group, bool]] = []
        self._completed = [*completed]
        self.decision: dict[str, Any] = {"step": plan.step, "plan": describe(plan), "launched": []}

    def launches(self, group: Group) -> None:
        """Notes a group put in flight."""
        self.record.launched_groups += 1
        self.begun_in_vain += group.new_tokens == 0
        self.decision["launched"].append(group.group)
        if group.prompt != group.group:
            self.decision.setdefault("prompts", []).append([group.group, group.prompt])

    def completes(self, group: Group) -> bool:
        """Notes a complete group; whether the filter lets it count."""
        self.begun_in_vain = 0
        rule = self.plan.filter
        accepted = rule is None or rule.rule([reward_of(winner) for winner in group.winners])
        (self.late if self.closed else self._completed).append((group, accepted))
        if accepted:
            self.rejected_in_a_row = 0
        else:
            self.record.rejected_groups += 1
            self.rejected_in_a_row += 1
        return accepted

    def gives_up(self, groups: Sequence[Group]) -> None:
        """Logs groups that have grown too old for it."""
        old = [*self.decision.get("too_old", ()), *(group.group for group in groups)]
        self.decision["too_old"] = sorted(old)

    def stops(self, ready: list[Group], in_flight_rollouts: int) -> None:
        """Logs what stood when the stop rule said so."""
        self.decision["stop"] = {
            "type": type(self.plan.stop).__name__,
            "ready": [group.group for group in ready],
            "in_flight": in_flight_rollouts,
        }
        self.decision["unfinished"] = []

    def puts_away(self, groups: list[Group]) -> None:
        """Logs the unfinished groups, and how far each of their rollouts got."""
        self.decision["unfinished"] = [
            [g.group, [r.new_tokens for r in g.rollouts]] for g in groups
        ]

    def takes(self, groups: Sequence[Group]) -> None:
        """Counts groups that the trainer gets, before some of their rollouts are selected."""
        self.record.taken_rollouts += sum(group.size for group in groups)

    def selects(self, chosen: list[TrainGroup], surplus: list[Group]) -> None:
        """Logs what is trained on, and what is over."""
        decision = self.decision
        decision["selected"] = [[g.group, [r.index for r in g.rollouts]] for g in chosen]
        decision["surplus"] = [group.group for group in surplus]
        decision["rejected"] = sorted(g.group for g, accepted in self._completed if not accepted)
        decision["layout"] = self.plan.layout

    def batch(self, groups: list[TrainGroup], version: int, final: bool) -> TrainBatch:
        """What the trainer gets of these groups, on weights of ``version``."""
        masks = self.plan.staleness.mask_off_policy
        return TrainBatch(self.plan.step, tuple(groups), version if masks else None, final)

    def outcome(self, buffered_groups: int, carried_groups: int) -> StepOutcome:
        """Closes it; what came of it, for the policy and for its record."""
        self.closed = True
        complete = tuple(_outcome(group, accepted) for group, accepted in self._completed)
        record = self.record
        record.complete_groups = len(complete)
        record.stragglers = sum(is_straggler(group.new_tokens) for group in complete)
        record.buffered_groups = buffered_groups
        self.decision["complete"] = [group.group for group in complete]
        return StepOutcome(self.plan, complete, buffered_groups, carried_groups)


def _outcome(group: Group, accepted: bool) -> GroupOutcome:
    winners = group.winners
    return GroupOutcome(
        group.group,
        group.size,
        tuple(r.new_tokens for r in winners),
        tuple(reward_of(r) for r in winners),
        accepted,
        sum(r.truncated for r in winners),
        group.prompt,
    )
