"""Changes of a launch: what they leave alone, in which order they are told, and in whose words."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from check.launches import VERL, asked, launched, short_ledger

from rollcast.simulator.check import search
from rollcast.simulator.check.question import Question, question
from rollcast.simulator.check.search import Change, that_fit, that_speed_up
from rollcast.simulator.launches.overrides import overrides
from rollcast.simulator.scenario.knobs import knobs_of

TRAINER = "cost.roofline.trainer"
PYTHON = {
    "model": "Qwen/Qwen2.5-3B-Instruct",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 4096,
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.35,
    "gradient_checkpointing": True,
    "bf16": True,
}


def _asked(said: Mapping[str, Any], **more: Any) -> Question:
    return question(launched(said), asked(mean_tokens=300.0, prompt_tokens=200, **more))


@pytest.fixture(scope="module")
def small() -> Question:
    """A launch of few prompts."""
    return _asked({**VERL, "data.train_batch_size": 8})


SHARDED = {"torchrun.nproc_per_node": 4, "deepspeed.zero_optimization.stage": 3}


def _trl(path: str, said: Mapping[str, Any] = SHARDED, gpus: int | None = None) -> Question:
    launch = launched({**PYTHON, **said}, "trl", "0.21")
    launch = replace(launch, files=(Path(path),))
    return question(launch, asked("a100-80gb", gpus=gpus, mean_tokens=300.0, prompt_tokens=200))


@pytest.mark.parametrize("launcher", [None, "torchrun", "deepspeed"])
def test_trl_keeps_a_model_on_each_gpu_unless_it_is_told_to_shard(launcher: str | None) -> None:
    """A script alone may be launched in any way: that is told as assumed. Sharding is a change."""
    said = {None: {}, "torchrun": {"torchrun.nproc_per_node": 4}, "deepspeed": SHARDED}[launcher]
    found = _trl("train.py", {"use_liger_kernel": True, **said}, None if said else 4)
    backend = next(part for part in found.parts if part.key == f"{TRAINER}.backend")
    assert backend.value == ("deepspeed" if launcher == "deepspeed" else "ddp")
    assert backend.assumed is (launcher is None)
    ledger = found.scenario.ledger
    assert ledger.fits is (launcher == "deepspeed")
    if not ledger.fits:
        shards = ("accelerate launch --use_deepspeed --zero_stage 3",)
        change = next(one for one in that_fit(found, ledger) if one.lines == shards)
        assert change.question.value(f"{TRAINER}.backend") == "deepspeed"


def test_rows_of_a_pass_leave_the_batch_what_it_is() -> None:
    """TRL's batch is rows x passes x GPUs: fewer rows are more passes; in a script, as one."""
    before = _trl("train.py")
    ledger = before.scenario.ledger
    assert not ledger.fits
    found = {one.lines: one for one in that_fit(before, ledger)}
    assert ("use_liger_kernel=True",) in found
    fewer = found["per_device_train_batch_size=4", "gradient_accumulation_steps=4"]
    for key in ("workload.batch_groups", "workload.group_size", f"{TRAINER}.minibatches"):
        assert fewer.question.value(key) == before.value(key)


def test_a_command_line_has_dashes() -> None:
    lines = [
        one.lines
        for one in that_speed_up(_trl("run.sh", {**SHARDED, "max_completion_length": 512}))
    ]
    assert lines
    spelt = ("--", '"zero_optimization"')  # of TRL, and of DeepSpeed's own file
    assert all(line.startswith(spelt) for its in lines for line in its)


def test_whole_logits_can_be_fused() -> None:
    said = {
        **VERL,
        "data.max_response_length": 12000,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 65536,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
    }
    large = question(launched(said), asked(mean_tokens=6000.0, prompt_tokens=200))
    ledger = large.scenario.ledger
    assert not ledger.fits
    assert ledger.peak.part == "logits"
    assert ("actor_rollout_ref.model.use_fused_kernels=True",) in [
        one.lines for one in that_fit(large, ledger)
    ]


