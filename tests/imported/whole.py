"""A step of the scenario that an import writes."""

from pathlib import Path

from rollcast.calibration.importing import Outcome
from rollcast.calibration.logs import write
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.pages.import_file import to_json
from rollcast.simulator.studies.simulate import load, simulate


def simulated_step_s(log: RunLog, found: Outcome, folder: Path) -> float:
    """Writes the import to the folder; seconds of a step of the file, simulated anew."""
    write.write(folder, log, found.parts, False, to_json(log, found), "")
    scenario = load(folder / "scenario.yaml", f"steps={found.step.steps}")
    return float(simulate(scenario).summary["step_s"])
