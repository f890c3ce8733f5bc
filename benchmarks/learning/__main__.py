"""Real learning by small models under every policy, and the law that is fitted to it.

``python -m benchmarks.learning run DIR`` makes the campaign's runs in DIR, or those still missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.runner import fails_in_words, parser, progress


@fails_in_words
def main(arguments: list[str] | None = None) -> int:
    """Does what the first word says."""
    words = parser(__doc__)
    words.add_argument("what", choices=("run",))
    words.add_argument("folder", type=Path, metavar="DIR")
    words.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="runs that begin so"
    )
    options = words.parse_args(arguments)
    from benchmarks.learning.campaign import run

    return 1 if run(options.folder, progress, options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
