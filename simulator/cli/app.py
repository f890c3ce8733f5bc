"""The command line: ``rollcast simulate``, ``compare``, ``plan``, ``presets``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rollcast.simulator.cli import arguments as args
from rollcast.simulator.cli.arguments import TrustModules, argument, option, trust
from rollcast.simulator.cli.check import WithCommandLine, check
from rollcast.simulator.cli.console import old_names_as_notes, print_where
from rollcast.simulator.cli.plan import plan
from rollcast.simulator.cli.serving import serve
from rollcast.simulator.cli.stopping import (
    Stopped,
    as_asked,
    keep_on,
    progress,
    stoppable,
    until_stopped,
)
from rollcast.simulator.cli.words import PlainCommands
from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.values import short

if TYPE_CHECKING:
    from rollcast.simulator.scenario.scenario import Scenario
    from rollcast.simulator.studies.simulate import Result
    from rollcast.simulator.studies.tornado import Asked, Bar

app = typer.Typer(
    name="rollcast",
    cls=PlainCommands,
    help="Forecast how a scheduling policy changes the speed of LLM reinforcement learning.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
    scenario: args.ScenarioPath,
    out: args.Out = None,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
    force: args.Force = False,
    no_plot: args.NoPlot = False,
    as_json: args.Json = False,
    draws: args.Draws = None,
    tornado: args.Tornado = False,
    tornado_key: args.TornadoKeys = None,
) -> None:
    """Simulate one scenario and show its step time and idle GPUs.

    With --out: spans.csv, steps.csv, rollouts.csv, decisions.jsonl, summary.json, scenario.json,
    trace.json.gz (opens in ui.perfetto.dev) and timeline.png; with --tornado also tornado.csv and
    tornado.png.
    """
    from rollcast.simulator.cli import tables
    from rollcast.simulator.studies.simulate import simulate as run_scenario

    checked = _load(scenario, settings, seed, trust_modules, out, force, draws)
    asked = _tornado_keys(checked, tornado, tornado_key or ())
    with progress(checked.policy_name, checked.steps * (1 + (draws or 0))) as advance:
        result = run_scenario(checked, advance)
        if draws != 0:
            from rollcast.simulator.studies.uncertainty import add_intervals

            add_intervals(result, draws, advance, keep_on)
        bars = _tornado(result, asked) if tornado else None
    if out is not None:
        _write_run(result, bars or (), out, force, plot=not no_plot)
    tables.show_summary(result.summary, as_json, bars)
    print_where(out)


@app.command()
def compare(
    scenario: args.ScenarioPath,
    policy: args.Policies = None,
    also: Annotated[
        list[str] | None,
        option(
            "--also",
            "key=VALUE",
            "Add a row: the first policy with this key set, such as "
            "cluster.routing=session_affinity. Repeatable.",
        ),
    ] = None,
    out: args.Out = None,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
    force: args.Force = False,
    no_plot: args.NoPlot = False,
    as_json: args.Json = False,
    draws: args.Draws = None,
    control: args.Controls = None,
) -> None:
    """Simulate one scenario under several policies and compare them.

    All policies get the same prompts, lengths and rewards. Speed-ups are relative to the first
    policy; a single policy is compared with sync. "LABEL = CHAIN" labels a chain. With --out: a
    table, a picture, a self-contained report.html, and one run folder per policy.
    """
    from rollcast.simulator.cli import tables
    from rollcast.simulator.results.folder import write_folder
    from rollcast.simulator.studies import learned, ranking
    from rollcast.simulator.studies.compare import run_each, write_comparison

    checked = _load(scenario, settings, seed, trust_modules, out, force, draws)
    variants = _variants(checked, policy or [checked.policy_name], also or ())
    planes = _controls(control or (), draws)
    with progress("", sum(variant.steps for variant in variants) * (1 + (draws or 0))) as advance:
        results = run_each(variants, advance)
        ranked = None
        results |= _run_controls(checked, planes)
        if planes:
            learned.add_learning(results)
        if draws is None:
            ranked = ranking.from_short_runs(results, keep_on)
        elif draws:
            ranked = ranking.redraw(results, draws, advance)
    if out is not None:
        from rollcast.simulator.report.comparison_page import comparison_page

        report = comparison_page(results, ranked, draws)
        write = partial(
            write_comparison, results=results, ranking=ranked, plot=not no_plot, report=report
        )
        write_folder(out, write, force)
    tables.show_comparison(results, ranked, as_json)
    print_where(out)


app.command()(plan)
app.command(cls=WithCommandLine)(check)
app.command()(serve)


@app.command()
def explore(
    scenario: args.ScenarioPath,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
    port: Annotated[
        int | None, option("--port", "N", "Port of the page; default: a free one.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Change a scenario's settings on a local web page.

    Sliders for GPUs and their split, over-sampling, staleness, group size, lengths and prices
    update the table, the timeline and the plot of hours against cost. Needs rollcast[explore].
    """
    from rollcast.simulator.explore.start import explore as show_page
    from rollcast.simulator.studies.simulate import load

    with until_stopped():
        show_page(
            load(scenario, *(settings or ()), seed=seed, trust_modules=trust(trust_modules)),
            port,
            browser,
        )


