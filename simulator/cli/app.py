"""The command line: ``rollcast simulate``, ``compare``, ``plan``, ``presets``."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from simulator.errors import RollcastError, ScenarioError

if TYPE_CHECKING:
    from simulator.planner.answer import Planned
    from simulator.scenario.file import RawScenario
    from simulator.scenario.scenario import Scenario
    from simulator.studies.tornado import Asked, Bar

app = typer.Typer(
    name="rollcast",
    help="Forecast how a scheduling policy changes the speed of LLM reinforcement learning.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ScenarioPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.yaml", show_default=False, help="What to run; examples/ holds some."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write tables, trace and picture here.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="key=value", help="Override any key: workload.group_size=16. Repeat it."
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Override the seed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a run that --out holds.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Leave out the picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        metavar="N",
        show_default=False,
        help="Run all of it N times more for the 90 % intervals, with other lengths, rewards and "
        "costs, as far as they are uncertain; left out, a few short runs do; 0: no intervals.",
    ),
]
NOTHING_MEETS = 3
"""Exit code of a plan whose limits nothing meets."""

_STOPS = tuple(  # those that this system has
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_CLICK_ERROR: type[Exception] = next(  # typer names only the leaves of this family
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


@app.callback(invoke_without_command=True)
def rollcast(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Forecast how a scheduling policy changes the speed of LLM reinforcement learning.

    Start with: rollcast init april > scenario.yaml; rollcast simulate scenario.yaml
    """
    if version:
        from importlib.metadata import version as installed

        print(f"rollcast {installed('rollcast')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def simulate(
    scenario: ScenarioPath,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    force: Force = False,
    no_plot: NoPlot = False,
    as_json: Json = False,
    draws: Draws = None,
    tornado: Annotated[
        bool,
        typer.Option("--tornado", help="Show what moves a step most: each uncertain input alone."),
    ] = False,
    tornado_key: Annotated[
        list[str] | None,
        typer.Option(
            "--tornado-key",
            metavar="key=20%",
            help="A key of the scenario to vary too, by a share of it or as key=LOW,HIGH; with "
            "--tornado. Repeat it.",
        ),
    ] = None,
) -> None:
    """Run one scenario and show what came of it, with 90 % intervals.

    With --out: spans.csv, steps.csv, rollouts.csv, decisions.jsonl, summary.json, scenario.json,
    trace.json.gz (opens in ui.perfetto.dev), timeline.png, and tornado.csv and tornado.png of a
    tornado.
    """
    from simulator.cli import tables
    from simulator.results.folder import check_target, write_folder
    from simulator.results.write import write_run
    from simulator.studies.simulate import load
    from simulator.studies.simulate import simulate as run_scenario

    _check_draws(draws)
    if out is not None:
        check_target(out, force)
    checked = load(scenario, *(settings or ()), seed=seed)
    asked = _tornado_keys(checked, tornado, tornado_key or ())
    bars: list[Bar] = []
    with _progress(checked.policy_name, checked.steps * (1 + (draws or 0))) as advance:
        result = run_scenario(checked, advance)
        if draws != 0:
            from simulator.studies.uncertainty import add_intervals

            add_intervals(result, draws, advance, _keep_on)
        if tornado:
            from simulator.studies.tornado import tornado as study

            bars = study(checked, asked, result=result, on_step=_keep_on)
    if out is not None:
        description = {"name": checked.name, **_resolved(checked)}

        def fill(folder: Path) -> None:
            write_run(folder, result.run, result.summary, description, plot=not no_plot)
            if bars:
                from simulator.studies.tornado import write_tornado

                write_tornado(folder, bars, plot=not no_plot)

        write_folder(out, fill, force)
    tables.show_summary(result.summary, as_json, bars if tornado else None)
    _say_where(out)


