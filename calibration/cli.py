"""``rollcast calibrate``, ``validate`` and ``import``, which the command line finds by entry point:
the simulator does not know of them."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollcast.simulator.cli.arguments import Force, Json, TrustModules, argument, option, trust
from rollcast.simulator.stacks.stack import logged

Runs = Annotated[list[Path], argument("RUN_DIR", "Folders that rollcast run --out wrote.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the fitted file goes.  [default: fitted.json, or learning.json]",
    ),
]
ProbeFile = Annotated[Path | None, option("--probe", "FILE", "What rollcast probe wrote.")]
OfLearning = Annotated[
    bool,
    typer.Option(
        "--learning",
        help="Fit how accuracy rises (the law of progress) instead of costs, to runs with "
        "engine.evaluation or to folders that rollcast import wrote.",
    ),
]
FittedFile = Annotated[Path, argument("FITTED.json", "From calibrate.")]
ValidationMode = Annotated[
    str,
    option(
        "--mode",
        "replay|predict",
        "replay: the runs' own lengths; judges the costs. predict: lengths are forecast too.",
    ),
]
Lengths = Annotated[
    list[Path] | None,
    option(
        "--lengths",
        "RUN_DIR",
        "Predict with the lengths and rewards of this run, for example a short "
        "synchronous run on other prompts. May be given several times.",
    ),
]
AtPulse = Annotated[
    bool | None,
    typer.Option(
        "--machine-speed/--no-machine-speed",
        "--pulse/--no-pulse",  # its old name
        show_default=False,
        help="Judge each run at the machine speed measured in it (default in replay, except "
        "where actors work at the same time), or at the calibration's (default in predict).",
    ),
]
ReportFolder = Annotated[Path | None, option("--out", "DIR", "Write JSON, picture, report here.")]
Draws = Annotated[int, option("--draws", "N", "Parameter draws for the intervals.")]
Logs = Annotated[list[Path], argument("LOG", "Files or folders of one run, of any trainer.")]
ImportFolder = Annotated[
    Path | None, option("--out", "DIR", "Write the scenario and the run's tables here.")
]
ModelName = Annotated[
    str | None,
    option(
        "--model",
        "NAME",
        "Model, if the log names none that is known: a preset, or the folder of a "
        "Hugging Face model.",
    ),
]
GpuName = Annotated[str | None, option("--gpu", "NAME", "GPU preset; logs do not name the GPU.")]
StackName = Annotated[
    str | None, option("--stack", "NAME", "Trainer that wrote the log, if several are possible.")
]
TokenizerName = Annotated[
    str | None,
    option(
        "--tokenizer",
        "PATH_OR_NAME",
        "Counts the tokens of dumped text: a tokenizer.json, its folder, or a name on the "
        "Hugging Face Hub.",
    ),
]
DriftOption = Annotated[
    str,
    option(
        "--drift",
        "auto|freeze|extrapolate",
        "auto: lengths go on changing if they still do at the end of the log. freeze: they "
        "stay. extrapolate: the slope of the whole log continues.",
    ),
]
Advise = Annotated[
    bool,
    typer.Option(
        "--advise/--no-advise", help="Simulate changes that may make it faster (some seconds)."
    ),
]
WhatIf = Annotated[
    list[str] | None,
    option(
        "--what-if",
        "KEY=VALUE",
        "What a step would take with mean_tokens=622, longest_tokens=..., max_new_tokens=..., "
        "group_size=..., batch_groups=..., or a dotted key of the scenario. May be given several "
        "times.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Follow a run in progress: its progress, its expected end, and changes. "
        "With --out, import it when it ends.",
    ),
]
RunSteps = Annotated[
    str | None,
    option(
        "--steps",
        "FIRST:LAST|N",
        "The steps to import, both included; either may be left out. With --follow: number "
        "of updates of the run, if its settings do not say.",
    ),
]
Every = Annotated[
    float | None,
    option(
        "--every",
        "SECONDS",
        "With --follow: interval at which the files are read, in seconds.  [default: 2]",
    ),
]
PatienceOption = Annotated[
    float | None,
    option(
        "--patience",
        "SECONDS",
        "With --follow: seconds without a change in the files after which the run counts "
        "as over.  [default: ten times the longest step, at least 600]",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(calibrate)
    app.command()(validate)
    text = inspect.cleandoc(import_log.__doc__ or "").format(stacks=", ".join(logged()))
    app.command("import", help=text)(import_log)


def calibrate(
    runs: Runs,
    output: Output = None,
    probe: ProbeFile = None,
    learning: OfLearning = False,
    as_json: Json = False,
) -> None:
    """Fit costs, lengths and rewards to real runs.

    With --learning: how their accuracy rises. Every figure comes with its standard error. A
    scenario uses the result as cost: {file: fitted.json} and lengths: {file: fitted.json}, or as
    learning: {file: learning.json}.
    """
    if learning:
        _calibrate_learning(runs, output or Path("learning.json"), probe, as_json)
        return
    output = output or Path("fitted.json")
    from rollcast.calibration.calibrate import calibrate as fit
    from rollcast.calibration.pages import fitted_table
    from rollcast.simulator.results.write import plain

    fitted = fit(runs, probe)
    fitted.write(output)
    if as_json:
        print(json.dumps(plain(fitted.content), indent=1))
    else:
        fitted_table.show(fitted)
    print(f"wrote {output}", file=sys.stderr)


def _calibrate_learning(runs: list[Path], output: Path, probe: Path | None, as_json: bool) -> None:
    """``rollcast calibrate --learning``."""
    from rollcast.calibration.learning import calibrate_learning
    from rollcast.calibration.pages import learning_table
    from rollcast.simulator.errors import ScenarioError
    from rollcast.simulator.learning.data import save
    from rollcast.simulator.values.plain import to_plain

    if probe is not None:
        raise ScenarioError(
            "--probe", "times costs, and --learning fits none; leave one of them out"
        )
    law = calibrate_learning(runs)
    save(law, output)
    if as_json:
        print(json.dumps(to_plain(law), indent=1))
    else:
        learning_table.show(law)
    print(f"wrote {output}", file=sys.stderr)


def validate(
    fitted: FittedFile,
    runs: Runs,
    mode: ValidationMode = "replay",
    lengths: Lengths = None,
    at_pulse: AtPulse = None,
    out: ReportFolder = None,
    draws: Draws = 40,
    force: Force = False,
    as_json: Json = False,
    trust_modules: TrustModules = False,
) -> None:
    """Compare forecasts from a fitted file with real runs.

    With --out: validation.json, validation.png and report.html, which needs no other file. With a
    law of learning in place of fitted costs: times to accuracies, and the curve's mean and end.
    """
    from rollcast.simulator.learning.data import is_law

    if is_law(fitted):
        _validate_learning(fitted, runs, out, as_json)
        return
    from rollcast.calibration.calibrate import Fitted
    from rollcast.calibration.pages import validation_report
    from rollcast.calibration.validate import validate as check
    from rollcast.simulator.cli.stopping import progress_bar
    from rollcast.simulator.errors import ScenarioError
    from rollcast.simulator.results.write import plain

    if out is not None:
        validation_report.check_target(out, force)
    with progress_bar("", len(runs), elapsed=False, text="") as update:
        try:
            known = Fitted.read(fitted)
        except ScenarioError as error:  # whose field is a scenario's
            raise ScenarioError("FITTED.json", error.message) from None
        if lengths:
            known = known.with_responses(lengths)
        on_run = update and (lambda name: update(advance=1, text=name))
        trusted = trust(trust_modules)
        validation = check(known, runs, mode, draws, on_run, at_pulse, trusted)  # type: ignore[arg-type]
    if out is not None:
        validation_report.write(out, validation, force)
    if as_json:
        print(json.dumps(plain(validation.to_json()), indent=1))
    else:
        validation_report.show(validation)
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def _validate_learning(law: Path, runs: list[Path], out: Path | None, as_json: bool) -> None:
    """``rollcast validate`` of a law of learning."""
    from rollcast.calibration.learning import validate_learning
    from rollcast.calibration.pages import learning_table
    from rollcast.simulator.errors import ScenarioError
    from rollcast.simulator.learning.data import load
    from rollcast.simulator.results.write import plain

    if out is not None:
        raise ScenarioError("--out", "writes no report of a law of learning; use --json")
    judged = validate_learning(load(law, "FITTED.json"), runs)
    if as_json:
        print(json.dumps(plain(learning_table.to_json(judged)), indent=1))
    else:
        learning_table.show_validation(judged)


def import_log(
    logs: Logs,
    out: ImportFolder = None,
    model: ModelName = None,
    gpu: GpuName = None,
    stack: StackName = None,
    tokenizer: TokenizerName = None,
    drift: DriftOption = "auto",
    advise: Advise = True,
    what_if: WhatIf = None,
    follow: Follow = False,
    run_steps: RunSteps = None,
    every: Every = None,
    patience: PatienceOption = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a scenario from the logs of another trainer.

    The trainer is recognised ({stacks}, a folder of rollcast run, or a table of our own columns),
    costs and lengths are fitted, and judged on the run's own last third. With --out: scenario.yaml,
    each value with its source, fitted.json, report.html, and the run's tables.
    """
    from rollcast.calibration import importing as outcome
    from rollcast.calibration.judge.asked import asked
    from rollcast.calibration.logs import show, write
    from rollcast.calibration.logs.draft import draft
    from rollcast.calibration.logs.gather import read_log
    from rollcast.calibration.pages import import_file as fitted
    from rollcast.calibration.pages import import_page as page
    from rollcast.calibration.pages.import_text import show_outcome
    from rollcast.calibration.tokenizer import token_counter
    from rollcast.simulator.errors import ScenarioError
    from rollcast.simulator.launches.parts import given
    from rollcast.simulator.results.write import plain

    if out is not None:
        write.check_target(out, force)
    parts = given(model, gpu)
    towards = outcome.drift_of(drift)
    want = asked(what_if or ())
    first, last = (None, None) if follow else _window(run_steps)
    if _followed(follow, logs, stack, run_steps, every, patience, as_json) and out is None:
        return
    log = read_log(logs, stack, None if tokenizer is None else token_counter(tokenizer))
    if first is not None or last is not None:
        log = log.within(first, last)
    imported = outcome.outcome(log, draft(log, parts), towards, advise)
    imported = outcome.with_what_if(imported, want)
    content = fitted.to_json(log, imported)
    if imported.refused:
        if not as_json:
            show.show(log, imported.parts)
            show_outcome(log, imported)
        raise ScenarioError("LOG", imported.refused)
    if out is not None:
        write.write(out, log, imported.parts, force, content, page.page(log, imported))
    if as_json:
        report = {**write.to_json(log, imported.parts), "imported": content["imported"]}
        print(json.dumps(plain(report), indent=1))
    else:
        show.show(log, imported.parts)
        show_outcome(log, imported)
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def _window(text: str | None) -> tuple[int | None, int | None]:
    """The first and last step of ``FIRST:LAST``. Raises ScenarioError (``--steps``)."""
    from rollcast.simulator.errors import ScenarioError

    if text is None:
        return None, None
    match = re.fullmatch(r"\s*(\d{0,9})\s*:\s*(\d{0,9})\s*", text)
    if match is None:
        raise ScenarioError(
            "--steps",
            f"must be FIRST:LAST, such as 20:80, 20: or :80, got {text!r}; a number of updates "
            "belongs to --follow",
        )
    first, last = (int(end) if end else None for end in match.groups())
    if first is not None and last is not None and first > last:
        raise ScenarioError("--steps", f"begins after its end: {text!r}")
    return first, last


def _followed(
    wanted: bool,
    logs: list[Path],
    stack: str | None,
    steps: str | None,
    every_s: float | None,
    patience_s: float | None,
    as_json: bool,
) -> bool:
    """Watches the run to its end, if that is wanted; whether it was."""
    from rollcast.simulator.errors import ScenarioError

    if not wanted:
        for name, value in (("--every", every_s), ("--patience", patience_s)):
            if value is not None:
                raise ScenarioError(name, "belongs to --follow")
        return False
    from rollcast.calibration.live.follow import EVERY_S, Asked, follow
    from rollcast.calibration.live.show import shown

    every_s = EVERY_S if every_s is None else every_s
    try:
        count = None if steps is None else int(steps)
    except ValueError:
        said = f"must be a number of updates with --follow, got {steps!r}"
        raise ScenarioError("--steps", said) from None
    asked = Asked(tuple(logs), stack, count, every_s, patience_s)
    with shown(as_json) as tell:
        for seen in follow(asked):
            tell(seen)
    return True
