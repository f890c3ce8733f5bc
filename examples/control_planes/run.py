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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from plane import BATCH, GROUP, Adapter, run

from rollcast import load, simulate
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.laws import idle_s
from rollcast.simulator.virtual.trial import Tried

NAMES = ("slime", "areal", "nemo_rl", "skyrl", "trl", "verl", "prime_rl")
SETTINGS = (
    f"workload.batch_groups={BATCH}",
    f"workload.group_size={GROUP}",
    "workload.max_new_tokens=4096",
    "cluster.replicas=4",
    "cluster.trainer_gpus=4",
)


def scenario(*more: str) -> Scenario:
    """Four H100 that generate and four that train: Qwen3-8B."""
    return load(Path(__file__).parent.parent / "fully_async.yaml", *SETTINGS, *more)


def adapter(name: str) -> Adapter:
    """The adapter of a stack."""
    found: Adapter = importlib.import_module(f"on_{name}").ADAPTER
    return found


def figures(tried: Tried) -> Mapping[str, float]:
    """What a run is compared by."""
    ages, began = [], {}
    for entry in tried.journal.of("dispatched", "trained"):
        if entry.what == "dispatched":
            began[entry.about] = entry.get("version", 0)
        else:
            ages.append(entry.get("step") - began.get(entry.about, 0))
    steps = len({entry.get("step") for entry in tried.journal.of("trained")})
    return {
        "s a step": tried.end_s / max(steps, 1),
        "tokens/s": tried.run.ledger.generated_tokens / tried.end_s,
        "versions behind": sum(ages) / max(len(ages), 1),
        "most behind": max(ages, default=0),
        "longest idle, s": max(idle_s(tried.run).values(), default=0.0),
    }


def figures_of_policy(policy: str, steps: int) -> Mapping[str, float]:
    """The same of rollcast's own policy on the same scenario."""
    result = simulate(scenario(f"steps={steps}").with_policy(policy))
    ages: dict[int, int] = {}
    for record in result.run.steps:
        for age, tokens in record.staleness.items():
            ages[age] = ages.get(age, 0) + tokens
    total = max(sum(ages.values()), 1)
    return {
        "s a step": result.run.makespan_s / steps,
        "tokens/s": result.run.ledger.generated_tokens / result.run.makespan_s,
        "versions behind": sum(age * tokens for age, tokens in ages.items()) / total,
        "most behind": max(ages, default=0),
        "longest idle, s": max(idle_s(result.run).values(), default=0.0),
    }


def main() -> None:
    """Prints a row for each, and one for the policy beside it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("planes", nargs="+", metavar="NAME[=CHECKOUT]")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows: list[tuple[str, Any]] = []
    for spec in given.planes:
        name, _, path = spec.partition("=")
        if name not in NAMES:
            parser.error(f"{name} is none of {', '.join(NAMES)}")
        chosen, began = adapter(name), time.process_time()
        checkout = Path(path) if path else None
        try:
            tried = run(chosen, checkout, scenario(), given.steps, seed=given.seed, virtual_s=1e6)
        except (ImportError, RollcastError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        rows.append((name, figures(tried)))
        rows.append((f"  {chosen.policy}", figures_of_policy(chosen.policy, given.steps)))
        spent = time.process_time() - began
        print(
            f"{name}: {given.steps} steps, {tried.end_s:.0f} s, in {spent:.1f} s", file=sys.stderr
        )
        for law in chosen.laws:
            try:
                law(tried)
            except AssertionError as broken:
                print(f"{name} breaks a law: {broken}", file=sys.stderr)
    if not rows:
        sys.exit(1)
    names = list(rows[0][1])
    print(f"{'':48}" + "".join(f"{name:>17}" for name in names))
    for label, values in rows:
        print(f"{label:48}" + "".join(f"{values[name]:17.1f}" for name in names))


if __name__ == "__main__":
    main()
