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
from simulator.rollout import ENDINGS, Ending
from simulator.spans import Run
from simulator.world import ClusterShape

Arrays = Mapping[str, NDArray[Any]]
_ARRAYS = {"keys": np.int64, "ids": np.int64, "log_probs": np.float64, "versions": np.int64}
_TURNS = {"turns": np.int64, "earned": np.float64, "answers": np.int64}


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
    ids, log_probs and versions, one entry a token. Where any has turns: turns [rollouts, 3]
    (answers, whether it asks, how it ended), earned [rollouts], answers [all answers, 2]."""
    items = tokens.items()
    turned = {}
    if any(own != Tokens(own.attempt, own.ids, own.log_probs, own.versions) for _, own in items):
        turns = [(len(own.answers), own.asking, _ending_number(own.ending)) for _, own in items]
        answers = [answer for _, own in items for answer in own.answers]
        turned = {
            "turns": np.array(turns, dtype=np.int64).reshape(-1, 3),
            "earned": np.array([own.earned for _, own in items], dtype=np.float64),
            "answers": np.array(answers, dtype=np.int64).reshape(-1, 2),
        }
    keys = [(*key, own.attempt, len(own.ids)) for key, own in items]
    return {
        "keys": np.array(keys, dtype=np.int64).reshape(-1, 4),
        "ids": np.array([i for _, own in items for i in own.ids], dtype=np.int64),
        "log_probs": np.array([p for _, own in items for p in own.log_probs], dtype=np.float64),
        "versions": np.array([v for _, own in items for v in own.versions], dtype=np.int64),
        **turned,
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
    if "turns" in arrays:
        _unpack_turns(arrays, found)
    return found


def _unpack_turns(arrays: Arrays, found: Mapping[tuple[int, int], Tokens]) -> None:
    """Adds what `pack` says of turns. Raises ValueError where that does not fit."""
    turns, earned, answers = (arrays.get(name, np.array([])) for name in _TURNS)
    count = len(found)
    shapes = turns.shape == (count, 3) and earned.shape == (count,) and answers.shape[1:] == (2,)
    if not shapes or any(arrays[name].dtype != kind for name, kind in _TURNS.items()):
        raise ValueError("the rollouts' turns are missing or of another type")
    end, spans = 0, [(int(first), int(last)) for first, last in answers.tolist()]
    rows = zip(found.values(), turns.tolist(), earned.tolist(), strict=True)
    for own, (number, asking, ending), reward in rows:
        start, end = end, end + number
        own.answers, own.asking, own.earned = tuple(spans[start:end]), bool(asking), reward
        if number < 0 or asking not in (0, 1) or not -1 <= ending < len(ENDINGS):
            raise ValueError("the rollouts' turns are none")
        own.ending = None if ending < 0 else ENDINGS[ending]
        edges = [0, *(edge for span in own.answers for edge in span), len(own.ids)]
        if edges != sorted(edges):
            raise ValueError("the rollouts' answers do not lie within their tokens")
    if end != len(spans):
        raise ValueError("the rollouts' answers are not as many as they are said to be")


def _ending_number(ending: Ending | None) -> int:
    return -1 if ending is None else ENDINGS.index(ending)


def require_prompts(saved: checkpoint.Saved, out: Path, prompts: str | None) -> None:
    """Raises ScenarioError (``--resume``) where the prompts are others by now."""
    if saved.state.get("prompts") != prompts:
        message = f"the prompts have changed since the unfinished run beside {out} was saved"
        raise ScenarioError("--resume", message)
