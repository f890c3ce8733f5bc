"""Refuses requests of other sites in the same browser, which could read the scenario by DNS
rebinding or over a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_POLICY_VIOLATION = 1008


class SameOriginOnly:
    """An ASGI application that refuses requests and sockets of other sites."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request or socket."""
        kind = scope["type"]
        if kind not in ("http", "websocket") or is_allowed(_texts(scope["headers"])):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": b"Not for other sites.\n"})


def is_allowed(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from the page itself or the user's navigation.

    headers: by lower-case name. The host must be this machine's, on any port; the origin, if sent,
    the same host. Without an origin, embedding by other sites is refused.
    """
    host = headers.get("host", "")
    if _name(host) not in _HERE:
        return False
    if "origin" in headers:
        return headers["origin"] in (f"http://{host}", f"https://{host}")
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    return headers.get("sec-fetch-dest") == "document"  # a link that somebody follows


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
