"""``pytest --rollcast``, as somebody's own tests use it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import asyncio

import pytest

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.trial import training_of
from tests.virtual.planes import Plane

SCENARIO = {scenario!r}
SMALL = ("steps=3", "workload.batch_groups=2", "workload.group_size=2")


@pytest.mark.rollcast(SCENARIO, *SMALL)
async def test_that_holds(fleet):
    await Plane().main(training_of(fleet))
    laws.age_bounded(fleet.journal, 2)


@pytest.mark.rollcast(SCENARIO, *SMALL)
async def test_that_waits_for_ever(fleet):
    await fleet.engines[0].generate("prompt", 5)
    await asyncio.get_running_loop().create_future()


@pytest.mark.rollcast(SCENARIO, "steps=27", "workload.batch_groups=2", "workload.group_size=2")
async def test_that_loses(fleet):
    await Plane(broken="loses one").main(training_of(fleet))


@pytest.mark.rollcast(SCENARIO, *SMALL)
def test_in_threads(fleet):
    assert fleet.ask("prompt", 5).pending.wait().new_tokens == 5


def test_of_nobody():
    pass
"""


def run_pytest(folder: Path, *options: str, found: bool = False) -> str:
    """found: the plug-in is found as an installed one, for which pytest rewrites all modules of
    rollcast; else it is named."""
    given = ["-p", "rollcast.pytest_plugin"]
    if found and "rollcast" in _installed():
        others = ("looptime_plugin", "looptime_chronometers", "looptime_timeproxies")
        given = [word for name in others for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *given]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if found else "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, env=os.environ | alone
    )
    return done.stdout + done.stderr


def _installed() -> set[str]:
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group="pytest11")}


def test_the_plug_in(tmp_path: Path) -> None:
    scenario = str(ROOT / "examples" / "fully_async.yaml")
    (tmp_path / "test_mine.py").write_text(TESTS.format(scenario=scenario))
    without = run_pytest(tmp_path, found=True)
    assert "1 passed, 4 skipped" in without, without
    assert "needs pytest --rollcast" in without
    said = run_pytest(tmp_path, "--rollcast", "--rollcast-seeds", "2")
    assert "4 failed, 5 passed" in said, said
    assert "everybody waits and nothing will ever happen" in said
    assert "2 of 84 units are lost" in said or "units are lost: neither trained" in said
    assert "rollcast: what happened, a trace for Perfetto" in said
    kept = {path.name for path in tmp_path.glob(".rollcast/*loses*/*")}
    assert kept == {"journal.txt", "trace.json.gz", "timeline.png"}
