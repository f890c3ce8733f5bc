"""The one loop of reinforcement learning: rollouts, selection, update, weight sync, and again.

It drives any `simulator.world.World` by the plans of any `simulator.policy.Policy`, and it is
written once: overlapping training with rollout is another order of the same waits, not another
loop. It keeps the books: every token sampled ends as trained, masked, dropped or carried, and every
rollout submitted ends, or the run fails with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulator.errors import RunError
from simulator.loop.books import Books, reward_of
from simulator.plan import Progress, StepPlan, describe
from simulator.policy import GroupOutcome, Policy, StepOutcome
from simulator.rollout import Group, Rollout
from simulator.selection import is_straggler
from simulator.spans import Run, StepRecord
from simulator.world import Event, Finished, Synced, TrainBatch, Trained, TrainGroup, World

MAX_FRUITLESS_WAVES = 100


def run(
    world: World,
    policy: Policy,
    plan: StepPlan,
    steps: int,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Run:
    """Runs ``steps`` updates of ``plan`` as ``policy`` rewrites it, on ``world``.

    on_step is called after each step. Raises RunError where the run cannot go on (nothing under
    way, a filter that accepts nothing, tokens lost), ScenarioError for a plan that contradicts
    itself.
    """
    return Loop(world, policy, plan, on_step).run(steps)


class Loop:
    """The loop's state: what is in flight, buffered and ready, and what the trainer is doing."""

    def __init__(
        self,
        world: World,
        policy: Policy,
        plan: StepPlan,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.world = world
        self.policy = policy
        self.base = plan
        self.on_step = on_step
        self.policy_state: Any = policy.init()
        self.version = 0
        self.next_step = 0
        self.next_group = 0
        self.in_flight: dict[int, Group] = {}
        self.in_flight_rollouts = 0
        self.buffer: deque[Group] = deque()  # unfinished groups, oldest first
        self.ready: list[Group] = []  # complete groups that count, in order of completion
        self.result = Run(world.name, world.shape)
        self._books = Books(self.result)
        self._record = StepRecord(0, 0.0)
        self._training: StepRecord | None = None
        self._unsynced: StepRecord | None = None
        self._completed: list[Group] = []  # in this step, whether accepted or not
        self._rejected: set[int] = set()
        self._rejected_in_a_row = 0
        self._last_step = -1

    def run(self, steps: int, after_step: Callable[[Loop], None] | None = None) -> Run:
        """Runs until ``steps`` steps are done and closes the books.

        after_step: called between steps, when `state_dict` may be taken.
        """
        result, plan, self._last_step = self.result, self.base, steps - 1
        if self.next_step == 0:
            result.start_s = result.end_s = self.world.now_s
        while self.next_step < steps:
            plan = self.policy.plan(replace(self.base, step=self.next_step), self.policy_state)
            plan.check()
            self._step(plan)
            self.next_step += 1
            if after_step is not None:
                after_step(self)
        self._finish_update(plan)
        kept = [r for group in self.buffer for r in group.rollouts]
        kept += [r for group in self.ready for r in group.winners]  # the others are dropped
        self._books.close(kept)
        return result

    _STATE = (
        "policy_state",
        "version",
        "next_step",
        "next_group",
        "buffer",
        "ready",
        "result",
    )

    def state_dict(self) -> dict[str, Any]:
        """What a loop on another world needs to go on from here, between two steps; picklable.
        Raises RunError while an update is under way."""
        if self.in_flight or self._training is not None or self._unsynced is not None:
            raise RunError("a run can only be saved between two steps")
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`."""
        for name in self._STATE:
            setattr(self, name, state[name])
        self._books = Books(self.result)

    # One step

    def _step(self, plan: StepPlan) -> None:
        if self.in_flight and not plan.keeps_running:  # the step before did
            self._put_away(replace(plan, unfinished="resume"), {})
        if plan.launch.run_ahead == 0:  # on-policy from here on, whatever the step before did
            self._finish_update(plan)
        self._record = self._books.begin_step(plan, self.world.now_s)
        self._completed, self._rejected = [], set()
        decision: dict[str, Any] = {"step": plan.step, "plan": describe(plan), "launched": []}
        self._roll_out(plan, decision)
        batch = self._select(plan, decision)
        self._observe(plan, decision)
        self._books.rollout_phase()
        if plan.launch.run_ahead == 0:
            self._train(plan, batch)
            self._finish_update(plan)
        else:
            self._finish_update(plan)
            self._train(plan, batch)
        self.result.decisions.append(decision)

    def _roll_out(self, plan: StepPlan, decision: dict[str, Any]) -> None:
        """The rollout phase: launch, collect, refill, stop, and put away what is unfinished."""
        need, start_s = plan.batch.groups, self.world.now_s
        limit_s = plan.stop.limit_s
        deadline_s = None if limit_s is None else start_s + limit_s
        wave = plan.launch.groups_in_wave(plan.batch)
        self._rejected_in_a_row = 0
        budgeted, running_on = plan.unfinished == "keep", plan.keeps_running
        if budgeted:
            self._launch(self._room(plan), plan, decision)
        elif len(self.ready) < need:
            self._launch(wave - len(self.ready), plan, decision)
        while True:
            if self._rejected_in_a_row > MAX_FRUITLESS_WAVES * wave:
                raise RunError(
                    f"step {plan.step} can never finish: the filter rejected "
                    f"{self._rejected_in_a_row} groups in a row ({len(self.ready)} of {need} "
                    "groups accepted); check workload.rewards against policy"
                )
            if self._starved(plan):
                self._launch(
                    self._room(plan) if budgeted else self._refill_size(plan), plan, decision
                )
            elapsed_s = self.world.now_s - start_s
            late = deadline_s is not None and self.world.now_s >= deadline_s
            if late and limit_s is not None:  # rounding must not make the deadline a hair short
                elapsed_s = max(elapsed_s, limit_s)
            progress = Progress(len(self.ready), need, self.in_flight_rollouts, elapsed_s)
            if plan.stop(progress) and not (running_on and self._training is not None):
                break
            self._dispatch(self.world.wait(None if late else deadline_s), plan)
            if running_on and self._unsynced is not None:  # as soon as there are new weights
                self._sync(plan)
            self._refill(plan, decision)
        decision["stop"] = {
            "type": type(plan.stop).__name__,
            "ready": [group.group for group in self.ready],
            "in_flight": self.in_flight_rollouts,
        }
        if running_on and plan.step != self._last_step:
            self._record.rollout_end_s = self.world.now_s
            decision["unfinished"] = []
        else:
            self._put_away(plan, decision)

    def _launch(self, groups: int, plan: StepPlan, decision: dict[str, Any]) -> None:
        """Puts ``groups`` groups in flight, the buffer's first if the plan says so."""
        rollouts: list[Rollout] = []
        source = plan.launch.source
        for _ in range(groups):
            group = None
            if source != "fresh" and self.buffer:
                group = self._from_buffer(plan)
            if group is None:
                if source == "buffer" and len(rollouts):
                    break
                group = self._fresh(plan, self.next_group)
                self.next_group += 1
            self.in_flight[group.group] = group
            rollouts.extend(group.unfinished)
            self._record.launched_groups += 1
            decision["launched"].append(group.group)
        self._submit(rollouts)

    def _submit(self, rollouts: list[Rollout]) -> None:
        now_s = self.world.now_s
        for rollout in rollouts:
            rollout.in_flight = True
            rollout.submitted_s = now_s
            rollout.reached_tokens = rollout.new_tokens
            self._record.resumed_tokens += rollout.new_tokens
        self.in_flight_rollouts += len(rollouts)
        self.world.submit(rollouts)

    def _fresh(self, plan: StepPlan, group: int, attempt: int = 0) -> Group:
        size = plan.batch.group_size
        return Group(group, size, plan.launch.rollouts_per_group(size), attempt)

    def _from_buffer(self, plan: StepPlan) -> Group | None:
        """The oldest buffered group, restarted if it has grown too stale; None if none is left."""
        while self.buffer:
            group = self.buffer.popleft()
            if group.oldest_version is None and not group.winners:  # from nothing: as planned now
                return self._fresh(plan, group.group, group.attempt)
            if not self._too_old(group, plan):
                self._record.resumed_groups += 1
                return group
            if (anew := self._give_up(group, plan)) is not None:
                return anew
        return None

    def _too_old(self, group: Group, plan: StepPlan) -> bool:
        bound, oldest = plan.staleness.max_versions, group.oldest_version
        return bound is not None and oldest is not None and self.version - oldest > bound

    def _give_up(self, group: Group, plan: StepPlan) -> Group | None:
        """Drops a group that is too old; its prompt starts from nothing, if the plan says so."""
        self._books.drop(group.rollouts)
        if plan.staleness.exceeded == "restart":
            return self._fresh(plan, group.group, group.attempt + 1)
        return None

    # Refill

    def _starved(self, plan: StepPlan) -> bool:
        """Whether what is in flight can no longer fill the batch."""
        if len(self.ready) + len(self.in_flight) >= plan.batch.groups:
            return False
        drained = plan.filter is None or plan.filter.refill_when == "short"
        return drained or not self.in_flight

    def _refill_size(self, plan: StepPlan) -> int:
        groups = plan.filter.refill_groups if plan.filter else None
        return groups or plan.launch.groups_in_wave(plan.batch)

    def _refill(self, plan: StepPlan, decision: dict[str, Any]) -> None:
        """Keeps the number in flight constant where the plan asks for it."""
        if plan.launch.refill == "none":
            return
        if plan.unfinished != "keep" and len(self.ready) >= plan.batch.groups:
            return
        room = self._room(plan)
        if room > 0:
            self._launch(room, plan, decision)

    def _room(self, plan: StepPlan) -> int:
        """Groups that the plan still wants in flight; where they are kept running, no more than can
        be trained on within ``run_ahead`` updates, in the manner of AReaL (arXiv 2505.24298)."""
        wave = plan.launch.groups_in_wave(plan.batch)
        if plan.launch.refill == "rollout":
            per_group = plan.launch.rollouts_per_group(plan.batch.group_size)
            room = (wave * per_group - self.in_flight_rollouts) // per_group
        else:
            room = wave - len(self.in_flight)
        if plan.unfinished == "keep":
            batches = plan.launch.run_ahead + 1 + self.version - plan.step
            budget = batches * plan.batch.groups - len(self.ready) - len(self.in_flight)
            room = min(room, budget)
        return max(room, 0)

    # Events

    def _dispatch(self, events: list[Event], plan: StepPlan | None) -> None:
        for event in events:
            if isinstance(event, Finished):
                if plan is None:
                    raise RunError(f"{event.rollout} finished outside a rollout phase")
                self._leave(event.rollout)
                self._finished(event.rollout, plan)
            elif isinstance(event, Trained):
                self._trained(event)
            else:
                self._synced(event)

    def _leave(self, rollout: Rollout) -> None:
        """A stay ended, by itself or by an abort."""
        rollout.in_flight = False
        self.in_flight_rollouts -= 1
        self._books.stay(rollout, self.version)

    def _finished(self, rollout: Rollout, plan: StepPlan) -> None:
        """Counts a finished rollout towards its group."""
        group = self.in_flight.get(rollout.group)
        if group is None:  # its group was complete without it
            self._books.drop([rollout])
            return
        group.winners.append(rollout)
        if group.complete:
            self._completed_group(group, plan)

    def _completed_group(self, group: Group, plan: StepPlan) -> None:
        """Takes a complete group out of flight, its slower rollouts with it, and filters it."""
        del self.in_flight[group.group]
        slower = [r for r in group.rollouts if not r.finished]
        flying = [r for r in slower if r.in_flight]
        if flying:
            for rollout in self.world.abort(flying):
                self._leave(rollout)
        self._books.drop(slower)
        group.winners.sort(key=lambda r: r.index)
        self._completed.append(group)
        rewards = [reward_of(winner) for winner in group.winners]
        if plan.filter is not None and not plan.filter.rule(rewards):
            self._rejected.add(group.group)
            self._record.rejected_groups += 1
            self._rejected_in_a_row += 1
            self._books.drop(group.winners)
        else:
            self._rejected_in_a_row = 0
            self.ready.append(group)

    # The end of the rollout phase

    def _put_away(self, plan: StepPlan, decision: dict[str, Any]) -> None:
        """Aborts what is in flight; what completes in its last iteration counts as complete."""
        self._interrupt(plan)
        left = sorted(self.in_flight.values(), key=lambda group: group.group)
        self.in_flight.clear()
        if self.in_flight_rollouts:
            raise RunError(f"{self.in_flight_rollouts} rollouts were lost at an abort")
        if plan.unfinished in ("resume", "keep"):
            self._buffer(left)
        else:
            for group in left:
                self._books.drop(group.rollouts)
            if plan.unfinished == "restart":
                self._buffer([self._fresh(plan, g.group, g.attempt + 1) for g in left])
        decision["unfinished"] = [[g.group, [r.new_tokens for r in g.rollouts]] for g in left]

    def _interrupt(self, plan: StepPlan) -> None:
        """Aborts what is in flight; what ends in its last iteration counts as finished."""
        if not self.in_flight:
            return
        aborted = self.world.abort()
        for rollout in aborted:
            self._leave(rollout)
        for rollout in aborted:
            if rollout.finished:
                self._finished(rollout, plan)

    def _buffer(self, groups: list[Group]) -> None:
        """Adds groups to the buffer, which stays in order of age."""
        self.buffer = deque(sorted((*self.buffer, *groups), key=lambda group: group.group))

    # Selection and update

    def _select(self, plan: StepPlan, decision: dict[str, Any]) -> TrainBatch:
        """Takes the batch from the ready groups, and from each group the rollouts to train on."""
        need = plan.batch.groups
        if plan.keeps_running:  # else old groups would be passed over again and again
            self.ready.sort(key=lambda group: group.group)
        taken = self.ready if plan.surplus == "train" else self.ready[:need]
        surplus = self.ready[len(taken) :]
        self.ready = []
        if plan.surplus == "carry":
            self.ready = surplus
        else:
            for group in surplus:
                self._books.drop(group.winners)
            if plan.surplus == "restart":
                self._buffer([self._fresh(plan, g.group, g.attempt + 1) for g in surplus])
        chosen = [self._select_from(group, plan) for group in taken]
        decision["selected"] = [[g.group, [r.index for r in g.rollouts]] for g in chosen]
        decision["surplus"] = [group.group for group in surplus]
        decision["rejected"] = sorted(self._rejected)
        decision["layout"] = plan.layout
        mask_before = self.version if plan.staleness.mask_off_policy else None
        batch = TrainBatch(plan.step, tuple(chosen), mask_before)
        self._books.training(batch)
        return batch

    def _select_from(self, group: Group, plan: StepPlan) -> TrainGroup:
        kept = group.winners
        for selector in plan.select:
            positions = selector([reward_of(r) for r in kept], group.group)
            kept = [kept[position] for position in positions]
        chosen = set(map(id, kept))
        self._books.drop([r for r in group.winners if id(r) not in chosen])
        base = kept if plan.advantages == "after_selection" else group.winners
        return TrainGroup(group.group, tuple(kept), tuple(reward_of(r) for r in base))

    def _observe(self, plan: StepPlan, decision: dict[str, Any]) -> None:
        """Shows the policy what came of the step."""
        complete = tuple(self._outcome(group) for group in self._completed)
        record = self._record
        record.complete_groups = len(complete)
        record.stragglers = sum(is_straggler(group.new_tokens) for group in complete)
        record.buffered_groups = len(self.buffer)
        outcome = StepOutcome(plan, complete, len(self.buffer), len(self.ready))
        decision["complete"] = [group.group for group in complete]
        record.policy = self.policy.describe_state(self.policy_state)
        self.policy_state = self.policy.observe(self.policy_state, outcome)

    def _outcome(self, group: Group) -> GroupOutcome:
        winners = group.winners
        return GroupOutcome(
            group.group,
            group.size,
            tuple(r.new_tokens for r in winners),
            tuple(reward_of(r) for r in winners),
            group.group not in self._rejected,
            sum(r.truncated for r in winners),
        )

    def _train(self, plan: StepPlan, batch: TrainBatch) -> None:
        self._training = self._record
        self.world.train(batch, plan.layout)

    def _finish_update(self, plan: StepPlan) -> None:
        """Waits for the update under way, if any, and brings its weights to the replicas. plan: of
        the rollouts that are kept running meanwhile."""
        while self._training is not None:
            self._dispatch(self.world.wait(), plan if self.in_flight else None)
        if self._unsynced is not None:
            self._sync(plan)

    def _sync(self, plan: StepPlan) -> None:
        """Brings new weights to the replicas. What is in flight is interrupted for it, and goes on
        from the tokens that it has."""
        self._interrupt(plan)
        self.world.sync_weights()
        while self._unsynced is not None:
            self._dispatch(self.world.wait(), None)
        if self.in_flight:
            self._go_on(plan)

    def _go_on(self, plan: StepPlan) -> None:
        """Submits again what was interrupted, as far as it is not too old by now."""
        for group in [*self.in_flight.values()]:
            if self._too_old(group, plan):
                del self.in_flight[group.group]
                if (anew := self._give_up(group, plan)) is not None:
                    self.in_flight[group.group] = anew
        self._submit([r for group in self.in_flight.values() for r in group.unfinished])

    def _trained(self, event: Trained) -> None:
        record = self._training
        if record is None or record.step != event.step:
            raise RunError(f"an update of step {event.step} ended that was not under way")
        self._training, self._unsynced = None, record
        self._books.phases(record, event.phases, "trainer")

    def _synced(self, event: Synced) -> None:
        record = self._unsynced
        if record is None:
            raise RunError("a weight sync ended that was not under way")
        self._unsynced = None
        self.version += 1
        self._books.phases(record, event.phases, "sync")
        self._books.end_step(record, self.world.now_s)
        if self.on_step is not None:
            self.on_step(record)
