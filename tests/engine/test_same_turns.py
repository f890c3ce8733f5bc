"""Rollouts of several turns on real vLLM and on the simulated cluster: the same decisions, at the
same times.

The real world runs on a clock on which every iteration takes equally long, and its environments say
how long they take: so it happens exactly when the simulated run does that replays it. Stays, calls
and decisions have to be the same, to the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from conftest import CONTEXT_TOKENS, VOCABULARY, build_tiny
from virtual import TICKS, Inline, TimedEngine, VirtualClock

from engine.environments import Answer, CallError, Episode, Said
from engine.environments.sandbox import Patience
from engine.sessions import TurnRules
from engine.tasks.base import Prompt
from engine.trainer import Trainer, TrainerConfig
from engine.world import EngineWorld
from simulator.cluster.replica import EngineSpec
from simulator.cluster.simulated import SimulatedCluster
from simulator.costs import LinearCost
from simulator.loop import run
from simulator.plan import Batch, StepPlan
from simulator.policies import parse_policy
from simulator.rollout import ENDINGS
from simulator.spans import Run
from simulator.workload.recorded import RecordedWorkload
from simulator.workload.slots import EnvironmentSpec
from simulator.world import ClusterShape

CAP = 12
STEPS = 4
ITERATION_S = 1 / TICKS
MAX_TURNS, MAX_CONTEXT = 5, 100
ENDS = (1, *range(2, 14))
"""Tokens that end a turn, so that most turns end before their cap."""
COST = LinearCost(iteration_s=ITERATION_S, per_rollout_s=0, per_context_token_s=0,
                  per_prefill_token_s=0, train_per_token_s=0)  # fmt: skip


@dataclass
class TurnTask:
    """Random prompts; turns earn by their tokens."""

    max_new_tokens: int = CAP

    def prompt(self, group: int, seed: int) -> Prompt:
        rng = Random(f"{seed} {group}")
        tokens = tuple(rng.randrange(14, VOCABULARY) for _ in range(rng.randrange(3, 40)))
        return Prompt(str(group), tokens)

    def reward(self, prompt: Prompt, response_text: str) -> float:
        raise AssertionError("its environment says what it earned")

    def held_out(self, count: int) -> list[Prompt]:
        return []

    def decode(self, token_ids: Any) -> str:
        return " ".join(map(str, token_ids))


@dataclass
class Oracle:
    """Answers, and takes its time, by what it was asked and nothing else."""

    slow: int = 40
    episode: Episode | None = None
    failed: set[int] = field(default_factory=set)

    def reset(self, episode: Episode) -> float:
        self.episode = episode
        return self._rng("boot").randrange(1, 1 + self.slow) / TICKS

    def step(self, said: Said) -> Answer:
        rng = self._rng(said.turn)
        seconds = rng.randrange(1, 1 + self.slow) / TICKS
        if rng.random() < 0.1 and said.turn not in self.failed:
            if rng.random() < 0.5:
                self.failed.add(said.turn)
            raise CallError("it failed", seconds)
        observation = [rng.randrange(14, VOCABULARY) for _ in range(rng.randrange(0, 20))]
        reward = float(sum(said.token_ids) % 2)
        return Answer(observation, rng.random() < 0.25, reward, seconds)

    def close(self) -> None:
        self.episode = None

    def _rng(self, place: object) -> Random:
        assert self.episode is not None
        return Random(f"{self.episode.group} {self.episode.index} {place}")


@pytest.fixture(scope="module")
def shared_replica(make_replica: Callable[..., Any]) -> Any:
    replica = make_replica(max_seqs=8, max_batched_tokens=64, kv_tokens=2048, block_tokens=32,
                           stop_token_ids=ENDS)  # fmt: skip
    return replica


def rules(slow: int, **spec: Any) -> TurnRules:
    patience = Patience(
        timeout_s=0.75 * slow / TICKS if spec.pop("timeout", False) else 1e6, retry=1
    )
    return TurnRules(lambda: Oracle(slow), lambda text: [], VOCABULARY, EnvironmentSpec(**spec),
                     patience, MAX_TURNS, MAX_CONTEXT)  # fmt: skip


def real_run(replica: Any, policy: str, turns: TurnRules, failed: Any = "keep") -> Run:
    model = build_tiny(1)
    replica.load_weights(model.state_dict())
    replica.version = 0
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-3, seed=0))
    clock = VirtualClock()
    engine: Any = TimedEngine(replica, clock, ITERATION_S)
    world = EngineWorld(engine, trainer, TurnTask(), 3, clock, turns, Inline(clock))
    plan = StepPlan(Batch(4, 4), failed=failed)
    return run(world, parse_policy(policy, seed=5), plan, STEPS)


def replay(replica: Any, real: Run, policy: str, turns: TurnRules, failed: Any = "keep") -> Run:
    spec = EngineSpec(8, 64, replica.kv_blocks * 32, block_tokens=32, prefix_caching=True)
    shape = ClusterShape(1, 1, 1, colocated=True)
    recorded = RecordedWorkload(real.stays, CAP, calls=real.calls, environments=turns.spec)
    world = SimulatedCluster(shape, spec, COST, recorded, environment=turns.spec)
    plan = StepPlan(Batch(4, 4), failed=failed)
    return run(world, parse_policy(policy, seed=5), plan, STEPS)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("sync", {}, "keep"),
    ("sync", {"slots": 3}, "keep"),
    ("sync", {"slots": 5, "held": "rollout"}, "keep"),
    ("sync", {"timeout": True}, "keep"),
    ("sync", {"timeout": True}, "restart"),
    ("april(over_sampling=2)", {}, "keep"),
    ("april(over_sampling=2)", {"slots": 3, "put_away": "close"}, "keep"),
    ("april(over_sampling=2)", {"slots": 6, "held": "rollout"}, "keep"),
    ("april(over_sampling=2)", {"slots": 6, "held": "rollout", "put_away": "close"}, "restart"),
    ("april(over_sampling=1.5, surplus=drop, mask_off_policy=true)", {"slots": 4}, "keep"),
    ("partial_rollout", {"put_away": "close"}, "keep"),
    ("tail_batching", {"slots": 4}, "keep"),
    ("token_budget(tokens=20)", {}, "keep"),
    ("token_budget(tokens=1000, turns=1)", {"slots": 4}, "keep"),
    ("april(over_sampling=2)+pods(keep=2)+prefix_reuse", {"slots": 4}, "keep"),
]


@pytest.mark.parametrize(("policy", "spec", "failed"), CASES)
def test_turns_take_the_same_course_in_both_worlds(
    shared_replica: Any, policy: str, spec: dict[str, Any], failed: str
) -> None:
    turns = rules(40, **spec)
    real = real_run(shared_replica, policy, turns, failed)
    simulated = replay(shared_replica, real, policy, turns, failed)
    assert simulated.decisions == real.decisions
    assert real.ledger == simulated.ledger
    assert real.ledger.balance == 0
    for column in ("step", "group", "index", "attempt", "turn", "kind", "ended"):
        assert real.calls[column].tolist() == simulated.calls[column].tolist(), column
    columns = ("step", "group", "index", "attempt", "turn", "observation_tokens", "version",
               "versions", "new_tokens", "ending", "finished", "replica", "prefill_tokens")  # fmt: skip
    for column in (*columns, "fate", "trained_step"):
        assert real.stays[column].tolist() == simulated.stays[column].tolist(), column
    endings = {ENDINGS[number] for number in real.stays["ending"].tolist()}
    assert {"stop", "turn"} < endings
    assert max(real.stays["turn"]) == MAX_TURNS - 1
    assert max(real.stays["prompt_tokens"]) + MAX_CONTEXT < CONTEXT_TOKENS
