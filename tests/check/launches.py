"""Launches as a reader leaves them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcast.simulator.check.question import Question
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import given
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.stack import all_stacks

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
VERL: Mapping[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 2048,
    f"{_ROLLOUT}.n": 8,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.6,
    f"{_ACTOR}.ppo_mini_batch_size": 32,
    f"{_ACTOR}.use_dynamic_bsz": True,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": 12288,
    f"{_ACTOR}.strategy": "fsdp",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_training_steps": 100,
}


def launched(
    said: Mapping[str, Any] = VERL, stack: str = "verl", release: str | None = "0.7"
) -> Launched:
    """A launch with these settings of the stack's, a line each."""
    folder = all_stacks()[stack]
    items = tuple(
        Given(key, value, Place("run.sh", line))
        for line, (key, value) in enumerate(said.items(), 1)
    )
    settings = folder.launch.read(items, folder.implied)
    return Launched(stack, settings, release, given=items, files=(Path("run.sh"),))


def asked(gpu: str | None = "h100-sxm", **more: Any) -> Asked:
    """What the user adds."""
    return Asked(parts=given(None, gpu), **more)


def short_ledger(launch: Question, over: float) -> Ledger:
    """The ledger of a launch on GPUs that have less than it needs by a factor."""
    ledger = launch.scenario.ledger
    size = ledger.peak.bytes / over
    pools = {name: replace(pool, capacity_bytes=size) for name, pool in ledger.pools.items()}
    return replace(ledger, pools=pools)
