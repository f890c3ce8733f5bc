"""vLLM's asynchronous scheduling: the same tokens, and a record of what ran. Here in one process,
where an iteration is computed when it is scheduled; with processes in `test_vllm_actors`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_homes import Home, lend
from test_run import check_tables
from vllm_trace import reference_iterations, run_requests

from rollcast.engine.actors.messages import Abort, Aborted
from rollcast.engine.actors.replica import carry_out
from rollcast.engine.errors import EngineError
from rollcast.engine.frontend import EngineFrontend, Finished, Iterated, Order
from rollcast.engine.vllm.start import ReplicaOptions
from tests.engine.conftest import build_tiny
from tests.engine.test_vllm_replica import PROMPT, finish, log_probs_of, steps
from tests.laws import examples

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica

    MakeReplica = Callable[..., VllmReplica]

CHUNKED = {"max_seqs": 6, "max_batched_tokens": 24, "kv_tokens": 256, "prefix_caching": False}
WHOLE = {"max_seqs": 4, "max_batched_tokens": 512, "kv_tokens": 256}
"""With preemptions either way; prompts in chunks or at once."""


@pytest.fixture(scope="module")
def in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaOptions, "in_processes", lambda self, on_cpu: False)
        yield


@pytest.fixture(scope="module")
def make_ahead(make_replica: MakeReplica, in_this_process: None) -> MakeReplica:
    return lambda **options: make_replica(async_scheduling=True, **options)


@pytest.fixture(scope="module")
def chunked(make_ahead: MakeReplica) -> VllmReplica:
    return make_ahead(**CHUNKED)


@pytest.fixture(scope="module")
def whole(make_ahead: MakeReplica) -> VllmReplica:
    return make_ahead(**WHOLE)


class Ran:
    """A replica behind its front end, and all that it told."""

    def __init__(self, replica: VllmReplica) -> None:
        assert replica.ahead
        self.frontend = EngineFrontend(replica, lambda: 0.0)
        self.iterated: list[Iterated] = []
        self.aborted: list[Finished] = []

    def submit(self, index: int, prompt: tuple[int, ...], cap: int) -> None:
        self.frontend.submit(Order((0, index), 0, prompt, (), (), cap, seed=index))

    def iterate(self) -> None:
        if self.frontend.busy:
            self.iterated.append(self.frontend.iterate())

    def abort(self, index: int) -> None:
        *first, answer = carry_out(self.frontend, Abort(1, ((0, index),)), lambda: 0.0)
        self.iterated += [one for one in first if isinstance(one, Iterated)]
        assert isinstance(answer, Aborted)
        self.aborted += answer.finished

    @property
    def finished(self) -> list[Finished]:
        return [one for iterated in self.iterated for one in iterated.finished]


@settings(
    max_examples=examples(12),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 60),  # prompt tokens
            st.sampled_from([1, 2, 31, 60]),  # at most in the response
            st.integers(0, 12),  # iterations before it
            st.none() | st.integers(0, 3) | st.integers(0, 60),  # iterations until it is aborted
        ),
        min_size=1,
        max_size=8,
    ),
    small=st.booleans(),
)
def test_tokens_are_the_same_and_the_record_is_of_what_ran(
    replica: VllmReplica,
    chunked: VllmReplica,
    whole: VllmReplica,
    requests: list[tuple[int, int, int, int | None]],
    small: bool,
) -> None:
    """Whatever is submitted and aborted between which iterations."""
    prompts = [(2 + i, *(3 + k % 50 for k in range(n - 1))) for i, (n, *_) in enumerate(requests)]
    for index, (prompt, (_, cap, *_)) in enumerate(zip(prompts, requests, strict=True)):
        replica.submit(str(index), prompt, max_new_tokens=cap, seed=index)
    expected = finish(replica)
    ran = Ran(chunked if small else whole)
    last = max(at for _, _, at, _ in requests)
    clock = 0
    while ran.frontend.busy or clock <= last:
        for index, (_, cap, at, stays) in enumerate(requests):
            if at == clock:
                ran.submit(index, prompts[index], cap)
            if stays is not None and at + stays == clock:
                ran.abort(index)
        ran.iterate()
        clock += 1
    assert not ran.frontend.engine.unfinished
    for one in ran.finished:
        full, response = expected[str(one.key[1])], one.response
        assert (response.token_ids, response.finish_reason) == (full.token_ids, full.finish_reason)
        assert response.log_probs == pytest.approx(full.log_probs, abs=1e-4)
    for one in ran.aborted:
        full, made = expected[str(one.key[1])], one.response.token_ids
        assert made == full.token_ids[: len(made)]
    every = [*ran.finished, *ran.aborted]
    works = [one.measured.work for one in ran.iterated if one.measured is not None]
    assert all(work.rollouts for work in works)
    assert sum(work.prefill_tokens for work in works) == sum(one.prefill_tokens for one in every)
    preempted = sum(one.measured.preemptions for one in ran.iterated if one.measured is not None)
    assert preempted == sum(one.preemptions for one in every)
    if not small:  # each rollout of an iteration draws a token then
        tokens = sum(len(one.response.token_ids) for one in every)
        ended = sum(one.response.finish_reason == "stop" for one in every)
        assert tokens <= sum(work.rollouts for work in works) <= tokens + ended


def test_iterations_are_those_of_vllms_rules_where_none_waits_for_a_place(
    chunked: VllmReplica, whole: VllmReplica
) -> None:
    requests = [(10, 5), (60, 9), (33, 31)]
    for replica, tokens in ((chunked, 24), (whole, 512)):
        rules = {"max_seqs": 4, "max_batched_tokens": tokens, "kv_blocks": replica.kv_blocks}
        expected = reference_iterations(requests, **rules, block_tokens=32)
        assert run_requests(replica, requests) == expected


@pytest.mark.parametrize("keep", [False, True])
def test_no_weights_change_under_an_iteration(
    whole: VllmReplica, tiny_model: Any, keep: bool
) -> None:
    """Each token is of the version that it is told to be of."""
    other = build_tiny(1)
    whole.load_weights(tiny_model.state_dict(), 0)
    for name in "ab":
        whole.submit(name, PROMPT, max_new_tokens=40, seed=3, ignore_eos=True)
    whole.submit("c", PROMPT, max_new_tokens=11, seed=3, ignore_eos=True)
    steps(whole, 10)
    whole.load_weights(other.state_dict(), 1, keep_keys=keep)
    assert whole.unfinished == ("a", "b", "c")  # c has ended meanwhile, which the next step tells
    assert [response.request_id for response in whole.step()] == ["c"]
    assert whole.last_iteration.work.rollouts == 3
    assert whole.step() == []
    found = finish(whole)
    for name in "ab":
        assert found[name].tokens_by_version == ((0, 11), (1, 29))
        ids, log_probs = found[name].token_ids, found[name].log_probs
        old = log_probs_of(tiny_model, PROMPT, ids)
        assert log_probs[:11] == pytest.approx(old[:11], abs=1e-4)
        if not keep:
            new = log_probs_of(other, PROMPT, ids)
            assert log_probs[11:] == pytest.approx(new[11:], abs=1e-4)
    whole.load_weights(tiny_model.state_dict())
    assert whole._blocks.get_num_free_blocks() == whole.kv_blocks  # none is lost


def test_what_needs_an_idle_engine_waits_for_an_iteration_that_all_left(
    whole: VllmReplica, tiny_model: Any
) -> None:
    whole.load_weights(tiny_model.state_dict())
    whole.submit("x", PROMPT, max_new_tokens=60, seed=3, ignore_eos=True)
    stop = finish(whole)["x"].token_ids[20]
    kept, whole.stop_token_ids = whole.stop_token_ids, [stop]
    try:
        for _ in range(2):
            whole.submit("x", PROMPT, max_new_tokens=60, seed=3)
            ids = finish(whole)["x"].token_ids
            assert whole._watch.under_way  # without a rollout
            assert (whole.step(), whole.last_iteration) == ([], None)
            (scored,) = whole.log_probs([[*PROMPT, *ids]])
            expected = log_probs_of(tiny_model, PROMPT, ids)
            assert scored[len(PROMPT) - 1 :] == pytest.approx(expected, abs=1e-4)
        whole.submit("x", PROMPT, max_new_tokens=60, seed=3)
        finish(whole)
        assert not whole.settle()  # nobody waits for that one
        assert not whole._watch.under_way
    finally:
        whole.stop_token_ids = kept


def test_an_abort_by_itself_loses_nothing(whole: VllmReplica) -> None:
    """Without a front end, which settles before."""
    whole.submit("ends", PROMPT, max_new_tokens=6, seed=0, ignore_eos=True)
    whole.submit("goes on", PROMPT, max_new_tokens=30, seed=1, ignore_eos=True)
    whole.submit("stops", PROMPT, max_new_tokens=6, seed=2, ignore_eos=True)
    steps(whole, 5)
    goes_on, stops = whole.abort(["goes on", "stops"])
    assert (len(goes_on.token_ids), goes_on.finish_reason) == (6, None)
    assert (len(stops.token_ids), stops.finish_reason) == (6, "length")
    assert whole.unfinished == ("ends",)
    with pytest.raises(EngineError, match="already running"):
        whole.submit("ends", PROMPT, max_new_tokens=6, seed=0)
    assert [one.finish_reason for one in whole.step()] == ["length"]
    assert whole.unfinished == ()
    for name in "ab":
        whole.submit(name, PROMPT, max_new_tokens=30, seed=1, ignore_eos=True)
    steps(whole, 3)
    assert [len(one.token_ids) for one in whole.abort()] == [4, 4]
    assert (whole.step(), whole.last_iteration) == ([], None)


def test_a_whole_run(
    home: Home, tiny_model: Any, make_ahead: MakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts that are aborted, kept and gone on with; all tokens are accounted for, and the
    record's iterations have all of the rollouts' prefills."""
    ours = replace(home, replica=make_ahead())
    lend(ours, tiny_model, monkeypatch)
    assert ours.run() == 0
    check_tables(ours)
