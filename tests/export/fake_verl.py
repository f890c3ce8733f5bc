"""verl's V1 trainer as far as a sampler sees it, from the signatures and contracts of its source
(``verl/trainer/ppo/v1/replay_buffer.py``, ``agent_loop_tq.py``, ``trainer_base.py``,
``trainer_colocate_async.py``): lengths and rewards come from a scenario, and time passes an instant
at a time, whenever the sampler sleeps between two looks.
"""

import importlib.util
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@dataclass
class KVBatchMeta:
    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]


class FakeQueue:
    """The module transfer_queue: tags and values by partition and key."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.values: dict[str, dict[str, Any]] = defaultdict(dict)

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {partition: dict(items) for partition, items in self.tags.items()}

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            del self.tags[partition_id][key]  # nothing is cleared twice
            self.values[partition_id].pop(key, None)

    def kv_batch_get(
        self, keys: list[str], partition_id: str, select_fields: list[str]
    ) -> dict[str, list[Any]]:
        values = self.values[partition_id]
        return {name: [values[key][name] for key in keys] for name in select_fields}


class ReplayBuffer:
    """The books of a replay buffer, and the constructor that the trainer calls."""

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int,
        max_off_policy_strategy: str,
        sampler_kwargs: Any,
        poll_interval: float = 2.0,
        refill_fn: Any = None,
    ) -> None:
        self.trainer_mode, self.trainer_config = trainer_mode, trainer_config
        self.max_off_policy_threshold = max_off_policy_threshold
        self.max_off_policy_strategy = max_off_policy_strategy
        self.sampler_kwargs, self.poll_interval = sampler_kwargs, poll_interval
        self.refill_fn = refill_fn
        self._sync_metadata()

    def _sync_metadata(self) -> None:
        self.partitions: Any = defaultdict(dict)
        self.pending_keys: Any = defaultdict(set)
        self.running_keys: Any = defaultdict(set)
        self.finished_keys: Any = defaultdict(set)
        self.failure_keys: Any = defaultdict(set)
        self.prompt_global_steps: Any = defaultdict(dict)

    def _sync_metadata_from_transfer_queue(self) -> None:
        self._sync_metadata()
        for partition, items in sys.modules["transfer_queue"].kv_list().items():
            for key, tag in items.items():
                if tag.get("is_prompt", False):
                    self.prompt_global_steps[partition][key] = tag["global_steps"]
                    getattr(self, f"{tag['status']}_keys")[partition].add(key)
                else:
                    self.partitions[partition][key] = dict(tag)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        return "verl's own", {"of": (global_steps, partition_id, batch_size)}


def genuine_source() -> Path | None:
    """verl's own replay_buffer.py, where verl is installed."""
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "trainer" / "ppo" / "v1" / "replay_buffer.py"
    return path if path.is_file() else None


