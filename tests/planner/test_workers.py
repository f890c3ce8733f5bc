"""Workers: everything is done, once, in any number of processes, whoever dies."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from rollcast.simulator.planner.workers import Died, InProcess, Processes, Workers, cores, local


def square(task: int) -> int:
    return task * task


def fails_at_three(task: int) -> int:
    if task == 3:
        raise ValueError("three")
    return task


def dies(folder: Path, times: int, task: int) -> int:
    """Kills its own process on task 2, the first so many times."""
    if task == 2:
        tries = len(list(folder.iterdir()))
        if tries < times:
            (folder / str(tries)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def slow(task: int) -> int:
    time.sleep(0.05)
    return os.getpid()


@pytest.mark.parametrize("crew", [InProcess(square), Processes(square, 1), Processes(square, 3)])
def test_every_task_is_done_once(crew: Workers) -> None:
    with crew:
        for tasks in ([], [4], list(range(20))):
            found = list(crew.results(tasks))
            assert sorted(found) == [(i, task * task) for i, task in enumerate(tasks)]


@pytest.mark.parametrize("crew", [InProcess(fails_at_three), Processes(fails_at_three, 2)])
def test_what_the_work_raises_is_raised(crew: Workers) -> None:
    with crew, pytest.raises(ValueError, match="three"):
        list(crew.results(list(range(6))))


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_loses_nothing(tmp_path: Path, times: int) -> None:
    with Processes(partial(dies, tmp_path, times), 2) as crew:
        assert dict(crew.results(range(8))) == {i: i * i for i in range(8)}
    assert len(list(tmp_path.iterdir())) == times


def test_a_task_of_which_every_worker_dies_is_said_so(tmp_path: Path) -> None:
    with Processes(partial(dies, tmp_path, 99), 2) as crew:
        found = dict(crew.results(range(8)))
        assert isinstance(found[2], Died)
        assert "SIGKILL" in found[2].problem
        assert {i: found[i] for i in found if i != 2} == {i: i * i for i in range(8) if i != 2}
        assert dict(crew.results([5])) == {0: 25}, "and the crew goes on"


def test_workers_killed_from_outside() -> None:
    with Processes(slow, 2) as crew:
        found = {}
        for number, pid in crew.results(range(12)):
            found[number] = pid
            if number in (3, 6):
                os.kill(pid, signal.SIGKILL)
    assert sorted(found) == list(range(12))


def test_nothing_is_left_behind() -> None:
    with Processes(slow, 2) as crew:
        pids = {pid for _, pid in crew.results(range(4))}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_as_many_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcast.simulator.planner.workers.cores", cores)
    assert local(square).count == cores()
    assert isinstance(local(square, 1), InProcess)
    assert local(square, 3).count == 3


def test_a_worker_that_is_stopped_at_birth_waits_for_its_own_handlers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Else it runs those of this process, and prints what they raise."""
    starting: list[str] = []

    def born() -> None:
        if starting:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            os.write(2, str({signal.SIGINT, signal.SIGTERM} <= blocked).encode())

    os.register_at_fork(after_in_child=born)
    starting.append("now")
    with Processes(square, 1) as crew:
        starting.clear()
        assert list(crew.results([3])) == [(0, 9)]
    assert capfd.readouterr().err == "True"
