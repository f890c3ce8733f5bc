"""``rollcast calibrate``, ``validate`` and ``import``, which the command line finds by entry point:
the simulator does not know of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_DIR", show_default=False, help="Folders that rollcast run --out wrote."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(calibrate)
    app.command()(validate)
    app.command("import")(import_log)


def calibrate(
    runs: Runs,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the fitted file goes.")
    ] = Path("fitted.json"),
    probe: Annotated[
        Path | None,
        typer.Option("--probe", metavar="FILE", help="What rollcast probe wrote."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Fit costs, lengths and rewards to real runs.

    Each comes with its uncertainty. A scenario uses the result as cost: {file: fitted.json} and
    lengths: {file: fitted.json}.
    """
    from calibration import fitted_table
    from calibration.calibrate import calibrate as fit
    from simulator.results.write import plain

    fitted = fit(runs, probe)
    fitted.write(output)
    if as_json:
        print(json.dumps(plain(fitted.content), indent=1))
    else:
        fitted_table.show(fitted)
    print(f"wrote {output}", file=sys.stderr)


def validate(
    fitted: Annotated[
        Path, typer.Argument(metavar="FITTED.json", show_default=False, help="From calibrate.")
    ],
    runs: Runs,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="replay|predict",
            help="replay: the runs' own lengths, to judge the costs. predict: everything forecast.",
        ),
    ] = "replay",
    lengths: Annotated[
        list[Path] | None,
        typer.Option(
            "--lengths",
            metavar="RUN_DIR",
            help="Predict with the lengths and rewards of this run instead, such as a short "
            "synchronous one on other prompts. Repeat it.",
        ),
    ] = None,
    at_pulse: Annotated[
        bool | None,
        typer.Option(
            "--pulse/--no-pulse",
            show_default=False,
            help="Judge each run at the machine's own pulse in it (default in replay, but for "
            "actors that work at the same time), or at the calibration's (default in predict).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write JSON, picture, report here.")
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", help="Draws of the parameters for intervals.")
    ] = 40,
    force: Annotated[bool, typer.Option("--force", help="Replace what --out holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Hold forecasts from a fitted file against real runs.

    With --out: validation.json, validation.png and report.html, which needs no other file.
    """
    from calibration import validation_report
    from calibration.calibrate import Fitted
    from calibration.validate import validate as check
    from simulator.cli.progress import progress_bar
    from simulator.errors import ScenarioError
    from simulator.results.write import plain

    if out is not None:
        validation_report.check_target(out, force)
    with progress_bar("", len(runs), elapsed=False, said="") as update:
        try:
            known = Fitted.read(fitted)
        except ScenarioError as error:  # whose field is a scenario's
            raise ScenarioError("FITTED.json", error.message) from None
        if lengths:
            known = known.with_responses(lengths)
        on_run = update and (lambda name: update(advance=1, said=name))
        found = check(known, runs, mode, draws, on_run, at_pulse)  # type: ignore[arg-type]
    if out is not None:
        validation_report.write(out, found, force)
    if as_json:
        print(json.dumps(plain(found.to_json()), indent=1))
    else:
        validation_report.show(found)
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def import_log(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG", show_default=False, help="Files or folders of one run, of any trainer."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the scenario and the run's tables here."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="The model, where the log names no preset: a preset, or the folder of one.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="The GPU, a preset: logs do not name it."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack", metavar="NAME", help="Which trainer wrote it, where two could have."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="PATH_OR_NAME",
            help="Counts the tokens of dumped text: a tokenizer.json, its folder, or a name on the "
            "Hugging Face Hub.",
        ),
    ] = None,
    drift: Annotated[
        str,
        typer.Option(
            "--drift",
            metavar="freeze|extrapolate",
            help="Whether lengths stay as they were at the log's end, or go on as they changed.",
        ),
    ] = "freeze",
    advise: Annotated[
        bool,
        typer.Option(
            "--advise/--no-advise", help="Simulate what would change the run: some seconds."
        ),
    ] = True,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="While the run goes on: its progress, its end, and what changed. With --out the "
            "import follows the end.",
        ),
    ] = False,
    run_steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help="With --follow: updates of the run, where its settings do not say.",
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            help="With --follow: between two looks at the files.  [default: 2]",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            "--patience",
            metavar="SECONDS",
            help="With --follow: without a change in the files, after which the run counts as "
            "over.  [default: ten times the longest step, and 600 at least]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what --out holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Read what another trainer logged into a scenario.

    The trainer is recognised (verl, trl, slime, nemo_rl, prime_rl, areal, skyrl, openrlhf, roll, or
    a table of our own columns), costs and lengths are fitted, and judged on the run's own last
    third. With --out: scenario.yaml, each value with its source, fitted.json, report.html, and the
    run's tables.
    """
    from calibration.imported import fitted, outcome, page
    from calibration.imported.show import show_outcome
    from calibration.imported.tokenizer import token_counter
    from calibration.logs import show, write
    from calibration.logs.draft import draft, given
    from calibration.logs.gather import read_log
    from simulator.results.write import plain

    if out is not None:
        write.check_target(out, force)
    said = given(model, gpu)
    towards = outcome.drift_of(drift)
    if _followed(follow, logs, stack, run_steps, every, patience, as_json) and out is None:
        return
    log = read_log(logs, stack, None if tokenizer is None else token_counter(tokenizer))
    found = outcome.outcome(log, draft(log, said), towards, advise)
    content = fitted.to_json(log, found)
    if out is not None:
        write.write(out, log, found.parts, force, content, page.page(log, found))
    if as_json:
        told = {**write.to_json(log, found.parts), "imported": content["imported"]}
        print(json.dumps(plain(told), indent=1))
    else:
        show.show(log, found.parts)
        show_outcome(log, found)
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def _followed(
    wanted: bool,
    logs: list[Path],
    stack: str | None,
    steps: int | None,
    every_s: float | None,
    patience_s: float | None,
    as_json: bool,
) -> bool:
    """Watches the run to its end, if that is wanted; whether it was."""
    from simulator.errors import ScenarioError

    if not wanted:
        for name, value in (("--steps", steps), ("--every", every_s), ("--patience", patience_s)):
            if value is not None:
                raise ScenarioError(name, "belongs to --follow")
        return False
    from calibration.live.follow import EVERY_S, Asked, follow
    from calibration.live.show import shown

    every_s = EVERY_S if every_s is None else every_s
    asked = Asked(tuple(logs), stack, steps, every_s, patience_s)
    with shown(as_json) as tell:
        for seen in follow(asked):
            tell(seen)
    return True