@app.command()
def compare(
    scenario: ScenarioPath,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="CHAIN",
            help="A chain such as april(over_sampling=2)+pods(keep=4); sync is none; a class of "
            "your own is module:Class(parameter=value). Repeat it.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="key=VALUE",
            help="The first policy again with this setting, such as "
            "cluster.routing=session_affinity. Repeat it.",
        ),
    ] = None,
    out: Out = None,
    settings: Settings = None,
    seed: Seed = None,
    force: Force = False,
    no_plot: NoPlot = False,
    as_json: Json = False,
    draws: Draws = None,
) -> None:
    """Run one scenario under several policies, side by side.

    Every policy meets the same prompts, lengths and rewards. The first is what the others are held
    against; a policy given alone is held against sync. "LABEL = CHAIN" gives a chain a label. With
    --out: a table, a picture, report.html, which needs no other file, and a run's folder a policy.
    """
    from simulator.cli import tables
    from simulator.results.folder import check_target, write_folder
    from simulator.scenario.file import override
    from simulator.scenario.scenario import build_scenario
    from simulator.studies import ranking
    from simulator.studies.compare import compare as run_all
    from simulator.studies.compare import write_comparison
    from simulator.studies.simulate import load
    from simulator.visible import visible

    _check_draws(draws)
    if out is not None:
        check_target(out, force)
    checked = load(scenario, *(settings or ()), seed=seed)
    names = policy or [checked.policy_name]
    if len(names) == 1 and names[0] != "sync" and not also:
        names = ["sync", *names]
    variants = [checked.with_policy(name) for name in names]
    for setting in also or ():
        if re.split(r"[=.\[]", setting)[0].strip() == "policy":
            raise ScenarioError("--also", "takes other keys; give policies with --policy")
        changed = build_scenario(override(checked.raw, [setting], option="--also"))
        label = f"{variants[0].policy_name}, {setting}"
        variants.append(replace(changed.with_policy(names[0]), policy_name=visible(label)))
    with _progress("", sum(each.steps for each in variants) * (1 + (draws or 0))) as advance:
        results = run_all(variants, advance)
        sure = None
        if draws is None:
            sure = ranking.from_short_runs(results, _keep_on)
        elif draws:
            sure = ranking.redraw(results, draws, advance)
    if out is not None:
        from simulator.report.comparison_page import comparison_page

        report = comparison_page(results, sure, draws)
        write = partial(
            write_comparison, results=results, ranking=sure, plot=not no_plot, report=report
        )
        write_folder(out, write, force)
    tables.show_comparison(results, sure, as_json)
    _say_where(out)


@app.command()
def plan(
    scenario: ScenarioPath,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="steps=N",
            help="How much is trained: steps=500; prompts=40000,epochs=2; trained_rollouts=250000.",
        ),
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            "--choose",
            "--vary",
            metavar="key=VALUE,VALUE",
            help="What there is to choose: gpus=16,32,64 (their split is found), gpu, placement, "
            "tensor_parallel, or any key: workload.group_size=8,16. Keys that go together: "
            "cluster.replicas=cluster.trainer_gpus=4,8. Repeat it.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="CHAIN", help="As for compare. Repeat it."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="key=VALUE", help="hours, usd, gpus or staleness. Repeat it."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="usd|hours|gpu_hours|balanced",
            help="What to make least; balanced is hours x cost.",
        ),
    ] = None,
    quality: Annotated[
        list[str] | None,
        typer.Option(
            "--quality",
            metavar="policy=FACTOR",
            help="Updates to the target against synchronous ones, as measured: april=1.05.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Processes; one a core where left out."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="On a Ray cluster: HOST:PORT of its head, auto, or one that is started here "
            "(needs rollcast[ray]).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write plan.json, plan.csv, recommended.yaml and report.html here; a plan that "
            "was interrupted goes on.",
        ),
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    force: Force = False,
    as_json: Json = False,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="90 % intervals of the best.")
    ] = True,
    tornado: Annotated[
        bool,
        typer.Option("--tornado", help="Show what moves a step of what is recommended most."),
    ] = False,
) -> None:
    """Which GPUs, split how, under which policy, for the whole run.

    The section plan of the scenario asks, and these flags; what they leave open is chosen sensibly.
    Exits with 3 where nothing meets the limits, and names what comes nearest.
    """
    from simulator.cli.plan_question import with_flags
    from simulator.cli.plan_table import show_plan
    from simulator.planner import planner
    from simulator.planner.write import write_plan
    from simulator.results.folder import check_target, write_folder
    from simulator.scenario.file import override, read_scenario

    if out is not None:
        check_target(out, force)
    raw = override(read_scenario(scenario), settings or (), seed)
    raw = with_flags(raw, run, choose or (), limit or (), objective, quality or ())
    if workers is not None and workers < 1:
        raise ScenarioError("--workers", f"is {workers}; give at least 1")
    try:
        asked = planner.question(raw, None, policy or (), intervals)
    except ScenarioError as error:
        raise raw.locate(error) from None
    crew: Any = workers
    if ray is not None:
        from simulator.planner.on_ray import OnRay

        crew = OnRay(planner.work_for(asked), ray, workers)
    with _stages() as on_progress:
        try:
            found = planner.answer(asked, crew, out=out, on_progress=on_progress)
        except ScenarioError as error:
            raise raw.locate(error) from None
    bars = _tornado_of(found, raw) if tornado else None
    if out is not None:
        from simulator.report.plan_page import plan_page, shown
        from simulator.results.schema import REPORT

        report = plan_page(found, shown(found, raw), raw, policy or ())

        def write(folder: Path) -> None:
            write_plan(folder, found, raw.folder, out)
            if bars:
                from simulator.studies.tornado import write_tornado

                write_tornado(folder, bars)
            (folder / REPORT.name).write_text(report, encoding="utf-8")

        write_folder(out, write, force)
        planner.forget(out)
    show_plan(found, as_json, bars)
    _say_where(out)
    if found.recommended is None:
        raise typer.Exit(NOTHING_MEETS)


