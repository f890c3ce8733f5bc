"""A connection of `rollcast serve`: HTTP/1.1 on asyncio's protocols.

Of HTTP it has what clients of engines use: kept connections, pipelining, bodies with a length or in
chunks, ``Expect: 100-continue``, streamed answers. It closes no idle connection: idle for a minute
of real time is hours for the engines.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response, body_of

LONGEST_HEAD = 1 << 16
LONGEST_BODY = 1 << 28
PHRASES = {status.value: status.phrase for status in HTTPStatus}

Handle = Callable[[Request], Awaitable[Response]]


class Head(NamedTuple):
    """Of a request. length: of its body in bytes; None: it comes in chunks."""

    method: str
    target: str
    length: int | None
    closes: bool
    expects: bool


class BadMessageError(Exception):
    """What came is no HTTP that is understood; the connection is closed after saying so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def head_of(raw: bytes) -> Head:
    """The request line and headers, without the empty line. Raises BadMessageError."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadMessageError(f"{first[:100]!r} is no request line of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadMessageError(f"{line[:100]!r} is no header")
        headers[name.lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    closes = "close" in connection or (parts[2] == "HTTP/1.0" and "keep-alive" not in connection)
    length: int | None = None
    coding = headers.get("transfer-encoding", "").lower()
    if coding not in ("", "chunked"):
        raise BadMessageError(f"transfer-encoding {coding[:100]!r} is not understood", 501)
    if not coding:
        said = headers.get("content-length", "0")
        if not (said.isascii() and said.isdigit()):
            raise BadMessageError(f"content-length is {said[:100]!r}, and must be a number")
        length = int(said)
        if length > LONGEST_BODY:
            raise BadMessageError(f"the body is longer than {LONGEST_BODY} bytes", 413)
    expects = headers.get("expect", "").lower() == "100-continue"
    return Head(parts[0], parts[1], length, closes, expects)


def chunks_of(buffer: bytearray) -> tuple[bytes, int] | None:
    """The body that ``buffer`` begins with in chunks, and how many bytes it takes there; None: not
    whole yet. Raises BadMessageError."""
    body, at = bytearray(), 0
    while True:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            if len(buffer) - at > LONGEST_HEAD:
                raise BadMessageError("a chunk has no size")
            return None
        digits = bytes(buffer[at:end]).partition(b";")[0].strip()
        try:
            size = int(digits, 16) if digits[:1].isalnum() else -1
        except ValueError:
            size = -1
        if size < 0:
            raise BadMessageError(f"{digits[:100]!r} is no size of a chunk")
        if len(body) + size > LONGEST_BODY:
            raise BadMessageError(f"the body is longer than {LONGEST_BODY} bytes", 413)
        at = end + 2
        if size == 0:
            while True:  # trailers
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    return None
                if end == at:
                    return bytes(body), at + 2
                at = end + 2
        if len(buffer) < at + size + 2:
            return None
        if buffer[at + size : at + size + 2] != b"\r\n":
            raise BadMessageError("a chunk is longer than its size")
        body += buffer[at : at + size]
        at += size + 2


class Connection(asyncio.Protocol):
    """Answers the requests of one connection, one after another; who leaves aborts his. handle:
    answers one. now_s: virtual seconds, told in the header ``x-rollcast-virtual-s``. open: the
    server's connections."""

    transport: asyncio.Transport

    def __init__(
        self, handle: Handle, now_s: Callable[[], float], open_ones: set[Connection]
    ) -> None:
        self._handle, self._now_s, self._open = handle, now_s, open_ones
        self._buffer = bytearray()
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._full: asyncio.Future[None] | None = None  # while the peer reads too slowly

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """As of `asyncio.Protocol`."""
        self._open.discard(self)
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()

    def pause_writing(self) -> None:
        """As of `asyncio.Protocol`."""
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """As of `asyncio.Protocol`."""
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def data_received(self, data: bytes) -> None:
        """As of `asyncio.Protocol`."""
        self._buffer += data
        if self._task is None:
            self._next()
        elif len(self._buffer) > LONGEST_HEAD:
            self.transport.pause_reading()

    def _next(self) -> None:
        """Begins to answer the next request, if it is there whole."""
        try:
            head = self._head = self._head or self._take_head()
            body = None if head is None else self._take_body(head)
        except BadMessageError as error:
            said = Response({"error": {"message": str(error), "code": error.status}}, error.status)
            self._write(said, closes=True)
            self.transport.close()
            return
        if head is None or body is None:
            return
        self._head = None
        self._task = asyncio.get_running_loop().create_task(self._answer(head, body))

    def _take_head(self) -> Head | None:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or end > LONGEST_HEAD:
            if len(buffer) > LONGEST_HEAD:
                raise BadMessageError(f"the headers are longer than {LONGEST_HEAD} bytes", 431)
            return None
        head = head_of(bytes(buffer[:end]))
        del buffer[: end + 4]
        if head.expects and not buffer:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return head

    def _take_body(self, head: Head) -> bytes | None:
        buffer = self._buffer
        if head.length is None:
            found = chunks_of(buffer)
            if found is None:
                return None
            body, size = found
        elif len(buffer) < head.length:
            return None
        else:
            size = head.length
            body = bytes(buffer[:size])
        del buffer[:size]
        return body

    async def _answer(self, head: Head, body: bytes) -> None:
        try:
            answer = await self._answer_of(head, body)
            closes = head.closes
            if answer.stream is None:
                self._write(answer, closes, head.method == "HEAD")
            else:
                await self._stream(answer, closes)
            if self._full is not None:
                await self._full
        except asyncio.CancelledError:
            closes = True
        self._task = None
        if closes:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.resume_reading()
            if self._buffer:
                self._next()

    async def _answer_of(self, head: Head, body: bytes) -> Response:
        try:
            parts = urlsplit(head.target)
            query = dict(parse_qsl(parts.query, keep_blank_values=True)) if parts.query else {}
            return await self._handle(Request(head.method, parts.path, query, body_of(body)))
        except (BadRequestError, ValueError) as error:
            return Response({"error": {"message": str(error), "code": 400}}, 400)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            said = f"rollcast failed: {type(error).__name__}: {error}"
            return Response({"error": {"message": said, "code": 500}}, 500)

    def _start(self, answer: Response, closes: bool, framing: str) -> bytes:
        status = answer.status
        end = "\r\nconnection: close\r\n\r\n" if closes else "\r\n\r\n"
        return (
            f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\ncontent-type: {answer.content_type}"
            f"\r\n{framing}\r\nx-rollcast-virtual-s: {self._now_s():.6f}{end}"
        ).encode("latin-1")

    def _write(self, answer: Response, closes: bool, headless: bool = False) -> None:
        content = answer.content
        start = self._start(answer, closes, f"content-length: {len(content)}")
        self.transport.write(start if headless else start + content)

    async def _stream(self, answer: Response, closes: bool) -> None:
        stream, write = answer.stream, self.transport.write
        assert stream is not None
        write(self._start(answer, closes, "transfer-encoding: chunked"))
        try:
            async for part in stream:
                write(b"%x\r\n%b\r\n" % (len(part), part))
                if self._full is not None:
                    await self._full
            write(b"0\r\n\r\n")
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
