"""What of Python is replaced during a run, and how it is put back.

Names are replaced wherever a module has them, by identity: ``from time import monotonic`` keeps
the function under a name of its own. Modules imported during the run have virtual names, which are
put back with the others; so are clocks that functions keep as default arguments or in their
closures, and classes and objects of module level as attributes. What any other object keeps is not
found.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures.thread
import datetime
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import SourceFileLoader
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, ClassVar

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.errors import ExitedError, Stopped
from rollcast.simulator.virtual.locks import Handle, Lock
from rollcast.simulator.virtual.loops import Loop, cancel_all_tasks, uvloop_module
from rollcast.simulator.virtual.refused import refusals
from rollcast.simulator.virtual.report import caller, is_stdlib, of_exception
from rollcast.simulator.virtual.sockets import methods as socket_methods
from rollcast.simulator.virtual.wall import EPOCH_S, virtual_date, virtual_datetime

NOT_LOOKED_AT = (
    "rollcast.simulator.virtual",
    "_pytest",
    "pytest",
    "pluggy",
    "execnet",
    "xdist",
    "hypothesis",
    "faulthandler",
    "importlib",
    "_frozen_importlib",
    "logging",
    "threading",
    "_thread",
    "builtins",
    "signal",
    "datetime",
    "_pydatetime",
    "pandas",
    "numpy",
    "pydantic",
)
"""Modules whose names are left alone: of the kernel itself, of what runs tests, and those that are
replaced name by name."""

MONOTONIC = {
    getattr(time, name)
    for name in ("CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME")
    if hasattr(time, name)
}
ZERO_WAIT_S = 1e-6
"""What a wait of zero seconds takes: who waits for the rest of a timeout (`as_completed`) goes on
until the clock is beyond it, which it would never be."""
_LOCK, _RLOCK = type(real.allocate_lock()), type(threading.RLock())


class SimpleQueue(queue._PySimpleQueue):  # type: ignore[misc, name-defined]
    """`queue.SimpleQueue` in Python, made of the locks that are installed."""


class Installation:
    """All that a run replaces."""

    clock: ClassVar[Any] = None  # of the run under way

    def __init__(self, clock: Any, fresh: Collection[str]) -> None:
        self._clock, self._kernel = clock, clock.kernel
        self._fresh = tuple(fresh)
        self._undo: list[Callable[[], None]] = []
        self._virtual: dict[int, tuple[Any, Any]] = {}  # id of a real object: it and its double

    def install(self) -> None:
        """Replaces everything."""
        kernel = self._kernel
        Installation.clock = self._clock
        self._forget_fresh()
        Lock.kernel = Handle.kernel = Loop.kernel = kernel
        for old, new in self._doubles():
            self._virtual[id(old)] = (old, new)
        self._replace_names()
        self._replace_in_threading()
        self._replace_dates()
        self._set(asyncio.runners, "_cancel_all_tasks", cancel_all_tasks)
        for owner, name, new in [*refusals(kernel), *socket_methods(kernel)]:
            self._set(owner, name, new)
        self._set_policy()
        self._seed()

    def remove(self) -> None:
        """Puts everything back, in the modules imported meanwhile too."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        back = {id(new): old for old, new in self._virtual.values()}
        for names in _namespaces():
            for name, value in list(names.items()):
                if id(value) in back:
                    names[name] = back[id(value)]
        Lock.kernel = None
        Installation.clock = None
        self._forget_fresh()

    def _forget_fresh(self) -> None:
        for name in list(sys.modules):
            if name.split(".")[0] in self._fresh:
                del sys.modules[name]

    def _set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces one attribute until the end."""
        missing = object()
        old = vars(owner).get(name, missing)

        def undo() -> None:
            if old is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        setattr(owner, name, value)
        self._undo.append(undo)

    def _doubles(self) -> list[tuple[Any, Any]]:
        kernel, clock = self._kernel, self._clock

        def on_clock(virtual: Callable[..., Any], otherwise: Callable[..., Any]) -> Any:
            def function(*args: Any) -> Any:
                return virtual(*args) if kernel.mine() else otherwise(*args)

            function.__name__ = function.__qualname__ = otherwise.__name__
            return function

        def sleep(seconds: float) -> None:
            if seconds < 0:
                raise ValueError("sleep length must be non-negative")
            if asyncio._get_running_loop() is not None:
                clock.warn(f"time.sleep stops its whole event loop, at {caller()}")
            kernel.block(kernel.after(seconds) if seconds else kernel.now, "time.sleep")

        def exit_now(status: int) -> None:
            kernel.throw(
                ExitedError(f"the code under test called os._exit({status}), at {caller()}")
            )
            raise Stopped

        def random_bytes(size: int) -> bytes:
            return bytes(kernel.random.randbytes(size))

        def nanoseconds() -> int:
            return int(kernel.now * 10**9) >> 80

        real_asctime = time.asctime

        def of_now(function: Callable[..., Any], place: int) -> Any:
            """What takes a time as its argument at ``place``, and else the present."""

            local_time = time.localtime

            def virtual(*args: Any) -> Any:
                if len(args) > place and args[place] is not None:
                    return function(*args)
                now = EPOCH_S + kernel.now_s
                return function(*args[:place], now if place == 0 else local_time(now))

            return on_clock(virtual, function)

        def asctime(*args: Any) -> str:
            return real_asctime(*(args or (time.localtime(EPOCH_S + kernel.now_s),)))

        def gettime(which: int) -> float:
            if which == time.CLOCK_REALTIME:
                return float(EPOCH_S + kernel.now_s)
            return float(kernel.now_s if which in MONOTONIC else real.clock_gettime(which))

        def gettime_ns(which: int) -> int:
            if which == time.CLOCK_REALTIME:
                return EPOCH_S * 10**9 + nanoseconds()
            return nanoseconds() if which in MONOTONIC else real.clock_gettime_ns(which)

        doubles: list[tuple[Any, Any]] = [
            (time.time, on_clock(lambda: EPOCH_S + kernel.now_s, time.time)),
            (time.time_ns, on_clock(lambda: EPOCH_S * 10**9 + nanoseconds(), time.time_ns)),
            (time.sleep, on_clock(sleep, time.sleep)),
            (real_asctime, on_clock(asctime, real_asctime)),
            (os._exit, on_clock(exit_now, os._exit)),
            (os.urandom, on_clock(random_bytes, os.urandom)),
            (asyncio.SelectorEventLoop, Loop),
        ]
        for name in ("monotonic", "perf_counter"):
            whole, ns = getattr(time, name), getattr(time, f"{name}_ns")
            doubles.append((whole, on_clock(lambda: kernel.now_s, whole)))
            doubles.append((ns, on_clock(nanoseconds, ns)))
        for function in (time.localtime, time.gmtime, time.ctime):
            doubles.append((function, of_now(function, 0)))
        doubles.append((time.strftime, of_now(time.strftime, 1)))
        if hasattr(time, "clock_gettime"):
            doubles.append((time.clock_gettime, on_clock(gettime, time.clock_gettime)))
            doubles.append((time.clock_gettime_ns, on_clock(gettime_ns, time.clock_gettime_ns)))
        doubles += [(old, Lock) for old in {threading.Lock, real.allocate_lock}]
        doubles.append((queue.SimpleQueue, SimpleQueue))
        return doubles

    def _replace_names(self) -> None:
        """The names of all modules that are imported already."""
        uvloop = uvloop_module(Loop, _policy())
        for real_one in filter(None, [sys.modules.get("uvloop")]):
            self._virtual[id(real_one)] = (real_one, uvloop)
        was = sys.modules.get("uvloop")
        for names in _namespaces():
            self._replace_kept(names)
            for name, value in list(names.items()):
                found = self._virtual.get(id(value))
                new: Any = None
                if found is not None and found[0] is value:
                    new = found[1]
                elif type(value) is _LOCK and not value.locked():
                    new = Lock()
                elif type(value) is _RLOCK and not value._is_owned():  # type: ignore[attr-defined]
                    new = threading._PyRLock()  # type: ignore[attr-defined]
                    new._block = Lock()
                if new is not None:
                    names[name] = new
                    self._undo.append(lambda n=names, k=name, v=value: n.__setitem__(k, v))  # type: ignore[misc]
        sys.modules["uvloop"] = uvloop

        def undo() -> None:
            if was is None:
                sys.modules.pop("uvloop", None)
            else:
                sys.modules["uvloop"] = was

        self._undo.append(undo)

    def _replace_kept(self, names: dict[str, Any]) -> None:
        """Clocks that functions of a module, methods and attributes of its classes, and its objects
        keep. Not in Python's own modules, which look them up."""
        module = str(names.get("__name__"))
        known = _keepers.get(module)
        if known is None or known[:2] != (id(names), len(names)):
            known = _keepers[module] = (id(names), len(names), *_keepers_of(module, names))
        for function in known[2]:
            self._replace_kept_by(function)
        for owner in known[3]:
            for name, value in list((_own(owner) or {}).items()):
                given = value.__func__ if type(value) is staticmethod else value
                new = self._double(given)
                if new is given:
                    continue
                if type(owner) is type:
                    self._set(owner, name, staticmethod(new))
                else:  # it may be frozen
                    kept: Any = _own(owner)
                    kept[name] = new
                    self._undo.append(lambda k=kept, n=name, v=value: k.__setitem__(n, v))  # type: ignore[misc]

    def _double(self, value: Any) -> Any:
        """What a value is replaced by; itself, mostly."""
        found = self._virtual.get(id(value))
        return value if found is None or found[0] is not value else found[1]

    def _replace_kept_by(self, function: FunctionType) -> None:
        double = self._double
        for cell in function.__closure__ or ():
            if (held := _content(cell)) is not None and double(held) is not held:
                cell.cell_contents = double(held)
                self._undo.append(lambda c=cell, v=held: setattr(c, "cell_contents", v))  # type: ignore[misc]
        kept, named = function.__defaults__, function.__kwdefaults__
        if kept and any(double(value) is not value for value in kept):
            function.__defaults__ = tuple(double(value) for value in kept)
            self._undo.append(lambda: setattr(function, "__defaults__", kept))
        if named and any(double(value) is not value for value in named.values()):
            function.__kwdefaults__ = {name: double(value) for name, value in named.items()}
            self._undo.append(lambda: setattr(function, "__kwdefaults__", named))

    def _replace_dates(self) -> None:
        """`datetime.datetime` and `datetime.date` in modules of Python source, also in those that
        are imported later. C extensions derive types from the real ones, which stay where they
        are."""
        moment, day = virtual_datetime(self._kernel), virtual_date(self._kernel)
        module = ModuleType("datetime")
        module.__dict__.update(vars(datetime), datetime=moment, date=day)
        pairs = ((datetime.datetime, moment), (datetime.date, day), (datetime, module))
        doubles = {id(old): new for old, new in pairs}
        self._virtual.update({id(old): (old, new) for old, new in pairs})

        def replace(names: dict[str, Any]) -> None:
            if not str(names.get("__file__", "")).endswith(".py"):
                return
            for name, value in list(names.items()):
                if id(value) in doubles:
                    names[name] = doubles[id(value)]
                    self._undo.append(lambda v=value, n=name: names.__setitem__(n, v))  # type: ignore[misc]

        for names in _namespaces():
            replace(names)
        execute = SourceFileLoader.exec_module

        def exec_module(loader: SourceFileLoader, made: ModuleType) -> None:
            execute(loader, made)
            if not made.__name__.startswith(NOT_LOOKED_AT):
                replace(made.__dict__)

        self._set(SourceFileLoader, "exec_module", exec_module)

    def _replace_in_threading(self) -> None:
        kernel = self._kernel
        monotonic = self._virtual[id(time_of_threading())][1]
        self._set(threading, "_time", monotonic)
        for name in ("Lock", "_allocate_lock"):
            self._set(threading, name, Lock)
        self._set(_thread, "allocate_lock", Lock)
        self._set(threading, "_CRLock", None)
        self._set(threading, "RLock", lambda: threading._PyRLock())  # type: ignore[attr-defined]
        self._set(threading, "excepthook", self._thread_died)
        wait = threading.Condition.wait

        def wait_a_little(condition: threading.Condition, timeout: float | None = None) -> bool:
            return wait(condition, max(timeout, ZERO_WAIT_S) if timeout is not None else None)

        self._set(threading.Condition, "wait", wait_a_little)

        def start_new_thread(function: Any, args: Any, kwargs: Any = None) -> int:
            if not kernel.mine():
                return real.start_new_thread(function, args, kwargs or {})
            return int(kernel.start(function, args, kwargs or {}))

        self._set(_thread, "start_new_thread", start_new_thread)
        if hasattr(threading, "_start_joinable_thread"):  # Python 3.13

            def start_joinable(function: Any, handle: Any = None, daemon: bool = True) -> Any:
                if not kernel.mine():
                    raise RuntimeError("a thread of another run was started in virtual time")
                handle = handle or Handle()
                handle.ident = kernel.start(function, (), {}, handle._set_done)
                return handle

            self._set(threading, "_start_joinable_thread", start_joinable)
            self._set(threading, "_ThreadHandle", Handle)
        else:

            def sentinel() -> Lock:
                lock = Lock()

                def release() -> None:
                    if lock.locked():
                        lock.release()

                kernel.at_end_of_current(release)
                return lock

            self._set(threading, "_start_new_thread", start_new_thread)
            self._set(threading, "_set_sentinel", sentinel)

    def _thread_died(self, args: Any) -> None:
        if args.exc_value is None or args.exc_type in (SystemExit, Stopped):
            return
        name = "a thread" if args.thread is None else f"thread {args.thread.name}"
        self._kernel.dead_threads.append(f"{name} of {of_exception(args.exc_value)}")

    def _set_policy(self) -> None:
        before = asyncio.events._event_loop_policy  # type: ignore[attr-defined]
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(_policy()())

        def undo() -> None:
            asyncio.set_event_loop_policy(before)
            asyncio._set_running_loop(running)

        self._undo.append(undo)

    def _seed(self) -> None:
        state = random.getstate()
        random.seed(self._kernel.seed)
        self._undo.append(lambda: random.setstate(state))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            old = numpy.get_state()
            numpy.seed(self._kernel.seed % 2**32)
            self._undo.append(lambda: numpy.set_state(old))


