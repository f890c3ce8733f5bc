"""One damaged value at a time, in every column and under every key of every file that calibrate and
validate read: they end with 0, or with one sentence and 2, and never with a traceback.

The gate tries one damage in `EVERY`, and one in each ninth place; ``make laws`` tries them all,
which takes ten minutes.
"""

import copy
import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollcast.calibration.calibrate import calibrate
from rollcast.calibration.fits import responses
from rollcast.simulator.cli.app import main
from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_lines
from tests.calibration.test_probes import write_probe
from tests.calibration.worlds import write_pulses, write_world
from tests.laws import SEARCHING

EVERY = 1 if SEARCHING else 192
CELLS = (
    "",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1e12",
    "1e-300",
    "-1",
    "0",
    "0.5",
    "999999",
    "null",
    "[1, 2]",
    "soon",
    "9" * 30,
    "\u2764",
)
VALUES: tuple[Any, ...] = (
    None,
    float("inf"),
    float("nan"),
    1e300,
    1e12,
    1e-300,
    -1,
    0,
    0.5,
    999_999,
    10**600,
    True,
    "soon",
    "",
    [],
    [1, 2],
    {},
    {"a": 1},
    [[["deep"]]],
)
TABLES = (schema.SPANS, schema.STEPS, schema.ROLLOUTS, schema.ITERATIONS, schema.SPEED_PROBES)
DOCUMENTS = (schema.SUMMARY, schema.SCENARIO, schema.PROVENANCE)
LINES = (schema.DECISIONS, schema.UPDATES)


@dataclass(frozen=True)
class Whole:
    """What is damaged: a run of a known world, a probe and the file fitted to both."""

    run: Path
    probe: Path
    fitted: Path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard errors of rewards are most of a calibration's time."""
    monkeypatch.setattr(responses, "_RESAMPLES", 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    place = tmp_path_factory.mktemp("whole")
    run = write_world(place / "run", steps=6)
    write_pulses(run, 1.0)
    with (run / "steps.csv").open() as file:
        steps = list(csv.DictReader(file))
    updates = (
        {
            "step": n,
            "updates": 1,
            "rollouts": int(step["trained_rollouts"]),
            "log_prob_s": 0.0,
            "computed_tokens": int(step["trained_tokens"]),
            "padding_tokens": 7,
            "microbatches": 3,
        }
        for n, step in enumerate(steps)
    )
    write_lines(run, schema.UPDATES, updates)
    probe = write_probe(place / "probe.json", run)
    calibrate([run], probe).write(place / "fitted.json")
    return Whole(run, probe, place / "fitted.json")


@pytest.fixture
def copied(whole: Whole, tmp_path: Path) -> Whole:
    """A copy to spoil."""
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    probe, fitted = (shutil.copy(file, tmp_path) for file in (whole.probe, whole.fitted))
    return Whole(run, Path(probe), Path(fitted))


Capture = pytest.CaptureFixture[str]


def ends_well(capsys: Capture, what: str, *argv: object) -> int:
    """The exit code of a command, which is 0, or 2 after one sentence."""
    capsys.readouterr()
    try:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in argv])
    except BaseException as error:
        raise AssertionError(f"{what}: {argv[0]} raised {error!r}") from error
    said, code = capsys.readouterr(), stop.value.code
    assert code in (0, 2), (what, argv[0], code, said.err)
    if code == 2:
        assert said.err.startswith("error: "), (what, said.err)
        assert said.err.count("\n") == 1, (what, said.err)
        assert len(said.err) < 600, (what, said.err)
    assert isinstance(code, int)
    return code


def both(capsys: Capture, what: str, files: Whole) -> tuple[int, int]:
    """Calibrates with the run and validates it."""
    out = files.run.parent / "out.json"
    one = ends_well(capsys, what, "calibrate", files.run, "-o", out)
    other = ends_well(capsys, what, "validate", files.fitted, files.run, "--draws", 1)
    return one, other


