"""report.html in a real browser: it fits, it answers, it runs nothing of a scenario's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import LAPTOP, Opened
from tests.running import exit_code
from tests.scenarios import TINY

Visit = Callable[..., Opened]

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