@app.command()
def presets(
    kind: Annotated[
        str | None,
        argument(
            "gpus|models|engines|syncs|kernels|lengths|turns|policies",
            "Kind of preset; default: all.",
        ),
    ] = None,
    name: Annotated[
        str | None, argument("NAME", "Show one preset with all figures and sources.")
    ] = None,
    as_json: args.Json = False,
) -> None:
    """List presets of GPUs, models, engines, lengths and policies."""
    from rollcast.simulator.cli.presets import show_presets

    show_presets(kind, name, as_json)


@app.command()
def explain(
    key: Annotated[
        str, argument("KEY", "Key, such as cluster.trainer_gpus; default: the first thirty.")
    ] = "",
    as_json: args.Json = False,
) -> None:
    """Explain a key of a scenario: meaning, values, default, unit."""
    from rollcast.simulator.cli.explain import show

    show(key, as_json)


@app.command()
def init(
    name: Annotated[
        str | None, argument("EXAMPLE", "Example to print; default: list them.")
    ] = None,
) -> None:
    """Print an example scenario to start from."""
    from rollcast.simulator.cli.init import show

    show(name)


def _load(
    path: Path,
    settings: Sequence[str] | None,
    seed: int | None,
    trust_modules: bool,
    out: Path | None,
    force: bool,
    draws: int | None,
) -> Scenario:
    """The scenario. Raises ScenarioError for it, for ``--draws`` and for ``--out``."""
    from rollcast.simulator.studies.simulate import load

    if draws:
        from rollcast.simulator.studies.redrawn import LEAST_DRAWS, MOST_DRAWS

        if not LEAST_DRAWS <= draws <= MOST_DRAWS:
            message = f"is {draws}; give {LEAST_DRAWS} to {MOST_DRAWS:,}, or 0 for none"
            raise ScenarioError("--draws", message)
    if out is not None:
        from rollcast.simulator.results.folder import check_target

        check_target(out, force)
    return load(path, *(settings or ()), seed=seed, trust_modules=trust(trust_modules))


def _variants(scenario: Scenario, names: list[str], also: Sequence[str]) -> list[Scenario]:
    """The scenario under each policy, then the first with each setting of ``--also``."""
    from rollcast.simulator.scenario.file import override
    from rollcast.simulator.scenario.scenario import build_scenario
    from rollcast.simulator.values.words import visible

    if len(names) == 1 and names[0] != "sync" and not also:
        names = ["sync", *names]
    variants = [scenario.with_policy(name) for name in names]
    for setting in also:
        if re.split(r"[=.\[]", setting)[0].strip() == "policy":
            raise ScenarioError("--also", "takes other keys; give policies with --policy")
        changed = build_scenario(override(scenario.raw, [setting], option="--also"))
        label = f"{variants[0].policy_name}, {setting}"
        variants.append(replace(changed.with_policy(names[0]), policy_name=visible(label)))
    return variants


def _controls(names: Sequence[str], draws: int | None) -> dict[str, Callable[..., Any]]:
    """The control planes of ``--control``. Raises ScenarioError."""
    if not names:
        return {}
    from rollcast.simulator.virtual.control import load_control

    if draws:
        raise ScenarioError("--draws", "redraws policies alone; leave it out with --control")
    return {name: load_control(name) for name in names}


def _run_controls(
    scenario: Scenario, planes: Mapping[str, Callable[..., Any]]
) -> dict[str, Result]:
    """Their rows."""
    if not planes:
        return {}
    from rollcast.simulator.virtual.control import run_control

    return {name: run_control(scenario, plane, name) for name, plane in planes.items()}


