"""Processes that are the ranks of a trainer, started once and given one case after another."""

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

_SLOW = (
    "torch.distributed.fsdp",
    *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("llama", "qwen3", "qwen3_moe")),
)
"""Imported once, in the process that all ranks are forks of."""


def imported() -> Any:
    """Whose processes have that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_SLOW])
    return context


class RankProcesses:
    """At most so many ranks; a case is a function of a module that can be imported, called in each
    with the number of ranks and what it is given."""

    def __init__(self, most: int) -> None:
        context = imported()
        self._pipes, self._processes = [], []
        for _ in range(most):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, ranks: int, case: Callable[..., Any], *given: Any) -> list[Any]:
        """What each rank's call returned. Raises AssertionError with what a rank raised."""
        pipes = self._pipes[:ranks]
        pipes[0].send(("meet",))
        place = pipes[0].recv()
        for number, pipe in enumerate(pipes):
            pipe.send(("case", place, number, ranks, case, given))
        answers = [pipe.recv() for pipe in reversed(pipes)][::-1]
        said = [trouble for _, trouble in answers if trouble]
        assert not said, "\n".join(said)
        return [found for found, _ in answers]

    def answer(self, number: int) -> Any:
        """What a rank returned, and what it raised, where `run` did not come to it."""
        return self._pipes[number].recv()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    from rollcast.engine.trainer.sharded import Meeting, join

    torch.set_num_threads(1)
    meeting = None
    while True:
        kind, *given = pipe.recv()
        if kind == "meet":
            meeting = Meeting()
            pipe.send(meeting.place)
            continue
        place, number, ranks, case, arguments = given
        try:
            join(place, number, ranks, "cpu")
            pipe.send((case(*arguments), ""))
        except BaseException:
            pipe.send((None, f"rank {number} of {ranks}:\n{traceback.format_exc()}"))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
