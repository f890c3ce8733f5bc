"""Published control planes, unchanged, on simulated engines, beside rollcast's own policies:

    python run.py slime=/path/to/slime nemo_rl=/path/to/RL verl trl --steps 40

NAME=CHECKOUT for each; without a checkout the installed package is run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from plane import BATCH, GROUP, Adapter, Beside, run

from rollcast import load, simulate
from rollcast.simulator.core.spans import Run
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.results.intervals import total_s
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.over_time import gpu_lanes
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.trial import Tried

NAMES = ("slime", "areal", "nemo_rl", "skyrl", "trl", "verl", "prime_rl")
SETTINGS = (
    f"workload.batch_groups={BATCH}",
    f"workload.group_size={GROUP}",
    "workload.max_new_tokens=4096",
    "cluster.replicas=4",
    "cluster.trainer_gpus=4",
)


FIGURES = (
    *("makespan_s", "step_s", "trained_tokens_per_s", "versions_behind", "most_behind"),
    *("replicas_idle", "trainer_idle", "not_trained"),
)
SHARES = FIGURES[-3:]


def scenario(*more: str) -> Scenario:
    """Four H100 that generate and four that train: Qwen3-8B."""
    return load(Path(__file__).parent.parent / "fully_async.yaml", *SETTINGS, *more)


def adapter(name: str) -> Adapter:
    """The adapter of a stack."""
    found: Adapter = importlib.import_module(f"on_{name}").ADAPTER
    return found


def figures(run: Run) -> Mapping[str, float]:
    """What a run is compared by, of a control plane or a policy: seconds, trained tokens, how many
    versions behind they are, shares of the GPUs' time in which they had nothing to do, and of the
    generated tokens that were not trained on."""
    lanes, found = gpu_lanes(run), summarise(run)

    def idle(trainer: bool) -> float:
        mine = [lane for lane in lanes if (lane.replica < 0) == trainer]
        idle_s = sum(lane.gpus * total_s(when) for lane in mine for when in lane.idle.values())
        return float(idle_s / run.makespan_s / sum(lane.gpus for lane in mine))

    values = (
        run.makespan_s,
        found["step_s"],
        found["trained_tokens_per_s"],
        found["staleness_mean"],
        max(int(age) for age in found["staleness"]),
        idle(trainer=False),
        idle(trainer=True),
        1 - run.ledger.trained_tokens / run.ledger.generated_tokens,
    )
    return dict(zip(FIGURES, values, strict=True))


def of_policy(policy: str, steps: int, *settings: str) -> Run:
    """rollcast's own policy on the same scenario."""
    return simulate(scenario(f"steps={steps}", *settings).with_policy(policy)).run


def side_by_side(
    name: str, checkout: Path | None, steps: int, seed: int = 0
) -> Iterator[tuple[Beside, Tried, Run]]:
    """Each setting of a control plane that is compared: what it left, and the run of the policy of
    that name. Raises ImportError where the stack, or what it needs, is not there."""
    chosen = adapter(name)
    for beside in chosen.beside:
        options = dict(beside.options)
        tried = run(chosen, checkout, scenario(), steps, options=options, seed=seed, virtual_s=1e6)
        yield beside, tried, of_policy(beside.policy, steps, *beside.scenario)


def row(label: str, run: Run) -> str:
    """A line of the table."""
    found = figures(run)
    cells = {key: f"{v:.1%}" if key in SHARES else f"{v:.1f}" for key, v in found.items()}
    return f"{label:66}" + "".join(f"{cell:>{len(key) + 2}}" for key, cell in cells.items())


def main() -> None:
    """Prints a row for each, and one for the policy beside it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("planes", nargs="+", metavar="NAME[=CHECKOUT]")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows: list[str] = []
    for spec in given.planes:
        name, _, path = spec.partition("=")
        if name not in NAMES:
            parser.error(f"{name} is none of {', '.join(NAMES)}")
        laws, began = adapter(name).laws, time.process_time()
        try:
            for beside, tried, own in side_by_side(
                name, Path(path) if path else None, given.steps, given.seed
            ):
                rows.append(row(f"{name} {beside.setting}", tried.run))
                rows.append(row(f"  {beside.policy}", own))
                for law in () if beside.options else laws:
                    try:
                        law(tried)
                    except AssertionError as broken:
                        print(f"{name} breaks a law: {broken}", file=sys.stderr)
        except (ImportError, RollcastError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {time.process_time() - began:.1f} s of CPU", file=sys.stderr)
    if not rows:
        sys.exit(1)
    print("\n".join([f"{'':66}" + "".join(f"  {key}" for key in FIGURES), *rows]))


if __name__ == "__main__":
    main()
