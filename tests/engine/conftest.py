"""One tiny random model and one real vLLM replica for the whole session of engine tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from run_homes import Home, Outcome

    from rollcast.engine.vllm.replica import VllmReplica

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
HAVE_VLLM = importlib.util.find_spec("vllm") is not None
CONTEXT_TOKENS = 256
VOCABULARY = 96
END_TOKEN = 1

if HAVE_VLLM:
    from rollcast.engine.vllm.environment import prepare

    prepare()


def build_tiny(seed: int, layers: int = 2) -> Any:
    """A random Qwen3 of 80k parameters whose next-token distribution is far from uniform."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=END_TOKEN,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session", autouse=True)
def short_probes() -> Iterator[None]:
    """What the trainer's probe takes between steps is most of a step of a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is not None:
            patch.setattr("rollcast.engine.trainer.pulse.LONG_TOKENS", 256)
        yield


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    if not HAVE_VLLM:
        pytest.skip("vLLM is not installed (engine/engine-cpu.lock)")
    return build_tiny(0)


@pytest.fixture(scope="session")
def tiny_path(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-model")
    tiny_model.save_pretrained(path)
    return path


def build_flat() -> Any:
    """The same with one layer, where all that counts is what is decided. Of the first seeds, one
    whose responses differ most in length."""
    return build_tiny(6, layers=1)


@pytest.fixture(scope="session")
def flat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flat-model")
    build_flat().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def make_replica(tiny_path: Path) -> Iterator[Callable[..., VllmReplica]]:
    """Start further replicas beside the shared one; all of them end with the session.

    One that is shut down before leaves vLLM's process groups alone, without which no other in this
    process could go on.
    """
    import vllm.v1.engine.core as core
    from vllm.distributed import cleanup_dist_env_and_memory

    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    started: list[VllmReplica] = []

    def make(path: Path = tiny_path, **options: Any) -> VllmReplica:
        options = {"max_seqs": 8, "max_batched_tokens": 512, "kv_tokens": 8192} | options
        started.append(VllmReplica(path, ReplicaOptions(**options)))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "cleanup_dist_env_and_memory", lambda: None)
        # On a machine that has not seen a model, vLLM asks another process about it, so that this
        # one starts no CUDA: ten seconds of a core, for imports that are done here.
        patch.setattr("vllm.model_executor.models.registry._run_in_subprocess", lambda ask: ask())
        yield make
        patch.setattr("gc.collect", lambda *args: 0)  # else each of them searches the whole heap
        for replica in started:
            replica.shutdown()
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="session")
def shared_replica(make_replica: Callable[..., VllmReplica]) -> VllmReplica:
    return make_replica()


@pytest.fixture
def replica(shared_replica: VllmReplica, tiny_model: Any) -> Iterator[VllmReplica]:
    """The shared replica: idle, with the model's own weights and an empty prefix cache."""
    shared_replica.load_weights(tiny_model.state_dict())
    yield shared_replica
    if shared_replica.unfinished:
        shared_replica.abort()


@pytest.fixture
def home(
    tmp_path: Path, tiny_path: Path, tiny_model: Any, replica: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Home]:
    """A scenario in a folder, whose runs get the shared replica."""
    import run_rewards
    from run_homes import Home, lend, revive, set_up

    set_up(tmp_path, tiny_path)
    run_rewards.arm(None)
    home = Home(tmp_path, replica)
    lend(home, tiny_model, monkeypatch)
    yield home
    run_rewards.arm(None)
    revive(replica)


_whole: list[Outcome] = []


@pytest.fixture
def whole(home: Home) -> Outcome:
    """The run that nothing interrupts."""
    from run_homes import outcome

    if not _whole:
        assert home.run() == 0
        _whole.append(outcome(home))
        home.out.rename(home.folder / "whole")
    return _whole[0]
