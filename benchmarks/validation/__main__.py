"""``python -m benchmarks.validation``: judge every published source and write the verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.validation import (
    async_lora,
    engine_grid,
    kernel_mixtures,
    kernel_tables,
    peers,
    phases,
    rl_mixtures,
    rl_steps,
    serving_points,
    speculative,
    throughput,
    trace,
    trainer_baselines,
    training_steps,
    verdict_files,
    weight_updates,
)
from benchmarks.validation.files import DEFAULT_DATA, AbsentError
from benchmarks.validation.verdict import Source
from rollcast.simulator.errors import RollcastError

Judge = Callable[[Path], Source]

SOURCES: Mapping[str, Judge] = {
    "trace": trace.source,
    "engine_grid": engine_grid.source,
    "kernel_tables": kernel_tables.source,
    "kernel_mixtures": kernel_mixtures.source,
    "throughput": throughput.source,
    "serving_points": serving_points.source,
    "speculative": speculative.source,
    "trainer_baselines": trainer_baselines.source,
    "training_steps": training_steps.source,
    "phases": phases.source,
    "rl_steps": rl_steps.source,
    "rl_mixtures": rl_mixtures.source,
    "async_lora": async_lora.source,
    "weight_updates": weight_updates.source,
    "peers": peers.source,
}
OUT = Path(__file__).parents[1] / "results" / "validation"


def judge(data: Path, keys: list[str] | None = None) -> list[Source]:
    """The sources named (all of them), in order; one whose data set is absent is marked skipped."""
    sources = []
    for key in keys or list(SOURCES):
        try:
            sources.append(SOURCES[key](data))
        except AbsentError as reason:
            sources.append(Source(key, key.replace("_", " "), "", skipped=str(reason)))
    return sources


def main(arguments: list[str] | None = None) -> int:
    """Judges, prints and writes. Returns 2 where a file is wrong, after saying which."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--only", choices=list(SOURCES), action="append", help="judge this source")
    options = parser.parse_args(arguments)
    try:
        sources = judge(options.data, options.only)
        for source in sources:
            print("\n".join(verdict_files.summary_lines(source)))
        lost = verdict_files.judged_in(options.out) - {s.key for s in sources if not s.skipped}
        if lost:
            print(
                f"{options.out} is left as it is: it judges {', '.join(sorted(lost))} too, whose "
                "data sets are absent, or which --only leaves out; give --data, or another --out",
                file=sys.stderr,
            )
            return 0
        written = verdict_files.write(sources, options.out)
    except RollcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot write to {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {', '.join(path.name for path in written[:4])} to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
