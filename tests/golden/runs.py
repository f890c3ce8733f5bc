"""The kept runs: every policy, alone and composed, with a fast and a slow trainer.

The digests in ``digests.json`` were written by version 0.1's loop, and anew where the last token of
a prefill came to count as one. `python -m tests.golden.runs`
writes them anew: do so only where a policy's decisions are meant to change, and say which in the
change log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.loop import run
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.spans import Run
from rollcast.simulator.testing.strategies import TableCost, TableWorkload
from rollcast.simulator.world import ClusterShape

DIGESTS = Path(__file__).parent / "digests.json"

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
OVERLAPPING = ("one_step_off", "fully_async")
TRAINERS = {"fast": 2e-5, "slow": 1e-3}
STEPS = 10
PARTS = ("decisions", "segments", "phases", "steps", "ledger")

_PROMPTS = (5, 70, 33, 12, 64, 27)
_LENGTHS = (40, 3, 17, 29, 1, 90, 8, 22, 35, 11, 6, 60, 2, 71, 13)
_REWARDS = (0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0)


def cases() -> Iterator[tuple[str, str, str, str]]:
    """(its name, chain, trainer, cluster) of every kept run."""
    for chain in CHAINS:
        overlaps = any(name in chain for name in OVERLAPPING)
        for trainer in TRAINERS:
            for cluster in ("apart", "crowded") if overlaps else ("shared", "apart", "crowded"):
                yield f"{chain} | {trainer} | {cluster}", chain, trainer, cluster


def make(chain: str, trainer: str, cluster: str) -> Run:
    """The run of a case."""
    cost = TableCost(
        iteration_s=3e-3,
        per_rollout_s=6e-5,
        per_context_token_s=2e-7,
        per_prefill_token_s=3e-5,
        phases=(("forward", 0.01, TRAINERS[trainer]), ("backward", 0.02, 2 * TRAINERS[trainer])),
        sync_s=0.02,
        switch_to_train_s=0.01,
        switch_to_rollout_s=0.01,
    )
    shape = ClusterShape(2, 1, 2, colocated=cluster == "shared")
    engine = EngineSpec(6, 64, 192 if cluster == "crowded" else 4096, 16, prefix_caching=True)
    workload = TableWorkload(_PROMPTS, _LENGTHS, _REWARDS, max_new_tokens=90)
    world = SimulatedCluster(shape, engine, cost, workload)
    return run(world, parse_policy(chain, seed=5), StepPlan(Batch(4, 4)), STEPS)


def digests(run: Run) -> dict[str, str]:
    """A digest of each of `PARTS`; of decisions what they brought, not the plan itself."""
    segments = run.segments
    content: dict[str, Any] = {
        "decisions": [{k: v for k, v in d.items() if k != "plan"} for d in run.decisions],
        "segments": [
            [name, [str(value) for value in segments[name].tolist()]] for name in SEGMENT_COLUMNS
        ],
        "phases": sorted(
            [p.step, p.kind, p.track, p.start_s, p.end_s, p.tokens] for p in run.phases
        ),
        "steps": [[getattr(record, name) for name in STEP_FIELDS] for record in run.steps],
        "ledger": [getattr(run.ledger, name) for name in LEDGER_FIELDS],
    }
    return {
        part: hashlib.sha256(json.dumps(content[part]).encode()).hexdigest()[:16] for part in PARTS
    }


SEGMENT_COLUMNS = (
    "step",
    "group",
    "index",
    "attempt",
    "version",
    "versions",
    "replica",
    "prompt_tokens",
    "new_tokens",
    "total_tokens",
    "prefill_tokens",
    "recomputed_tokens",
    "preemptions",
    "finished",
    "truncated",
    "resumed",
    "outcome",
    "trained_step",
    "reward",
    "submitted_s",
    "start_s",
    "end_s",
)
STEP_FIELDS = (
    "step",
    "start_s",
    "rollout_start_s",
    "rollout_end_s",
    "end_s",
    "group_size",
    "launched_groups",
    "resumed_groups",
    "complete_groups",
    "rejected_groups",
    "trained_groups",
    "trained_rollouts",
    "buffered_groups",
    "generated_tokens",
    "trained_tokens",
    "masked_tokens",
    "dropped_tokens",
    "resumed_tokens",
    "stragglers",
    "train_s",
    "sync_s",
    "switch_s",
    "step_s",
)
LEDGER_FIELDS = (
    "generated_tokens",
    "trained_tokens",
    "masked_tokens",
    "dropped_tokens",
    "carried_tokens",
    "prefill_tokens",
    "reprefilled_tokens",
    "preemptions",
)


if __name__ == "__main__":
    found = {name: digests(make(*case)) for name, *case in cases()}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
