"""Makes the tables of this folder from the data sets that they are figures of.

``python -m tests.data.extract FOLDER`` reads the data sets in FOLDER, which are not part of this
repository, and writes what the tests need of them: rows of published tables, a sample of them where
there are many, statistics of response lengths, and what the forecast says of those rows. README.md
has the sources. Only who changes what is tested needs it.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.validation import engine_grid, kernel_tables, trainer_baselines
from benchmarks.validation.case import Source
from benchmarks.validation.files import columns
from benchmarks.validation.suite import declarations, judge
from rollcast.simulator.results.write import write_json
from rollcast.simulator.workload.length_specs import length_presets

HERE = Path(__file__).parent
ROWS = HERE / "published"
FORECASTS = HERE / "forecasts.json"
LENGTHS = HERE / "length_statistics.csv"
SAMPLED = ("engine_grid", "kernel_tables", "trainer_baselines")
SMALL_LLAMAS = ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-2-7b-hf")

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """``count`` of the rows, the first and the last among them, at equal distances."""
    return [rows[i] for i in sorted(set(np.linspace(0, len(rows) - 1, count).round().astype(int)))]


def by(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows by what they have in these columns."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return found


def kernels(rows: list[Row]) -> Iterator[Row]:
    """Of the rows that no preset was fitted to (every second of a system), a few decode steps of
    each parallelism and the prefills: their errors differ most."""
    for mine in by(rows, "system").values():
        for (_, phase), kind in by(mine[1::2], "tp", "phase").items():
            yield from spread(kind, 5) if phase == "decode" else kind


def batches(rows: list[Row]) -> Iterator[Row]:
    """Two small models on one H100, whole, and a few of every other kind of replica."""
    for (board, gpus), kind in by(rows, "hw", "ngpu").items():
        whole = board == "Nvidia H100 GPU" and gpus == "1"
        yield from [r for r in kind if r["model"] in SMALL_LLAMAS] if whole else spread(kind, 8)


def steps(rows: list[Row]) -> Iterator[Row]:
    """RL of the models with presets on H100 and H200, and every second of the others but H200's."""
    hopper = [row for row in rows if row["type"] == "rl" and row["gpu"].startswith("NVIDIA H")]
    mine = [
        row
        for row in hopper
        if row["model"].startswith("Qwen/Qwen3-") and "235B" not in row["model"]
    ]
    yield from mine
    yield from [row for row in rows if row not in mine and row["gpu"] != "NVIDIA H200"][::2]


Chosen = tuple[tuple[str, ...], Callable[[list[Row]], Iterator[Row]]]
TABLES: dict[str, Chosen] = {
    "kernel_tables": (columns(kernel_tables.Row), kernels),
    "engine_grid": (columns(engine_grid.Row), batches),
    "trainer_baselines": ((*columns(trainer_baselines.Row), "peak_mem_gib"), steps),
}


def sampled(key: str) -> Path:
    """The sampled table of a source."""
    return ROWS / declarations()[key].table


def rounded(text: str) -> str:
    """A fraction to six figures; anything else as it is."""
    return f"{float(text):.6g}" if "." in text and text.replace(".", "", 1).isdigit() else text


def write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A table of these columns."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: rounded(row[key]) for key in columns} for row in rows)


def groups_of(data: Path, source: str) -> list[list[int]]:
    """The lengths that a preset was fitted to, a list for each prompt."""
    model = source.rpartition(" of ")[2]
    if "LRMTokenEconomy" in source:
        rows = [
            row
            for row in read(data / "reasoning_lengths_5x.csv")
            if row["model"] == model and row["type"] != "knowledge"
        ]
        return [[int(r["tokens_completion"]) for r in g] for g in by(rows, "prompt_id").values()]
    rows = [row for row in read(data / "instruct_lengths_10x.csv") if row["model"] == model]
    return [[int(row[f"n{k}"]) for k in range(10)] for row in rows]


def statistics(preset: str, groups: list[list[int]], cap: int) -> Iterator[Row]:
    """All that the likelihood takes from the lengths.

    Prompts alike in the number of responses, none of them at the cap, are one row: their number,
    the mean and the sum of squares of their mean log lengths, and the sum of squares of the log
    lengths within them. A prompt with responses at the cap has a row of its own.
    """
    alike: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for number, group in enumerate(groups):
        logs = np.log(np.array([n for n in group if n < cap]) - 0.5)
        capped = len(group) - len(logs)
        within = float(((logs - logs.mean()) ** 2).sum())
        alike[len(logs), capped, number if capped else -1].append((float(logs.mean()), within))
    for (count, capped, _), found in alike.items():
        means, within_squares = (np.array(column) for column in zip(*found, strict=True))
        squares = float(((means - means.mean()) ** 2).sum())
        yield {
            "preset": preset,
            "prompts": str(len(found)),
            "responses": str(count),
            "capped": str(capped),
            "mean_log": f"{means.mean():.9g}",
            "squares_between": f"{squares:.9g}",
            "squares_within": f"{math.fsum(within_squares):.9g}",
        }


def figures(source: Source) -> dict[str, Any]:
    """What is judged of a source: its checks by name, and the forecast of each case, in order."""
    return {
        "checks": {check.name: check.value for check in source.checks},
        "forecasts": [float(f"{case.forecast:.6g}") for case in source.cases],
    }


def main() -> None:
    """Writes every table, and the forecasts of the rows."""
    data = Path(sys.argv[1])
    ROWS.mkdir(exist_ok=True)
    for key, (names, chosen) in TABLES.items():
        write(sampled(key), names, chosen(read(data / sampled(key).name)))
    found = [
        row
        for preset in length_presets().values()
        if preset.kind == "fitted"
        for row in statistics(
            preset.name, groups_of(data, preset.source), preset.details["cap_tokens"]
        )
    ]
    write(LENGTHS, list(found[0]), found)
    write_json(FORECASTS, {key: figures(judge(key, ROWS)) for key in SAMPLED})


if __name__ == "__main__":
    main()
