"""One stage of the doctor, in a process of its own: ``python -m rollcast.engine.doctor STAGE``.
Standard input is a mapping of the scenario; the last line printed a list of findings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.doctor.findings import Finding
from rollcast.engine.engines import prepare_for
from rollcast.simulator.scenario.file import RawScenario


def main(stage: str, given: str) -> int:
    """Runs it; errors are printed, as by the command line, and end with 2."""
    from rollcast.engine.doctor import devices, engine, training
    from rollcast.simulator.errors import RollcastError

    stages: dict[str, Callable[[RunSpec], Iterator[Finding]]] = {
        "devices": devices.devices,
        "training": training.training,
        "engine": engine.engine,
    }
    asked = json.loads(given)
    folder = None if asked["modules"] is None else Path(asked["modules"])
    raw = RawScenario(asked["scenario"], folder=Path(asked["folder"]), modules=folder)
    found: list[Finding] = []
    code = 0
    try:
        prepare_for(raw.data)
        for finding in stages[stage](build_run(raw)):
            found.append(finding)
    except RollcastError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    print(json.dumps([asdict(finding) for finding in found]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read()))
