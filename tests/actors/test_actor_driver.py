"""A driver that is stopped: nothing of it stays, and another one goes on."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (engine/engine-cpu.lock)", allow_module_level=True)
if find_spec("ray") is None:
    pytest.skip("Ray is not installed (rollcast[ray])", allow_module_level=True)

from actor_threads import FOLDERS
from running_actors import make
from test_actor_resume import SCENARIO

from rollcast.engine.config import build_run
from rollcast.engine.run import run_scenario
from rollcast.simulator.runs.replay import replay
from rollcast.simulator.scenario.file import parse_scenario

STEPS = 8
PATIENCE_S = 300.0


@pytest.fixture
def ray_folders() -> Iterator[Path]:
    """Where drivers' Rays keep their files; paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def begin(folder: Path, ray_folders: Path, *options: str) -> subprocess.Popen[bytes]:
    paths = [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"RAY_FOLDERS": str(ray_folders)}
    script = Path(__file__).parent / "actor_driver.py"
    command = [sys.executable, str(script), str(folder / "scenario.yaml"), str(folder / "out")]
    with (folder / "stderr.txt").open("wb") as stderr:
        return subprocess.Popen([*command, *options], env=environment, stderr=stderr)


def steps_saved(folder: Path) -> int:
    """Steps of the last whole save."""
    try:
        saves = (folder / "out.running").glob("checkpoint-*.json")
        number = max(int(path.stem.rpartition("-")[2]) for path in saves)
        state = (folder / "out.running" / f"state-{number}.json").read_text()
        return int(json.loads(state)["steps"])
    except (OSError, ValueError):
        return -1


def test_a_driver_that_is_stopped_is_resumed_by_another(
    tmp_path: Path, ray_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once by SIGKILL, after which the next one removes its folder, and once by SIGTERM, as Slurm
    preempts. The last one runs in this process."""
    text = SCENARIO.replace("POLICY", "fully_async").replace("steps: 5", f"steps: {STEPS}")
    text = text.replace("replicas: 2", "replicas: 1")
    (tmp_path / "scenario.yaml").write_text(text)
    options: tuple[str, ...] = ()
    for number, steps in ((signal.SIGKILL, 2), (signal.SIGTERM, 4)):
        driver = begin(tmp_path, ray_folders, *options)
        deadline = time.monotonic() + PATIENCE_S
        steps = max(steps, steps_saved(tmp_path) + 1)  # it runs, and is not just starting
        while steps_saved(tmp_path) < steps:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        driver.send_signal(number)
        code = driver.wait(PATIENCE_S)
        left = len([*ray_folders.iterdir()])
        if number == signal.SIGTERM:
            assert (code, left) == (128 + signal.SIGTERM, 0)
            assert "SIGTERM received" not in (tmp_path / "stderr.txt").read_text()
        else:
            assert (code, left) == (-signal.SIGKILL, 1)
        assert steps <= steps_saved(tmp_path) < STEPS
        options = ("--resume",)
    monkeypatch.setattr(
        "rollcast.engine.start.start_actors", lambda *given: make(1, tensors=True).world
    )
    spec = build_run(parse_scenario(text, "scenario.yaml"))
    run_scenario(spec, tmp_path / "out", plot=False, resume=True)
    found = replay(tmp_path / "out")
    assert found.differs is None
    assert found.run.ledger.balance == 0
    assert len(found.run.steps) == STEPS
    updates = (tmp_path / "out" / "updates.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in updates] == list(range(STEPS))
