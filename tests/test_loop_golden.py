"""Every policy decides what it decided, to the tick: digests of kept runs, alone and composed.

`python -m tests.test_loop_golden` writes the digests anew: do so only where decisions are meant to
change, and say which in the change log.
"""

import hashlib
import json
from pathlib import Path

import pytest

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing.tables import TableCost, TableWorkload
from tests.running import run

DIGESTS = Path(__file__).parent / "data" / "golden.json"
CHAINS = (
    "sync",
    "april(over_sampling=2)",
    "april(over_sampling=1.5, surplus=drop, mask_off_policy=true)",
    "april(over_sampling=2, surplus=train)",
    "sagc(candidates=[2, 4, 8], first=4, eta=2)",
    "pods(keep=2)",
    "pods(keep=3, rule=random)+pods(keep=2)",
    "prefix_reuse",
    "dynamic_sampling",
    "dynamic_sampling(refill_when=drained, refill_groups=2)",
    "partial_rollout(in_flight=1.5)",
    "partial_rollout",
    "tail_batching",
    "one_step_off",
    "one_step_off+dynamic_sampling",
    "one_step_off+april(over_sampling=2)",
    "fully_async(max_staleness=1)",
    "fully_async(max_staleness=2)+pods(keep=2)",
    "april+dynamic_sampling",
    "sagc(candidates=[2, 4, 8], first=4, eta=2)+tail_batching+prefix_reuse",
    "april(over_sampling=2)+sagc(candidates=[2, 4, 8], first=4, eta=2)+pods(keep=2)+prefix_reuse",
)
CLUSTERS = {"a fast trainer apart": (2e-5, 4096), "a slow one, and a crowded pool": (1e-3, 192)}
WORKLOAD = TableWorkload(
    (5, 70, 33, 12, 64, 27),
    (40, 3, 17, 29, 1, 90, 8, 22, 35, 11, 6, 60, 2, 71, 13),
    (0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0),
    max_new_tokens=90,
)
COLUMNS = ("group", "index", "attempt", "version", "replica", "new_tokens", "prefill_tokens")
ENDS = ("preemptions", "outcome", "trained_step", "start_s", "end_s")


def digest(chain: str, cluster: str) -> str:
    """Of a run's decisions (what they brought, not the plans), segments, phases and accounting."""
    train_s, kv_tokens = CLUSTERS[cluster]
    cost = TableCost(
        iteration_s=3e-3,
        per_rollout_s=6e-5,
        per_context_token_s=2e-7,
        per_prefill_token_s=3e-5,
        phases=(("forward", 0.01, train_s), ("backward", 0.02, 2 * train_s)),
        sync_s=0.02,
    )
    shape = ClusterShape(2, 1, 2, colocated=False)
    world = SimulatedCluster(shape, EngineSpec(6, 64, kv_tokens, 16), cost, WORKLOAD)
    made = run(world, parse_policy(chain, seed=5), StepPlan(Batch(4, 4)), 10)
    content = [
        [{key: what for key, what in each.items() if key != "plan"} for each in made.decisions],
        [*made.segments.each(*COLUMNS, *ENDS)],
        sorted([p.step, p.kind, p.track, p.start_s, p.end_s, p.tokens] for p in made.phases),
        repr(made.ledger),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_run_is_what_it_was(chain: str) -> None:
    kept = json.loads(DIGESTS.read_text("utf-8"))[chain]
    assert {cluster: digest(chain, cluster) for cluster in CLUSTERS} == kept


if __name__ == "__main__":
    found = {chain: {cluster: digest(chain, cluster) for cluster in CLUSTERS} for chain in CHAINS}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
