"""Requests and responses, however they come."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an engine. body: of JSON; {} without one."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What it is answered: JSON (a mapping or list), text, or a stream of events."""

    body: Any = None
    status: int = 200
    stream: AsyncIterator[bytes] | None = None

    @property
    def content_type(self) -> str:
        """Of the body."""
        if self.stream is not None:
            return "text/event-stream"
        if self.body is None or isinstance(self.body, str):
            return "text/plain; charset=utf-8"
        return "application/json"

    @property
    def content(self) -> bytes:
        """The body as it is sent, if it is no stream."""
        if self.body is None:
            return b""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class BadRequestError(ValueError):
    """A request that the endpoint does not take; the message says why."""


def body_of(content: bytes) -> Mapping[str, Any]:
    """The JSON object of a request. Raises BadRequestError."""
    if not content.strip():
        return {}
    try:
        body = json.loads(content)
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is no JSON object")
    return body


def whole(body: Mapping[str, Any], key: str, default: int | None, least: int = 1) -> int | None:
    """A whole number of a body. Raises BadRequestError."""
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequestError(f"{key} must be a whole number of at least {least}, got {value!r}")
    return value
