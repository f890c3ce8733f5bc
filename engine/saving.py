"""A real run between two steps, to its checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import checkpoint
from engine.edges import TrainerState
from engine.log import EngineLog, LogJournal, replay_log
from engine.responses import Tokens
from engine.world import EngineWorld, WorldState
from simulator.errors import ScenarioError
from simulator.loop import Loop
from simulator.loop.journal import Journal, replay
from simulator.loop.plain import from_plain, to_plain
from simulator.loop.saved import load_loop, save_loop
from simulator.policy import Policy
from simulator.spans import Run
from simulator.world import ClusterShape

Arrays = Mapping[str, NDArray[Any]]
_ARRAYS = {"keys": np.int64, "ids": np.int64, "log_probs": np.float64, "versions": np.int64}


class Saver:
    """Saves a run after each of its steps; ``known`` is what tells it from another run."""

    def __init__(
        self, writer: checkpoint.Writer, known: Mapping[str, Any], loop: Loop, world: EngineWorld
    ) -> None:
        self._writer, self._known, self._loop, self._world = writer, known, loop, world
        self._run, self._log = Journal(loop.result), LogJournal(world.log)

    def save(self) -> None:
        """Saves it as it is now. Raises RunError where that cannot be done."""
        loop, world = save_loop(self._loop), self._world.state()
        state = {
            **self._known,
            "loop": loop,
            "world": {
                "clock_s": world.clock_s,
                "version": world.version,
                "asked": to_plain(world.asked),
            },
            "trainer": dict(world.trainer.plain),
        }
        added = {"run": self._run.added(), "log": self._log.added()}
        arrays = pack(world.tokens)
        self._writer.save(state, added, world.trainer.tensors, arrays)


@dataclass(frozen=True)
class Resumed:
    """A run read from its checkpoint: the loop's state, the world's (without the trainer's tensors,
    which are large), and the log. done: its steps."""

    saved: checkpoint.Saved
    loop: dict[str, Any]
    world: WorldState
    log: EngineLog

    @property
    def done(self) -> int:
        """Steps that it has done."""
        steps: int = self.loop["next_step"]
        return steps

    def put_back(self, loop: Loop, world: EngineWorld) -> None:
        """Has a fresh loop and world go on from it. Raises ScenarioError (``--resume``) where the
        trainer's part is damaged, or of another model."""
        tensors = self.saved.trainer()
        trainer = TrainerState(tensors, self.world.trainer.plain)
        try:
            world.load_state(replace(self.world, trainer=trainer), self.log)
        except ValueError as error:
            raise checkpoint.damaged(self.saved.writer.out, error) from None
        loop.load_state_dict(self.loop)


def read(out: Path, scenario: Mapping[str, Any], policy: Policy, world: ClusterShape) -> Resumed:
    """The unfinished run beside ``out``. world: what its world will be.

    Raises ScenarioError (``--resume``) where there is none, or it cannot be gone on from.
    """
    saved = checkpoint.load(out, scenario)
    run, log = Run(EngineWorld.name, world), EngineLog()
    arrays = saved.tokens()
    try:
        for line in saved.journal:
            replay(run, from_plain(line.get("run"), dict[str, Any], "the journal"))
            replay_log(log, from_plain(line.get("log"), dict[str, Any], "the journal"))
        loop = load_loop(saved.state.get("loop"), policy, run)
        plain = from_plain(saved.state.get("world"), dict[str, Any], "the world")
        state = WorldState(
            from_plain(plain.get("clock_s"), float, "clock_s"),
            from_plain(plain.get("version"), int, "version"),
            from_plain(plain.get("asked"), dict[int, int], "asked"),
            unpack(arrays),
            TrainerState({}, from_plain(saved.state.get("trainer"), dict[str, Any], "the trainer")),
        )
    except (ValueError, RecursionError) as error:
        raise checkpoint.damaged(out, error) from None
    return Resumed(saved, loop, state, log)


def pack(tokens: Mapping[tuple[int, int], Tokens]) -> Arrays:
    """What rollouts are made of, as arrays: keys [rollouts, 4] (group, index, attempt, tokens), and
    ids, log_probs and versions, one entry a token."""
    items = tokens.items()
    keys = [(*key, own.attempt, len(own.ids)) for key, own in items]
    return {
        "keys": np.array(keys, dtype=np.int64).reshape(-1, 4),
        "ids": np.array([i for _, own in items for i in own.ids], dtype=np.int64),
        "log_probs": np.array([p for _, own in items for p in own.log_probs], dtype=np.float64),
        "versions": np.array([v for _, own in items for v in own.versions], dtype=np.int64),
    }


def unpack(arrays: Arrays) -> dict[tuple[int, int], Tokens]:
    """What `pack` made arrays of. Raises ValueError for others."""
    for name, kind in _ARRAYS.items():
        if name not in arrays or arrays[name].dtype != kind:
            raise ValueError(f"the rollouts' {name} are missing or of another type")
    keys, columns = arrays["keys"], [arrays[name] for name in ("ids", "log_probs", "versions")]
    counts = keys[:, 3] if keys.ndim == 2 and keys.shape[1] == 4 else np.array([-1])
    total = int(counts.sum())
    if (counts < 0).any() or any(column.shape != (total,) for column in columns):
        raise ValueError("the rollouts' tokens are not as many as they are said to be")
    found, end = {}, 0
    for group, index, attempt, count in keys.tolist():
        start, end = end, end + count
        ids, log_probs, versions = (tuple(column[start:end].tolist()) for column in columns)
        found[group, index] = Tokens(attempt, ids, log_probs, versions)
    return found


def require_prompts(saved: checkpoint.Saved, out: Path, prompts: str | None) -> None:
    """Raises ScenarioError (``--resume``) where the prompts are others by now."""
    if saved.state.get("prompts") != prompts:
        message = f"the prompts have changed since the unfinished run beside {out} was saved"
        raise ScenarioError("--resume", message)
