"""slime as far as a rollout function sees it, from the signatures and the contracts of its source
(``slime/rollout/sglang_rollout.py``, ``data_source.py``, ``slime/utils/types.py``): lengths and
rewards come from a scenario, and time passes an instant at a time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from argparse import Namespace
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PASSES = 12
"""Rounds of the event loop in which everything that can happen at an instant has happened."""


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "status": self.status.value}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Sample:
        return Sample(**{**data, "status": Status(data["status"])})

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


class FakeSlime:
    """The engines, their router, and the modules that a rollout function imports.

    broken: (group, index) of a response that comes back in an odd way: the status to give it.
    """

    def __init__(self, workload: Any) -> None:
        self.workload = workload
        self.loop = asyncio.new_event_loop()
        self.flying: list[tuple[Sample, int, asyncio.Future[None]]] = []
        self.started: list[tuple[int, int]] = []
        self.aborts = 0
        self.evaluated: list[int] = []
        self.state: Namespace | None = None

    # The event loop and its clock

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """slime's ``async_utils.run``; an instant passes whenever nothing else can happen."""
        task = self.loop.create_task(coroutine)
        for _ in range(100_000):
            for _ in range(PASSES):
                if task.done():
                    return task.result()
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()
            self._pass()
        raise AssertionError("nothing is in flight, and something is waited for")

    def _pass(self) -> None:
        waiting = [entry for entry in self.flying if not entry[2].done()]
        if not waiting:
            return
        tokens = min(goal - sample.response_length for sample, goal, _ in waiting)
        for sample, goal, future in waiting:
            _grow(sample, tokens)
            if sample.response_length == goal:
                future.set_result(None)
        self.flying = [entry for entry in waiting if not entry[2].done()]

    def close(self) -> None:
        """Ends what a test that failed on purpose has left."""
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    # slime.rollout.sglang_rollout

    def generate_state(self, args: Any) -> Namespace:
        if self.state is None:
            params = {"temperature": 1.0, "max_new_tokens": args.rollout_max_response_len}
            self.state = Namespace(sampling_params=params, reset=self._reset)
            self._reset()
        return self.state

    def _reset(self) -> None:
        assert self.state is not None
        self.state.pendings, self.state.aborted, self.state.remaining_batch_size = set(), False, 0

    async def generate_and_rm(
        self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
    ) -> Sample:
        assert sample.status in (Status.PENDING, Status.ABORTED), sample.status
        limit = sampling_params["max_new_tokens"]
        assert limit > sample.response_length
        total, reward = self._drawn(sample)
        if not sample.tokens:
            sample.tokens = [1, 2, 3]
        future = self.loop.create_future()
        self.flying.append((sample, min(total, limit), future))
        self.started.append((sample.group_index or 0, sample.metadata["rollcast"]["index"]))
        await future
        if sample.response_length == total and total < args.rollout_max_response_len:
            sample.status = Status.COMPLETED
        elif sample.response_length == limit:
            sample.status = Status.TRUNCATED
        else:
            sample.status = Status.ABORTED
            return sample
        await asyncio.sleep(0)  # the reward model
        sample.reward = reward
        return sample

    def _drawn(self, sample: Sample) -> tuple[int, float]:
        tag = sample.metadata["rollcast"]
        assert sample.group_index is not None
        drawn = self.workload.draw(sample.group_index, tag["index"] + 1, tag["attempt"])
        return int(drawn.new_tokens[-1]), float(drawn.rewards[-1])

    async def abort(self, args: Any, rollout_id: int) -> list[list[Sample]]:
        state = self.generate_state(args)
        assert not state.aborted
        assert args.partial_rollout, "slime cancels what is pending"
        state.aborted = True
        self.aborts += 1
        for _, _, future in self.flying:
            if not future.done():
                future.set_result(None)
        self.flying = []
        found = []
        while state.pendings:
            done, state.pendings = await asyncio.wait(
                state.pendings, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                group = task.result()
                for sample in group:
                    if sample.response and "start_rollout_id" not in sample.metadata:
                        sample.metadata["start_rollout_id"] = rollout_id
                found.append(group)
        return found

    def generate_rollout(
        self, args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
    ) -> Any:
        assert evaluation
        self.evaluated.append(rollout_id)
        return "evaluated"

    # Installing

    def install(
        self, monkeypatch: pytest.MonkeyPatch, home: str = "slime.rollout.data_source"
    ) -> None:
        """Puts the modules where ``import slime...`` finds them. home: of the data source."""
        contents: dict[str, dict[str, Any]] = {
            "slime": {},
            "slime.rollout": {},
            "slime.rollout.sglang_rollout": {
                "GenerateState": self.generate_state,
                "generate_and_rm": self.generate_and_rm,
                "abort": self.abort,
                "generate_rollout": self.generate_rollout,
                "run": self.run,
                "Sample": Sample,
                "RolloutFnTrainOutput": RolloutFnTrainOutput,
                "load_function": lambda path: FILTERS[path],
            },
            home: {"RolloutDataSourceWithBuffer": DataSource},
        }
        if home.startswith("slime.data"):
            contents = {"slime": {}, "slime.data": {}, **contents}
        for name, content in contents.items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, own = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], own, module)


