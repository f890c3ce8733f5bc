"""``python -m benchmarks.validation``: judge every published source and write the results."""

import argparse
import sys
from pathlib import Path

from benchmarks.runner import RESULTS, fails_in_words
from benchmarks.validation import report
from benchmarks.validation.files import DEFAULT_DATA
from benchmarks.validation.suite import declarations, judge_all

OUT = RESULTS / "validation"


@fails_in_words
def main(arguments: list[str] | None = None) -> int:
    """Judges, prints and writes. Returns 2 where a file is wrong, after saying which."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--only", choices=list(declarations()), action="append", metavar="SOURCE")
    options = parser.parse_args(arguments)
    sources = judge_all(options.data, options.only)
    for source in sources:
        print("\n".join(report.summary_lines(source)))
    lost = report.judged_in(options.out) - {s.key for s in sources if not s.skipped}
    if lost:
        print(
            f"{options.out} is left as it is: it judges {', '.join(sorted(lost))} too, whose "
            "data sets are absent, or which --only leaves out; give --data, or another --out",
            file=sys.stderr,
        )
        return 0
    written = report.write(sources, options.out)
    print(f"wrote {', '.join(path.name for path in written[:4])} to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