def _write_run(result: Result, bars: Sequence[Bar], out: Path, force: bool, *, plot: bool) -> None:
    from rollcast.simulator.results.folder import write_folder
    from rollcast.simulator.results.write import write_run
    from rollcast.simulator.scenario.file import kept

    scenario, raw = result.scenario, result.scenario.raw
    description = {
        "name": scenario.name,
        "policy_spelt": scenario.policy_name,
        "scenario": kept(raw.data, raw.modules),
    }

    def fill(folder: Path) -> None:
        write_run(folder, result.run, result.summary, description, plot=plot)
        if bars:
            from rollcast.simulator.studies.tornado import write_tornado

            write_tornado(folder, bars, plot=plot)

    write_folder(out, fill, force)


def _tornado(result: Result, asked: Sequence[Asked]) -> list[Bar]:
    from rollcast.simulator.studies.tornado import tornado

    return tornado(result.scenario, asked, result=result, on_step=keep_on)


def _tornado_keys(scenario: Scenario, tornado: bool, keys: Sequence[str]) -> list[Asked]:
    """Keys of ``--tornado-key``. Raises ScenarioError without ``--tornado``."""
    if keys and not tornado:
        raise ScenarioError("--tornado-key", "goes with --tornado; add that, or leave this out")
    if not tornado:
        return []
    from rollcast.simulator.studies.tornado import parse_keys

    return parse_keys(scenario, keys)


def _add_commands(argv: list[str]) -> None:
    """Adds the commands of other packages, found by entry point, unless the command is ours."""
    names = {command.callback.__name__ for command in app.registered_commands if command.callback}
    if not argv or argv[0] not in names:
        _add_others()


@cache
def _add_others() -> None:
    """Once, however often this process runs commands."""
    from importlib.metadata import entry_points

    for point in entry_points(group="rollcast.commands"):
        point.load()(app)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; with 2, after one sentence, for a user's mistake."""
    with stoppable():
        sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    """The exit code."""
    _prepare_streams()
    arguments = _with_addresses(sys.argv[1:] if argv is None else argv)
    try:
        with as_asked(), old_names_as_notes():
            _add_commands(arguments)
            code = app(arguments, prog_name="rollcast", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except RollcastError as error:
        return _fail(_with_whole_key(error))
    except _CLICK_ERROR as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "rollcast"
        message = cast(Any, error).format_message().rstrip(".")
        if key := _meant_key(getattr(error, "option_name", ""), context):
            message = f"{message.partition(' (')[0]}; give {key}"
        return _fail(f"{message}{' See' if message.endswith('?') else '; see'} {command} --help")
    except MemoryError:
        return _fail("out of memory; make steps or workload smaller")
    except OSError as error:
        if error.filename is not None:  # of a file: what is printed has no name
            return _fail(f"cannot use {short(str(error.filename))}: {error.strerror}")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old one goes nowhere
        if isinstance(error, BrokenPipeError):  # the reader of our output went away
            return 1
        return _fail(f"cannot print: {error.strerror or error}")
    except Stopped as stop:
        print("interrupted; no output folder was written", file=sys.stderr)
        return 128 + stop.number


def _with_whole_key(error: RollcastError) -> str:
    """The error's sentence; of the end of a key, such as group_size, with the whole one."""
    told = str(error)
    if not isinstance(error, ScenarioError) or not error.message.startswith("unknown key; valid:"):
        return told
    from rollcast.simulator.scenario.reference import find, reference

    try:
        find(error.field, reference())
    except ScenarioError as nearer:
        place = re.search(r" \([^()]*\)$", told)
        return f"{nearer}{place[0] if place else ''}"
    return told


def _meant_key(option: str, context: Any) -> str:
    """The words that set the key of the scenario that an unknown option is called like; '' where no
    key is, or several are."""
    from rollcast.simulator.scenario.reference import reference

    taken = {word for param in context.command.params for word in param.opts} if context else set()
    name = option.lstrip("-").replace("-", "_")
    if not name or "--set" not in taken:
        return ""
    keys = {entry.key for entry in reference() if f".{entry.key}".endswith(f".{name}")}
    top = min((key.count(".") for key in keys), default=0)
    meant = [key for key in keys if key.count(".") == top]
    return f"--set {meant[0]}=VALUE" if len(meant) == 1 else ""


def _with_addresses(arguments: Sequence[str]) -> list[str]:
    """Adds the address ``local`` to a ``--ray`` without one."""
    lines: list[str] = []
    for place, word in enumerate(arguments):
        lines.append(word)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if word == "--ray" and not (following in ("auto", "local") or ":" in following):
            lines.append("local")
    return lines


def _prepare_streams() -> None:
    """Lets output survive closed streams and missing letters."""
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


if __name__ == "__main__":
    main()
