"""The trajectories of a run are found again in its tables, and the same run follows from them."""

from typing import Any

import pytest

from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.rollout import FAILED
from rollcast.simulator.core.spans import Run
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.workload.base import Trajectory, Turn
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.workload.recorded_turns import RecordedTrajectory, continued
from tests.running import run
from tests.scenarios import LINEAR

CAP = 60
OVERLAPPING = ("fully_async(max_staleness=2)", "one_step_off", "pipeline_rl")
POLICIES = (
    "sync",
    "april(over_sampling=2)",
    "partial_rollout",
    "token_budget(tokens=60,turns=2)",
    *OVERLAPPING,
)


def scenario(policy: str, held: str, on_suspend: str, tight: bool) -> Scenario:
    """With slots that bind and two replicas, or neither."""
    data: dict[str, Any] = {
        "cluster": {
            "placement": "disaggregated" if policy in OVERLAPPING else "colocated",
            "replicas": 2 if tight else 1,
            "trainer_gpus": 1,
        },
        "engine": {"max_seqs": 32, "max_batched_tokens": 512, "kv_tokens": 60000},
        "workload": {
            "batch_groups": 6,
            "group_size": 4,
            "prompt_tokens": 50,
            "max_new_tokens": CAP,
            "max_context_tokens": 900,
            "lengths": {
                "family": "lognormal",
                "median_tokens": 15,
                "between_sd": 0.3,
                "within_sd": 0.3,
            },
            "turns": {
                "family": "lognormal",
                "median": 5,
                "between_sd": 0.3,
                "within_sd": 0.4,
                "max_turns": 12,
                "length_sd": 0.4,
                "observation_tokens": {"median_tokens": 20, "sd": 0.5, "max_tokens": 100},
            },
        },
        "environment": {
            "slots": 9 if tight else 40,
            "boot_s": 0.7,
            "timeout_s": 4,
            "failure": 0.02,
            "turn_s": {"family": "lognormal", "median_s": 0.5, "sd": 0.6, "between_sd": 0.2},
            "held": held,
            "on_suspend": on_suspend,
        },
        "reward": {"slots": 3, "seconds": 0.3},
        "policy": policy,
        "cost": {"linear": LINEAR},
        "steps": 4,
        "seed": int(tight),
    }
    return build_scenario(RawScenario(data))


def replayed(given: Scenario, first: Run) -> tuple[RecordedWorkload, Run]:
    """What was recorded, and the run that follows from it."""
    recorded = RecordedWorkload(first.segments, CAP, 1, first.calls, given.environment)
    world = SimulatedCluster(
        given.shape, given.engine, given.cost, recorded, given.routing, given.environment
    )
    return recorded, run(world, given.policy, given.plan, given.steps)


@pytest.mark.parametrize(
    ("policy", "held", "on_suspend", "tight"),
    [
        (policy, held, on_suspend, (number // 2 + (held == "call")) % 2 == 0)
        for number, policy in enumerate(POLICIES)
        for held, on_suspend in (("call", "keep"), ("rollout", "close"), ("call", "close"))[
            number % 2 : number % 2 + 2
        ]
    ],
)
def test_a_replay_takes_the_same_decisions_at_the_same_times(
    policy: str, held: str, on_suspend: str, tight: bool
) -> None:
    """Environments kept or closed, slots of calls or rollouts, what was never finished too."""
    given = scenario(policy, held, on_suspend, tight)
    first = run(given.world(), given.policy, given.plan, given.steps)
    recorded, again = replayed(given, first)
    assert again.decisions == first.decisions
    assert again.makespan_s == pytest.approx(first.makespan_s, rel=1e-9)
    for (group, attempt, index), own in recorded.turned.items():
        drawn = given.workload.draw(group, index + 1, attempt).trajectories
        require_recorded(own, drawn[index], held)


def require_recorded(own: RecordedTrajectory, true: Trajectory, held: str) -> None:
    """A rollout's record is its trajectory as far as it came; boots are in the first answers."""
    made = own.trajectory
    count = len(made.turns)
    if own.cut is None:
        assert (count, made.ending) == (len(true.turns), true.ending)
        assert [turn[:2] for turn in made.turns] == [turn[:2] for turn in true.turns]
        if made.ending not in FAILED:
            assert made.reward_s == pytest.approx(true.reward_s, abs=1e-6)
    known = made.turns if own.cut is None else made.turns[:-1]
    asked = [turn.environment_s for turn in known if turn.environment_s > 0]
    expected = [turn.environment_s for turn in true.turns[: len(known)] if turn.environment_s > 0]
    if held == "call" and expected:
        expected[0] += true.boot_s
    assert asked == pytest.approx(expected, abs=1e-6)
    last, whole = made.turns[-1], true.turns[count - 1]
    if own.cut == "model":
        assert last.new_tokens <= whole.new_tokens
    if own.cut == "environment":
        assert last.new_tokens == whole.new_tokens
        assert last.environment_s <= whole.environment_s + true.boot_s + 1e-6


DRAWN = Trajectory((Turn(0, 10, 1.0), Turn(5, 20, 2.0), Turn(6, 30, 0.0)), "length", 0.5, 3.0)


def own(cut: Any, *turns: Turn, boot_s: float = 0.0, reward_s: float | None = None) -> Any:
    return RecordedTrajectory(7, Trajectory(turns, "stop", boot_s, reward_s), cut, 0.0)


def test_what_was_stopped_goes_on_as_another_does() -> None:
    begun = Turn(0, 4, 9.0)
    assert continued(own(None, begun), DRAWN).turns == (begun,)
    on = continued(own("model", begun, Turn(8, 3, 0.0)), DRAWN)
    assert on.turns == (begun, Turn(8, 20, 2.0), Turn(6, 30, 0.0))
    assert (on.ending, on.reward_s) == ("length", 3.0)
    further = continued(own("model", begun, Turn(8, 25, 0.0)), DRAWN)
    assert further.turns[1] == Turn(8, 26, 2.0)  # at least a token more than it had
    away = continued(own("environment", begun, Turn(8, 25, 7.0)), DRAWN)
    assert away.turns[1:] == (Turn(8, 25, 7.0), Turn(6, 30, 0.0))
    booting = continued(own("boot", Turn(0, 0, 0.0), boot_s=2.0), DRAWN)
    assert (booting.turns, booting.boot_s) == (DRAWN.turns, 2.0)
    judged = continued(own("reward", begun, reward_s=8.0), DRAWN)
    assert (judged.turns, judged.reward_s) == ((begun,), 8.0)


def test_beyond_the_others_end_there_is_one_turn_more_if_needed() -> None:
    turns = tuple(Turn(1, 2, 3.0) for _ in range(4))
    assert len(continued(own("environment", *turns), DRAWN).turns) == 5
    on = continued(own("model", *turns), DRAWN)
    assert on.turns[-1] == Turn(1, 3, 0.0)
