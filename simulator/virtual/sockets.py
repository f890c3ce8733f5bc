"""Sockets of a run: within this process only, and who waits for one lets the others run."""

from __future__ import annotations

import _socket
import ipaddress
import select
import socket
from typing import Any

from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.kernel import Kernel
from rollcast.simulator.virtual.report import caller

READS = ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "_accept")


class One:
    """A socket that a thread waits for, to read or to write."""

    def __init__(self, file: socket.socket, writes: bool) -> None:
        self._fd, self._writes = file.fileno(), writes

    def ready(self) -> bool:
        """Whether it can be read, or written."""
        return self._select(0.0)

    def wait(self, seconds: float) -> None:
        """Waits for that in real time."""
        self._select(seconds)

    def _select(self, seconds: float) -> bool:
        reads, writes = ([], [self._fd]) if self._writes else ([self._fd], [])
        return any(select.select(reads, writes, [], seconds))


def is_loopback(address: Any) -> bool:
    """Whether an address stays on this machine. Names other than localhost do not."""
    if not isinstance(address, tuple):
        return True  # a path of a Unix socket
    host = str(address[0])
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def _numeric(host: Any) -> bool:
    try:
        ipaddress.ip_address(str(host))
    except ValueError:
        return False
    return True


def check_name(host: Any) -> None:
    """Raises RefusedError for the name of another machine."""
    name = host.decode() if isinstance(host, bytes) else host
    if name is not None and not (is_loopback((name,)) or _numeric(name)):
        raise RefusedError(
            f"the look-up of {name} is out of reach of the virtual clock: only 127.0.0.1, ::1 "
            f"and localhost are; at {caller()}"
        )


def methods(kernel: Kernel) -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) for `socket.socket` and the look-up of names."""

    def wait(file: socket.socket, writes: bool) -> None:
        timeout = file.gettimeout()
        one = One(file, writes)
        if timeout == 0 or one.ready():
            return
        until = None if timeout is None else kernel.after(timeout)
        if not kernel.block(until, f"a socket to {'write' if writes else 'read'}", one):
            raise TimeoutError("timed out")

    def waiting(name: str, writes: bool) -> Any:
        original = getattr(_socket.socket, name)

        def method(self: socket.socket, *args: Any) -> Any:
            if kernel.mine():
                wait(self, writes)
            return original(self, *args)

        return method

    def sendall(self: socket.socket, data: Any, *flags: int) -> None:
        if not kernel.mine() or self.gettimeout() == 0:
            return _socket.socket.sendall(self, data, *flags)
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left, *flags) :]
        return None

    def connecting(name: str) -> Any:
        original = getattr(_socket.socket, name)

        def method(self: socket.socket, address: Any) -> Any:
            if kernel.mine() and not is_loopback(address):
                self.close()
                raise RefusedError(
                    f"a connection to {address} is out of reach of the virtual clock: only "
                    f"sockets within this process (127.0.0.1, ::1) are; at {caller()}"
                )
            return original(self, address)

        return method

    def sending(name: str) -> Any:
        """To an address, without a connection."""
        original = waiting(name, True)

        def method(self: socket.socket, *args: Any) -> Any:
            if kernel.mine() and args and isinstance(args[-1], tuple) and not is_loopback(args[-1]):
                raise RefusedError(
                    f"socket.{name} to {args[-1]} is out of reach of the virtual clock: only "
                    f"sockets within this process (127.0.0.1, ::1) are; at {caller()}"
                )
            return original(self, *args)

        return method

    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if kernel.mine():
            check_name(host)
        return look_up(host, *args, **options)

    return [
        *((socket.socket, name, waiting(name, False)) for name in READS),
        (socket.socket, "send", waiting("send", True)),
        *((socket.socket, name, sending(name)) for name in ("sendto", "sendmsg")),
        (socket.socket, "sendall", sendall),
        *((socket.socket, name, connecting(name)) for name in ("connect", "connect_ex")),
        (socket, "getaddrinfo", getaddrinfo),
    ]
