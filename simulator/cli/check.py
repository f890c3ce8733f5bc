"""``rollcast check``: a launch, or a scenario, read without being run, and answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rollcast.simulator.cli import arguments as args
from rollcast.simulator.cli.arguments import TrustModules, argument, option, trust
from rollcast.simulator.cli.console import print_where
from rollcast.simulator.errors import ScenarioError

if TYPE_CHECKING:
    from rollcast.simulator.check.answer import Answer

DOES_NOT_FIT = 3
"""Exit code of a launch that more likely does not fit, or is over ``--fail-over``."""
_COMMAND = "rollcast.command"


class WithCommandLine(TyperCommand):
    """A command of ours that takes another one's words after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps what follows the first ``--`` for `command_of`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def command_of(context: typer.Context) -> tuple[str, ...]:
    """The words after ``--``."""
    words: tuple[str, ...] = context.meta.get(_COMMAND, ())
    return words


LaunchPath = Annotated[
    Path | None,
    argument(
        "LAUNCH",
        "Launch script (run.sh), configuration (YAML, TOML), Python script or folder; a "
        "scenario; or a command line after --.",
    ),
]


def check(
    context: typer.Context,
    launch: LaunchPath = None,
    gpu: args.LaunchGpu = None,
    gpus: Annotated[int | None, option("--gpus", "N", "Number of GPUs in all.")] = None,
    model: args.LaunchModel = None,
    host_memory: args.HostMemory = None,
    mean_tokens: args.MeanTokens = None,
    prompt_tokens: args.PromptTokens = None,
    turns: args.LaunchTurns = None,
    steps: args.RunSteps = None,
    run: Annotated[str | None, option("--run", "steps=N", "The same as --steps N.")] = None,
    stack: args.LaunchStack = None,
    environment: args.Variables = None,
    settings: args.Settings = None,
    fail_over: Annotated[
        float | None,
        option(
            "--fail-over",
            "SHARE",
            "Exit with 3 if the peak is above this share of a GPU's memory, such as 0.9.",
        ),
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes/--no-changes", help="Search for what would fit or be faster.")
    ] = True,
    out: args.Out = None,
    force: args.Force = False,
    as_json: args.Json = False,
    trust_modules: TrustModules = False,
) -> None:
    """Tell whether a launch fits, how long it takes, and what helps.

    Reads the launch files of verl, EasyR1, TRL, ms-swift, slime, NeMo-RL, OpenRLHF, prime-rl,
    AReaL, SkyRL, ROLL and RLinf, and runs nothing of them; or a scenario, of which keys are the
    changes. Exits with 0 if it fits, 3 if it does not, 2 if it cannot be read. With --out:
    check.json, scenario.yaml and report.html.
    """
    from rollcast.simulator.check.answer import answer
    from rollcast.simulator.check.of_scenario import of_scenario
    from rollcast.simulator.cli.check_table import show_answer
    from rollcast.simulator.cli.launching import LaunchOptions, asked, scenario_in
    from rollcast.simulator.cli.plan_flags import steps_of_run
    from rollcast.simulator.cli.stopping import keep_on
    from rollcast.simulator.scenario.file import override

    command = command_of(context)
    if launch is None and not command:
        raise ScenarioError("", "give a launch: rollcast check run.sh, or -- and a command line")
    if fail_over is not None and not 0 < fail_over <= 1:
        raise ScenarioError("--fail-over", f"is {fail_over:g}; give a share above 0, at most 1")
    if out is not None:
        from rollcast.simulator.results.folder import check_target

        check_target(out, force)
    steps = steps_of_run(steps, run)
    options = LaunchOptions(
        *(gpu, gpus, model, mean_tokens, prompt_tokens, steps, stack),
        *(environment or (), host_memory, turns),
    )
    raw = None
    if launch is not None and not command:
        raw = scenario_in(launch, replace(options, steps=None), trust(trust_modules))
    if raw is None:
        found = asked(launch, options, command, settings or ())
    else:
        found = of_scenario(override(raw, settings or ()), steps)
    answered = answer(found, changes, keep_on)
    if out is not None:
        _write(answered, out, force)
    show_answer(answered, as_json)
    print_where(out)
    if not answered.fits or (fail_over is not None and answered.over(fail_over)):
        raise typer.Exit(DOES_NOT_FIT)


def _write(answered: Answer, out: Path, force: bool) -> None:
    from rollcast.simulator.check.write import write_check
    from rollcast.simulator.report.check_page import check_page
    from rollcast.simulator.results.folder import write_folder

    page = check_page(answered)
    write_folder(out, lambda folder: write_check(folder, answered, page), force)
