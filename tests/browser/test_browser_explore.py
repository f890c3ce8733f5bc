"""``rollcast explore`` in a real browser: moving a slider changes what is shown."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.explore.knobs import price_of
from tests.browser.conftest import PHONE, Opened
from tests.scenarios import COST, TINY

Visit = Callable[..., Opened]
ROOT = Path(__file__).parents[2]
NAME = "<script>alert(1)</script><b>x</b>"
SOON_MS = 60_000  # on a machine however slow
SCENARIO = f'name: "{NAME}"\nmodel: qwen3-1.7b\ngpu: h100-sxm\n' + TINY.replace(
    "{replicas: 2}", "{replicas: 2, trainer_gpus: 2}"
).replace(COST, "")


@pytest.fixture(scope="module")
def address(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page of a small scenario is served."""
    folder = tmp_path_factory.mktemp("explore")
    (folder / "tiny.yaml").write_text(SCENARIO)
    with served(folder / "tiny.yaml", folder / "said") as url:
        yield url


@contextmanager
def served(scenario: Path, log: Path) -> Iterator[str]:
    """Serves a page by a process of its own, and sees to it that it stops without complaint."""
    pytest.importorskip("nicegui", reason="nicegui is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rollcast", "explore", str(scenario)]
    # NiceGUI has ways of its own below pytest, and nobody else starts it there
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(ROOT)
    with log.open("w+") as said:
        process = subprocess.Popen(
            [*command, "--no-browser", "--port", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}/"
            wait_for(url, process, log)
            yield url
        finally:
            process.terminate()
            code = process.wait(60)
    text = log.read_text()
    assert "Traceback" not in text, text
    assert code in (0, -15, 143), text


def wait_for(url: str, process: subprocess.Popen[bytes], said: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, said.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"nothing answers: {said.read_text()}")


def ready(opened: Opened) -> Any:
    opened.page.wait_for_selector(".answers[aria-busy=false] .dot", timeout=SOON_MS)
    return opened.page


def move(page: Any, knob: str, key: str, times: int = 1) -> None:
    slider = page.locator(f'[data-knob="{knob}"] input')
    slider.focus()
    for _ in range(times):
        slider.press(key)


def until(page: Any, script: str, argument: Any = None) -> None:
    page.wait_for_function(script, arg=argument, timeout=SOON_MS)


SAID = "before => document.querySelector('.said').innerText !== before"


def test_the_page_fits_is_quiet_and_follows_a_slider(
    address: str, visit: Visit, width: int
) -> None:
    opened = visit(address, width)
    page = ready(opened)
    opened.fits()
    assert page.locator("h1").inner_text() == NAME
    assert page.title().startswith(NAME)
    assert page.locator(".explore script, .explore b").count() == 0
    assert page.locator(".answers table tbody tr").count() >= 3
    assert page.locator(".dot").count() > 6
    page.locator(".dot.chosen").focus()
    assert page.locator("#tip").inner_text().startswith("april on 2 GPUs")
    table = page.get_by_role("table", name="Policies")
    timeline = page.locator(".answers .run").first
    before = table.inner_text(), timeline.inner_html(), page.locator(".said").inner_text()
    move(page, "workload.group_size", "ArrowRight")
    until(page, SAID, before[2])
    assert page.locator('[data-knob="workload.group_size"] .value').inner_text() == "8"
    assert table.inner_text() != before[0]
    assert page.locator(".answers .run").first.inner_html() != before[1]
    move(page, "workload.group_size", "ArrowLeft")
    until(page, "before => document.querySelector('.said').innerText === before", before[2])
    opened.quiet()


def test_the_last_of_many_moves_is_what_is_shown(address: str, visit: Visit) -> None:
    page = ready(visit(address))
    move(page, "workload.max_new_tokens", "ArrowLeft", 2)
    move(page, "steps", "ArrowRight", 3)
    until(page, "() => document.querySelector('.said').innerText.includes('100 steps')")
    knob = page.locator('[data-knob="steps"] input')
    assert knob.get_attribute("aria-valuetext") == "100"


def test_another_gpu_brings_its_price(address: str, visit: Visit) -> None:
    opened = visit(address)
    page = ready(opened)
    price = page.locator('[data-knob="usd_per_hour"]')
    assert price.locator(".value").inner_text() == "$2.50 an hour"
    page.locator('[data-knob="gpu"] [role=combobox]').click()
    page.get_by_role("option", name="h200-sxm", exact=True).click()
    until(page, "() => document.querySelector('.said').innerText.includes('h200-sxm')")
    value = f"${price_of('h200-sxm'):.2f} an hour"
    assert price.locator(".value").inner_text() == value
    assert price.locator("input").get_attribute("aria-valuetext") == value
    before = int(price.locator("input").input_value())
    move(page, "usd_per_hour", "ArrowRight")
    assert int(price.locator("input").input_value()) == before + 1
    until(
        page,
        "before => !document.querySelector('[data-knob=usd_per_hour]').innerText.includes(before)",
        value,
    )
    opened.quiet()


def test_policies_of_other_placements_are_said_to_be_impossible(address: str, visit: Visit) -> None:
    opened = visit(address)
    page = ready(opened)
    until(page, "() => document.querySelector('.answers .notes') !== null")
    assert "needs cluster.placement: disaggregated" in page.locator(".answers .notes").inner_text()
    assert page.locator('[data-knob="trainer_share"] input').is_disabled()
    page.locator('[data-knob="placement"]').get_by_text("disaggregated").click()
    until(page, "() => document.querySelector('.answers tbody').innerText.includes('fully_async')")
    assert page.locator('[data-knob="trainer_share"] input').is_enabled()
    opened.quiet()


def test_what_cannot_be_is_a_sentence(address: str, visit: Visit) -> None:
    opened = visit(address, PHONE)
    page = ready(opened)
    page.locator('[data-knob="tensor_parallel"]').get_by_role("button", name="8").click()
    until(page, "() => document.querySelector('.said [role=alert]') !== null")
    said = page.locator(".said").inner_text()
    assert "2 GPUs cannot be divided into replicas of 8" in said
    assert "Traceback" not in page.content()
    opened.fits()
    page.locator('[data-knob="tensor_parallel"]').get_by_role("button", name="1").click()
    page.wait_for_selector(".answers .run", timeout=SOON_MS)
    opened.quiet()