def genuine_buffers(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """verl's own classes, without the rest of verl: what else they import is left empty."""
    omegaconf, skip = ModuleType("omegaconf"), ModuleType("verl.utils.skip")
    omegaconf.DictConfig = dict  # type: ignore[attr-defined]
    plain = staticmethod(lambda **_: lambda function: function)
    skip.SkipManager = type("SkipManager", (), {"annotate_tq": plain})  # type: ignore[attr-defined]
    for module in (omegaconf, ModuleType("verl.utils"), skip):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("genuine_replay_buffer", path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    names = ("ReplayBuffer", "ReplayBufferAsync")
    return {name: vars(made)[name] for name in names if name in vars(made)}


class FakeVerl:
    """The trainer and its agent loops.

    fails: numbers of prompts whose agent loops fail. own_rewards: whether these compute rewards.
    genuine: verl's own replay_buffer.py, in place of the fake.
    """

    def __init__(
        self, workload: Any, groups: int, size: int, asynchronous: bool, genuine: Path | None = None
    ) -> None:
        self.genuine = genuine
        self.queue = FakeQueue()
        self.workload, self.groups, self.size = workload, groups, size
        self.asynchronous = asynchronous
        self.global_steps = 0
        self.launched = 0
        self.fails: set[int] = set()
        self.own_rewards = True
        self.now_s = 0.0
        self.flying: dict[str, dict[int, tuple[int, int]]] = {}  # session: (tokens, of all)
        self.began: dict[str, int] = {}
        self.sampler: Any = None

    # The trainer

    def build(self, kind: type, **given: Any) -> None:
        options: dict[str, Any] = {
            "trainer_mode": "colocate_async" if self.asynchronous else "sync",
            "trainer_config": {},
            "max_off_policy_threshold": 8,
            "max_off_policy_strategy": "drop",
            "sampler_kwargs": {},
            "refill_fn": self.add_prompts,
        }
        self.sampler = kind(**{**options, **given})

    def begin(self, warmup: int, global_steps: int = 0) -> None:
        self.global_steps = global_steps
        for _ in range(warmup):
            self.add_prompts(self.groups)

    def step(self) -> tuple[KVBatchMeta, dict[str, Any]]:
        """``PPOTrainer.step`` and what ``fit`` does around it."""
        self.global_steps += 1
        self.add_prompts(self.groups)
        batch, metrics = self.sampler.sample(
            global_steps=self.global_steps, partition_id="train", batch_size=self.groups
        )
        assert self.asynchronous or not self.flying, "sync replicas sleep while requests run"
        self.queue.kv_clear(partition_id=batch.partition_id, keys=batch.keys)
        return batch, metrics

    def add_prompts(self, count: int) -> int:
        for _ in range(count):
            uid = f"uid-{self.launched}"
            self.launched += 1
            steps = max(self.global_steps, 1)
            tag = {"is_prompt": True, "status": "running", "global_steps": steps}
            self.queue.tags["train"][uid] = tag
            drawn = self.workload.draw(int(uid.split("-")[1]), self.size)
            self.flying[uid] = {i: (0, int(n)) for i, n in enumerate(drawn.new_tokens)}
            self.began[uid] = max(self.global_steps - 1, 0)
        return count

    # The agent loops

    def sleep(self, seconds: float) -> None:
        """To the next instant at which a response ends."""
        assert 0 < seconds <= self.sampler.poll_interval
        left = [total - had for each in self.flying.values() for had, total in each.values()]
        assert left, "the sampler sleeps, and nothing is in flight"
        self.now_s += min(left)
        for uid, sessions in list(self.flying.items()):
            for index, (had, total) in list(sessions.items()):
                sessions[index] = had + min(left), total
                if had + min(left) == total:
                    del sessions[index]
                    self._write(uid, index, total)
            if not sessions:
                del self.flying[uid]
                failed = int(uid.split("-")[1]) in self.fails
                self.queue.tags["train"][uid]["status"] = "failure" if failed else "finished"

    def _write(self, uid: str, index: int, total: int) -> None:
        number = int(uid.split("-")[1])
        key = f"{uid}_{index}_0"
        self.queue.tags["train"][key] = {
            "status": "success",
            "prompt_len": 3,
            "response_len": total,
            "seq_len": total + 3,
            "min_global_steps": self.began[uid],
            "max_global_steps": self.global_steps - 1,
        }
        reward = self.workload.draw(number, self.size).rewards[index]
        scores = np.zeros(total)
        scores[-1] = reward
        self.queue.values["train"][key] = {"rm_scores": scores} if self.own_rewards else {}

    # Installing

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts the modules where ``import verl...`` finds them."""
        queue = ModuleType("transfer_queue")
        for name in ("kv_list", "kv_clear", "kv_batch_get"):
            setattr(queue, name, getattr(self.queue, name))
        queue.KVBatchMeta = KVBatchMeta  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "transfer_queue", queue)
        name = ""
        for part in ("verl", "trainer", "ppo", "v1", "replay_buffer"):
            parent, name = name, f"{name}.{part}".strip(".")
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            if parent:
                setattr(sys.modules[parent], part, module)
        sys.modules[name].ReplayBuffer = ReplayBuffer  # type: ignore[attr-defined]
        if self.genuine is not None:
            vars(sys.modules[name]).update(genuine_buffers(self.genuine, monkeypatch))
        monkeypatch.setattr("rollcast.simulator.stacks.verl.hooks.time.sleep", self.sleep)
        clock = property(lambda _: self.now_s)
        monkeypatch.setattr("rollcast.simulator.stacks.driver.HandedOver.now_s", clock)
