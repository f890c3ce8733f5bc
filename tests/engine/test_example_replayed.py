"""`examples/engine.yaml` for real and replayed: responses that are much alike are stopped, and
resumed with new weights.

A model that nobody trained stands in for the warm-started one, nearly greedy, so that its responses
have as much in common as that one's.
"""

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.edges import Engine
from rollcast.engine.in_process import in_process
from rollcast.engine.start import start_replica, start_task, start_trainer
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.spans import Run, Segments
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.scenario.file import override, read_scenario
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.running import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine.yaml"
POLICIES = ["[april: {over_sampling: 2.0}]", "[partial_rollout]"]
COLUMNS = (
    *("step", "group", "index", "attempt", "version", "versions", "new_tokens", "finished"),
    *("prefill_tokens", "recomputed_tokens", "preemptions", "outcome", "trained_step"),
)
COST = LinearCost(
    iteration_s=2.6e-3,
    per_rollout_s=6e-5,
    per_context_token_s=1.8e-7,
    per_prefill_token_s=2.6e-5,
    train_per_token_s=7e-5,
)


def scenario(policy: str, model: Path, engine: str) -> RunSpec:
    options = [
        f"engine.name={engine}",
        f"engine.model={model}",
        "engine.sampling.temperature=0.02",
        "workload.max_new_tokens=80",
        f"policy={policy}",
        "steps=3",
    ]
    return build_run(override(read_scenario(EXAMPLE), options))


MakeRun = Callable[[str, str], tuple[RunSpec, Run]]


@pytest.fixture(scope="module")
def make_run(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[MakeRun]:
    """Runs of the example on either engine under any policy, each as if it had just started."""
    from rollcast.engine.tasks.tokenizer import build_tokenizer

    build_tokenizer().save_pretrained(tiny_path)
    replicas: dict[str, Engine] = {}

    def make(engine: str, policy: str) -> tuple[RunSpec, Run]:
        spec = scenario(policy, tiny_path, engine)
        if engine not in replicas:
            if engine == "vllm":  # one that ends here must not take others along
                request.getfixturevalue("make_replica")
            replicas[engine] = start_replica(spec, tiny_path)
        replica, (task, _), trainer = (
            replicas[engine],
            start_task(spec),
            start_trainer(spec, tiny_path),
        )
        replica.load_weights(trainer.weights())
        replica.version = 0  # type: ignore[misc]
        world = in_process(replica, trainer, task, spec.seed)
        return spec, run(world, spec.policy, spec.plan, spec.steps)

    yield make
    for replica in replicas.values():
        replica.shutdown()


def replay(spec: RunSpec, segments: Segments) -> Run:
    section = spec.engine
    assert section.kv_tokens is not None
    engine = EngineSpec(
        section.max_seqs,
        section.max_batched_tokens,
        section.kv_tokens,
        section.block_tokens,
        section.prefix_caching,
    )
    workload = RecordedWorkload(segments, spec.max_new_tokens)
    world = SimulatedCluster(ClusterShape(1, 1, 1, colocated=True), engine, COST, workload)
    return run(world, spec.policy, spec.plan, spec.steps)


def without_common_tokens(segments: Segments) -> Segments:
    """The table of a run that knows of nothing but prompts in common."""
    data = dict(segments.__getstate__())
    data["shared_tokens"] = array("q", bytes(8 * len(segments)))
    blind = Segments()
    blind.__setstate__(data)
    return blind


@pytest.mark.parametrize(
    ("engine", "policy"),
    [*(("vllm", policy) for policy in POLICIES), ("transformers", POLICIES[0])],
)
def test_the_example_is_replayed_to_the_token(make_run: MakeRun, engine: str, policy: str) -> None:
    spec, real = make_run(engine, policy)
    simulated = replay(spec, real.segments)
    for column in COLUMNS:
        assert real.segments[column].tolist() == simulated.segments[column].tolist(), column
    assert simulated.decisions == real.decisions
    assert simulated.ledger == real.ledger
    if "april" in policy:
        resumed = real.segments["resumed"] == 1
        shared = real.segments["shared_tokens"][resumed]
        assert (shared >= spec.engine.block_tokens).sum() > 10, "which is what this is about"
        other = replay(spec, without_common_tokens(real.segments))
        assert other.ledger.prefill_tokens > real.ledger.prefill_tokens + 10 * 32
