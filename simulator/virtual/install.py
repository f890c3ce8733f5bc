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
import queue
import random
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.clocks import clock_doubles
from rollcast.simulator.virtual.errors import Stopped
from rollcast.simulator.virtual.keepers import content_of, keepers, own_of
from rollcast.simulator.virtual.locks import Handle, Lock
from rollcast.simulator.virtual.loops import Loop, cancel_all_tasks, uvloop_module
from rollcast.simulator.virtual.refused import refusals
from rollcast.simulator.virtual.report import of_exception
from rollcast.simulator.virtual.sockets import methods as socket_methods
from rollcast.simulator.virtual.wall import virtual_date, virtual_datetime

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

ZERO_WAIT_S = 1e-6
"""What a wait of zero seconds takes: who waits for the rest of a timeout (`as_completed`) goes on
until the clock is beyond it, which it would never be."""
_LOCK, _RLOCK = type(real.allocate_lock()), type(threading.RLock())
_LOCKS, _STATIC = frozenset({id(_LOCK), id(_RLOCK)}), frozenset({id(staticmethod)})


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
        doubles = [
            *clock_doubles(kernel, self._clock.warn),
            *((old, Lock) for old in {threading.Lock, real.allocate_lock}),
            (queue.SimpleQueue, SimpleQueue),
            (asyncio.SelectorEventLoop, Loop),
        ]
        for old, new in doubles:
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
            for name, value in _among(names, back):
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

    def _replace_names(self) -> None:
        """The names of all modules that are imported already."""
        uvloop = uvloop_module(Loop, _policy())
        for real_one in filter(None, [sys.modules.get("uvloop")]):
            self._virtual[id(real_one)] = (real_one, uvloop)
        was = sys.modules.get("uvloop")
        for names in _namespaces():
            self._replace_kept(names)
            for name, value in _among(names, self._virtual, _LOCKS):
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
        """Clocks that a module's functions, classes (methods, attributes) and objects keep."""
        functions, owners = keepers(names)
        for function in functions:
            self._replace_kept_by(function)
        for owner in owners:
            for name, value in _among(own_of(owner) or {}, self._virtual, _STATIC):
                given = value.__func__ if type(value) is staticmethod else value
                new = self._double(given)
                if new is given:
                    continue
                if type(owner) is type:
                    self._set(owner, name, staticmethod(new))
                else:  # it may be frozen
                    kept: Any = own_of(owner)
                    kept[name] = new
                    self._undo.append(lambda k=kept, n=name, v=value: k.__setitem__(n, v))  # type: ignore[misc]

    def _double(self, value: Any) -> Any:
        """What a value is replaced by; itself, mostly."""
        found = self._virtual.get(id(value))
        return value if found is None or found[0] is not value else found[1]

    def _replace_kept_by(self, function: FunctionType) -> None:
        double = self._double
        for cell in function.__closure__ or ():
            if (held := content_of(cell)) is not None and double(held) is not held:
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
            for name, value in _among(names, doubles):
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
        wait = threading.Event.wait  # not every condition: pools look for idle threads so

        def wait_a_little(event: threading.Event, timeout: float | None = None) -> bool:
            return wait(event, max(timeout, ZERO_WAIT_S) if timeout is not None else None)

        self._set(threading.Event, "wait", wait_a_little)

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


def time_of_threading() -> Any:
    """The clock that `threading` keeps under a name of its own."""
    return threading._time  # type: ignore[attr-defined]


def _policy() -> type[Any]:
    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = Loop

    return Policy


def _among(
    names: Mapping[str, Any], ids: Mapping[int, Any], types: frozenset[int] = frozenset()
) -> list[tuple[str, Any]]:
    """All names and values, if the id of any value or of its type is one of these, else none: of
    hundreds of thousands few are."""
    values = names.values()
    if ids.keys().isdisjoint(map(id, values)) and types.isdisjoint(map(id, map(type, values))):
        return []
    return list(names.items())


def _namespaces() -> list[dict[str, Any]]:
    """Of all imported modules that may have names to replace."""
    found = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith(NOT_LOOKED_AT):
            found.append(module.__dict__)
    return found


assert concurrent.futures.thread  # its lock of module level is replaced with the others