_keepers: dict[str, tuple[int, int, list[FunctionType], list[Any]]] = {}


def _keepers_of(module: str, names: dict[str, Any]) -> tuple[list[FunctionType], list[Any]]:
    """Functions of a module and methods of its classes that keep something of C; its classes, and
    objects of these."""
    file = names.get("__file__")
    if not isinstance(file, str) or not file.endswith(".py") or is_stdlib(file):
        return [], []
    functions, owners = [*names.values()], []
    for owner in names.values():
        kind = owner if type(owner) is type else type(owner)
        if type(kind) is type and kind.__module__ == module and (own := _own(owner)) is not None:
            owners.append(owner)
            if owner is kind:
                functions += own.values()
    return [
        function
        for function in functions
        if type(function) is FunctionType
        and function.__module__ == module
        and any(type(value) in (BuiltinFunctionType, type) for value in _kept(function))
    ], owners


def _own(owner: Any) -> Mapping[str, Any] | None:
    """The attributes of a class or an object, of which nothing is run: some warn at any access.
    None where it has none."""
    if type(owner) is type:
        return vars(owner)
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _kept(function: FunctionType) -> list[Any]:
    """What a function keeps from before it is called."""
    cells = [_content(cell) for cell in function.__closure__ or ()]
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def time_of_threading() -> Any:
    """The clock that `threading` keeps under a name of its own."""
    return threading._time  # type: ignore[attr-defined]


def _policy() -> type[Any]:
    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = Loop

    return Policy


def _namespaces() -> list[dict[str, Any]]:
    """Of all imported modules that may have names to replace."""
    found = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith(NOT_LOOKED_AT):
            found.append(module.__dict__)
    return found


assert concurrent.futures.thread  # its lock of module level is replaced with the others
