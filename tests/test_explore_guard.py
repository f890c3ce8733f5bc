"""Whose requests ``rollcast explore`` answers; `tests.browser` asks a page that is served."""

from __future__ import annotations

import pytest

from rollcast.simulator.explore.app import is_allowed


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
