"""Rollouts between their turns, written out plainly: what each has still to do is a list."""

from dataclasses import dataclass, field
from typing import Literal

from rollcast.simulator.core.rollout import Call, CallEnd, Ending, Key, Rollout
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.workload.base import Trajectory
from rollcast.simulator.workload.slots import EnvironmentSpec

Task = Literal["sample", "ask", "hear", "be judged"]


@dataclass(eq=False)
class Request:
    """A wait for a slot, and then the time that it takes."""

    kind: Literal["environment", "reward"]
    turn: int
    asked: int
    ticks: int
    start: int | None = None  # reported from here on
    end: int | None = None


@dataclass(eq=False)
class Journey:
    """What a rollout has done of its trajectory, and what it has to do."""

    rollout: Rollout
    trajectory: Trajectory
    to_do: list[tuple[Task, int]] = field(default_factory=list)  # tokens, or ticks
    turn: int = 0
    observed: int = 0
    heard: list[int] = field(default_factory=list)  # ticks that each answer took
    up: bool = False  # its environment is
    slot: bool = False  # has one beyond an request
    flying: bool = False
    request: Request | None = None
    calls: list[Call] = field(default_factory=list)
    tokens_left: int | None = None
    turns_left: int | None = None
    balanced: bool = False
    placed: int | None = None

    def __post_init__(self) -> None:
        plan = self.trajectory
        failed = plan.ending in ("timeout", "environment")
        for place, turn in enumerate(plan.turns):
            last = place == len(plan.turns) - 1
            if place > 0:
                self.to_do.append(("hear", turn.observation_tokens))
            self.to_do.append(("sample", turn.new_tokens))
            if not last or turn.environment_s > 0 or failed:
                self.to_do.append(("ask", to_ticks(turn.environment_s)))
        if plan.reward_s is not None and not failed:
            self.to_do.append(("be judged", to_ticks(plan.reward_s)))

    @property
    def key(self) -> Key:
        return self.rollout.key

    @property
    def ending(self) -> Ending:
        """What the end of the turn under way is called."""
        task, tokens = self.to_do[0]
        assert task == "sample"
        if len(self.to_do) == 1:
            return self.trajectory.ending
        if self.to_do[1][0] != "ask":  # its judge has it; an environment might go on with it
            return "turn"
        if self.tokens_left is not None and self.tokens_left <= tokens:
            return "budget"
        return "budget" if self.turns_left == 1 else "turn"

    def has_sampled(self, tokens: int) -> None:
        task, left = self.to_do.pop(0)
        assert task == "sample"
        assert tokens <= left
        if tokens < left:
            self.to_do.insert(0, ("sample", left - tokens))
        elif self.turns_left is not None:
            self.turns_left -= 1
        if self.tokens_left is not None:
            self.tokens_left -= tokens

    def to_get_there(self) -> int:
        """Ticks until its environment is as it was."""
        return 0 if self.up else to_ticks(self.trajectory.boot_s) + sum(self.heard)


