"""Who waits where: of every thread and task, the innermost line of the code under test."""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MOST_TASKS = 20
_PACKAGE = Path(__file__).parents[1]
_OWN = (str(_PACKAGE) + os.sep, os.path.realpath(_PACKAGE) + os.sep)
_COMMANDS = (f"{os.sep}rollcast", f"{os.sep}rollcast{os.sep}__main__.py")
_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_SITE = os.sep + "site-packages" + os.sep
_TOOLS = tuple(
    f"{_SITE}{name}"
    for name in (
        *("_pytest", "pluggy", "pytest", "hypothesis", "simpy", "typer", "click"),
        *("aiohttp", "anyio", "httpcore", "httpx", "openai", "requests", "urllib3"),
    )
)


@cache
def is_stdlib(file: str) -> bool:
    """Whether a file is of Python's own library."""
    return _SITE not in file and os.path.realpath(file).startswith(_STDLIB)


def under_test(code: CodeType) -> bool:
    """Whether code is neither Python's own, nor ours, nor of a tool that runs tests."""
    name = code.co_filename
    if name in ("<string>", "<stdin>"):
        return True
    if name.startswith(("<", *_OWN)) or name.endswith(_COMMANDS):
        return False
    if any(tool in name for tool in _TOOLS):
        return False
    return not is_stdlib(name)


def place(code: CodeType, line: int | None) -> str:
    """``file:line in function: text of the line``."""
    text = linecache.getline(code.co_filename, line or 0).strip()
    where = f"{code.co_filename}:{line} in {code.co_name}"
    return f"{where}: {text}" if text else where


def caller() -> str:
    """The line of the code under test that is being run."""
    frame: FrameType | None = sys._getframe(1)
    outermost = frame
    while frame is not None:
        if under_test(frame.f_code):
            return place(frame.f_code, frame.f_lineno)
        outermost, frame = frame, frame.f_back
    assert outermost is not None
    return place(outermost.f_code, outermost.f_lineno)


def of_thread(ident: int) -> str:
    """The line of the code under test at which a thread stands, after ``, at``; empty where it runs
    none of it."""
    frame: FrameType | None = sys._current_frames().get(ident)
    while frame is not None:
        if under_test(frame.f_code):
            return f", at {place(frame.f_code, frame.f_lineno)}"
        frame = frame.f_back
    return ""


def _awaited(coroutine: Any) -> Iterator[tuple[CodeType, int | None]]:
    """The frames of what a coroutine awaits, the outermost first."""
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            code = getattr(coroutine, f"{kind}_code", None)
            if code is not None:
                frame = getattr(coroutine, f"{kind}_frame", None)
                if frame is not None:
                    yield code, frame.f_lineno
                coroutine = getattr(coroutine, f"{kind}_await", None)
                if kind == "gi":
                    coroutine = None
                break
        else:
            return


def of_task(task: asyncio.Task[Any]) -> str:
    """The line of the code under test at which a task waits."""
    frames = list(_awaited(task.get_coro()))
    for code, line in reversed(frames):
        if under_test(code):
            return place(code, line)
    return place(*frames[-1]) if frames else repr(task.get_coro())


def who_waits(kernel: Any) -> str:
    """A line for each thread, with what it waits for and where, and one for each task of its event
    loop; equal tasks are counted. Then what died unseen."""
    import threading

    active: dict[int, Any] = getattr(threading, "_active", {})
    lines = []
    loops = {id(loop.actor): loop for loop in kernel.loops if loop.actor is not None}
    for actor in kernel.actors:
        thread = active.get(actor.ident)
        name = "thread" if thread is None else f"thread {thread.name}"
        loop = loops.get(id(actor))
        waits = f"waits for {actor.waits}"
        if actor is kernel.current and not actor.blocked:
            waits = "has the turn"
        lines.append(f"  {name} {waits}{of_thread(actor.ident)}")
        if loop is not None:
            runs = asyncio.current_task(loop)  # stands where its thread does
            at = Counter(of_task(task) for task in loop.tasks if task is not runs)
            for where, times in list(at.items())[:MOST_TASKS]:
                lines.append(f"    {_tasks(times)} {where}")
            if len(at) > MOST_TASKS:
                lines.append(f"    and tasks at {len(at) - MOST_TASKS} more places")
    lines += [f"  died unseen: {death}" for death in kernel.deaths()]
    return "\n".join(lines)


def _tasks(number: int) -> str:
    return "a task waits at" if number == 1 else f"{number} tasks wait at"


def line_of(error: BaseException) -> str:
    """The innermost line of the code under test that an exception came through, after ``, at``;
    empty where it came through none."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if under_test(code):
            found = f", at {place(code, trace.tb_lineno)}"
        trace = trace.tb_next
    return found


def of_exception(error: BaseException) -> str:
    """The exception, and the line of the code under test that raised it."""
    return f"{type(error).__name__}: {error}{line_of(error)}"
