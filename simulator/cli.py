"""The command line: ``rollcast simulate``, ``compare``, ``presets``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.errors import RollcastError, ScenarioError

app = typer.Typer(
    name="rollcast",
    help="Forecast how a scheduling policy changes the speed of LLM reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO.yaml", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write tables, trace and picture here.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="key=value", help="Override any key, as often as needed."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Override the seed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a run that --out holds.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Leave out the picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]

COMPARED = ("sync", "april", "sagc", "pods", "prefix_reuse")


@app.command()
def simulate(
    scenario: ScenarioPath,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    force: Force = False,
    no_plot: NoPlot = False,
    as_json: Json = False,
) -> None:
    """Run one scenario and show what came of it."""
    from simulator import report
    from simulator.output import check_target, write_folder, write_run
    from simulator.simulate import load
    from simulator.simulate import simulate as run_scenario

    if out is not None:
        check_target(out, force)
    checked = load(scenario, *(settings or ()), seed=seed)
    with _progress(checked.policy_name, checked.steps) as advance:
        result = run_scenario(checked, advance)
    if out is not None:
        description = {"name": checked.name, **_resolved(checked)}
        write_folder(
            out,
            lambda folder: write_run(
                folder, result.run, result.summary, description, plot=not no_plot
            ),
            force,
        )
    report.show_summary(result.summary, as_json)
    _say_where(out)


@app.command()
def compare(
    scenario: ScenarioPath,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="CHAIN",
            help="A chain such as april(over_sampling=2)+pods(keep=4); sync is none. Repeat it.",
        ),
    ] = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    force: Force = False,
    no_plot: NoPlot = False,
    as_json: Json = False,
) -> None:
    """Run one scenario under several policies, side by side."""
    from simulator import report
    from simulator.compare import compare as run_all
    from simulator.compare import write_comparison
    from simulator.output import check_target, write_folder
    from simulator.simulate import load

    if out is not None:
        check_target(out, force)
    checked = load(scenario, *(settings or ()), seed=seed)
    names = policy or [checked.policy_name]
    if len(names) == 1 and names[0] != "sync":
        names = ["sync", *names]
    variants = [checked.with_policy(name) for name in names]
    with _progress("", checked.steps * len(variants)) as advance:
        results = run_all(variants, advance)
    if out is not None:
        write_folder(out, lambda folder: write_comparison(folder, results, plot=not no_plot), force)
    report.show_comparison(results, as_json)
    _say_where(out)


@app.command()
def presets(
    kind: Annotated[
        str | None, typer.Argument(metavar="[gpus|models|lengths|policies]", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List GPUs, models, length distributions and policies, each figure with its source."""
    from simulator import report

    report.show_presets(kind, name, as_json)


def _resolved(scenario: Any) -> dict[str, Any]:
    """What was run, with every setting applied."""
    return {"policy_spelt": scenario.policy_name, "scenario": scenario.raw.data}


def _say_where(out: Path | None) -> None:
    if out is not None:
        print(f"wrote {out}/", file=sys.stderr)


@contextmanager
def _progress(label: str, steps: int) -> Iterator[Any]:
    """A progress bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(label or "steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("steps", total=steps)
        yield lambda _: bar.advance(task)


def _add_commands(argv: list[str]) -> None:
    """Adds the commands of the other packages (``run``, ...), which the simulator does not know:
    they register by entry point. Looked up only where it may be one of theirs that is asked for."""
    own = {command.callback.__name__ for command in app.registered_commands if command.callback}
    if argv and argv[0] in own:
        return
    from importlib.metadata import entry_points

    for point in entry_points(group="rollcast.commands"):
        point.load()(app)


def main() -> None:
    """Runs the command line: errors that a user can cause are one sentence and exit code 2."""
    try:
        _add_commands(sys.argv[1:])
        app()
    except RollcastError as error:
        text = str(error) if isinstance(error, ScenarioError) else f"{error}"
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        print("error: out of memory; make the run smaller (steps, workload)", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