@pytest.mark.parametrize(
    ("key", "wanted", "said", "expected"),
    [
        ("cluster.tensor_parallel", 8, {"vllm_num_engines": 4}, {"cluster.replicas": 1}),
        ("cluster.tensor_parallel", 16, {"vllm_num_engines": 4}, None),
        ("cluster.tensor_parallel", 4, {}, {}),
    ],
)
def test_engines_stay_on_their_gpus(
    key: str, wanted: int, said: Mapping[str, Any], expected: Mapping[str, Any] | None
) -> None:
    known = launched({"vllm_tensor_parallel_size": 2, **said}, "openrlhf", "0.8").settings
    takes = frozenset({key, "cluster.replicas"})
    found = overrides(key, wanted, known, takes)
    assert found == ({} if expected is None else {key: wanted, **expected})


def test_whole_experts_are_not_dealt_to_fewer_gpus() -> None:
    key = f"{TRAINER}.expert_parallel"
    said = {"expert-model-parallel-size": 16, "tensor-model-parallel-size": 8}
    for split, found in ((1, {}), (8, {key: 1})):
        known = launched({**said, "expert-tensor-parallel-size": split}, "slime", None).settings
        assert overrides(key, 1, known, frozenset({key})) == found
        assert overrides(key, 32, known, frozenset({key})) == {key: 32}


def test_passes_by_tokens_are_those_of_the_log_probabilities_too() -> None:
    """verl then counts no rows of them."""
    said = {
        **VERL,
        "actor_rollout_ref.actor.use_dynamic_bsz": False,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 16,
        "actor_rollout_ref.model.use_remove_padding": True,
    }
    key = f"{TRAINER}.log_prob_microbatch_rollouts"
    rows = _asked(said)
    assert rows.value(key) == 16
    changed = rows.with_settings({"run.dynamic_batches": True, "run.max_pass_tokens": 4096})
    assert changed.value(key) is None


def test_chunks_of_a_loss_leave_the_logits_of_the_model() -> None:
    said = {"policy.model_name": "Qwen/Qwen2.5-7B-Instruct", "policy.logprob_chunk_size": 2048}
    launch = launched(said, "nemo_rl", None)
    chunked = question(launch, asked(gpus=8)).value(f"{TRAINER}.logit_bytes")
    whole = question(
        launched({**said, "policy.logprob_chunk_size": None}, "nemo_rl", None), asked(gpus=8)
    )
    assert chunked < whole.scenario.cost.trainer.logit_bytes


def test_a_table_says_that_prime_rl_recomputes() -> None:
    said = {"trainer.model.ac.freq": 1, "model.name": "Qwen/Qwen3-8B"}
    for more, recompute in ((said, "full"), ({"model.name": "Qwen/Qwen3-8B"}, "none")):
        launch = launched(more, "prime_rl", "0.5")
        assert question(launch, asked(gpus=8)).value(f"{TRAINER}.recompute") == recompute


def _change(small: Question, fits: float, seconds: float, *keys: str, **more: Any) -> Change:
    """One with a chance to fit that is known, and seconds of a step."""
    settings = dict.fromkeys(keys, True)
    left: Any = _Left(frozenset(keys), fits)
    return Change(settings, settings, (), (), small, left, seconds, **more)


def test_the_order_of_changes(small: Question) -> None:
    """What is learned stays; then the sure ones that are not slow; then the few; then the fast."""
    best = _change(small, 0.95, 10.0, "a")
    slower = _change(small, 0.99, 12.0, "b")
    more = _change(small, 0.99, 9.0, "c", "d")
    unsure = _change(small, 0.8, 5.0, "e")
    slow = _change(small, 0.99, 16.0, "f")
    other = _change(small, 0.99, 1.0, "g", trains_otherwise=True)
    ordered = search._best([other, slow, unsure, more, slower, best], 10.0)
    assert ordered == [best, slower, more, unsure]
    assert search._best([_change(small, 0.7, 1.0, "a"), best], 10.0) == [best]
    assert not search._good(slow, 10.0)
    assert not search._good(other, 10.0)
    assert search._good(slow, math.inf)


class _Left:
    """Of a ledger, how likely it fits."""

    def __init__(self, keys: frozenset[str], chance: float) -> None:
        self.keys, self.fits_probability, self.fits = keys, chance, chance >= 0.5
        self.nearly_sure = chance >= 0.9


class _Named:
    """Of a knob, its name."""

    effect = "trainer"

    def __init__(self, key: str) -> None:
        self.key = key


GAINS = {"a": 0.9, "b": 0.7, "c": 0.6}
"""What is left of what is too much, by change."""


