"""Whose requests ``rollcast explore`` answers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from rollcast.simulator.explore.app import is_allowed
from tests.browser.test_browser_explore import served
from tests.scenarios import TINY

SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET_PATH = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8080"}, True),
        ({"host": "LOCALHOST:9000"}, True),
        ({"host": "[::1]:8080"}, True),
        ({"host": "localhost:8080", "origin": "http://localhost:8080"}, True),
        ({"host": "localhost:8080", "sec-fetch-site": "none"}, True),
        ({"host": "localhost:8080", "sec-fetch-site": "same-origin"}, True),
        (
            {"host": "localhost:80", "sec-fetch-site": "cross-site", "sec-fetch-dest": "document"},
            True,
        ),
        ({}, False),
        ({"host": ""}, False),
        ({"host": "[::1"}, False),
        ({"host": "evil.example:8080"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "localhost:8080", "origin": "http://evil.example"}, False),
        ({"host": "localhost:8080", "origin": "http://localhost:9999"}, False),
        ({"host": "localhost:8080", "origin": "null"}, False),
        (
            {"host": "localhost:80", "sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"},
            False,
        ),
        ({"host": "localhost:80", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_the_page_and_its_user_are_allowed(headers: dict[str, str], allowed: bool) -> None:
    assert is_allowed(headers) is allowed


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guard")
    (folder / "tiny.yaml").write_text(TINY)
    with served(folder / "tiny.yaml", folder / "log") as url:
        yield urlsplit(url).netloc


def status(place: str, path: str = "/", **headers: str) -> int:
    connection = http.client.HTTPConnection(place, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": place, **headers})
        with connection.getresponse() as response:
            return response.status
    finally:
        connection.close()


def test_a_page_that_is_served_answers_itself_alone(place: str) -> None:
    assert status(place) == 200
    assert status(place, Host="evil.example") == 403
    assert status(place, Origin="http://evil.example") == 403
    page, other = {"Origin": f"http://{place}"}, {"Origin": "http://evil.example"}
    assert status(place, SOCKET_PATH, **SOCKET, **page) == 101
    assert status(place, SOCKET_PATH, **SOCKET, **other) == 403
