"""Pages in a real browser: in ``rollcast explore``, moving a slider changes what is shown;
report.html fits, answers, and runs nothing of a scenario's."""

import http.client
import os
import re
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
from urllib.parse import urlsplit

import pytest

from rollcast.simulator.explore.knobs import price_of
from tests.browser.conftest import LAPTOP, PHONE, Opened
from tests.running import exit_code
from tests.scenarios import COST, TINY

Visit = Callable[..., Opened]
ROOT = Path(__file__).parents[2]
NAME = "<script>alert(1)</script><b>x</b>"
SOON_MS = 60_000  # on a machine however slow
SCENARIO = f'name: "{NAME}"\nmodel: qwen3-1.7b\ngpu: h100-sxm\n' + TINY.replace(
    "{replicas: 2}", "{replicas: 2, trainer_gpus: 2}"
).replace(COST, "")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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


SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET_PATH = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


def status(place: str, path: str = "/", **headers: str) -> int:
    connection = http.client.HTTPConnection(place, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": place, **headers})
        with connection.getresponse() as response:
            return response.status
    finally:
        connection.close()


def test_a_page_that_is_served_answers_itself_alone(address: str) -> None:
    """Without a browser."""
    place = urlsplit(address).netloc
    assert status(place) == 200
    assert status(place, Host="evil.example") == 403
    assert status(place, Origin="http://evil.example") == 403
    page, other = {"Origin": f"http://{place}"}, {"Origin": "http://evil.example"}
    assert status(place, SOCKET_PATH, **SOCKET, **page) == 101
    assert status(place, SOCKET_PATH, **SOCKET, **other) == 403


# report.html


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\"'"
LABEL = "<b>bold</b>\x1bc = april"


@pytest.fixture(scope="module")
def reports(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of a comparison and of a plan, whose scenario has markup for a name."""
    folder = tmp_path_factory.mktemp("reports")
    scenario = folder / "tiny.yaml"
    priced = TINY.replace("steps: 3", "steps: 24")
    # repr() is also YAML's way of writing escapes in double quotes
    name = EVIL.replace("\x1b", "\\e").replace('"', '\\"')
    scenario.write_text(f'name: "{name}"\n{priced}')
    asked = {
        "compare": ["--policy", "sync", "--policy", LABEL, "--policy", "pods(keep=2)"],
        "plan": [
            "--choose=workload.group_size=2,4",
            *("--policy=sync", "--policy=april", "--run=steps=20"),
            *("--no-intervals", "--workers=1"),
        ],
    }
    for command, more in asked.items():
        assert exit_code(command, scenario, *more, "--out", folder / command) == 0
    return {command: (folder / command / "report.html").as_uri() for command in asked}


@pytest.mark.parametrize("command", ["compare", "plan"])
def test_a_report_fits_and_is_quiet(
    reports: dict[str, str], visit: Visit, width: int, command: str
) -> None:
    opened = visit(reports[command], width)
    opened.fits()
    for summary in opened.page.locator("summary").all():
        summary.click()
    opened.fits()
    opened.quiet()
    assert opened.asked == [reports[command]]


@pytest.mark.parametrize("command", ["compare", "plan"])
def test_names_are_text(reports: dict[str, str], visit: Visit, command: str) -> None:
    opened = visit(reports[command])
    page = opened.page
    title = page.locator("h1").inner_text()
    assert title == EVIL.replace("\x1b", r"\x1b")
    assert page.title() == title
    assert page.locator("main script, main img, main b").count() == 0
    if command == "compare":
        page.locator("table th.text", has_text="<b>bold</b>").first.hover()
        assert page.locator("table").first.inner_text().count(r"\x1b") == 1
        for dot in page.locator(".dot").all():
            dot.hover(force=True)
    opened.quiet()


def tip(page: Any) -> str:
    shown = page.locator("#tip")
    return str(shown.inner_text()) if shown.is_visible() else ""


def test_the_front_answers_pointer_and_keyboard(
    reports: dict[str, str], visit: Visit, width: int
) -> None:
    page = visit(reports["compare"], width).page
    dots = page.locator(".dot")
    assert dots.count() == 3
    assert tip(page) == ""
    dots.first.scroll_into_view_if_needed()
    dots.first.hover()
    assert re.search(r"\n.* a step \(.*\)\n", tip(page))
    assert tip(page) == dots.first.get_attribute("data-tip")
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    dots.nth(0).focus()
    page.keyboard.press("Tab")
    assert tip(page) == dots.nth(1).get_attribute("data-tip")
    page.keyboard.press("Escape")
    assert tip(page) == ""


def test_the_timeline_answers(reports: dict[str, str], visit: Visit) -> None:
    page = visit(reports["compare"]).page
    runs = page.locator(".run")
    assert runs.count() == 2
    assert runs.first.locator("h3").inner_text().startswith("sync")
    step = runs.first.locator(".hit").nth(1)
    step.focus()
    assert tip(page).startswith("Step 1: ")
    assert "\nrollout" in tip(page)


def test_the_ledger_sums_to_all(reports: dict[str, str], visit: Visit) -> None:
    page = visit(reports["compare"]).page
    shares = page.eval_on_selector_all(
        ".bar",
        "bars => bars.map(b => [...b.children].reduce((s, c) => s + c.offsetWidth, 0)"
        " / b.offsetWidth)",
    )
    assert len(shares) == 6
    assert all(0.97 < share <= 1.0 for share in shares)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_read_easily(reports: dict[str, str], visit: Visit, scheme: str) -> None:
    """Contrast of at least 4.5 (WCAG 2.1, AA), over the ground that each text stands on."""
    page = visit(reports["compare"], LAPTOP, scheme).page
    worst = page.evaluate(CONTRASTS)
    assert worst["ratio"] >= 4.5, worst


CONTRASTS = """() => {
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => {
    v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = colour(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  let worst = {ratio: 99};
  for (const e of document.querySelectorAll('h1,h2,h3,p,td,th,dt,dd,small,summary,li,pre,text')) {
    if (!e.textContent.trim() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = light(colour(e.tagName === 'text' ? style.fill : style.color));
    const under = light(ground(e));
    const ratio = (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    if (ratio < worst.ratio) worst = {ratio, what: e.tagName, text: e.textContent.slice(0, 40)};
  }
  return worst;
}"""


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
    from rollcast.simulator.explore.app import is_allowed  # brings NiceGUI

    assert is_allowed(headers) is allowed
