"""The RL loop: rollouts, selection, update, weight sync.

It drives any `simulator.core.world.World` by the plans of any `simulator.core.policy.Policy`.
`Loop.advance` does the one thing possible now, or waits; a plan overlaps training with rollout by
letting the next step begin before its predecessor's weights are in place. Every sampled token ends
as trained, masked, dropped or carried and every submitted rollout ends, or the run fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rollcast.simulator.core.plan import Progress, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.core.world import Ended, Event, Trained, World
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.accounting import TokenAccounting
from rollcast.simulator.loop.rollouts import Rollouts
from rollcast.simulator.loop.step import Step
from rollcast.simulator.loop.trainer import Trainer

MAX_FRUITLESS_WAVES = 100
MAX_FRUITLESS_LAUNCHES = 1000


class Loop:
    """The loop's state: the rollouts, the trainer, and the step whose rollouts run.

    on_step: called after each step. poll_s: interval at which a waiting trainer polls whether the
    rollout phase is over (verl's replay buffer), seconds; 0 notifies it at once. trial_timeout_s:
    seconds in flight after which a rollout is ended; None: never. step: the latest
    one opened; None before the first. next_step: the number of the next one.
    """

    def __init__(
        self,
        world: World,
        policy: Policy,
        plan: StepPlan,
        on_step: Callable[[StepRecord], None] | None = None,
        poll_s: float = 0.0,
        trial_timeout_s: float | None = None,
    ) -> None:
        self.world = world
        self.policy = policy
        self.base = plan
        self.on_step = on_step
        self._poll_s = poll_s
        self._look_s: float | None = None  # the look that the loop waits for
        self.policy_state: Any = policy.init()
        self.next_step = 0
        self.step: Step | None = None
        self.result = Run(world.name, world.shape)
        self.accounting = TokenAccounting(self.result)
        self._trial_timeout_s = trial_timeout_s
        self.rollouts = Rollouts(world, self.accounting, trial_timeout_s)
        self.trainer = Trainer(world, self.accounting)
        self._planned: StepPlan | None = None  # the next step's, once it is known
        self._steps = 0
        self._between: Callable[[Loop], None] | None = None
        self._launches = 0  # since the world last had news

    def run(self, steps: int, after_step: Callable[[Loop], None] | None = None) -> Run:
        """Runs until ``steps`` steps are done and checks the token accounting. after_step: called
        between steps."""
        self.begin(steps, after_step)
        while len(self.result.steps) < steps or not self.trainer.quiet:
            self.advance()
        if after_step is not None and self.step is not None:
            after_step(self)
        self.accounting.close(self.rollouts.kept())
        return self.result

    def begin(self, steps: int, after_step: Callable[[Loop], None] | None = None) -> None:
        """Makes ready for `advance`, for who calls it step by step; as in `run`."""
        self._steps, self._between = steps, after_step
        if self.next_step == 0:
            self.result.start_s = self.result.end_s = self.world.now_s

    def advance(self) -> None:
        """Does the first possible of: sync weights, launch, close the rollout phase, train, open
        the next step; or waits."""
        step = self.step
        if self.trainer.syncing:
            self._wait()
        elif step is not None and step.closed and self._must_suspend():
            self.rollouts.suspend(step, "resume")
        elif self.trainer.unsynced and self._lets_weights_in(step):
            self._sync(step)
        elif step is not None and not step.closed and (groups := self.rollouts.due(step)) > 0:
            self._launch(step, groups)
        elif step is not None and not step.closed and self._ends(step):
            self._close(step)
        elif step is not None and not step.closed and self._streams(step):
            self._stream(step)
        elif self.trainer.queue and self.trainer.idle:
            self.trainer.begin(*self.trainer.queue.popleft())
        elif (step is None or step.closed) and self._may_open():
            self._open()
        else:
            self._wait()

    # Weights

    def _lets_weights_in(self, step: Step | None) -> bool:
        """Whether the replicas can take new weights now."""
        return step is None or step.closed or step.plan.keeps_running

    def _sync(self, step: Step | None) -> None:
        """Starts a weight sync; interrupts rollouts in flight unless the plan never does."""
        if step is not None and step.plan.interrupt != "never":
            self.rollouts.interrupt(step, step.plan.unfinished)
        self.trainer.sync()

    # The rollout phase

    def _open(self) -> None:
        """Opens the next step with the plan that the policy makes of it."""
        plan = self._plan()
        before = self.step
        if before is not None and self._between is not None:
            self._between(self)
        self._planned = None
        self.next_step += 1
        late = [] if before is None else before.late
        self.step = Step(plan, self.accounting.begin_step(plan, self.world.now_s), late)
        # What is dropped in flight is dropped when the weights come: fresh groups start on them.
        now = self.trainer.quiet or not plan.gives_up_at_weights
        self.rollouts.give_up_the_old(self.step, in_flight=now)

    def _plan(self) -> StepPlan:
        if self._planned is None:
            base = replace(self.base, step=self.next_step)
            self._planned = self.policy.plan(base, self.policy_state)
            self._planned.check()
        return self._planned

    def _must_suspend(self) -> bool:
        """Whether rollouts run on that the next step's plan would not have."""
        if not self.rollouts.groups or self.next_step >= self._steps:
            return False
        return not self._plan().keeps_running

    def _may_open(self) -> bool:
        return self.next_step < self._steps and self.trainer.in_step(self._plan())

    def _launch(self, step: Step, groups: int) -> None:
        wave = step.plan.launch.groups_in_wave(step.plan.batch)
        if step.rejected_in_a_row > MAX_FRUITLESS_WAVES * wave:
            raise RunError(
                f"step {step.plan.step} can never finish: the filter rejected "
                f"{step.rejected_in_a_row} groups in a row ({len(self.rollouts.ready)} of "
                f"{step.plan.batch.groups} groups accepted); check workload.rewards against policy"
            )
        if step.begun_in_vain > MAX_FRUITLESS_WAVES * max(wave, step.plan.batch.groups):
            raise RunError(
                f"step {step.plan.step} makes no progress: none of the {step.begun_in_vain} "
                "groups launched since the last one completed has completed; unfinished "
                "groups are suspended (by a token budget or a stop) and never resumed"
            )
        if len(self.rollouts.ready) > MAX_FRUITLESS_WAVES * max(wave, step.plan.batch.groups):
            raise RunError(
                f"step {step.plan.step} never stops: {len(self.rollouts.ready)} groups are "
                f"complete, the batch needs {step.plan.batch.groups}, and more are "
                "launched; its refill prevents what its stop rule waits for"
            )
        self._launches += 1
        if self._launches > MAX_FRUITLESS_LAUNCHES:
            raise RunError(
                f"step {step.plan.step} makes no progress: {self._launches} launches in a "
                f"row completed no group, with {len(self.rollouts.ready)} of "
                f"{step.plan.batch.groups} groups complete; the chain of policies "
                "contradicts itself"
            )
        self.rollouts.launch(step, groups)

    def _ends(self, step: Step) -> bool:
        """Whether the rollout phase is over: the stop rule holds, no group would grow too old and,
        where rollouts run on, the trainer is free."""
        plan, rollouts = step.plan, self.rollouts
        step.launched = True  # if only with nothing due
        waits = not plan.keeps_running or self.trainer.quiet
        if self._poll_s and waits and step.look_s is None:
            step.look_s = self.world.now_s
        if not plan.stop(self._progress(step)):
            return False
        if not waits or rollouts.overdue(step):
            return False
        read_s = self.world.read_s
        if read_s > self.world.now_s and not plan.keeps_running:
            self._look_s = read_s
            if not self._poll_s:
                step.look_s = read_s
            return False
        return step.look_s is None or self._looks(step, step.look_s)

    def _looks(self, step: Step, last_s: float) -> bool:
        """Whether the trainer polls at this moment; else the loop waits for its next poll. last_s:
        of the last or next poll."""
        now_s = self.world.now_s
        if now_s > last_s and self._poll_s:  # without polls it was when the responses were read
            last_s += self._poll_s * math.ceil((now_s - last_s) / self._poll_s)
        step.look_s = last_s
        self._look_s = last_s if last_s > now_s else None
        return last_s <= now_s

    def _progress(self, step: Step) -> Progress:
        gathered = self.rollouts.gathered(step)
        return Progress(gathered, step.plan.batch.groups, len(self.rollouts.flying))

    def _close(self, step: Step) -> None:
        """Ends the rollout phase: suspends or drops the rest, takes the batch, tells the policy."""
        plan, rollouts = step.plan, self.rollouts
        step.stops(rollouts.ready, len(rollouts.flying))
        if plan.keeps_running and plan.step != self._steps - 1:
            step.record.rollout_end_s = self.world.now_s
        else:
            rollouts.suspend(step)
            if step.look_s is not None:  # the phase lasts until the trainer's poll
                step.record.rollout_end_s = self.world.now_s
        wanted = plan.batch.rollouts - step.record.taken_rollouts
        taken = rollouts.take(step, None if plan.surplus == "train" else wanted)
        step.takes(taken)
        surplus = rollouts.put_surplus(step)
        last = [rollouts.select(group, plan) for group in taken]
        step.selects([*step.streamed, *last], surplus)
        batch = step.batch(last, self.trainer.version, final=True)
        self.accounting.training(step.record, batch)
        step.record.policy = self.policy.describe_state(self.policy_state)
        outcome = step.outcome(len(rollouts.buffer), len(rollouts.ready))
        self.policy_state = self.policy.observe(self.policy_state, outcome)
        self.accounting.rollout_phase(step.record)
        self.result.decisions.append(step.decision)
        self.trainer.queue.append((step, batch))

    # Streaming

    def _streams(self, step: Step) -> bool:
        """Whether a part of the batch, not the last one, is ready for the trainer."""
        part, plan = step.plan.stream_groups, step.plan
        if part is None or not self.trainer.idle or self.rollouts.ready_now(step) < part:
            return False
        return step.record.taken_rollouts + part * plan.batch.group_size < plan.batch.rollouts

    def _stream(self, step: Step) -> None:
        assert step.plan.stream_groups is not None
        groups = self.rollouts.take(step, step.plan.stream_groups * step.plan.batch.group_size)
        step.takes(groups)
        chosen = [self.rollouts.select(group, step.plan) for group in groups]
        step.streamed += chosen
        batch = step.batch(chosen, self.trainer.version, final=False)
        self.accounting.training(step.record, batch)
        self.trainer.begin(step, batch)

    # Events

    def _wait(self) -> None:
        """Waits until something may have become possible."""
        self._launches = 0
        look_s, self._look_s = self._look_s, None
        while True:
            limit_s = self.rollouts.trial_ends_s
            until_s = (
                look_s if limit_s is None else min(limit_s, math.inf if look_s is None else look_s)
            )
            possible = self._take_in(self.world.wait(until_s))
            if limit_s is not None and self.step is not None:
                possible |= self.rollouts.end_trials(self.step)
            if possible:
                return

    def _take_in(self, events: list[Event]) -> bool:
        """Takes in what happened; whether more than rollouts of groups that are still under way."""
        ended = [event.segment for event in events if isinstance(event, Ended)]
        step, rollouts = self.step, self.rollouts
        if ended:
            if step is None:
                raise RunError(f"rollout {ended[0].key} ended, but none was ever launched")
            groups = len(rollouts.groups)
            rollouts.ended(ended, step)
            if rollouts.held:
                rollouts.hand_over(step.plan.dispatch)
            if len(ended) == len(events):
                plan = step.plan
                return (
                    len(rollouts.groups) < groups
                    or plan.launch.refill != "none"
                    or plan.stop(self._progress(step))
                )
        for event in events:
            if isinstance(event, Ended):
                continue
            if isinstance(event, Trained):
                updated = self.trainer.trained(event)
                if updated is not None and self.trainer.latest is None:
                    self._end(updated)  # its weights stay with the trainer
                    self._give_up_late(step)
            else:
                self._end(self.trainer.synced(event))
                self.rollouts.version = self.trainer.version
                self._give_up_late(step)
                if step is not None and self.rollouts.groups and step.plan.interrupt != "never":
                    self.rollouts.go_on(step)
        return True

    def _give_up_late(self, step: Step | None) -> None:
        if step is not None and not step.closed and step.plan.gives_up_at_weights:
            self.rollouts.give_up_the_old(step)

    def _end(self, step: Step) -> None:
        self.accounting.end_step(step.record, self.world.now_s)
        if self.on_step is not None:
            self.on_step(step.record)

    # Saving and going on

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way, and the replicas have the newest weights."""
        trainer = self.trainer
        return not self.rollouts.flying and trainer.quiet and trainer.updates == trainer.version

    @property
    def outstanding(self) -> set[int]:
        """The groups in flight, suspended, ready, or with the trainer."""
        rollouts, trainer = self.rollouts, self.trainer
        kept = (*rollouts.buffer, *rollouts.ready, *rollouts.resting, *rollouts.groups.values())
        numbers = {group.group for group in kept}
        numbers |= {rollout.group for rollout in rollouts.flying.values()}
        numbers |= {group.group for batch in trainer.batches for group in batch.groups}
        if self.step is not None:
            numbers |= {group.group for group in self.step.streamed}
        return numbers

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from the work of another loop (`simulator.loop.saved`), between two steps."""
        self.policy_state = state["policy_state"]
        self.next_step = state["next_step"]
        self.result = state["result"]
        self.accounting = TokenAccounting(self.result)
        self.rollouts = Rollouts(self.world, self.accounting, self._trial_timeout_s)
        self.trainer = Trainer(self.world, self.accounting)
        version = state["version"]
        self.trainer.updates = self.trainer.version = self.rollouts.version = version
        for name in ("next_group", "prompts", "buffer", "ready"):
            setattr(self.rollouts, name, state[name])
        self.rollouts.group_size = 0  # those of earlier groups may be any
