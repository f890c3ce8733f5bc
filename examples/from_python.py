"""Compares your own policy with APRIL from Python. It starts more groups than the batch needs, and
drops unfinished groups once enough are complete.

    python examples/from_python.py
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollcast import EnoughGroups, Launch, Policy, PrefixReuse, StepPlan, chain, compare, load, plan

SCENARIO = Path(__file__).with_name("april.yaml")


@dataclass(frozen=True)
class Hurry(Policy):
    """The first groups to complete are trained on; the others are lost."""

    over_sampling: float = 1.5

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """More groups, and an earlier stop."""
        launch = Launch(over_sampling=self.over_sampling)
        return replace(plan, launch=launch, stop=EnoughGroups(), unfinished="discard")


def main() -> None:
    """Prints step times and tokens lost, then which GPUs pay."""
    scenario = load(SCENARIO, "steps=8")
    policies = ("sync", "april", Hurry(), chain(Hurry(1.2), PrefixReuse()))
    results = compare([scenario.with_policy(policy) for policy in policies])
    for name, result in results.items():
        step_s, dropped = result.summary["step_s"], result.summary["dropped_tokens"]
        print(f"{name}: {step_s:.1f} s a step, {dropped:,} tokens lost")
    choose = {"gpus": [4, 8], "placement": ["colocated"], "tensor_parallel": [1]}
    planned = plan(
        scenario, {"choose": choose, "objective": "gpu_hours"}, ["sync", "april"], intervals=False
    )
    print(*planned.sentences, sep="\n")


if __name__ == "__main__":
    main()
