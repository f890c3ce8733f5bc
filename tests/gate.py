"""``make test``: the tests that run vLLM and torch in their own process, beside three workers that
run all others; one summary of both. Arguments go to both (``-k ...``).

pytest's workers all import what they collect, so one process alone imports engines. Four processes
serve two cores, since tests of real runs wait a fifth of their time for processes, Ray and signals,
and those of the command line wait for processes.
Plug-ins are named: of those that pytest finds by itself, it rewrites and compiles every module of
their packages, which are ours and Hypothesis too, in each process.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ENGINES = ("tests/engine", "tests/conformance", "tests/actors")
PLUGINS = ("xdist", "pytest_timeout", "_hypothesis_pytestplugin", "rollcast.pytest_plugin")
NO_TESTS = 5  # pytest's exit code where arguments leave none


def counted(report: Path) -> dict[str, int]:
    """How many tests of a JUnit report ended in which way."""
    suites = ET.parse(report).getroot().iter("testsuite") if report.exists() else ()
    ways = {"failed": 0, "passed": 0, "skipped": 0, "errors": 0}
    for suite in suites:
        tests, failed, errors, skipped = (
            int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
        )
        ended = (failed, tests - failed - errors - skipped, skipped, errors)
        ways = {way: ways[way] + count for way, count in zip(ways, ended, strict=True)}
    return ways


def main(arguments: list[str]) -> int:
    """Runs both; the worse of their exit codes."""
    begun = time.monotonic()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what one process compiles, the others read
    pytest = [sys.executable, "-m", "pytest", "--max-worker-restart", "2"]
    pytest += [word for plugin in PLUGINS for word in ("-p", plugin)]
    rest = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"{name}.xml" for name in ("engines", "others")]
        asked = [[*arguments, "--junitxml", str(report)] for report in reports]
        printed = Path(folder) / "engines.txt"
        with printed.open("wb") as into:
            engines = subprocess.Popen(
                [*pytest, "-n", "1", "-p", "no:cacheprovider", *asked[0], *ENGINES],
                stdout=into,
                stderr=subprocess.STDOUT,
            )
            try:
                ignored = [f"--ignore={tests}" for tests in ENGINES]
                # behind the engines, which would end last: three so nice get one core of the two
                nicely = ["nice", "-n", "5", *pytest, *ignored]
                if not any(Path("tests/__pycache__").glob("*-pytest-*.pyc")):
                    # each of the three would rewrite all assertions by itself, at once
                    subprocess.run([*nicely, "--collect-only"], stdout=subprocess.DEVNULL)
                others = [*nicely, *rest, *asked[1]]
                codes = [subprocess.run(others, check=False).returncode]
                codes.append(engines.wait())
            except KeyboardInterrupt:
                return 130
            finally:
                engines.terminate()
                engines.wait()
        print("Tests with vLLM and torch in their process:")
        print(printed.read_text("utf-8", errors="replace"))
        one, other = (counted(report) for report in reports)
    both = {way: one[way] + other[way] for way in one}
    seconds = time.monotonic() - begun
    said = ", ".join(f"{count} {way}" for way, count in both.items() if count)
    print(f" {said or 'no tests ran'} in {seconds:.2f}s ({seconds / 60:.0f} min) ".center(80, "="))
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return max(failed) if failed else min(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
