"""``rollcast run``, ``rollcast probe`` and ``rollcast export``: a scenario on the real engine, its
parts alone, and its plan as what another stack needs to carry it out.
Registered with the command line by entry point, so that the simulator need not know of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from engine.run import Progress


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(run)
    app.command()(replay)
    app.command()(probe)
    app.command()(export)


ScenarioPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.yaml", show_default=False, help="What to run; examples/engine.yaml."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="key=value", help="Override any key, as often as needed."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Override the seed.")]


def run(
    scenario: ScenarioPath,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write tables, trace, picture here.")
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished run beside --out.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that --out holds.")] = False,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Leave out the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Of the Ray cluster for the actors; else this machine."
        ),
    ] = None,
) -> None:
    """Run one scenario on real vLLM and torch.

    The policies are the same objects that simulate runs. One replica that takes turns with the
    trainer (cluster.placement: colocated) runs in this process; anything else has processes of its
    own for the replicas and the trainer, on Ray. With --out: the files of simulate
    (steps.csv with the accuracy too), iterations.csv, pulses.csv, updates.jsonl, provenance.json
    and curves for TensorBoard (tensorboard --logdir DIR). Until it is finished, the run is saved
    after every step in DIR.running, from where --resume goes on, and the curves so far are there.
    """
    from engine.hub import asks_the_hub
    from engine.vllm.environment import prepare
    from simulator.cli import tables
    from simulator.scenario.file import override, read_scenario

    raw = override(read_scenario(scenario), settings or (), seed)
    # Before torch and the hub's client, which read their environment when they are imported.
    prepare(local_files=not asks_the_hub(raw.data, raw.folder))
    from engine.config import build_run
    from engine.run import run_scenario

    spec = build_run(raw, elsewhere=ray not in (None, "local"))
    with _notes_shown(), _progress(spec.steps) as advance:
        real = run_scenario(
            spec, out, resume=resume, force=force, plot=not no_plot, on_step=advance, ray=ray
        )
    tables.show_summary(real.summary, as_json)
    if not as_json:
        first, last = real.summary["accuracy_first"], real.summary["accuracy_last"]
        print(f"accuracy: {first:.3f} in the first tenth of the steps, {last:.3f} in the last")
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


def replay(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR", show_default=False, help="A run of several processes, with --out."
        ),
    ],
) -> None:
    """Take a run's decisions again, from its record.

    The loop and the policies are told what the run's world told them (events.jsonl), and nothing
    else: no engine, no cost. Exit code 1 where a decision differs.
    """
    from simulator.studies.replayed import replay as replayed

    found = replayed(folder)
    steps = len(found.run.steps)
    if found.differs is None:
        print(f"{steps} steps: the same decisions, and {found.run.ledger.balance} tokens astray")
        return
    print(f"step {found.differs} of {steps}: another decision than the one in decisions.jsonl")
    raise typer.Exit(1)


def probe(
    scenario: ScenarioPath,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the measurements go.")
    ] = Path("probe.json"),
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help="Only what replicas and a trainer apart from them cost each other: a minute.",
        ),
    ] = False,
    settings: Settings = None,
    seed: Seed = None,
) -> None:
    """Time trainer and engine on batches of many shapes.

    The trainer runs them dense and with a shared prefix, the engine prefills prompts of many
    lengths. Takes three minutes or so. calibrate --probe FILE uses it, to tell apart what a
    synchronous run leaves together, and to price layouts and prompts that it never had.
    """
    from engine.hub import asks_the_hub
    from engine.vllm.environment import prepare
    from simulator.cli.progress import progress_bar
    from simulator.results.write import write_json_file
    from simulator.scenario.file import override, read_scenario

    raw = override(read_scenario(scenario), settings or (), seed)
    # Before torch and the hub's client, which read their environment when they are imported.
    prepare(local_files=not asks_the_hub(raw.data, raw.folder))
    from engine.config import build_run
    from engine.probe import probe as measure

    spec = build_run(raw)
    with progress_bar("batches", None) as update:
        on_step = update and (lambda done, all_: update(completed=done, total=all_))
        found = measure(spec, on_step, beside_only=beside)
    write_json_file(output, found, "-o")
    print(f"wrote {output}", file=sys.stderr)


def export(
    scenario: Annotated[
        Path,
        typer.Argument(metavar="SCENARIO.yaml", show_default=False, help="What was planned."),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="slime|verl", help="The stack that is to do it.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="A folder to make, or an empty one.")
    ],
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="CHAIN", help="This chain in place of the scenario's."),
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
) -> None:
    """Write what another stack needs to do what was planned.

    Arguments of its command line, and where these do not suffice a hook that takes its decisions by
    the same policies: a rollout function of slime, a sampler of verl. A plan that the stack cannot
    carry out is refused by name. docs/export.md says what goes where.
    """
    from engine.export.write import export as write
    from simulator.studies.simulate import load

    checked = load(scenario, *(settings or ()), seed=seed)
    if policy is not None:
        raw = replace(checked.raw, overridden={**checked.raw.overridden, "policy": "--policy"})
        checked = replace(checked.with_policy(policy), raw=raw)
    names = write(checked, to, out)
    print(f"wrote {out}/: {', '.join(names)}", file=sys.stderr)


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
    from simulator.cli.progress import progress_bar

    with progress_bar("", steps, said="starting the engine", transient=False) as update:
        if update is None:
            yield None
            return

        def advance(progress: Progress) -> None:
            update(completed=progress.record.step + 1, said=progress_text(progress))

        yield advance


def progress_text(progress: Progress) -> str:
    """What stands behind the bar: the last step's seconds and accuracy, and the bubble so far."""
    from simulator.results.so_far import idle_text

    shown = f"{progress.record.step_s:.2f} s a step, accuracy {progress.accuracy:.2f}"
    return f"{shown}, {idle_text(progress.idle)}"