class ThreadedSlime(FakeSlime):
    """Its event loop runs in a thread of its own all the time, as slime's does
    (``AsyncLoopThread``), and a token takes some time: nothing waits for the rollout function."""

    TOKEN_S = 5e-4

    def __init__(self, workload: Any) -> None:
        super().__init__(workload)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=60)

    async def generate_and_rm(
        self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
    ) -> Sample:
        total, _ = self._drawn(sample)
        goal = min(total, sampling_params["max_new_tokens"])
        ticking = self.loop.create_task(self._tick(sample, goal))
        try:
            return await super().generate_and_rm(args, sample, sampling_params, evaluation)
        finally:
            ticking.cancel()

    async def _tick(self, sample: Sample, goal: int) -> None:
        while True:
            await asyncio.sleep(self.TOKEN_S)
            entry = next((each for each in self.flying if each[0] is sample), None)
            if entry is not None and not entry[2].done():
                _grow(sample, 1)
                if sample.response_length == goal:
                    entry[2].set_result(None)
                    self.flying.remove(entry)

    def close(self) -> None:
        """Ends the thread too."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=60)
        super().close()


def _grow(sample: Sample, tokens: int) -> None:
    sample.tokens = sample.tokens + [7] * tokens
    sample.rollout_log_probs = (sample.rollout_log_probs or []) + [-0.5] * tokens
    sample.response += "x" * tokens
    sample.response_length += tokens


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


FILTERS: dict[str, Any] = {}


class DataSource:
    """RolloutDataSourceWithBuffer; its state as JSON in place of a pickle."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.group_index = self.sample_index = 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        groups = []
        for _ in range(num_samples):
            prompt = Sample(prompt=f"prompt {self.group_index}", metadata={"source": "test"})
            group = []
            for _ in range(self.args.n_samples_per_prompt):
                sample = copy.deepcopy(prompt)
                sample.group_index, sample.index = self.group_index, self.sample_index
                self.sample_index += 1
                group.append(sample)
            self.group_index += 1
            groups.append(group)
        return groups

    def _path(self, folder: str, rollout_id: int | None) -> Path:
        return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}.json"

    def save(self, rollout_id: int) -> None:
        path = self._path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([self.group_index, self.sample_index]))

    def load(self, rollout_id: int | None = None) -> None:
        if self.args.load is not None:
            found = json.loads(self._path(self.args.load, rollout_id).read_text())
            self.group_index, self.sample_index = found


@dataclass
class Arguments:
    """What the exported arguments, and slime's defaults, come to."""

    rollout_batch_size: int
    n_samples_per_prompt: int
    rollout_max_response_len: int
    partial_rollout: bool = True
    rollout_seed: int = 0
    save: str | None = None
    load: str | None = None
    reward_key: str | None = None
    group_rm: bool = False
    advantage_estimator: str = "grpo"
    rewards_normalization: bool = True
    grpo_std_normalization: bool = True
    rollout_sample_filter_path: str | None = None
    dynamic_sampling_filter_path: str | None = None

    def with_(self, **given: Any) -> Arguments:
        return Arguments(**{**asdict(self), **given})
