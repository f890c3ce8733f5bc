"""From a slider to its picture: ``python benchmarks/explore.py [--runs N]``.

Serves the page of examples/april.yaml (Qwen3-8B on 8 H100, 32 x 8 rollouts a step), moves sliders
in a headless Chromium to values that were never simulated before, and takes the time in the browser
from the key press to the first new picture (the chosen policy beside the synchronous one), and to
the last (all policies, on half and twice the GPUs too). Also values that are known already.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "explore.json"
TARGET_S = 0.5
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
KNOBS = (
    "workload.group_size",
    "workload.max_new_tokens",
    "workload.lengths.median_tokens",
    "workload.lengths.between_sd",
    "workload.lengths.within_sd",
    "over_sampling",
)

# Times of each change of the pictures, from the first key press on.
WATCH = """() => {
  window.seen = [];
  window.pressed = null;
  document.addEventListener('keydown', () => { window.pressed = performance.now(); },
                            {once: true, capture: true});
  if (window.watch) window.watch.disconnect();
  window.watch = new MutationObserver((changes) => {
    if (changes.some((change) => change.target.classList?.contains('answers')))
      requestAnimationFrame(() => setTimeout(
        () => window.seen.push(performance.now() - window.pressed)));
  });
  window.watch.observe(document.querySelector('.explore'), {childList: true, subtree: true});
}"""


@contextmanager
def served(scenario: Path) -> Iterator[str]:
    """The address of the page, while it is up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rollcast.simulator.cli.app", "explore", str(scenario)]
    process = subprocess.Popen(
        [*command, "--no-browser", "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def moved(page: Any, knob: str, key: str) -> tuple[float, float]:
    """Seconds from the key press to the first new picture, and to the last."""
    slider = page.locator(f'[data-knob="{knob}"] input')
    slider.focus()
    page.evaluate(WATCH)
    slider.press(key)
    page.wait_for_function("() => window.seen.length > 0", timeout=60_000)
    page.wait_for_selector(".answers[aria-busy=false]", timeout=60_000)
    page.wait_for_timeout(300)
    seen = page.evaluate("() => window.seen")
    return seen[0] / 1000, seen[-1] / 1000


def measure(runs: int) -> dict[str, Any]:
    """Medians and worst of ``runs`` moves of each slider, to new values and to known ones."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    first: list[float] = []
    last: list[float] = []
    known: list[float] = []
    with sync_playwright() as driver, served(ROOT / "examples" / "april.yaml") as url:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.wait_for_selector(".answers[aria-busy=false] .dot", timeout=60_000)
        for knob in KNOBS:
            for _ in range(runs):
                new = moved(page, knob, "ArrowLeft")
                first.append(new[0])
                last.append(new[1])
            known += [moved(page, knob, "ArrowRight")[0] for _ in range(runs)]
        browser.close()
    return {
        "moves": len(first),
        "target_s": TARGET_S,
        "first_picture_s": summary(first),
        "all_pictures_s": summary(last),
        "known_picture_s": summary(known),
        "cores": os.cpu_count(),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median and worst."""
    return {"median": round(statistics.median(values), 3), "worst": round(max(values), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="moves of each slider")
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.relative_to(ROOT)}")
    asked = parser.parse_args()
    results = measure(asked.runs)
    print(json.dumps(results, indent=1))
    if asked.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