@pytest.mark.parametrize(
    ("chances", "slow", "tried", "found"),
    [
        # Too little alone: those that help most first.
        ({"abc": 0.95}, "", ["bc", "ac", "ab", "abc"], ["abc"]),
        # One is unsure and one slow: more are tried, but nothing beside what surely fits, and what
        # adds nothing to a part of it is not told.
        ({"a": 0.6, "b": 0.95, "ac": 0.6, "bc": 0.99}, "b", ["ac"], ["a", "b"]),
        # One is sure and fast.
        ({"a": 0.6, "b": 0.95, "ac": 0.99}, "", [], ["b", "a"]),
    ],
)
def test_more_changes_are_tried_where_fewer_are_not_enough(
    chances: Mapping[str, float],
    slow: str,
    tried: list[str],
    found: list[str],
    small: Question,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, seen = short_ledger(small, 2.0), []

    def changed(_: Question, chosen: Any) -> Change:
        name = "".join(sorted(one.knob.key for one in chosen))
        seen.append(name)
        settings = dict.fromkeys(name, True)
        left: Any = _Left(frozenset(name), chances.get(name, 0.3))
        return Change(settings, settings, (), (), small, left, 20.0 if name == slow else 10.0)

    named: Any = [_Named(key) for key in GAINS]
    singles = [search._Single(knob, True, {knob.key: True}) for knob in named]
    monkeypatch.setattr(search, "_singles", lambda _: iter(singles))
    monkeypatch.setattr(search, "_changed", changed)
    monkeypatch.setattr(
        search,
        "_excess",
        lambda held: 1.0 if held is ledger else min(GAINS[key] for key in held.keys),
    )
    ordered = ["".join(sorted(one.keys)) for one in that_fit(small, ledger, 10.0)]
    assert seen == ["a", "b", "c", *tried]
    assert ordered == found


def test_what_is_no_change_or_not_sure_is_not_faster(
    small: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = search.estimate_s(small.scenario)
    found = {
        "fast": _change(small, 0.95, 0.5 * now_s, "fast"),
        "same": _change(small, 0.95, 0.99 * now_s, "same"),
        "unsure": _change(small, 0.6, 0.4 * now_s, "unsure"),
        "other": _change(small, 0.95, 0.4 * now_s, "other", trains_otherwise=True),
    }

    named: Any = [_Named(key) for key in found]
    singles = [search._Single(knob, True, {}) for knob in named]
    monkeypatch.setattr(search, "_singles", lambda _: iter(singles))
    monkeypatch.setattr(search, "_changed", lambda _, chosen: found[chosen[0].knob.key])
    assert that_speed_up(small) == [found["fast"]]


def test_a_change_that_does_not_come_through_is_none(small: Question) -> None:
    """The launch is changed, and the scenario is not: nothing that could be said to help."""
    [knob] = [
        one
        for one in knobs_of("verl-0.7", "fsdp", "colocated", None)
        if one.key == "cluster.tensor_parallel"
    ]
    settings = {"cluster.tensor_parallel": 4}
    assert search._changed(small, [search._Single(knob, 4, settings)]) is not None
    assert search._changed(small, [search._Single(knob, 8, settings)]) is None


def test_values_that_are_tried(small: Question) -> None:
    by_key = {one.key: one for one in knobs_of("verl-0.7", "fsdp", "colocated", None)}
    tokens = search._tried(by_key[f"{TRAINER}.microbatch_tokens"], small)
    assert min(tokens) == 2048 + 1024  # the longest rollout
    assert small.value(f"{TRAINER}.microbatch_tokens") not in tokens
    groups = by_key["workload.max_new_tokens"]
    assert all(2048 / 4 <= value < 2048 for value in search._tried(groups, small))
    other = search._Single(groups, 1024, {"workload.max_new_tokens": 1024})
    change = search._changed(small, [other])
    assert change.trains_otherwise


def test_a_slow_change_is_not_told_beside_a_good_one() -> None:
    def change(key: str, estimate_s: float, sure: bool = True) -> Any:
        ledger = SimpleNamespace(nearly_sure=sure)
        said = {"keys": {key: 1}, "estimate_s": estimate_s, "trains_otherwise": False}
        return SimpleNamespace(ledger=ledger, **said)

    slow, good, unsure = change("a", 50.0), change("b", 11.0), change("c", 10.0, sure=False)
    assert search._best([slow, unsure, good], 10.0) == [good, unsure]
    assert search._best([slow, unsure], 10.0) == [unsure, slow]
