"""Measures a campaign: many real runs, and what of them is worth keeping.

``python -m benchmarks.measure CAMPAIGN.yaml --work DIR --out DIR``. Every run is a `rollcast run`
of its own process; finished ones are kept in ``--work`` and not made again, an unfinished one is
resumed. ``--out`` gets each run as `calibration.folder.RunFolder` reads it, its tables compressed,
and a probe of trainer and engine.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from benchmarks.runner import fails_in_words, parser, progress
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.fitted_file import PROBE_FILE
from rollcast.simulator.values import AtLeast, check_unknown_keys, flag, whole

CAMPAIGN = Path(__file__).parent / "data" / "real" / "campaign.yaml"
DIGITS = 6  # a microsecond
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Measurement:
    """One real run of a campaign's ``entry``. settings: keys of the scenario that it changes.
    iterations: whether the table of its iterations is kept, which calibrating needs."""

    entry: str
    policy: str
    seed: int
    steps: int
    settings: Mapping[str, Any]
    iterations: bool = False

    @property
    def name(self) -> str:
        return f"{self.entry}-{self.seed}"


@dataclass(frozen=True)
class Campaign:
    """A scenario and the runs to make of it, in the order in which they are made."""

    scenario: Path
    runs: tuple[Measurement, ...]

    @classmethod
    def read(cls, path: Path) -> Campaign:
        """Reads a campaign's file. Raises ScenarioError that names the key."""
        try:
            content = yaml.safe_load(path.read_text("utf-8"))
        except OSError as error:
            raise ScenarioError("CAMPAIGN", f"cannot read {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise ScenarioError("CAMPAIGN", f"{path} is not YAML: {reason}") from None
        if not isinstance(content, dict):
            raise ScenarioError("CAMPAIGN", f"{path} holds no mapping")
        check_unknown_keys(content, ("scenario", "runs"), "")
        scenario, runs = content.get("scenario"), content.get("runs")
        if not isinstance(scenario, str):
            raise ScenarioError("scenario", "give the path of a scenario's file")
        if not isinstance(runs, dict) or not runs:
            raise ScenarioError("runs", "give a mapping of runs")
        entries = [list(_runs(str(name), entry)) for name, entry in runs.items()]
        return cls(path.parent / scenario, tuple(spread(entries)))


def spread(entries: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The runs of all entries in the order in which to make them: each entry's evenly spread over
    the whole campaign, so that a machine's slow hours fall on all of them alike, and the entries
    shifted against each other by the golden ratio."""
    places = [
        ((number + shift * GOLDEN % 1.0) / len(entry), shift, number)
        for shift, entry in enumerate(entries)
        for number in range(len(entry))
    ]
    return [entries[shift][number] for _, shift, number in sorted(places)]


def _runs(name: str, entry: Any) -> Iterator[Measurement]:
    field = f"runs.{name}"
    if not isinstance(entry, dict):
        raise ScenarioError(field, "must be a mapping of policy, seeds and steps")
    check_unknown_keys(entry, ("policy", "seeds", "steps", "set", "iterations"), field)
    for key in ("policy", "seeds", "steps"):
        if key not in entry:
            raise ScenarioError(f"{field}.{key}", "missing")
    if not isinstance(entry["policy"], str):
        raise ScenarioError(f"{field}.policy", f"{entry['policy']!r} is not text")
    if not isinstance(entry["seeds"], list) or not entry["seeds"]:
        raise ScenarioError(f"{field}.seeds", "must be a list of whole numbers")
    settings = entry.get("set") or {}
    if not isinstance(settings, dict):
        raise ScenarioError(f"{field}.set", "must be a mapping of a scenario's keys")
    steps = whole(entry["steps"], f"{field}.steps", AtLeast(1))
    iterations = flag(entry.get("iterations", False), f"{field}.iterations")
    for given in entry["seeds"]:
        seed = whole(given, f"{field}.seeds")
        yield Measurement(name, entry["policy"], seed, steps, settings, iterations)


def command(campaign: Campaign, run: Measurement, out: Path, resume: bool) -> list[str]:
    settings = {**run.settings, "policy": run.policy, "steps": run.steps}
    return [
        *(sys.executable, "-m", "rollcast", "run", str(campaign.scenario), "--no-plot"),
        *(f"--out={out}", f"--seed={run.seed}"),
        *(f"--set={key}={json.dumps(value)}" for key, value in settings.items()),
        *(["--resume"] if resume else []),
    ]


def measure(campaign: Campaign, run: Measurement, work: Path) -> Path:
    """Makes one run, unless its folder is there already, and returns that folder.

    Raises ScenarioError (``runs``) where it fails.
    """
    from rollcast.engine.checkpoint import exists

    folder = work / run.name
    if not (folder / schema.SUMMARY.name).exists():
        work.mkdir(parents=True, exist_ok=True)
        asked = command(campaign, run, folder, exists(folder))
        _call(asked, f"runs.{run.entry}", run.name)
    return folder


def probe(campaign: Campaign, work: Path) -> Path:
    """Probes trainer and engine as the runs to calibrate on have them, unless that was done before,
    and returns the file.

    Raises ScenarioError (``scenario``) where it fails.
    """
    file = work / PROBE_FILE
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        settings = next((run.settings for run in campaign.runs if run.iterations), {})
        asked = [sys.executable, "-m", "rollcast", "probe", str(campaign.scenario)]
        asked += [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        _call([*asked, f"--output={file}"], "scenario", "the probe")
    return file


def _call(asked: list[str], field: str, name: str) -> None:
    # One thread: a second one waits for the first, and on a shared machine for everyone else.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ScenarioError(field, f"{name} failed: {reason}")


def keep(folder: Path, out: Path, iterations: bool = True) -> None:
    """Copies what `RunFolder` reads of a run to ``out``, whole or not at all: tables to the
    microsecond, and compressed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        draft = Path(name) / "run"
        draft.mkdir()
        for file in schema.RUN:
            source = folder / file.name
            if file is schema.ITERATIONS and not iterations:
                continue
            if file.optional and not source.exists():  # of a simulated run
                continue
            if isinstance(file, schema.Table):
                rounded = pd.read_csv(source).round(DIGITS).to_csv(index=False)
                _compress(rounded.encode(), draft / file.name)
            elif isinstance(file, schema.Lines):
                _compress(source.read_bytes(), draft / file.name)
            elif isinstance(file, schema.Document):
                shutil.copyfile(source, draft / file.name)
        if out.exists():
            shutil.rmtree(out)
        draft.rename(out)


def _compress(content: bytes, path: Path) -> None:
    path.with_name(f"{path.name}{schema.PACKED}").write_bytes(gzip.compress(content, mtime=0))


@fails_in_words
def main() -> int:
    """Measures a campaign; exit code 2 with one sentence where it cannot."""
    options = parser(__doc__)
    options.add_argument("campaign", nargs="?", type=Path, default=CAMPAIGN)
    options.add_argument("--work", type=Path, default=Path("measured"), help="whole run folders")
    options.add_argument("--out", type=Path, help="where the compressed runs go")
    given = options.parse_args()
    campaign = Campaign.read(given.campaign)
    progress("probing the trainer")
    probed = probe(campaign, given.work)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(probed, given.out / PROBE_FILE)
    for number, run in enumerate(campaign.runs, 1):
        progress(f"{number}/{len(campaign.runs)} {run.name}")
        folder = measure(campaign, run, given.work)
        if given.out is not None:
            keep(folder, given.out / run.name, run.iterations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
