"""What the engine says it computed is what the scheduler's rules, as the simulator has them, say.

Two figures can differ by rules of their own: where a chunk leaves the last token of a prefill over,
the simulator decodes that one. Here the budget holds any prefill, so that everything is exact.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.conformance.arenas import BLOCK, COST, MAX_SEQS, NEEDS_VLLM, real
from tests.running import run

pytestmark = NEEDS_VLLM

CAP, BUDGET, STEPS = 40, 512, 2
PLAN = StepPlan(Batch(4, 4))
COLUMNS = ("group", "index", "new_tokens", "prefill_tokens", "recomputed_tokens", "preemptions")
NARROW = {"kv_tokens": 384, "prefix_caching": False, "max_model_len": 128}
CROWDED = NARROW | {"prefix_caching": True}
AMPLE = {"kv_tokens": 4096, "prefix_caching": True}


def both_worlds(
    replicas: Callable[..., Any], policy: str, options: dict[str, Any]
) -> tuple[Run, Run, Monitor]:
    replica = replicas(max_batched_tokens=BUDGET, **options)
    caching = options["prefix_caching"]
    monitor = real(replica, CAP, caching).monitor()
    measured = run(monitor, parse_policy(policy, seed=5), PLAN, STEPS)
    spec = EngineSpec(MAX_SEQS, BUDGET, replica.kv_blocks * BLOCK, BLOCK, caching)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, spec, COST, RecordedWorkload(measured.segments, CAP))
    return measured, run(world, parse_policy(policy, seed=5), PLAN, STEPS), monitor


APRIL = "april(over_sampling=2)"
CASES = {
    "ample-sync": (AMPLE, "sync"),
    "ample-april": (AMPLE, APRIL),
    "narrow-april": (NARROW, APRIL),
    "crowded-sync": (CROWDED, "sync"),
}


@pytest.mark.parametrize(("options", "policy"), CASES.values(), ids=CASES)
def test_prefills_and_preemptions_are_those_of_the_rules(
    replicas: Callable[..., Any], options: dict[str, Any], policy: str
) -> None:
    measured, expected, monitor = both_worlds(replicas, policy, options)
    for column in COLUMNS:
        assert measured.segments[column].tolist() == expected.segments[column].tolist(), column
    assert measured.ledger == expected.ledger
    assert (measured.ledger.preemptions > 0) == (options is not AMPLE)
    assert (measured.ledger.reprefilled_tokens > 0) == (options is not AMPLE or policy != "sync")

    iterations = monitor.world.log.iterations  # type: ignore[attr-defined]
    assert iterations["prefill_tokens"].sum() == measured.ledger.prefill_tokens
    assert iterations["preemptions"].sum() == measured.ledger.preemptions
    assert (iterations["seconds"] > 0).all()
    assert set(iterations["version"].tolist()) == set(range(STEPS))