class Away:
    """Where rollouts are when they are not with the model."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.journeys: dict[Key, Journey] = {}
        self.queue: list[Journey] = []  # for a slot of either kind
        self.under_way: list[Journey] = []
        self.turned: list[Journey] = []  # their turn ended at this instant

    def of(self, rollout: Rollout) -> Journey | None:
        journey = self.journeys.get(rollout.key)
        if journey is None or journey.rollout.attempt != rollout.attempt:
            return None
        return journey

    def submit(self, rollout: Rollout, trajectory: Trajectory, balanced: bool, now: int) -> Journey:
        journey = self.of(rollout)
        if journey is None:
            if rollout.key in self.journeys:
                self.stop(self.journeys[rollout.key], now, for_good=True)
            journey = self.journeys[rollout.key] = Journey(rollout, trajectory)
        journey.rollout = rollout
        journey.flying = True
        journey.balanced, journey.placed = balanced, None
        journey.tokens_left, journey.turns_left = rollout.allowance, rollout.turn_allowance
        return journey

    def slots_taken(self, kind: str) -> int:
        requests = [journey.request for journey in self.under_way]
        taken = sum(request is not None and request.kind == kind for request in requests)
        if kind == "environment":
            taken += sum(j.slot and j not in self.under_way for j in self.journeys.values())
        return taken

    def slots(self, kind: str) -> float:
        limit = self.spec.slots if kind == "environment" else self.spec.reward_slots
        return float("inf") if limit is None else limit

    def send(self, journey: Journey, now: int) -> Literal["model", "away", "over"]:
        """Sends a rollout in flight on."""
        if journey.request is not None:
            return "away"
        if not journey.to_do:
            journey.slot = False
            return "over"
        task, size = journey.to_do[0]
        if task == "be judged":
            journey.slot = False
            journey.request = Request("reward", journey.turn, now, size)
        elif task == "ask":
            ticks = journey.to_get_there() + size
            journey.request = Request("environment", journey.turn, now, ticks)
        elif self.spec.held == "rollout" and not journey.slot:
            journey.request = Request("environment", journey.turn, now, journey.to_get_there())
        else:
            return "model"
        if journey.slot:
            self.begin(journey, now)
        else:
            self.queue.append(journey)
        return "away"

    def begin(self, journey: Journey, now: int) -> None:
        journey.request.start, journey.request.end = now, now + journey.request.ticks
        self.under_way.append(journey)

    def end_errands(self, now: int) -> list[Journey] | None:
        """Ends those that end now; who goes on, in order of key. None where nothing happened."""
        going, self.turned = self.turned, []
        happened = bool(going)
        for journey in list(self.under_way):
            request = journey.request
            assert request is not None
            if request.end != now:
                continue
            happened = True
            ended: CallEnd = "answered"
            if request.kind == "reward":
                assert journey.to_do.pop(0)[0] == "be judged"
            else:
                journey.up = True
                if journey.to_do[0][0] == "ask":
                    ended = self.answer(journey)
            self.conclude(journey, ended, now)
            if journey.flying:
                going.append(journey)
        return sorted(going, key=lambda journey: journey.key) if happened else None

    def answer(self, journey: Journey) -> CallEnd:
        _, ticks = journey.to_do.pop(0)
        if journey.to_do and journey.to_do[0][0] == "hear":
            journey.heard.append(ticks)
            journey.observed += journey.to_do.pop(0)[1]
            journey.turn += 1
        elif journey.trajectory.ending == "timeout":
            return "timeout"
        elif journey.trajectory.ending == "environment":
            return "failed"
        return "answered"

    def conclude(self, journey: Journey, ended: CallEnd, now: int) -> None:
        self.tell(journey, ended, now)
        self.under_way.remove(journey)
        request, journey.request = journey.request, None
        kept = self.spec.held == "rollout" and request.kind == "environment"
        journey.slot = kept and journey.flying

    def tell(self, journey: Journey, ended: CallEnd, now: int) -> None:
        request = journey.request
        start = now if request.start is None else request.start
        times = to_seconds(request.asked), to_seconds(start), to_seconds(now)
        journey.calls.append(Call(request.kind, request.turn, *times, ended))

    def give_slots(self, now: int) -> bool:
        """Gives what slots there are, first come, first served."""
        given = False
        for journey in list(self.queue):
            kind = journey.request.kind
            if self.slots_taken(kind) < self.slots(kind):
                self.queue.remove(journey)
                self.begin(journey, now)
                given = True
        return given

    def stop(self, journey: Journey, now: int, for_good: bool) -> None:
        """It is in flight no more."""
        journey.flying = False
        self.turned = [other for other in self.turned if other is not journey]
        journey_closes = for_good or self.spec.on_suspend == "close"
        if journey.request is None:
            journey.slot = False
        elif journey in self.queue:
            self.tell(journey, "suspended", now)
            self.queue.remove(journey)
            journey.request = None
        elif for_good or (journey_closes and journey.request.kind == "environment"):
            self.conclude(journey, "closed", now)
        else:
            self.tell(journey, "suspended", now)
            journey.request.asked = journey.request.start = now
        if journey_closes:
            journey.up = False
        if for_good:
            del self.journeys[journey.key]

    def over(self, journey: Journey) -> None:
        journey.slot = False
        del self.journeys[journey.key]
