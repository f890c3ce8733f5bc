"""Published control planes beside rollcast's own policies of their names, on one scenario."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.runner import ROOT, markdown_table, progress

STEPS = 40
SHARES = ("replicas_idle", "trainer_idle", "not_trained")
EXAMPLES = ROOT / "examples" / "control_planes"


def measured() -> list[dict[str, Any]]:
    """A row for each setting of each control plane: its commit, the policy beside it, the figures
    of both, and the verdict. Checkouts are in the folder that ROLLCAST_CHECKOUTS names; what is not
    there is run as it is installed. Exits with a sentence where one is missing."""
    sys.path.insert(0, str(EXAMPLES))
    import run  # type: ignore[import-not-found]

    rows = []
    folder = Path(os.environ.get("ROLLCAST_CHECKOUTS", ""))
    for name in run.NAMES:
        progress(name)
        checkout = folder / name if (folder / name).is_dir() else None
        try:
            for beside, tried, own in run.side_by_side(name, checkout, STEPS):
                rows.append(
                    {
                        "name": name,
                        "version": _version(name, checkout),
                        "setting": beside.setting,
                        "policy": beside.policy,
                        "scenario": list(beside.scenario),
                        "theirs": run.figures(tried.run),
                        "ours": run.figures(own),
                        "verdict": beside.verdict,
                    }
                )
        except ImportError as error:
            sys.exit(f"{name}: {error}; set ROLLCAST_CHECKOUTS to a folder with its checkout")
    return rows


def _version(name: str, checkout: Path | None) -> str:
    if checkout is None:
        return importlib.metadata.version(name)
    command = ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _called(row: dict[str, Any]) -> str:
    return " ".join([row["name"].replace("_", "-"), row["setting"]]).strip()


def table(rows: list[dict[str, Any]]) -> str:
    """The figures, theirs / ours, and below them the verdicts."""

    def cell(row: dict[str, Any], key: str, form: str, times: float = 1) -> str:
        return " / ".join(f"{times * row[side][key]:{form}}" for side in ("theirs", "ours"))

    lines = []
    for row in rows:
        behind = f"{cell(row, 'versions_behind', '.1f')} ({cell(row, 'most_behind', 'd')})"
        lines.append(
            (
                f"{_called(row)} ({row['version']})",
                cell(row, "makespan_s", ".0f"),
                cell(row, "trained_tokens_per_s", ".0f"),
                behind,
                *(cell(row, key, ".1f", 100) for key in SHARES),
            )
        )
    head = ("theirs / ours", "makespan, s", "trained tokens/s", "versions behind: mean (most)")
    shares = ("replicas idle, %", "trainer idle, %", "not trained on, %")
    said = [
        textwrap.fill(
            f"- **{_called(row)}**, beside `{'`, `'.join([row['policy'], *row['scenario']])}`: "
            f"{row['verdict']}",
            110,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for row in rows
    ]
    return "\n".join([markdown_table((*head, *shares), lines), *said]) + "\n"
