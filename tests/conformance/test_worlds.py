"""What a world owes the loop, asked of it directly."""

from random import Random

import pytest

from rollcast.simulator.core.rollout import Group, Rollout, Segment
from rollcast.simulator.core.world import Ended, Synced, TrainBatch, Trained, TrainGroup
from rollcast.simulator.errors import RunError
from rollcast.simulator.testing import Monitor
from tests.conformance.arenas import PROMPTS, SIMULATED, WORLDS, Arena, Build

LONG = 1  # a group whose prompt has two full blocks
SHORT = 0  # one whose prompt has none
ONE_REPLICA = [SIMULATED, WORLDS[-1]]


def eight() -> list[Rollout]:
    """Rollouts of four short prompts, all of which fit into one iteration."""
    return [Rollout(group, index) for group in range(0, 24, 6) for index in range(2)]


class Keeper(Monitor):
    """Takes segments in, as the loop does."""

    def _end(self, segment: Segment) -> None:
        rollout = self._flying[segment.key]
        super()._end(segment)
        rollout.add(segment)
        self.last[segment.key] = segment

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena.world, arena.cap, arena.block_tokens, arena.tokens)
        self.last: dict[tuple[int, int], Segment] = {}


def finish(world: Monitor) -> list[Segment]:
    """Waits until nothing is in flight; the segments in the order of their events."""
    done: list[Segment] = []
    while not world.idle:
        done += [event.segment for event in world.wait() if isinstance(event, Ended)]
    return done


def batch_of(step: int, rollouts: list[Rollout]) -> TrainBatch:
    rewards = tuple(float(rollout.reward or 0.0) for rollout in rollouts)
    return TrainBatch(step, (TrainGroup(rollouts[0].group, tuple(rollouts), rewards),))


def update(world: Monitor, step: int, rollouts: list[Rollout]) -> None:
    world.train(batch_of(step, rollouts), "dense")
    [event] = world.wait()
    assert isinstance(event, Trained)
    world.sync_weights()
    [event] = world.wait()
    assert isinstance(event, Synced)
    assert world.version == step + 1


@pytest.mark.parametrize("kind", ONE_REPLICA)
def test_an_abort_between_iterations_loses_and_adds_nothing(build: Build, kind: str) -> None:
    """All prompts fit into the first iteration, so all rollouts sample a token in each: those
    stopped at the instant at which the first of them ends have exactly as many tokens as it."""
    world = Keeper(build(kind))
    rollouts = eight()
    world.submit(rollouts)
    first = [event.segment for event in world.wait() if isinstance(event, Ended)]
    rest = [rollout for rollout in rollouts if not rollout.finished]
    assert rest
    stopped = world.abort([rollout.key for rollout in rest[::-1]])
    assert [segment.key for segment in stopped] == [rollout.key for rollout in rest]
    assert {rollout.new_tokens for rollout in rollouts} == {first[0].new_tokens}
    assert not any(segment.finished for segment in stopped)
    assert world.idle
    with pytest.raises(
        RunError, match="no rollout, update or sync is under way"
    ):  # nothing more comes of them
        world.wait()
    assert {rollout.new_tokens for rollout in rest} == {first[0].new_tokens}


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.999])
def test_an_abort_within_an_iteration_waits_for_its_end(build: Build, offset: float) -> None:
    arena = build(SIMULATED)
    world = arena.monitor()
    rollouts = Group(LONG, 2, 2).rollouts
    world.submit(rollouts)
    marks = []
    for _ in range(3):  # the clock at which a rollout has one token more
        before = arena.world.now_s
        assert world.wait(before + 1e-3) == []
        marks.append(arena.world.now_s)
    assert world.wait(marks[-1] + 0.02 + offset * 1e-3) == []
    stopped = world.abort()
    assert all(segment.new_tokens >= 1 for segment in stopped)
    ends = {segment.end_s for segment in stopped}
    assert len(ends) == 1
    assert ends.pop() >= arena.world.now_s
    assert world.wait(arena.world.now_s + 1.0) == []


@pytest.mark.parametrize("kind", WORLDS)
def test_a_resumed_rollout_goes_on_where_it_was(build: Build, kind: str) -> None:
    """Tokens and log-probabilities of its first segment are untouched (`Monitor._check_tokens`)."""
    world = Keeper(build(kind))
    rollouts = eight()
    world.submit(rollouts)
    world.wait()
    keys = {segment.key for segment in world.abort()}
    stopped = [rollout for rollout in rollouts if rollout.key in keys]
    reached = {rollout.key: rollout.new_tokens for rollout in stopped}
    assert any(reached.values())
    world.submit(stopped)
    finish(world)
    assert all(r.new_tokens > reached[r.key] for r in stopped)
    assert world.resumed > 0


