"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcast.simulator.values.readers import in_its_unit
from rollcast.simulator.values.words import visible

if TYPE_CHECKING:
    from rollcast.simulator.scenario.file import Trust


def tokens(text: str) -> float:
    """A number of tokens, which may be written as 4k. Raises BadParameter."""
    value = in_its_unit("tokens", text)
    try:
        return float(value)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of tokens, such as 4096 or 4k") from None


def whole_tokens(text: str) -> int:
    """As `tokens`, a whole number."""
    value = tokens(text)
    if not value.is_integer():
        raise typer.BadParameter(f"{text!r} is no whole number of tokens, such as 1024 or 1k")
    return int(value)


def option(name: str, metavar: str, help: str, **more: Any) -> Any:
    """An option of a command that takes a value. more: of `typer.Option`."""
    return typer.Option(name, metavar=metavar, help=help, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, show_default=False, help=help)


Texts = list[str] | None
ScenarioPath = Annotated[
    Path, argument("SCENARIO.yaml", "Scenario file; rollcast init lists examples.")
]
ScenarioOrLaunch = Annotated[
    Path,
    argument(
        "SCENARIO.yaml|LAUNCH", "Scenario file, or the launch of a training stack (rollcast check)."
    ),
]
Out = Annotated[Path | None, option("--out", "DIR", "Write all results into this folder.")]
Settings = Annotated[
    Texts,
    option("--set", "key=value", "Set a key of the scenario: workload.group_size=16. Repeatable."),
]
Seed = Annotated[int | None, option("--seed", "N", "Set the random seed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the results that --out holds.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Write no picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Draws = Annotated[
    int | None,
    option(
        "--draws",
        "N",
        "Number of full re-runs for the 90 % intervals (10 or more). Default: a fast "
        "approximation; 0: none.",
        show_default=False,
    ),
]
Controls = Annotated[
    Texts,
    option(
        "--control",
        "MODULE:FUNCTION",
        "Add a row: your async control plane on the same engines, in virtual time. It is "
        "`async def rollout(engine, prompts)`, which returns a batch's groups, or `async def "
        "main(training)`. Its code is run. Repeatable.",
    ),
]
Policies = Annotated[
    Texts,
    option(
        "--policy",
        "CHAIN",
        "Policies to apply in order: april(over_sampling=2)+pods(keep=4). sync: none; "
        "module:Class(parameter=value): your own class. Repeatable.",
    ),
]
Tornado = Annotated[
    bool,
    typer.Option(
        "--tornado", help="Show which uncertain inputs move the step time most, one at a time."
    ),
]
TornadoKeys = Annotated[
    Texts,
    option(
        "--tornado-key",
        "key=20%",
        "With --tornado: another key to vary, by a share (key=20%) or key=LOW,HIGH. Repeatable.",
    ),
]

# Of plan

PlanRun = Annotated[
    str | None,
    option(
        "--run",
        "steps=N",
        "Length of the run: steps=500; prompts=40000,epochs=2; trained_rollouts=250000;"
        " accuracy=0.7.",
    ),
]
RunSteps = Annotated[
    int | None,
    option("--steps", "N", "Steps of the whole run, for hours and cost: as --run steps=N."),
]
PlanTarget = Annotated[
    str | None,
    option(
        "--target",
        "accuracy=A",
        "Length of the run by the accuracy to reach, as the law of learning has it: accuracy=0.7.",
    ),
]
Choose = Annotated[
    Texts,
    typer.Option(
        "--choose",
        "--vary",
        metavar="key=VALUE,VALUE",
        help="Values to choose from: gpus=16,32,64 or gpus=64xh100,32xh200 (their split is "
        "found), gpu, placement, "
        "tensor_parallel, or any key: workload.group_size=8,16. Keys that change together: "
        "cluster.replicas=cluster.trainer_gpus=4,8. Repeatable.",
    ),
]
Limits = Annotated[
    Texts,
    option("--limit", "key=VALUE", "Limit of the run: hours, usd, gpus or staleness. Repeatable."),
]
PlanObjective = Annotated[
    str | None,
    option(
        "--objective", "usd|hours|gpu_hours|balanced", "What to minimise; balanced: hours x cost."
    ),
]
Quality = Annotated[
    Texts,
    option(
        "--quality",
        "policy=FACTOR",
        "Updates to the target relative to synchronous training, as measured: april=1.05.",
    ),
]
Workers = Annotated[
    int | None, option("--workers", "N", "Number of processes; default: one per core.")
]
Ray = Annotated[
    str | None,
    option(
        "--ray",
        "[ADDRESS]",
        "Run on a Ray cluster: HOST:PORT of its head, or auto; without an address, one is "
        "started here (needs rollcast[ray]).",
    ),
]
PlanOut = Annotated[
    Path | None,
    option(
        "--out",
        "DIR",
        "Write plan.json, plan.csv, recommended.yaml and report.html into this folder; an "
        "interrupted plan resumes.",
    ),
]
Intervals = Annotated[
    bool,
    typer.Option("--intervals/--no-intervals", help="Compute 90 % intervals of the best choices."),
]

# Of a launch

LaunchGpu = Annotated[str | None, option("--gpu", "GPU", "Kind of GPU: rollcast presets gpus.")]
LaunchModel = Annotated[
    str | None,
    option("--model", "MODEL", "Model: rollcast presets models, or a folder with its config.json."),
]
HostMemory = Annotated[
    str | None,
    option(
        "--host-memory",
        "SIZE",
        "Host memory of a node, such as 512GB or 2TiB; without it none is checked.",
    ),
]
MeanTokens = Annotated[
    float | None,
    option(
        "--mean-tokens", "N", "Mean length of the responses in tokens; 4k is 4,096.", parser=tokens
    ),
]
PromptTokens = Annotated[
    int | None,
    option(
        "--prompt-tokens",
        "N",
        "Mean length of the prompts in tokens; 1k is 1,024.",
        parser=whole_tokens,
    ),
]
LaunchTurns = Annotated[
    str | None,
    option(
        "--turns",
        "PRESET",
        "Rollouts with tools: what their turns are like (rollcast presets turns). --mean-tokens is "
        "of a turn then.",
    ),
]
LaunchStack = Annotated[
    str | None,
    option("--stack", "STACK", "Training stack, where it is not clear, and its release: verl-0.5."),
]
Variables = Annotated[
    Texts, option("--env", "NAME=VALUE", "Variable that the launch takes from outside. Repeatable.")
]
PlanGpus = Annotated[
    str | None,
    option(
        "--gpus",
        "N,N|NxKIND,...",
        "GPUs to choose from, as --choose gpus: 8,16,32, or 64xh100,32xh200.",
    ),
]


TrustModules = Annotated[
    bool,
    typer.Option(
        "--trust-modules",
        help="Import the policies of your own (module:Class) that the file names: their code runs.",
    ),
]


def trust(given: bool) -> Trust:
    """Whether to import modules that a file names: ``given``, or the answer on a terminal."""
    return given or (_asks if sys.stdin.isatty() and sys.stderr.isatty() else False)


def _asks(named: Sequence[str]) -> bool:
    shown = ", ".join(map(visible, named))
    question = f"This file names {shown}; importing it runs its code. Do you trust it?"
    return typer.confirm(question, err=True)
