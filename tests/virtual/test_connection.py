"""HTTP as `rollcast serve` speaks it, however its bytes are cut."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.virtual.http.connection import LONGEST_HEAD, Connection
from rollcast.simulator.virtual.http.messages import Request, Response


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def echo(request: Request) -> Response:
    await asyncio.sleep(0)
    if request.path == "/stream":

        async def parts() -> AsyncIterator[bytes]:
            for number in range(3):
                yield f"data: {number}\n\n".encode()

        return Response(stream=parts())
    if request.path == "/fails":
        raise RuntimeError("no more")
    return Response([request.method, request.path, dict(request.query), dict(request.body)])


def exchange(*pieces: bytes) -> Wire:
    """What is answered to bytes that come in these pieces."""

    async def main() -> Wire:
        wire = Wire()
        connection = Connection(echo, lambda: 1.5, set())
        connection.connection_made(wire)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        return wire

    return asyncio.run(main())


def answers(written: bytes) -> list[tuple[int, Any]]:
    """Status and JSON of each answer with a length."""
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        assert headers["x-rollcast-virtual-s"] == "1.500000"
        size = int(headers["content-length"])
        found.append((int(lines[0].split()[1]), json.loads(rest[:size] or b"null")))
        written = rest[size:]
    return found


BODY = json.dumps({"prompt": "say", "max_tokens": 3}).encode()
WITH_LENGTH = b"POST /a?x=1&y= HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
IN_CHUNKS = (
    b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n%b\r\n%x;of=it\r\n%b\r\n0\r\nTrailer: t\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
)
BARE = b"\r\nGET http://h:1/c HTTP/1.1\r\nhost: h\r\n\r\n"
ALL = WITH_LENGTH + IN_CHUNKS + BARE
WANTED = [
    (200, ["POST", "/a", {"x": "1", "y": ""}, json.loads(BODY)]),
    (200, ["POST", "/b", {}, json.loads(BODY)]),
    (200, ["GET", "/c", {}, {}]),
]


@given(st.lists(st.integers(0, len(ALL)), max_size=12))
def test_requests_are_understood_however_they_are_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(ALL)]
    wire = exchange(*(ALL[a:b] for a, b in itertools.pairwise(at)))
    assert answers(wire.written) == WANTED
    assert not wire.closed


def test_streams_come_in_chunks() -> None:
    written = exchange(b"GET /stream HTTP/1.1\r\n\r\n").written
    head, _, body = written.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"text/event-stream" in head
    assert body == b"".join(b"9\r\ndata: %d\n\n\r\n" % n for n in range(3)) + b"0\r\n\r\n"


def test_a_client_that_expects_to_be_told_to_go_on_is() -> None:
    head, body = WITH_LENGTH.replace(b"Content", b"Expect: 100-continue\r\nContent").split(
        b"\r\n\r\n"
    )
    wire = exchange(head + b"\r\n\r\n", body)
    go_on, _, rest = wire.written.partition(b"\r\n\r\n")
    assert go_on == b"HTTP/1.1 100 Continue"
    assert answers(rest) == WANTED[:1]


@pytest.mark.parametrize(
    "head", [b"GET /c HTTP/1.0\r\n\r\n", b"GET /c HTTP/1.1\r\nConnection: close\r\n\r\n"]
)
def test_who_wants_it_closed_has_it_closed(head: bytes) -> None:
    wire = exchange(head)
    assert wire.closed
    assert b"\r\nconnection: close" in wire.written


def test_a_head_has_no_body() -> None:
    assert exchange(b"HEAD /c HTTP/1.1\r\n\r\n").written.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"\x16\x03\x01\x02 TLS\r\n\r\n", 400, "is no request line"),
        (b"GET /c HTTP/2\r\n\r\n", 400, "is no request line"),
        (b"GET /c HTTP/1.1\r\nno header\r\n\r\n", 400, "'no header' is no header"),
        (b"POST /c HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "content-length is '-1'"),
        (b"POST /c HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413, "longer than"),
        (b"POST /c HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "'gzip' is not understood"),
        (b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxy\r\n", 400, "is no size"),
        (b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", 400, "is no size"),
        (b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", 400, "longer than its"),
        (b"GET /" + b"a" * LONGEST_HEAD, 431, "headers are longer"),
    ],
)
def test_what_is_no_http_is_told_and_ends_the_connection(
    sent: bytes, status: int, said: str
) -> None:
    wire = exchange(sent)
    [(code, body)] = answers(wire.written)
    assert code == status
    assert said in body["error"]["message"]
    assert wire.closed


def test_no_json_is_told_and_the_connection_goes_on() -> None:
    wire = exchange(b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\n{a}" + BARE)
    (code, body), after = answers(wire.written)
    assert code == 400
    assert "the body is no JSON" in body["error"]["message"]
    assert after == WANTED[2]


def test_a_failure_of_ours_is_told_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [(code, body)] = answers(exchange(b"GET /fails HTTP/1.1\r\n\r\n").written)
    assert code == 500
    assert "RuntimeError: no more" in body["error"]["message"]
    assert "RuntimeError: no more" in capsys.readouterr().err


def test_who_leaves_cancels_and_slow_readers_are_waited_for() -> None:
    ended: list[str] = []

    async def slow(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                for _ in range(3):
                    yield b"x"
                    ended.append("part")
            finally:
                ended.append("closed")

        return Response(stream=parts())

    async def main() -> None:
        connection, wire = Connection(slow, lambda: 0.0, set()), Wire()
        connection.connection_made(wire)
        connection.pause_writing()
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert wire.written.endswith(b"1\r\nx\r\n")
        connection.resume_writing()
        connection.pause_writing()
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == ["part"]
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended[-1] == "closed"

    asyncio.run(main())
