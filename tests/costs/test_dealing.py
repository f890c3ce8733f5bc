"""How a trainer's GPUs get their rollouts: by length or in turn, from one process, and padded."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw

QWEN = load_model("qwen3-8b")
ROOMY = replace(load_gpu("h100-sxm"), name="roomy", memory_bytes=1e12)
GROUPS = st.lists(
    st.tuples(st.integers(1, 500), st.lists(st.integers(1, 3000), min_size=1, max_size=6)),
    min_size=1,
    max_size=6,
)


def trainer(gpus: int = 2, **options: Any) -> RooflineTrainer:
    return RooflineTrainer(QWEN, ROOMY, gpus, **{"microbatch_tokens": 4000, **options})


def seconds(one: RooflineTrainer, responses: list[int]) -> float:
    return dict(one.train(TrainLoad([(0, responses)])).phases_s)["log_prob"]


def test_in_turn_one_gpu_may_get_all_that_is_long() -> None:
    alternating = [4000, 1000, 4000, 1000]
    sorted_ = [4000, 4000, 1000, 1000]
    one = trainer(sharding="none", batching="one_sequence", balanced=False)
    both_long = seconds(trainer(1, sharding="none", batching="one_sequence"), [4000, 4000])
    assert seconds(one, alternating) == pytest.approx(both_long)
    assert seconds(one, sorted_) == pytest.approx(seconds(replace(one, balanced=True), alternating))


def test_gpus_that_gather_weights_wait_for_each_other_at_every_microbatch() -> None:
    """Each of two GPUs has one long and one short sequence, the first the long one first."""
    crossed, aligned = [4000, 1000, 1000, 4000], [4000, 4000, 1000, 1000]
    alone = trainer(sharding="none", batching="one_sequence", balanced=False)
    together = replace(alone, sharding="fsdp", overlap=1.0)
    assert seconds(alone, crossed) == pytest.approx(seconds(alone, aligned))
    assert seconds(together, crossed) == pytest.approx(2 * seconds(together, [4000, 4000]))
    assert seconds(together, crossed) > 1.5 * seconds(together, aligned)


@pytest.mark.parametrize("seed", range(3))
def test_short_shared_prefixes_do_not_make_gpus_wait_for_each_other(seed: int) -> None:
    """Prefixes on one GPU need not fall together with long responses on another."""
    rng = np.random.default_rng(seed)
    means = rng.lognormal(8.4, 0.9, 32)
    groups = [(512, np.minimum(mean * rng.lognormal(0, 0.4, 8), 16384)) for mean in means]
    load = [(prompt, [int(tokens) for tokens in responses]) for prompt, responses in groups]
    one = trainer(8, overlap=1.0, microbatch_tokens=None)
    dense, shared = (one.train(TrainLoad(load, prefix)).total_s for prefix in (False, True))
    assert shared < 1.1 * dense


@given(groups=GROUPS)
def test_padded_logits_cost_no_more_than_padded_rollouts(
    groups: list[tuple[int, list[int]]],
) -> None:
    load = TrainLoad(groups)
    packed, logits, rows = (
        trainer(1, microbatch_tokens=10**6, **options).train(load).total_s
        for options in ({}, {"padded_logits": True}, {"batching": "padded_to_batch"})
    )
    assert packed < logits
    assert logits <= rows + trainer(1).train(load).total_s  # whose prompts have no logits


VERL: dict[str, Any] = {
    "model": {"preset": "qwen2.5-7b", "max_positions": 32768},
    "gpu": "h20",
    "workload": {
        "batch_groups": 512,
        "group_size": 16,
        "prompt_tokens": 150,
        "max_new_tokens": 28672,
        "lengths": {"mean_tokens": 900},
    },
    "cost": {
        "roofline": {
            "stack": "verl",
            "trainer": {"backend": "fsdp2", "sequence_parallel": 4, "sharding": "hybrid"},
        }
    },
}


def test_one_driver_feeds_any_number_of_gpus() -> None:
    """verl's README of fully_async_policy: 107.71 s of log-probabilities on 32 H20 become 70.26 s
    on 64 and 53.92 s on 128; the GPUs alone would take a quarter."""
    taken = []
    for gpus in (32, 64, 128):
        cluster = {"replicas": gpus // 4, "tensor_parallel": 4, "trainer_gpus": gpus}
        scenario = from_raw(RawScenario({**VERL, "cluster": cluster, "steps": 1}))
        drawn = [scenario.workload.draw(group, 16) for group in range(512)]
        load = TrainLoad([(draw.prompt_tokens, [*draw.new_tokens]) for draw in drawn])
        taken.append(dict(scenario.cost.train(load).phases_s)["log_prob"])
    assert [s / taken[0] for s in taken] == pytest.approx([1, 70.26 / 107.71, 53.92 / 107.71], 0.15)


def makespan(seconds: list[float], stages: int) -> float:
    """Of microbatches in a pipeline without buffers, event by event: a stage begins one when it has
    handed on the one before, which the next stage must be free to take."""
    left = [
        [0.0] * (stages + 2)
    ]  # by microbatch: when it leaves each stage, of which 0 is the queue
    for own in seconds:
        before, mine = left[-1], [left[-1][1]] + [0.0] * (stages + 1)
        for stage in range(1, stages + 1):
            free = before[stage + 1] if stage < stages else 0.0
            mine[stage] = max(mine[stage - 1] + own, free)
        left.append(mine)
    return left[-1][stages]


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=8, max_size=40), stages=st.sampled_from([2, 3, 4])
)
def test_a_pipeline_waits_for_its_longest_microbatch(seconds: list[float], stages: int) -> None:
    layout = trainer(stages, pipeline_parallel=stages, sharding="none").layout
    waited_s = layout.stalls(seconds) * sum(seconds)
    filled_s = makespan(seconds, stages)  # ends with one microbatch more for each further stage
    last = stages - 1
    assert waited_s + last * min(seconds) <= filled_s * (1 + 1e-9)
    assert filled_s <= waited_s + last * max(seconds) + 1e-9
    assert layout.stalls([3.0] * 8) == 1.0


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "rollouts", "tokens", "measured"),
    [
        ("qwen2.5-7b", "h100-sxm", 16, 8, 425, 13.64 / 12.55),  # README of py-inference-scheduler
        ("qwen2.5-0.5b", "gh200", 4, 5, 325, 3.566 / 3.42),  # verl's issue 1208
    ],
)
def test_old_log_probabilities_take_little_longer_than_the_reference_s(
    model: str, gpu: str, gpus: int, rollouts: int, tokens: int, measured: float
) -> None:
    """By verl's entropy, which is compiled where rows have no padding, and so little."""
    content = {
        **VERL,
        "model": model,
        "gpu": gpu,
        "cluster": {"replicas": gpus, "trainer_gpus": gpus},
        "workload": {**VERL["workload"], "batch_groups": 1024, "max_new_tokens": 1024},
    }
    ratios = []
    for batching in ("packed", "padded_to_batch"):
        options = {"log_prob_passes": 2, "batching": batching}
        roofline = {"stack": "verl", "trainer": options}
        cost = from_raw(RawScenario({**content, "cost": {"roofline": roofline}, "steps": 1})).cost
        phases = dict(cost.train(TrainLoad([(150, [tokens] * rollouts)] * 1024)).phases_s)
        ratios.append(phases["log_prob"] / phases["reference"])
    assert ratios[0] == pytest.approx(measured, rel=0.08)
    assert ratios[1] > ratios[0] + 0.05


@given(groups=GROUPS)
def test_passes_without_gradients_move_what_is_said_for_a_logit(
    groups: list[tuple[int, list[int]]],
) -> None:
    load = TrainLoad(groups)
    whole, graded, more = (
        dict(trainer(1, graded_traffic_per_logit=each).train(load).phases_s)
        for each in (None, 40.0, 1e3)
    )
    assert graded["log_prob"] < whole["log_prob"] < more["log_prob"]
    assert graded["forward"] == whole["forward"] == more["forward"]


@pytest.mark.parametrize(("batching", "scored"), [("packed", 4000), ("padded", 1000)])
def test_prompts_are_scored_unless_rows_are_padded(batching: str, scored: int) -> None:
    load = TrainLoad([(3000, [1000])])
    moved, fused = (
        dict(one.train(load).phases_s)["forward"]
        for one in (
            trainer(1, batching=batching, scores_prompts=True, traffic_per_logit=each)
            for each in (50.0, 0.0)
        )
    )
    each_s = 50 * trainer(1).model.vocab * trainer(1)._moved_s_per_byte
    assert (moved - fused) / each_s == pytest.approx(scored)