@app.command()
def explore(
    scenario: ScenarioPath,
    settings: Settings = None,
    seed: Seed = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Where the page is; a free one, left out."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Move a scenario's settings on a local page.

    Sliders for GPUs and their split, over-sampling, staleness, group size, lengths and prices; the
    table, the timeline and hours against cost follow. Needs rollcast[explore].
    """
    from simulator.explore.start import explore as show_page
    from simulator.studies.simulate import load

    with suppress(_Stopped):  # Ctrl-C is how it ends
        show_page(load(scenario, *(settings or ()), seed=seed), port, browser)


@app.command()
def presets(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="gpus|models|lengths|turns|policies",
            show_default=False,
            help="All, where left out.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="One of them, with every figure and its source.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List GPUs, models, lengths, turns and policies."""
    from simulator.cli.preset_pages import show_presets

    show_presets(kind, name, as_json)


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", show_default=False, help="Such as cluster.trainer_gpus; all, left out."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Explain a key of a scenario: values, default, unit."""
    from simulator.cli.explain import show

    show(key, as_json)


@app.command()
def init(
    name: Annotated[
        str | None,
        typer.Argument(metavar="EXAMPLE", show_default=False, help="All are listed, left out."),
    ] = None,
) -> None:
    """Print an example scenario to start from."""
    from simulator.cli.init import show

    show(name)


def _tornado_of(planned: Planned, raw: RawScenario) -> list[Bar]:
    """Of what a plan recommends, or comes nearest."""
    from dataclasses import replace

    from simulator.studies.simulate import simulate as run_scenario
    from simulator.studies.tornado import tornado as study

    row = planned.chosen
    if row is None:
        return []
    chosen = replace(row.choice.scenario(raw), steps=row.measured.steps)
    return study(chosen, (), result=run_scenario(chosen, _keep_on), on_step=_keep_on)


def _tornado_keys(scenario: Scenario, tornado: bool, keys: Sequence[str]) -> list[Asked]:
    """What ``--tornado-key`` asks for. Raises ScenarioError for keys without ``--tornado``."""
    if not keys:
        return []
    if not tornado:
        raise ScenarioError("--tornado-key", "goes with --tornado; add that, or leave this out")
    from simulator.studies.tornado import parse_keys

    return parse_keys(scenario, keys)


def _check_draws(draws: int | None) -> None:
    if not draws:
        return
    from simulator.studies.redrawn import LEAST_DRAWS

    if draws < LEAST_DRAWS:
        raise ScenarioError("--draws", f"is {draws}; give at least {LEAST_DRAWS}, or 0 for none")


def _resolved(scenario: Any) -> dict[str, Any]:
    """What was run, with every setting applied."""
    return {"policy_spelt": scenario.policy_name, "scenario": scenario.raw.data}


def _say_where(out: Path | None) -> None:
    if out is not None:
        from simulator.visible import visible

        print(f"wrote {visible(str(out))}/", file=sys.stderr)


@contextmanager
def _progress(label: str, steps: int) -> Iterator[Any]:
    """A progress bar on a terminal, nothing in a pipe; to be called after each step."""
    from simulator.cli.progress import progress_bar

    with progress_bar(label or "steps", steps) as update:

        def advance(record: Any) -> None:
            _keep_on(record)
            if update is not None:
                update(advance=1)

        yield advance


@contextmanager
def _stages() -> Iterator[Any]:
    """Progress of work in stages: on a terminal, with the time left; nothing in a pipe. To be
    called with the stage, what of it is done, and of how many."""
    from simulator.cli.progress import progress_bar

    with progress_bar("", None, left=True, said="") as update:

        def on_progress(what: str, done: int, of: int) -> None:
            _keep_on(None)
            if update is not None:
                update(completed=done, total=of, said=what)

        yield on_progress


def _add_commands(argv: list[str]) -> None:
    """Adds the commands of the other packages (``run``, ...), which the simulator does not know:
    they register by entry point. Looked up only where it may be one of theirs that is asked for."""
    own = {command.callback.__name__ for command in app.registered_commands if command.callback}
    if argv and argv[0] in own:
        return
    from importlib.metadata import entry_points

    for point in entry_points(group="rollcast.commands"):
        point.load()(app)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: with 2, after one sentence, for what a user can put right.

    argv: the arguments, those of the process if None.
    """
    with _stoppable():
        sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    """The exit code."""
    _prepare_streams()
    arguments = _with_addresses(sys.argv[1:] if argv is None else argv)
    try:
        _add_commands(arguments)
        code = app(arguments, prog_name="rollcast", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except RollcastError as error:
        return _fail(str(error))
    except _CLICK_ERROR as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "rollcast"
        said = cast(Any, error).format_message().rstrip(".")
        return _fail(f"{said}{' See' if said.endswith('?') else '; see'} {command} --help")
    except MemoryError:
        return _fail("out of memory; make steps or workload smaller")
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old one goes nowhere
        if isinstance(error, BrokenPipeError):  # the reader of our output went away
            return 1
        return _fail(f"cannot print: {error.strerror or error}")
    except _Stopped as stop:
        print("interrupted; no output folder was written", file=sys.stderr)
        return 128 + stop.number


def _with_addresses(arguments: Sequence[str]) -> list[str]:
    """A ``--ray`` without an address, which may be left out, is one that is started here."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        found.append(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument == "--ray" and not (following in ("auto", "local") or ":" in following):
            found.append("local")
    return found


def _prepare_streams() -> None:
    """Lets the report go where there is nobody to read it, or where letters are missing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fail(message: str) -> int:
    """Says what was wrong, in one line."""
    shown = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    print(f"error: {shown}", file=sys.stderr)
    return 2


class _Stopped(BaseException):
    """A signal asked the run to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_stop_asked: list[_Stopped] = []


def _keep_on(_: Any) -> None:
    """Stops where a signal asked for it and its exception got lost: one that is raised in a
    callback of the interpreter, or below a bare ``except`` of some library, is swallowed."""
    if _stop_asked:
        raise _stop_asked[0]


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turns the signals that end a process into `_Stopped`, so that what is half-written goes; a
    second one does not interrupt that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for each in _STOPS:
            signal.signal(each, signal.SIG_IGN)
        _stop_asked.append(_Stopped(number))
        raise _stop_asked[0]

    before = {each: signal.getsignal(each) for each in _STOPS}
    try:
        for each in _STOPS:
            if before[each] is not signal.SIG_IGN:  # under nohup, a hangup stays ignored
                signal.signal(each, stop)
        yield
    finally:
        _stop_asked.clear()
        for each, handler in before.items():
            signal.signal(each, handler)


if __name__ == "__main__":
    main()
