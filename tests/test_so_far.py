"""The bubble of a run that goes on: at each horizon what the whole run says of the time until then,
and what a progress line makes of it."""

import pytest

from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.loop import Loop
from rollcast.simulator.results.intervals import total_s
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.over_time import gpu_lanes
from rollcast.simulator.results.so_far import Idle, IdleSoFar, idle_text
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import Scenario, from_raw

SCENARIO = """
cluster: {placement: colocated, replicas: 3, trainer_gpus: 2}
engine: {max_seqs: 8, kv_tokens: 65536}
workload: {batch_groups: 4, group_size: 4, prompt_tokens: 16, max_new_tokens: 512,
           lengths: {family: lognormal, median_tokens: 57, between_sd: 0.55, within_sd: 0.5}}
cost: {linear: {iteration_s: 2.6e-3, per_rollout_s: 6.0e-5, per_context_token_s: 1.8e-7,
                per_prefill_token_s: 2.6e-5, train_per_token_s: 7.0e-5, train_fixed_s: 0.05,
                sync_s: 0.02}}
steps: 6
"""
CASES = [
    ("colocated", "april(over_sampling=2)"),
    ("disaggregated", "fully_async(max_staleness=2)"),
    ("disaggregated", "pipeline_rl"),
]


def scenario(placement: str, policy: str) -> Scenario:
    raw = parse_scenario(SCENARIO)
    return from_raw(raw, f"cluster.placement={placement}").with_policy(policy)


def until(run: Run, end_s: float) -> dict[str, float]:
    """Idle shares of the whole run, cut at an instant."""
    cut = Run(run.world, run.shape, run.segments, run.calls, run.phases, start_s=run.start_s)
    cut.end_s = end_s
    shares: dict[str, float] = {}
    for lane in gpu_lanes(cut):
        for cause, intervals in lane.idle.items():
            idle_s = lane.gpus * total_s(intervals) / (run.shape.gpus * (end_s - run.start_s))
            shares[cause] = shares.get(cause, 0.0) + idle_s
    return {cause: share for cause, share in shares.items() if share > 0}


@pytest.mark.parametrize(("placement", "policy"), CASES)
def test_each_look_is_what_the_whole_run_says_of_the_time_until_then(
    placement: str, policy: str
) -> None:
    checked = scenario(placement, policy)
    looks: list[tuple[float, Idle]] = []

    def look(record: object) -> None:
        flying = list(loop.rollouts.flying.values())
        horizon_s = min([loop.result.steps[-1].end_s, *(r.submitted_s for r in flying)])
        looks.append((horizon_s, idle.look(flying)))

    loop = Loop(checked.world(), checked.policy, checked.plan, look)
    idle = IdleSoFar(loop.result)
    run = loop.run(checked.steps)
    assert len(looks) == checked.steps
    known = [(at_s, said) for at_s, said in looks if at_s > run.start_s]
    assert len(known) >= checked.steps - 2
    reached = 0.0
    for horizon_s, said in known:
        if horizon_s <= reached:
            continue  # nothing new was known then
        reached = horizon_s
        assert said.by_cause == pytest.approx(until(run, horizon_s), abs=1e-9)
    last = idle.look(())
    assert last.by_cause == pytest.approx(until(run, run.steps[-1].end_s), abs=1e-9)
    assert last.fraction > 0.01
    if placement == "colocated":
        assert last.fraction == pytest.approx(summarise(run)["bubble_fraction"], abs=1e-9)


def test_nothing_is_idle_before_anything_happened() -> None:
    checked = scenario("colocated", "sync")
    run = Run("simulated", checked.world().shape)
    assert IdleSoFar(run).look(()) == Idle({})


def test_the_progress_of_a_real_run_says_it_too() -> None:
    from rollcast.engine.cli import progress_text
    from rollcast.engine.run import Progress

    record = StepRecord(3, start_s=0.0, step_s=1.834)
    shown = progress_text(Progress(record, 0.424, Idle({"trainer": 0.25})))
    assert shown == "1.83 s a step, accuracy 0.42, idle 25 % (trainer 25)"


def test_the_line_says_the_causes_the_largest_first() -> None:
    idle = Idle({"stragglers": 0.05, "trainer": 0.18, "other": 0.001})
    assert idle_text(idle) == "idle 23 % (trainer 18, stragglers 5)"
    assert idle_text(Idle({})) == "idle 0 %"
