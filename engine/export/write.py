"""Writing an export: a folder of its own, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from rollcast.engine.export.planned import planned
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.folder import write_folder
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.stacks.exported import PLAN_FILE
from rollcast.simulator.stacks.exporting import Export, Planned, shell_array
from rollcast.simulator.stacks.stack import exporters
from rollcast.simulator.values import choice

ARGUMENTS = "args.sh"
README = "README.md"

_HERE = 'ROLLCAST_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'


def export(scenario: Scenario, stack: str, out: Path) -> list[str]:
    """Writes the export of a scenario to ``stack`` into the folder ``out``; the files' names.

    Raises ScenarioError: ``--to`` for an unknown stack, ``policy.NAME`` and others for a plan that
    the stack cannot carry out, ``--out`` for a folder that holds something already. Then nothing
    is written.
    """
    stacks = exporters()
    stack = choice(stack, "--to", tuple(stacks))
    try:
        plan = planned(scenario, stacks[stack])
        made = stacks[stack].export(plan)
    except ScenarioError as error:
        raise scenario.raw.locate(error) from None
    files = _files(scenario, stack, made, plan)
    if out.is_dir() and any(out.iterdir()):
        raise ScenarioError("--out", f"{out} is not empty; give another folder")

    def fill(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")

    write_folder(out, fill)
    return list(files)


def _files(scenario: Scenario, stack: str, made: Export, plan: Planned) -> dict[str, str]:
    files = {}
    if made.hook is not None:
        files[PLAN_FILE] = made.exported.text()
        files[made.hook[0]] = made.hook[1]
        files[ARGUMENTS] = shell_array(made.settings, _HERE)
    else:
        files[ARGUMENTS] = shell_array(made.settings)
    files[README] = _readme(scenario, stack, made, plan)
    return files


def _readme(scenario: Scenario, stack: str, made: Export, plan: Planned) -> str:
    model = scenario.raw.data.get("model")
    named = f" `model` was {model} there." if isinstance(model, str) and "/" not in model else ""
    installs = ""
    path = ""
    if made.hook is not None:
        installs = (
            f"\nrollcast must be installed in {stack}'s environment: `{made.hook[0]}` takes its\n"
            f"decisions by rollcast's policies, as `{PLAN_FILE}` spells them.\n"
        )
        if ":" in made.exported.policy:
            installs += "The modules of your own policies must be on the Python path there.\n"
        if made.hook_on_path:
            path = 'PYTHONPATH="$ROLLCAST_DIR:$PYTHONPATH" '
            installs += (
                "With `ray job submit`, `PYTHONPATH` of the runtime environment must hold this "
                "folder too.\n"
            )
    notes = "".join(f"- {note}\n" for note in (*made.notes, *_memory(stack, plan), *_always(made)))
    return f"""# {scenario.name} for {stack}

The plan `{made.exported.policy}` of rollcast's scenario {scenario.name}.{named}
{installs}
```bash
MODEL=/where/the/model/is
source {ARGUMENTS}
{path}{made.command} ... "${{ROLLCAST_ARGS[@]}}"
```

In place of the dots: data, rewards, the model's own arguments, the optimiser, checkpoints.

{notes}
## What was not run

Made for {made.made_for}. rollcast's tests compare the decisions with the simulator's, and run such
exports inside {stack}'s own code on a CPU (docs/export.md of rollcast says which and what was
replaced); nobody has run this folder. Try it on a few steps first, and see that the metrics
`rollcast/*` and the step's batch are what `rollcast simulate` says.
"""


def _memory(stack: str, plan: Planned) -> tuple[str, ...]:
    """On what the simulated fit in memory rests."""
    notes = []
    if plan.memory:
        notes.append(
            "That the plan fits in memory rests on the arguments for offloading, recomputation, "
            "microbatches and the engine's share: check the plan again before you change one."
        )
    if plan.unsaid:
        notes.append(
            f"It also rests on {', '.join(plan.unsaid)} of the scenario, for which {stack} has no "
            "argument that rollcast knows: see that the run does the same."
        )
    return tuple(notes)


def _always(made: Export) -> tuple[str, ...]:
    notes = ["Routing, sampling temperature and the loss are the stack's own settings."]
    if made.hook is not None:
        notes.append(
            "A prompt is whatever the stack's data loader gives next; lengths and rewards are real."
        )
    return tuple(notes)
