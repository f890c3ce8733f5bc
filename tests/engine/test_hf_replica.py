"""transformers' continuous batching as a replica: what it schedules, what it samples, whose weights
it computes with."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.engine.edges import Response, Sampling
from rollcast.engine.errors import EngineError
from rollcast.engine.hf import environment
from rollcast.engine.hf.replica import HfReplica, draw, uniform
from rollcast.engine.hf.start import HfOptions
from tests.engine.conftest import build_tiny
from tests.engine.vllm_trace import reference_iterations, run_requests

WINDOW = 24
COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"tie_word_embeddings": True},
    "Gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "Phi3": {"sliding_window": WINDOW, "num_key_value_heads": 4},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}
SIZES: dict[str, Any] = {"max_seqs": 6, "max_batched_tokens": 48, "kv_tokens": 512}


def model_of(name: str) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(COMMON | ARCHITECTURES[name]))
    config._attn_implementation = "eager"
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def made(tiny_path: Path) -> Callable[..., HfReplica]:
    return lambda **options: HfReplica(tiny_path, HfOptions(**(SIZES | options)))


def prompts(count: int, seed: int = 0) -> dict[str, list[int]]:
    rng = Random(seed)
    lengths = (5, 70, 33, 2)
    return {
        str(i): [rng.randrange(2, 61) for _ in range(lengths[i % len(lengths)])]
        for i in range(count)
    }


def sample(replica: HfReplica, asked: dict[str, list[int]], cap: int = 60) -> dict[str, Response]:
    for name, prompt in asked.items():
        replica.submit(name, prompt, max_new_tokens=cap, seed=int(name))
    responses = []
    while replica.unfinished:
        responses += replica.step()
    return {response.request_id: response for response in responses}


def own_log_probs(model: Any, prompt: list[int], response: Response) -> list[float]:
    ids = torch.tensor([[*prompt, *response.token_ids]])
    with torch.no_grad():
        table = model(input_ids=ids).logits[0].log_softmax(-1)
    rows = range(len(prompt) - 1, ids.shape[1] - 1)
    return [float(table[row, token]) for row, token in zip(rows, response.token_ids, strict=True)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_are_the_models_own(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    replica = HfReplica(tmp_path, HfOptions(**SIZES))
    asked = prompts(9)
    responses = sample(replica, asked)
    for key, response in responses.items():
        truth = own_log_probs(model, asked[key], response)
        assert response.log_probs == pytest.approx(truth, abs=2e-5)
    scored = replica.log_probs([asked["1"], asked["3"]])
    with torch.no_grad():
        table = model(input_ids=torch.tensor([asked["1"]])).logits[0].log_softmax(-1)
    truth = [float(table[at, token]) for at, token in enumerate(asked["1"][1:])]
    assert scored[0] == pytest.approx(truth, abs=2e-5)


@settings(max_examples=8, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=9),
    max_seqs=st.integers(1, 6),
    budget=st.integers(6, 80),
    blocks=st.integers(4, 9),
)
def test_schedules_as_vllm(
    requests: list[tuple[int, int]], max_seqs: int, budget: int, blocks: int, tiny_path: Path
) -> None:
    sizes: dict[str, Any] = {"max_seqs": max_seqs, "max_batched_tokens": budget}
    options = HfOptions(kv_tokens=32 * blocks, prefix_caching=False, **sizes)
    found = run_requests(HfReplica(tiny_path, options), requests)
    assert found == reference_iterations(requests, kv_blocks=blocks, block_tokens=32, **sizes)


def test_a_response_depends_on_nothing_beside_it(made: Callable[..., HfReplica]) -> None:
    asked = prompts(12)
    together, replica = sample(made(kv_tokens=256), asked), made()
    for name, prompt in asked.items():
        alone = sample(replica, {name: prompt})[name]
        assert alone.token_ids == together[name].token_ids
        assert alone.log_probs == pytest.approx(together[name].log_probs, abs=2e-5)


def test_stopped_and_resumed(made: Callable[..., HfReplica], tiny_model: Any) -> None:
    asked, replica = prompts(8), made()
    for name, prompt in asked.items():
        replica.submit(name, prompt, max_new_tokens=60, seed=int(name), ignore_eos=True)
    for _ in range(12):
        replica.step()
    partial = {response.request_id: response for response in replica.abort()}
    assert not replica.unfinished
    assert {len(response.token_ids) for response in partial.values()} >= {0, 10}
    for name, response in partial.items():
        replica.submit(
            name,
            asked[name],
            response.token_ids,
            response.log_probs,
            max_new_tokens=60,
            seed=int(name),
            ignore_eos=True,
        )
    while replica.unfinished:
        for response in replica.step():
            name = response.request_id
            assert len(response.token_ids) == 60
            assert response.token_ids[: len(partial[name].token_ids)] == partial[name].token_ids
            truth = own_log_probs(tiny_model, asked[name], response)
            assert response.log_probs == pytest.approx(truth, abs=2e-5)


def test_siblings_share_their_prompt(made: Callable[..., HfReplica]) -> None:
    prompt = prompts(2)["1"]
    for caching, prefilled in ((True, 70 + 3 * 6), (False, 4 * 70)):
        replica = made(prefix_caching=caching, max_batched_tokens=512)
        for index in range(4):
            replica.submit(str(index), prompt, max_new_tokens=5, seed=index)
        replica.step()
        assert replica.last_iteration.work.prefill_tokens == prefilled


@pytest.mark.parametrize("shares", [False, True])
def test_new_weights(made: Callable[..., HfReplica], shares: bool) -> None:
    replica, newer = made(shares=shares), build_tiny(5)
    prompt = prompts(2)["1"]
    for keep, recomputed in ((True, 0), (False, 70 + 4)):
        replica.submit("a", prompt, max_new_tokens=8, seed=3, ignore_eos=True)
        for _ in range(5):
            replica.step()
        replica.load_weights(newer.state_dict(keep_vars=True), keep_keys=keep)
        done: list[Response] = []
        prefilled = 0
        while not done:
            done = replica.step()
            prefilled += replica.last_iteration.work.prefill_tokens
            assert replica.last_iteration.preemptions == 0
        assert prefilled == recomputed
        version = replica.version
        assert done[0].tokens_by_version == ((version - 1, 4), (version, 4))
    truth = own_log_probs(newer, prompt, done[0])
    assert done[0].log_probs[4:] == pytest.approx(truth[4:], abs=2e-5)
    mine = dict(replica._model.named_parameters())
    for name, theirs in newer.named_parameters():
        assert (mine[name].data_ptr() == theirs.data_ptr()) == shares
    with torch.no_grad():
        for parameter in newer.parameters():
            parameter.mul_(1.5)
    replica.submit("b", prompt, max_new_tokens=2, seed=3)
    if shares:
        with pytest.raises(EngineError, match="has changed the weights that the engine shares"):
            replica.step()
    else:
        assert replica.step() == []


def test_draws_follow_the_distribution() -> None:
    scores = torch.tensor([[0.0, 2.0, float("-inf"), 1.0]]).expand(4000, 4)
    tokens, log_probs = draw(scores, [uniform(7, k) for k in range(4000)], greedy=False)
    truth = scores[0].log_softmax(-1)
    shares = torch.bincount(tokens, minlength=4) / 4000
    assert shares.tolist() == pytest.approx(truth.exp().tolist(), abs=0.03)
    assert torch.equal(log_probs, truth[tokens])
    ends, _ = draw(scores[:2], [0.0, 1.0], greedy=False)
    assert ends.tolist() == [0, 3]
    assert draw(scores[:1], [0.5], greedy=True)[0].tolist() == [1]


def test_sampling_settings_shape_the_distribution(tiny_path: Path, tiny_model: Any) -> None:
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9)
    replica, asked = HfReplica(tiny_path, HfOptions(**SIZES, sampling=sampling)), prompts(1)
    response = sample(replica, asked)["0"]
    ids = torch.tensor([[*asked["0"], *response.token_ids]])
    with torch.no_grad():
        table = (tiny_model(input_ids=ids).logits[0, len(asked["0"]) - 1 :] / 0.7).softmax(-1)
    for row, token, log_prob in zip(table, response.token_ids, response.log_probs, strict=False):
        ordered, order = row.sort(descending=True)
        five = ordered[:5] / ordered[:5].sum()  # top_p is of what top_k has left
        kept = int((five.cumsum(0) - five < 0.9).sum())
        place = order[:kept].tolist().index(token)
        assert log_prob == pytest.approx(float((five[place] / five[:kept].sum()).log()), abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt_token_ids": []}, "empty prompt"),
        ({"max_new_tokens": 300}, "allow 256 in all"),
        ({"prompt_token_ids": [96]}, "outside the model's vocabulary of 96"),
    ],
)
def test_a_rollout_that_cannot_be_run(
    made: Callable[..., HfReplica], asked: dict[str, Any], says: str
) -> None:
    replica = made()
    replica.submit("b", [5], max_new_tokens=1, seed=0)
    good: dict[str, Any] = {"prompt_token_ids": [5, 6], "max_new_tokens": 2, "seed": 0}
    with pytest.raises(EngineError, match=says):
        replica.submit("a", **(good | asked))
    with pytest.raises(EngineError, match="already running"):
        replica.submit("b", **good)
    with pytest.raises(EngineError, match="Rollout c is not running"):
        replica.abort(["c"])
    with pytest.raises(EngineError, match="needs an idle engine"):
        replica.log_probs([[5, 6]])
    assert [response.request_id for response in replica.step()] == ["b"]
    with pytest.raises(EngineError, match=r"The weights lack lm_head\.weight"):
        replica.load_weights({})
    with pytest.raises(EngineError, match="lack"):
        replica.step()


def test_what_cannot_start(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match="too small for one rollout of 256 tokens"):
        HfReplica(tiny_path, HfOptions(kv_tokens=20))
    with pytest.raises(EngineError, match="cannot use the model in"):
        HfReplica(tmp_path, HfOptions())
    monkeypatch.setattr(environment, "TESTED", (5, 1))
    with pytest.raises(EngineError, match=r"drives the inside of transformers 5\.1"):
        HfReplica(tiny_path)
