"""How well the first 60 % of a log forecast its rest: ``python -m benchmarks.own_logs LOG...``.

Each LOG is a file or folder of one run, as ``rollcast import`` takes it; none is kept here. Only
the first part is fitted, changes of the run within it included; the rest is forecast once, as it
is. A run that later becomes another one counts as a miss.
"""

import math
import warnings
from pathlib import Path

import numpy as np

from benchmarks.runner import fails_in_words, markdown_table, parser
from rollcast.calibration.fits.log_scenario import carries_over
from rollcast.calibration.fits.steps import steps_of
from rollcast.calibration.importing import outcome
from rollcast.calibration.judge.hold_out import Judged, held
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.errors import ScenarioError

SHARE = 0.6
CLOSE = 0.1
HEADER = (
    *("log", "steps", "mean step", "median step off by", "mean step off by"),
    *("with its lengths known", "90 % interval holds", "high over low"),
)


def judged(path: Path) -> Judged | str:
    """The forecast of the rest, or why there is none."""
    try:
        log = read_log([path])
        whole = steps_of(log)
        at = round(len(whole) * SHARE)
        early = log.within(None, int(whole.number[max(at - 1, 0)]))
        parts = draft(early)
        found = outcome(early, parts, advised=False)
        if found.fit is None or not found.fit.forecasts:
            return found.notes[-1] if found.notes else "nothing is priced"
        several = early.overlapped or carries_over(parts)
        rest = whole.rows(at, len(whole))
        forecasts = held(found.fit, found.used, rest, None, "auto", several)
        return forecasts[0] if forecasts else "no step of the rest is timed"
    except ScenarioError as error:
        return str(error)


def row(path: Path, result: Judged | str) -> list[str]:
    """Of the table."""
    if isinstance(result, str):
        return [path.name, "", result, "", "", "", "", ""]
    return [
        path.name,
        f"{result.fitted_on} + {len(result.number)}",
        f"{result.measured_s.mean():.3g} s",
        f"{100 * result.median_error:.1f} %",
        f"{100 * result.total_error:+.1f} %",
        f"{100 * result.given_error:+.1f} %" if math.isfinite(result.given_error) else "",
        "yes" if result.total_covered else "no",
        f"{result.total_high_s / result.total_low_s:.2f}",
    ]


@fails_in_words
def main(arguments: list[str] | None = None) -> int:
    """Prints the table and its sums."""
    options = parser(__doc__)
    options.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    warnings.simplefilter("ignore")
    paths = options.parse_args(arguments).logs
    results = [judged(path) for path in paths]
    table = [row(path, result) for path, result in zip(paths, results, strict=True)]
    print(markdown_table(HEADER, table))
    known = [result for result in results if not isinstance(result, str)]
    if known:
        off = np.array([abs(result.total_error) for result in known])
        held_by = sum(result.total_covered for result in known)
        print(
            f"mean step within {100 * CLOSE:.0f} % in {(off <= CLOSE).sum()} of {len(known)} logs, "
            f"in the median {100 * np.median(off):.1f} % off; the interval holds in {held_by}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
