"""A real browser, headless, for pages as people see them: at a laptop's and a phone's width.

Chromium is the system's own; where there is none, or the library that drives it, these tests are
skipped and say so.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LAPTOP, PHONE = 1280, 390


@dataclass
class Opened:
    """A page, and what it did that it should not have."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def quiet(self) -> None:
        """No error on the console, and nothing asked of the network."""
        assert self.complaints == []
        local = ("file://", "data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:")
        assert [url for url in self.asked if not url.startswith(local)] == []

    def fits(self) -> None:
        """The page itself never scrolls sideways."""
        wide, room = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= room


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"there is no Chromium: none of {', '.join(NAMES)} is on the path")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(params=[LAPTOP, PHONE], ids=["laptop", "phone"])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens an address: ``visit(url, width, scheme)``."""
    contexts = []

    def call(url: str, width: int = LAPTOP, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        opened = Opened(context.new_page())

        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                opened.complaints.append(message.text)

        opened.page.on("console", said)
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.on("websocket", lambda socket: opened.asked.append(socket.url))
        opened.page.goto(url)
        return opened

    yield call
    for context in contexts:
        context.close()
