"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcast.simulator.values.amounts import in_its_unit
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


ScenarioPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.yaml",
        show_default=False,
        help="Scenario file; rollcast init lists examples.",
    ),
]
ScenarioOrLaunch = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.yaml|LAUNCH",
        show_default=False,
        help="Scenario file, or the launch of a training stack (rollcast check).",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write all results into this folder."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="key=value",
        help="Set a key of the scenario: workload.group_size=16. Repeatable.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Set the random seed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the results that --out holds.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Write no picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        metavar="N",
        show_default=False,
        help="Number of full re-runs for the 90 % intervals (10 or more). Default: a fast "
        "approximation; 0: none.",
    ),
]
Controls = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        metavar="MODULE:FUNCTION",
        help="Add a row: your async control plane on the same engines, in virtual time. It is "
        "`async def rollout(engine, prompts)`, which returns a batch's groups, or `async def "
        "main(training)`. Its code is run. Repeatable.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="CHAIN",
        help="Policies to apply in order: april(over_sampling=2)+pods(keep=4). sync: none; "
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
    list[str] | None,
    typer.Option(
        "--tornado-key",
        metavar="key=20%",
        help="With --tornado: another key to vary, by a share (key=20%) or "
        "key=LOW,HIGH. Repeatable.",
    ),
]

# Of plan

PlanRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="steps=N",
        help="Length of the run: steps=500; prompts=40000,epochs=2; trained_rollouts=250000;"
        " accuracy=0.7.",
    ),
]
PlanTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="accuracy=A",
        help="Length of the run by the accuracy to reach, as the law of learning has it:"
        " accuracy=0.7.",
    ),
]
Choose = Annotated[
    list[str] | None,
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
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="key=VALUE",
        help="Limit of the run: hours, usd, gpus or staleness. Repeatable.",
    ),
]
PlanObjective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="usd|hours|gpu_hours|balanced",
        help="What to minimise; balanced: hours x cost.",
    ),
]
Quality = Annotated[
    list[str] | None,
    typer.Option(
        "--quality",
        metavar="policy=FACTOR",
        help="Updates to the target relative to synchronous training, as measured: april=1.05.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Number of processes; default: one per core."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: HOST:PORT of its head, or auto; without an address, one is "
        "started here (needs rollcast[ray]).",
    ),
]
PlanOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write plan.json, plan.csv, recommended.yaml and report.html into this folder; an "
        "interrupted plan resumes.",
    ),
]
Intervals = Annotated[
    bool,
    typer.Option("--intervals/--no-intervals", help="Compute 90 % intervals of the best choices."),
]

# Of a launch

LaunchGpu = Annotated[
    str | None, typer.Option("--gpu", metavar="GPU", help="Kind of GPU: rollcast presets gpus.")
]
LaunchModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Model: rollcast presets models, or a folder with its config.json.",
    ),
]
HostMemory = Annotated[
    str | None,
    typer.Option(
        "--host-memory",
        metavar="SIZE",
        help="Host memory of a node, such as 512GB or 2TiB; without it none is checked.",
    ),
]
MeanTokens = Annotated[
    float | None,
    typer.Option(
        "--mean-tokens",
        metavar="N",
        parser=tokens,
        help="Mean length of the responses in tokens; 4k is 4,096.",
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        metavar="N",
        parser=whole_tokens,
        help="Mean length of the prompts in tokens; 1k is 1,024.",
    ),
]
LaunchStack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="Training stack, where it is not clear, and its release: verl-0.5.",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Variable that the launch takes from outside. Repeatable.",
    ),
]
PlanGpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="N,N|NxKIND,...",
        help="GPUs to choose from, as --choose gpus: 8,16,32, or 64xh100,32xh200.",
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
