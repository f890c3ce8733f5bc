"""A driver that is killed by SIGKILL: nothing of it stays, and another one goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (engine/engine-cpu.lock)", allow_module_level=True)
if find_spec("ray") is None:
    pytest.skip("Ray is not installed (rollcast[ray])", allow_module_level=True)

from actor_threads import FOLDERS
from test_actor_resume import SCENARIO

from simulator.studies.replayed import replay

STEPS = 8
PATIENCE_S = 300.0


def begin(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    paths = [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    script = Path(__file__).parent / "actor_driver.py"
    command = [sys.executable, str(script), str(folder / "scenario.yaml"), str(folder / "out")]
    return subprocess.Popen([*command, *options], env=environment)


def steps_saved(folder: Path) -> int:
    """Steps of the last whole save."""
    try:
        number = json.loads((folder / "out.running" / "checkpoint.json").read_text())["number"]
        state = (folder / "out.running" / f"state-{number}.json").read_text()
        return int(json.loads(state)["steps"])
    except (OSError, ValueError):
        return -1


def test_a_killed_driver_is_resumed_by_another(tmp_path: Path) -> None:
    text = SCENARIO.replace("POLICY", "fully_async").replace("steps: 5", f"steps: {STEPS}")
    text = text.replace("replicas: 2", "replicas: 1")
    (tmp_path / "scenario.yaml").write_text(text)
    driver = begin(tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while steps_saved(tmp_path) < 2:
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    done = steps_saved(tmp_path)
    assert 2 <= done < STEPS
    assert begin(tmp_path, "--resume").wait(PATIENCE_S) == 0
    found = replay(tmp_path / "out")
    assert found.differs is None
    assert found.run.ledger.balance == 0
    assert len(found.run.steps) == STEPS
    updates = (tmp_path / "out" / "updates.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in updates] == list(range(STEPS))
