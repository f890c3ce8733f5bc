"""``rollcast run``, ``rollcast probe`` and ``rollcast export``: a scenario on the real engine, its
parts alone, and its plan as what another stack needs to carry it out.
Registered with the command line by entry point, so that the simulator need not know of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcast.simulator.cli.arguments import (
    Force,
    Json,
    NoPlot,
    Out,
    ScenarioPath,
    Seed,
    Settings,
    TrustModules,
    argument,
    option,
    trust,
)
from rollcast.simulator.cli.stopping import keep_on
from rollcast.simulator.stacks.stack import exporters

if TYPE_CHECKING:
    from rollcast.engine.run import Progress
    from rollcast.simulator.scenario.file import RawScenario


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(run)
    app.command()(replay)
    app.command()(probe)
    app.command()(export)
    app.command()(doctor)


def run(
    scenario: ScenarioPath,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    trust_modules: TrustModules = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run of --out: an unfinished one, or with more steps."
        ),
    ] = False,
    steps: Annotated[int | None, option("--steps", "N", "Set the number of steps.")] = None,
    force: Force = False,
    no_plot: NoPlot = False,
    as_json: Json = False,
    ray: Annotated[
        str | None, option("--ray", "ADDRESS", "Ray cluster for the actors; default: this machine.")
    ] = None,
) -> None:
    """Run one scenario on a real engine and torch.

    The policies are the same objects that simulate runs. One replica that shares its device with
    the trainer (cluster.placement: colocated) runs in this process; otherwise replicas and trainer
    are processes of their own, on Ray. With --out: the files of simulate (steps.csv with the
    accuracy too), iterations.csv, speed_probes.csv, updates.jsonl, provenance.json and curves for
    TensorBoard (tensorboard --logdir DIR); the trained model with its tokenizer in DIR/model, which
    transformers and vLLM load. Until it is finished, the run and its curves are saved in
    DIR.running after every step (or every engine.save.every), and --resume continues it from there;
    a finished run goes on with --resume --steps N.
    """
    if steps is not None:
        settings = [*(settings or ()), f"steps={steps}"]
    raw = _read(scenario, settings, seed, trust_modules)
    from rollcast.engine.config import build_run
    from rollcast.engine.run import run_scenario
    from rollcast.simulator.cli import tables

    spec = build_run(raw, elsewhere=ray not in (None, "local"))
    with _notes_shown(), _progress(spec.steps) as advance:
        real = run_scenario(
            spec,
            out,
            resume=resume,
            force=force,
            plot=not no_plot,
            on_step=advance,
            on_note=lambda note: print(f"note: {note}", file=sys.stderr),
            ray=ray,
        )
    tables.show_summary(real.summary, as_json)
    if not as_json:
        first, last = real.summary["accuracy_first"], real.summary["accuracy_last"]
        print(f"accuracy: {first:.3f} in the first tenth of the steps, {last:.3f} in the last")
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def replay(
    folder: Annotated[Path, argument("RUN_DIR", "A real run, written by rollcast run --out.")],
    trust_modules: TrustModules = False,
) -> None:
    """Repeat a run's decisions from its record and compare them.

    The loop and the policies get the recorded events (events.jsonl) and nothing else: no engine, no
    costs. Exits with 1 if a decision differs.
    """
    from rollcast.simulator.runs.replay import replay as replayed

    result = replayed(folder, trust(trust_modules))
    steps = len(result.run.steps)
    if result.differs is None:
        print(f"Replayed {steps} steps: all decisions identical; token accounting balances.")
        return
    print(f"Step {result.differs} of {steps}: the decision differs from decisions.jsonl.")
    raise typer.Exit(1)


def probe(
    scenario: ScenarioPath,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the measurements.")
    ] = Path("probe.json"),
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help=(
                "Measure only how much a replica and a trainer in processes of their own "
                "slow each other down; takes a minute."
            ),
        ),
    ] = False,
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--limit",
            metavar="SECONDS",
            min=1.0,
            help="Begin no further batch after this time; their order is random.",
        ),
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    trust_modules: TrustModules = False,
) -> None:
    """Time trainer and engine on batches of many shapes.

    The trainer runs batches dense and with a shared prefix; the engine prefills prompts of many
    lengths. It takes about three minutes. calibrate --probe FILE uses the measurements to separate
    costs that a synchronous run cannot tell apart, and to price layouts and prompt lengths that it
    did not have.
    """
    raw = _read(scenario, settings, seed, trust_modules)
    from rollcast.engine.config import build_run
    from rollcast.engine.probe import probe as measure
    from rollcast.simulator.cli.stopping import progress_bar
    from rollcast.simulator.results.write import write_json_file

    spec = build_run(raw)
    with progress_bar("batches", None) as update:
        on_step = update and (lambda done, all_: update(completed=done, total=all_))
        measured = measure(spec, on_step, beside_only=beside, limit_s=limit_s)
    write_json_file(output, measured)
    print(f"wrote {output}", file=sys.stderr)


def export(
    scenario: ScenarioPath,
    to: Annotated[
        str,
        typer.Option("--to", metavar="|".join(exporters()), help="Training stack to export to."),
    ],
    out: Annotated[Path, option("--out", "DIR", "New or empty folder.")],
    policy: Annotated[
        str | None, option("--policy", "CHAIN", "Policies in place of the scenario's.")
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    trust_modules: TrustModules = False,
) -> None:
    """Write what another training stack needs to run this scenario.

    Arguments of its command line, and where these do not suffice a hook that takes its decisions by
    the same policies. A plan that the stack cannot carry out is refused by name. docs/export.md
    says what goes where.
    """
    from rollcast.engine.export.write import export as write
    from rollcast.simulator.studies.simulate import load

    checked = load(scenario, *(settings or ()), seed=seed, trust_modules=trust(trust_modules))
    if policy is not None:
        raw = replace(checked.raw, overridden={**checked.raw.overridden, "policy": "--policy"})
        checked = replace(checked.with_policy(policy), raw=raw)
    names = write(checked, to, out)
    print(f"wrote {out}/: {', '.join(names)}", file=sys.stderr)


def doctor(
    scenario: Annotated[
        Path | None,
        argument("[SCENARIO.yaml]", "Scenario file; without one, this machine and a tiny model."),
    ] = None,
    settings: Settings = None,
    trust_modules: TrustModules = False,
    as_json: Json = False,
) -> None:
    """Say what would run here: this machine, or a scenario on it.

    It compares versions with those that were tested, starts trainer and engine with a tiny batch,
    each in a process of its own, and times weight transfers and iterations: one line each, with a
    verdict. It takes a minute or two with the built-in model. Exit code: 0 if nothing was found
    that would fail, 1 if something would, 2 if the scenario itself is wrong.
    """
    from rollcast.engine.doctor.doctor import examine
    from rollcast.engine.doctor.findings import exit_code, show, to_json
    from rollcast.simulator.cli.stopping import progress_bar
    from rollcast.simulator.scenario.file import override, read_scenario

    raw = None
    if scenario is not None:
        raw = override(read_scenario(scenario, trust(trust_modules)), settings or (), None)
    elif settings:
        raise typer.BadParameter("--set needs a scenario", param_hint="--set")
    with progress_bar("", None, text="packages") as update:
        on_stage = update and (lambda stage: update(text=stage))
        found = list(examine(raw, on_stage))
    if as_json:
        print(json.dumps(to_json(found), indent=1))
    else:
        show(found)
    if code := exit_code(found):
        raise typer.Exit(code)


def _read(
    scenario: Path, settings: list[str] | None, seed: int | None, trust_modules: bool
) -> RawScenario:
    """The scenario, and the environment prepared for it: torch and the hub's client read that when
    they are imported."""
    from rollcast.engine.engines import prepare_for
    from rollcast.engine.hub import asks_the_hub
    from rollcast.simulator.scenario.file import override, read_scenario

    raw = override(read_scenario(scenario, trust(trust_modules)), settings or (), seed)
    prepare_for(raw.data, local_files=not asks_the_hub(raw.data, raw.folder))
    return raw


@contextmanager
def _notes_shown() -> Iterator[None]:
    """Shows the notes on an error that ends the run: how to go on with it."""
    try:
        yield
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        raise


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    """A progress bar with `progress_text` on a terminal, nothing in a pipe."""
    from rollcast.simulator.cli.stopping import progress_bar

    with progress_bar("", steps, text="starting the engine", transient=False) as update:

        def advance(progress: Progress) -> None:
            keep_on(progress)
            if update is not None:
                update(completed=progress.record.step + 1, text=progress_text(progress))

        yield advance


def progress_text(progress: Progress) -> str:
    """What stands behind the bar: the last step's seconds and accuracy, and the bubble so far."""
    from rollcast.simulator.results.so_far import idle_text

    shown = f"{progress.record.step_s:.2f} s a step, accuracy {progress.accuracy:.2f}"
    return f"{shown}, {idle_text(progress.idle)}"
