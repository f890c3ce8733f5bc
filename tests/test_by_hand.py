"""Tiny scenarios whose timing a person can work out, held against what the simulator says.

The rules: an iteration computes every running rollout's next token, or a chunk of its prompt. The
one that computes the last of the prompt samples the first response token. It costs what
`LinearCost` says of its rollouts, the tokens in their KV cache at its end, and those prefilled.
"""

from pathlib import Path

import pytest

from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate

ITERATION, ROLLOUT, CONTEXT, PREFILL = 1.0, 0.1, 0.001, 0.01
TRAIN, FIXED, SYNC = 0.5, 3.0, 2.0

SCENARIO = """\
engine:
  {{max_seqs: {max_seqs}, max_batched_tokens: {budget}, kv_tokens: 4096, prefix_caching: false}}
cluster: {{replicas: {replicas}, trainer_gpus: 1}}
workload:
  batch_groups: {groups}
  group_size: {size}
  max_new_tokens: 1000
  lengths: {{trace: trace.csv}}
  rewards: {{family: constant, value: 1}}
policy: {policy}
cost:
  linear:
    iteration_s: 1.0
    per_rollout_s: 0.1
    per_context_token_s: 0.001
    per_prefill_token_s: 0.01
    train_per_token_s: 0.5
    train_fixed_s: 3.0
    sync_s: 2.0
steps: {steps}
"""


def played(
    folder: Path,
    prompt: int,
    lengths: list[list[int]],
    *,
    groups: int = 1,
    policy: str = "[]",
    steps: int = 1,
    max_seqs: int = 8,
    budget: int = 1000,
    replicas: int = 1,
) -> Result:
    """A run in which group g's rollouts get ``lengths[g]`` tokens each."""
    rows = ["group,index,prompt_tokens,new_tokens"]
    rows += [
        f"{g},{i},{prompt},{n}" for g, group in enumerate(lengths) for i, n in enumerate(group)
    ]
    (folder / "trace.csv").write_text("\n".join(rows))
    text = SCENARIO.format(
        groups=groups,
        size=len(lengths[0]),
        policy=policy,
        steps=steps,
        max_seqs=max_seqs,
        budget=budget,
        replicas=replicas,
    )
    return simulate(from_raw(parse_scenario(text, "by_hand", folder)))


def seconds(*iterations: tuple[int, int, int]) -> float:
    """Of iterations, each (rollouts, tokens in the KV cache, tokens prefilled)."""
    return sum(
        ITERATION + ROLLOUT * rollouts + CONTEXT * context + PREFILL * prefill
        for rollouts, context, prefill in iterations
    )


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def test_one_rollout(tmp_path: Path) -> None:
    result = played(tmp_path, prompt=10, lengths=[[3]])
    rollout_s = seconds((1, 10, 10), (1, 11, 0), (1, 12, 0))
    [step] = result.run.steps
    assert step.rollout_s == exactly(rollout_s)
    assert step.train_s == exactly(FIXED + TRAIN * 13)
    assert step.sync_s == exactly(SYNC)
    assert result.summary["makespan_s"] == exactly(rollout_s + FIXED + TRAIN * 13 + SYNC)
    assert result.summary["bubble_fraction"] == exactly(0.0)


def test_two_replicas_run_side_by_side_and_one_waits(tmp_path: Path) -> None:
    result = played(tmp_path, prompt=10, lengths=[[3, 5]], replicas=2)
    short = seconds((1, 10, 10), (1, 11, 0), (1, 12, 0))
    long = short + seconds((1, 13, 0), (1, 14, 0))
    assert result.run.segments["end_s"].tolist() == [exactly(short), exactly(long)]
    # One of the two GPUs waits for the straggler, and then for the trainer on the other.
    train_s = FIXED + TRAIN * 28
    total = long + train_s + SYNC
    assert result.summary["makespan_s"] == exactly(total)
    causes = result.summary["bubble_by_cause"]
    assert causes["stragglers"] == exactly((long - short) / (2 * total))


def test_a_long_prompt_is_computed_in_chunks(tmp_path: Path) -> None:
    result = played(tmp_path, prompt=10, lengths=[[2]], budget=8, max_seqs=4)
    assert result.run.segments["end_s"].tolist() == [
        exactly(seconds((1, 8, 8), (1, 10, 2), (1, 11, 0)))
    ]


def test_a_chunk_leaves_room_for_those_who_decode(tmp_path: Path) -> None:
    """A budget of 8: 5 for the first prompt and 3 for the second, whose last 2 come next."""
    result = played(tmp_path, prompt=5, lengths=[[3, 1]], budget=8, max_seqs=4)
    second = seconds((2, 8, 8), (2, 11, 2))
    first = second + seconds((1, 7, 0))
    ends = dict(
        zip(
            result.run.segments["index"].tolist(),
            result.run.segments["end_s"].tolist(),
            strict=True,
        )
    )
    assert ends == {1: exactly(second), 0: exactly(first)}


def test_april_stops_carries_and_resumes(tmp_path: Path) -> None:
    """Groups of one rollout, two in flight for a batch of one: group 1 is stopped twice, and
    prefills its 4 + 3 and then its 4 + 5 tokens again."""
    result = played(tmp_path, prompt=4, lengths=[[3], [6], [2], [9]], policy="[april]", steps=3)
    first, second, third = result.run.steps
    assert first.rollout_s == exactly(seconds((2, 8, 8), (2, 10, 0), (2, 12, 0)))
    assert second.rollout_s == exactly(seconds((2, 7 + 4, 7 + 4), (2, 8 + 5, 0)))
    assert third.rollout_s == exactly(seconds((2, 9 + 4, 9 + 4)))
    trained = [(0, 3), (2, 2), (1, 6)]
    for step, (group, tokens), decision in zip(
        result.run.steps, trained, result.run.decisions, strict=True
    ):
        assert decision["selected"] == [[group, [0]]]
        assert step.trained_tokens == tokens
        assert step.train_s == exactly(FIXED + TRAIN * (4 + tokens))
    assert third.staleness == {2: 3, 1: 2, 0: 1}
    summary = result.summary
    assert summary["generated_tokens"] == 3 + 3 + (2 + 2) + (1 + 1)
    assert summary["carried_tokens"] == 1  # of group 3, which was under way when the run ended
    assert summary["dropped_tokens"] == 0
    assert summary["reprefilled_tokens"] == 7 + 9
    assert summary["makespan_s"] == exactly(
        sum(step.rollout_s + step.train_s for step in result.run.steps) + 3 * SYNC
    )