@pytest.mark.parametrize("kind", WORLDS)
def test_new_weights_empty_the_prefix_cache(build: Build, kind: str) -> None:
    """Nor does the engine leave keys of the trained rollouts that it checks its new weights on."""
    world = Keeper(build(kind))
    carried = [Rollout(LONG, index) for index in range(2)]
    trained = [Rollout(LONG, index) for index in range(2, 6)]
    world.submit(carried)
    world.wait(world.now_s + 0.015)
    world.abort()
    world.submit(trained)
    finish(world)
    reached = [rollout.new_tokens for rollout in carried]
    update(world, 0, trained)
    world.submit(carried[:1])
    finish(world)
    assert (
        world.last[carried[0].key].prefill_tokens == PROMPTS[LONG] + reached[0]
    )  # all of it, again
    world.submit(carried[1:])
    finish(world)
    if world.shape.replicas == 1:  # and now the prompt's full blocks are there
        assert world.last[carried[1].key].prefill_tokens <= PROMPTS[LONG] % 32 + reached[1]


@pytest.mark.parametrize("kind", WORLDS)
def test_versions_and_segments_add_up(build: Build, kind: str) -> None:
    world = Keeper(build(kind))
    slow = Group(5, 4, 4).rollouts
    world.submit(slow)
    world.wait()
    world.abort()
    for step in range(2):
        fast = Group(6 * step + 6, 3, 3).rollouts
        world.submit(fast)
        finish(world)
        update(world, step, fast)
    left = [rollout for rollout in slow if not rollout.finished]
    world.submit(left)
    finish(world)
    for rollout in left:
        assert [part.version for part in rollout.tokens_by_version] == [0, 2]
    update(world, 2, slow)  # the monitor holds the world's own versions against the segments


@pytest.mark.parametrize("kind", WORLDS)
def test_completions_come_in_order_of_group_and_index(build: Build, kind: str) -> None:
    """Whatever the order of submission: a cap of one token makes them meet."""
    world = Keeper(build(kind, cap=1))
    rollouts = [Rollout(group, index) for group in (0, 3, 6) for index in range(2)]
    Random(0).shuffle(rollouts)
    world.submit(rollouts)
    events = world.wait()
    keys = [event.segment.key for event in events if isinstance(event, Ended)]
    assert len(keys) > 1
    assert keys == sorted(keys)
    finish(world)


@pytest.mark.parametrize("kind", WORLDS)
def test_calls_that_make_no_sense_are_refused(build: Build, kind: str) -> None:
    world = build(kind).world
    rollouts = Group(SHORT, 4, 4).rollouts
    with pytest.raises(RunError, match="no rollout, update or sync is under way"):
        world.wait()
    with pytest.raises(RunError, match="not in flight"):
        world.abort([rollouts[0].key])
    world.submit(rollouts)
    with pytest.raises(RunError, match="already in flight"):
        world.submit([rollouts[2]])
    with pytest.raises(RunError, match="not in flight"):
        world.abort([(9, 9)])
    while any(not rollout.finished for rollout in rollouts):  # none of it did any harm
        for event in world.wait():
            assert isinstance(event, Ended)
            rollouts[event.segment.index].add(event.segment)
    world.train(batch_of(0, rollouts), "dense")
    for again in (world.sync_weights, lambda: world.train(batch_of(0, rollouts), "dense")):
        with pytest.raises(RunError, match="under way"):
            again()
    assert isinstance(world.wait()[0], Trained)


@pytest.mark.parametrize("verb", ["train", "sync"])
@pytest.mark.parametrize("kind", WORLDS)
def test_weights_stay_while_rollouts_are_in_flight(build: Build, kind: str, verb: str) -> None:
    world = build(kind).world
    if not world.shape.colocated:
        pytest.skip("a trainer with GPUs of its own may train meanwhile, and bring its weights")
    rollouts = Group(SHORT, 4, 4).rollouts
    world.submit(rollouts)
    calls = {
        "train": lambda: world.train(batch_of(0, rollouts), "dense"),
        "sync": world.sync_weights,
    }
    with pytest.raises(RunError, match="rollouts are in flight"):
        calls[verb]()


@pytest.mark.parametrize("kind", WORLDS)
def test_a_deadline_ends_a_wait(build: Build, kind: str) -> None:
    world = Keeper(build(kind))
    world.submit(Group(SHORT, 4, 4).rollouts)
    assert world.wait(world.now_s) == []
    until_s = world.now_s + 1e-4
    assert world.wait(until_s) == []
    assert world.now_s >= until_s
    finish(world)
