"""Actors on Ray: on this machine by itself, or on a cluster. The only module that knows Ray."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from rollcast.engine.actors.own_folder import OwnFolder
from rollcast.engine.actors.transport import (
    Actor,
    ActorLostError,
    Lane,
    Need,
    Ref,
    places,
    without_place,
)
from rollcast.engine.errors import EngineError, sentence

_DEVICES = "CUDA_VISIBLE_DEVICES"
_OWN_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # Ray leaves an actor's GPUs to it
_LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else actors starve beside anything else
    "RAY_memory_monitor_refresh_ms": "0",  # it ends actors for what others of the machine use
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    **_OWN_DEVICES,
}
LOCAL = "local"
_STORE_BYTES = 512 << 20
_ANSWER_S = 10.0
TEMPORARY = "/tmp"
"""Where a Ray of our own keeps its files: its sockets' paths may be 107 bytes long."""
_ROOM_S = 60.0  # for others on a cluster to hand back what they no longer need
_SLOTS = 64  # actors say where they run by themselves; Ray only counts


class RayTransport:
    """address: of a running cluster; ``auto``: the one that this machine belongs to; `LOCAL` or
    None: one that is started here and ends with the run. gpus: of a local one. Raises EngineError
    where Ray is missing or the cluster cannot be reached."""

    processes = True
    timer = staticmethod(time.perf_counter)

    def __init__(self, address: str | None = None, *, gpus: int = 0) -> None:
        address = None if address == LOCAL else address
        if address not in (None, "auto"):
            _require_answer(address)
        for name, value in _LOCAL.items():
            os.environ.setdefault(name, value)
        if address is None and "ray" not in sys.modules:
            _require_token()
        try:
            import ray
        except ImportError:
            raise EngineError(
                "Ray is not installed, which replicas and a trainer in processes of their own need:"
                " pip install 'rollcast[ray]'"
            ) from None
        self._ray: Any = ray
        self._folder: OwnFolder | None = None
        if ray.is_initialized():
            raise EngineError("Ray runs in this process already; end it first (ray.shutdown())")
        quiet: dict[str, Any] = {"logging_level": "CRITICAL", "log_to_driver": False}
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            if address is None:
                there = os.path.isdir(TEMPORARY)
                self._folder = OwnFolder(Path(TEMPORARY if there else gettempdir()), "ray-")
                ray.init(
                    address="local",
                    num_cpus=_SLOTS,
                    num_gpus=gpus,
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(self._folder.path),
                    **quiet,
                )
            else:
                ray.init(address=address, **quiet)
        except Exception as error:  # of many kinds
            self._remove_folder()
            where = "on this machine" if address is None else f"at {address}"
            raise EngineError(f"Ray is not available {where}: {sentence(error)}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminate)  # Ray's own handler aborts the process
        _silence()
        self._handles: list[Any] = []
        self._group: Any = None
        self._places: list[_Place] = []  # of the group, in its order

    def require(self, needs: Sequence[Need]) -> None:
        """Raises EngineError where the cluster lacks what these actors need together."""
        have, needs = self._ray.cluster_resources(), places(needs)
        for name, asked in (
            ("GPU", sum(n.gpus for n in needs)),
            ("CPU", sum(n.cpus for n in needs)),
        ):
            if asked > have.get(name, 0):
                raise EngineError(
                    f"the scenario asks for {asked} {name}s, but Ray has {have.get(name, 0):g}"
                )
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        machines = [(node.get("GPU", 0.0), node.get("CPU", 0.0)) for node in nodes]
        if (lost := without_place(needs, machines)) is not None:
            gpus_of_each = ", ".join(f"{gpus:g}" for gpus, _ in machines)
            raise EngineError(
                f"{lost.gpus} GPUs and {lost.cpus} CPUs of one machine, which an actor of the "
                f"scenario takes, are not free beside the others (GPUs of each machine: "
                f"{gpus_of_each})"
            )

    def reserve(self, needs: Sequence[Need], within_s: float = _ROOM_S) -> None:
        """Reserves a place, on one machine, for each of these actors, all or none, until this
        closes; actors and their replacements start there. Raises EngineError where others hold too
        much for ``within_s``."""
        needs = places(needs)
        bundles = [
            {name: float(count) for name, count in (("CPU", n.cpus), ("GPU", n.gpus)) if count}
            for n in needs
        ]
        group = self._ray.util.placement_group(bundles, strategy="PACK")
        if not group.wait(within_s):
            self._ray.util.remove_placement_group(group)
            free = self._ray.available_resources()
            raise EngineError(
                f"others hold some of the {sum(n.gpus for n in needs)} GPUs and "
                f"{sum(n.cpus for n in needs)} CPUs that the scenario asks for: after "
                f"{within_s:g} s {free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} "
                "CPUs are free"
            )
        self._group = group
        self._places = [_Place(need) for need in needs]
        for number, place in enumerate(self._places):
            if place.need.sharing is not None:
                place.devices = self._devices(number, place.need.gpus, within_s)

    def _devices(self, number: int, gpus: int, within_s: float) -> list[str]:
        """Names of a reserved place's GPUs. Ray tells them only to a holder: a task asks."""
        asks = self._ray.remote(
            num_cpus=0, num_gpus=gpus, max_retries=0, scheduling_strategy=self._at(number)
        )(_visible_devices)
        try:
            named: list[str] = self._ray.get(asks.remote(), timeout=within_s)
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"the machine that GPUs were reserved on does not name them: {sentence(error)}"
            ) from None
        if len(named) != gpus:
            raise EngineError(f"{gpus} GPUs were reserved, but Ray names {len(named)} of them")
        return named

    def _at(self, number: int) -> Any:
        """Ray's name of a reserved place."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)

    def start(self, kind: type, arguments: Sequence[Any], need: Need, name: str) -> Actor:
        """An actor; it waits where others hold what it needs. Raises EngineError where places are
        reserved and none of them is free for it."""
        options: dict[str, Any] = {}
        variables, gpus = dict(need.environment), need.gpus
        place = None
        if self._group is not None or need.sharing is not None:
            # A place by name: left to choose, Ray puts a small actor into a large one's place,
            # and the large one waits for ever.
            number = self._free_place(need)
            place = self._places[number]
            options["scheduling_strategy"] = self._at(number)
            if need.sharing is not None and place.need.sharing is not None:
                at = [place.need.sharing.devices.index(one) for one in need.sharing.devices]
                variables |= {**_OWN_DEVICES, _DEVICES: ",".join(place.devices[i] for i in at)}
                gpus = 0  # by Ray's count, which knows of nobody that shares
        if variables:
            options["runtime_env"] = {"env_vars": variables}
        remote = self._ray.remote(
            num_cpus=need.cpus,
            num_gpus=gpus,
            max_restarts=0,
            concurrency_groups={"work": 1, "watch": 1, "wire": 1},
            **options,
        )(kind)
        handle = remote.remote(*arguments)
        self._handles.append(handle)
        if place is not None and need.sharing is None:
            place.handle = handle
        return _RayActor(handle)

    def _free_place(self, need: Need) -> int:
        for number, place in enumerate(self._places):
            held = place.need
            if need.sharing is not None:
                if held.sharing is not None and held.sharing.place == need.sharing.place:
                    return number
            elif (
                held.sharing is None
                and place.handle is None
                and ((held.cpus, held.gpus) == (need.cpus, need.gpus))
            ):
                return number
        raise EngineError(
            f"no place for an actor of {need.gpus} GPUs and {need.cpus} CPUs is reserved and free"
        )

    def wait(self, refs: Sequence[Ref], timeout_s: float) -> list[Ref]:
        """References that are done, or have failed."""
        if not refs:
            return []
        ready, rest = self._ray.wait(
            list(refs), num_returns=1, timeout=max(timeout_s, 0.0), fetch_local=False
        )
        if ready and rest:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)
            ready = [*ready, *more]
        return list(ready)

    def get(self, ref: Ref) -> Any:
        """Its value."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):
                raise ActorLostError(sentence(error.cause)) from None
            raise error.cause from None
        except errors.RayError as error:  # of an actor, its machine, or what it owned
            raise ActorLostError(sentence(error)) from None

    def put(self, value: Any) -> Ref:
        """A value in the object store."""
        return self._ray.put(value)

    def kill(self, actor: Actor) -> None:
        """Ends an actor."""
        assert isinstance(actor, _RayActor)
        if actor.handle in self._handles:
            self._handles.remove(actor.handle)
        for place in self._places:
            if place.handle is actor.handle:
                place.handle = None
        self._ray.kill(actor.handle, no_restart=True)

    def end_actors(self) -> None:
        """Ends the actors; others may be started afterwards."""
        for handle in self._handles:
            self._ray.kill(handle, no_restart=True)
        self._handles = []
        for place in self._places:
            place.handle = None

    def close(self) -> None:
        """Ends the actors, and a local Ray."""
        self.end_actors()
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()


@dataclass(eq=False, slots=True)
class _Place:
    """A reserved place: the actor in it, or the names of its GPUs where several share it."""

    need: Need
    handle: Any = None
    devices: list[str] = field(default_factory=list)


def _visible_devices() -> list[str]:
    """The caller's GPUs, by CUDA's names."""
    return [name for name in os.environ.get(_DEVICES, "").split(",") if name]


class _RayActor:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def call(self, method: str, *arguments: Any, lane: Lane = "work", results: int = 1) -> Any:
        remote = getattr(self.handle, method)
        return remote.options(concurrency_group=lane, num_returns=results).remote(*arguments)


def _require_answer(address: str) -> None:
    """Raises EngineError where nothing listens there: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise EngineError(f"{address!r} is no address of Ray: give host:port, auto or {LOCAL}")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise EngineError(f"no Ray cluster answers at {address}: {sentence(error)}") from None


def _silence() -> None:
    """Keeps Ray from printing a page about each process that ends."""
    with suppress(Exception):  # it has no public switch for it
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

        dispatcher.remove_handler("ray_print_logs")


def _require_token() -> None:
    """Has our own Ray, which listens on every interface, ask for a token that only its processes
    get. Ray reads this when it is imported."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