def chosen(damages: list[tuple[str, Any]], of: int) -> list[tuple[str, Any]]:
    """One damage in `EVERY`, and one in each ninth place; ``of``: damages of one place."""
    return [
        damage
        for i, damage in enumerate(damages)
        if i % EVERY == 0 or (i // of % 9 == 0 and i % of == i // of % of)
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_cell_of_every_column(copied: Whole, capsys: Capture, table: schema.Table) -> None:
    path = copied.run / table.name
    before = path.read_text()
    header, *rows = csv.reader(io.StringIO(before))
    damages = [(name, cell) for name in header for cell in CELLS]
    refused = 0
    for number, (name, cell) in enumerate(chosen(damages, len(CELLS))):
        spoilt = copy.deepcopy(rows)
        spoilt[(0, len(rows) // 2, -1)[number % 3]][header.index(name)] = cell
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *spoilt])
        refused += 2 in both(capsys, f"{table.name} {name}={cell!r}", copied)
    assert refused
    path.write_text(before)
    assert both(capsys, "whole again", copied) == (0, 0)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_of_another_length(copied: Whole, capsys: Capture, table: schema.Table) -> None:
    path = copied.run / table.name
    header, first, *rest = path.read_text().splitlines()
    for spoilt in (
        [header, first.rpartition(",")[0], *rest],
        [header, f"{first},1", *(f"{row},1" for row in rest)],
        [header, *rest, "1"],
        [f"{header},step", first, *rest],
        [f"{header},{header}", *(f"{row},{row}" for row in (first, *rest))],
        ['"', first],
        [header, '"' + first],
        [header],
        [""],
    ):
        path.write_text("\n".join(spoilt) + "\n")
        assert 2 in both(capsys, f"{table.name} {spoilt[:2]}", copied)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key, and of the first entry and a middle one of every list."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list) and value:
        for i in {0, len(value) // 2}:
            yield from places(value[i], (*at, i))


def with_value(content: Any, at: tuple[Any, ...], value: Any) -> Any:
    """The content with another value at a path; without it, where that is ``GONE``."""
    spoilt = copy.deepcopy(content)
    inside = spoilt
    for key in at[:-1]:
        inside = inside[key]
    if value is GONE:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return spoilt


GONE = object()


def spoilt_documents(content: Any) -> Iterator[tuple[str, Any]]:
    """The content with one value replaced or gone, each with a name."""
    values = (GONE, *VALUES)
    damages = [(at, value) for at in places(content) for value in values]
    for at, value in chosen(damages, len(values)):  # type: ignore[arg-type]
        shown = "gone" if value is GONE else str(value)[:20]
        yield f"{at} {shown}", with_value(content, at, value)  # type: ignore[arg-type]
    yield "a list", [content]
    yield "nothing", None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_key_of_a_document(copied: Whole, capsys: Capture, document: schema.Document) -> None:
    path = copied.run / document.name
    content = json.loads(path.read_text())
    if document is schema.SUMMARY:  # of the metrics themselves nothing is read
        read = {*document.shape.needed, *document.shape.may}
        unread = {key: [float("inf")] for key in content.keys() - read}
        path.write_text(json.dumps({**content, **unread}))
        assert both(capsys, "unread keys", copied) == (0, 0)
        content = {key: content[key] for key in content.keys() & read}
    for what, spoilt in spoilt_documents(content):
        path.write_text(json.dumps(spoilt))
        both(capsys, f"{document.name} {what}", copied)


@pytest.mark.parametrize("lines", LINES, ids=lambda lines: lines.name)
def test_every_key_of_a_line(copied: Whole, capsys: Capture, lines: schema.Lines) -> None:
    path = copied.run / lines.name
    first, second, *rest = path.read_text().splitlines()
    content = json.loads(second)
    content = {key: value for key, value in content.items() if not isinstance(value, dict | list)}
    for what, spoilt in spoilt_documents(content):
        path.write_text("\n".join([first, json.dumps(spoilt), *rest]) + "\n")
        both(capsys, f"{lines.name} {what}", copied)


def test_every_key_of_a_probe(copied: Whole, capsys: Capture) -> None:
    out = copied.run.parent / "out.json"
    for what, spoilt in spoilt_documents(json.loads(copied.probe.read_text())):
        copied.probe.write_text(json.dumps(spoilt))
        argv = ("calibrate", copied.run, "--probe", copied.probe, "-o", out)
        ends_well(capsys, f"probe {what}", *argv)


def test_every_key_of_a_fitted_file(copied: Whole, capsys: Capture) -> None:
    damages = spoilt_documents(json.loads(copied.fitted.read_text()))
    for number, (what, spoilt) in enumerate(damages):
        mode = ("replay", "predict")[number % 2]
        copied.fitted.write_text(json.dumps(spoilt))
        argv = ("validate", copied.fitted, copied.run, "--draws", 1, "--mode", mode)
        ends_well(capsys, f"fitted {what} {mode}", *argv)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", [DEEP, "[" * 300 + "]" * 300, "9" * 5000, '"\\ud800"', "{"])
def test_json_that_nobody_can_read(copied: Whole, capsys: Capture, text: str) -> None:
    for file in (*DOCUMENTS, *LINES):
        path = copied.run / file.name
        before = path.read_text()
        for content in (text, f'{{"schema": {text}}}'):
            path.write_text(content)
            assert 2 in both(capsys, f"{file.name} {content[:20]}", copied)
        path.write_text(before)
    copied.probe.write_text(text)
    out = copied.run.parent / "out.json"
    argv = ("calibrate", copied.run, "--probe", copied.probe, "-o", out)
    assert ends_well(capsys, "probe", *argv) == 2
    copied.fitted.write_text(text)
    assert ends_well(capsys, "fitted", "validate", copied.fitted, copied.run) == 2


@pytest.mark.parametrize(
    ("table", "column", "cell"),
    [("rollouts.csv", "prompt_tokens", "0"), ("iterations.csv", "prefill_tokens", "999999")],
)
def test_cells_that_once_went_wrong(
    copied: Whole, capsys: Capture, table: str, column: str, cell: str
) -> None:
    path = copied.run / table
    header, *rows = csv.reader(io.StringIO(path.read_text()))
    for row in (0, len(rows) // 2, -1):
        spoilt = copy.deepcopy(rows)
        spoilt[row][header.index(column)] = cell
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *spoilt])
        both(capsys, f"{table} {column}={cell}, row {row}", copied)
