"""Run folders of a world whose constants are known: the plain reference with a noisy cost."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rollcast.simulator.costs import LinearCost
from rollcast.simulator.costs.base import AdjustedCost, Curve, Iteration, TrainCost, TrainLoad
from rollcast.simulator.costs.clock import to_seconds
from rollcast.simulator.results.folder import write_folder
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.write import write_json, write_run
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import build_scenario
from tests.reference.cluster import OnlyPromptsShared, ReferenceCluster
from tests.running import run

LINEAR = {
    "iteration_s": 1.5e-3,
    "per_rollout_s": 6e-5,
    "per_context_token_s": 2e-7,
    "per_prefill_token_s": 2.5e-5,
    "train_per_token_s": 7e-5,
    "train_fixed_s": 0.05,
    "sync_s": 0.02,
    "switch_to_train_s": 0.01,
    "switch_to_rollout_s": 0.03,
}
LENGTHS = {"family": "lognormal", "median_tokens": 40, "between_sd": 0.5, "within_sd": 0.35}
REWARDS = {
    "family": "beta_bernoulli",
    "mean": 0.6,
    "between_sd": 0.25,
    "length_correlation": 0.3,
    "difficulty_length_correlation": 0.5,
}
PROMPTS = {"median_tokens": 20, "sd": 0.8, "max_tokens": 100}


@dataclass(frozen=True)
class NoisyCost(AdjustedCost):
    """A linear cost whose every answer errs: a little always, and iterations now and then many
    times over."""

    inner: LinearCost
    rng: np.random.Generator
    spread: float = 0.05
    outliers: float = 0.08
    bend: tuple[int, float] | None = None  # beyond so many rollouts, each costs this much more
    asked: list[Iteration] = field(default_factory=list)

    def _noise(self) -> float:
        slow = 4.0 if self.rng.random() < self.outliers else 1.0
        return slow * float(np.exp(self.spread * self.rng.normal()))

    def _bend(self, rollouts: int) -> float:
        return 0.0 if self.bend is None else self.bend[1] * max(rollouts - self.bend[0], 0)

    def decode_curve(self, rollouts: int) -> Curve:
        factor, curve = self._noise(), self.inner
        fixed_s = curve.iteration_s + curve.per_rollout_s * rollouts + self._bend(rollouts)
        return Curve.affine(factor * fixed_s, factor * curve.per_context_token_s)

    def mixed_iteration_s(self, work: Iteration) -> float:
        return self._noise() * (self.inner.mixed_iteration_s(work) + self._bend(work.rollouts))

    def train(self, load: TrainLoad) -> TrainCost:
        [(name, seconds)] = self.inner.train(load).phases_s
        # one update in a hundred iterations: an outlier would be luck, not a rate
        factor = float(np.exp(self.spread * self.rng.normal()))
        return TrainCost(((name, seconds * factor),))


_WRITTEN: dict[str, dict[str, bytes]] = {}


def write_world(folder: Path, **options: Any) -> Path:
    """The folder of a real run, as `_write` simulates it; once for the same options."""
    said = repr(sorted(options.items()))
    if said not in _WRITTEN:
        _write(folder, **options)
        _WRITTEN[said] = {path.name: path.read_bytes() for path in folder.iterdir()}
    folder.mkdir(exist_ok=True)
    for name, content in _WRITTEN[said].items():
        (folder / name).write_bytes(content)
    return folder


def _write(
    folder: Path,
    *,
    policy: str = "sync",
    seed: int = 0,
    steps: int = 12,
    spread: float = 0.05,
    outliers: float = 0.08,
    bend: tuple[int, float] | None = None,
    lengths: dict[str, Any] | None = None,
    versions: dict[str, str] | None = None,
    prompts: object = PROMPTS,
    group_size: int = 6,
    turns: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
) -> None:
    """Simulates one run, iteration by iteration, and writes the folder of a real one."""
    away = {"environment": environment, "reward": reward}
    data = {
        "cluster": {"placement": "colocated", "replicas": 1},
        "engine": {"max_seqs": 64, "max_batched_tokens": 512, "kv_tokens": 10000},
        "workload": {
            "batch_groups": 8,
            "group_size": group_size,
            "prompt_tokens": prompts,
            "max_new_tokens": 200,
            "lengths": lengths or LENGTHS,
            "rewards": REWARDS,
            **({} if turns is None else {"turns": turns, "max_context_tokens": 2000}),
        },
        **{key: section for key, section in away.items() if section is not None},
        "policy": policy,
        "cost": {"linear": LINEAR},
        "steps": steps,
        "seed": seed,
    }
    scenario = build_scenario(RawScenario(data))
    assert isinstance(scenario.cost, LinearCost)
    cost = NoisyCost(scenario.cost, np.random.default_rng(seed + 77), spread, outliers, bend)
    workload = OnlyPromptsShared(scenario.workload)
    world = ReferenceCluster(
        scenario.shape, scenario.engine, cost, workload, environment=scenario.environment
    )
    for replica in world.replicas:  # what always holds is held where the simulator is compared
        replica.check = lambda: None  # type: ignore[method-assign]
    result = run(world, scenario.policy, scenario.plan, steps)
    summary = {
        "schema": "rollcast-run/1",
        "policy": scenario.policy_name,
        "seed": seed,
        **summarise(result),
    }

    def fill(place: Path) -> None:
        description = {"name": "known", "policy_spelt": scenario.policy_name, "scenario": data}
        write_run(place, result, summary, description, plot=False)
        write_iterations(place / "iterations.csv", world)
        write_json(
            place / "provenance.json",
            {
                "date": "2026-01-01",
                "python": "3.11",
                "versions": versions or {"vllm": "1"},
                "processor": "abacus",
                "cores": 2,
                "torch_threads": 1,
                "gpu": None,
            },
        )

    write_folder(folder, fill)


def write_iterations(path: Path, world: ReferenceCluster) -> None:
    """iterations.csv as a real run writes it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "start_s",
                "seconds",
                "rollouts",
                "context_tokens",
                "prefill_tokens",
                "prefill_pairs",
                "prefill_rollouts",
            ]
        )
        for one in world.passes:
            work = one.work
            writer.writerow(
                [
                    to_seconds(one.start),
                    to_seconds(one.end - one.start),
                    work.rollouts,
                    work.context_tokens,
                    work.prefill_tokens,
                    work.prefill_pairs,
                    work.prefill_rollouts,
                ]
            )


def edit_json(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def slow_down(run: Path, factor: float) -> None:
    """Every time of a run, times ``factor``."""
    for file in ("spans.csv", "steps.csv", "iterations.csv"):
        table = pd.read_csv(run / file)
        for column in table.columns:
            if column.endswith("_s") or column == "seconds":
                table[column] *= factor
        table.to_csv(run / file, index=False)


PULSE = {"short_s": 0.002, "long_s": 0.05}


def slow_trainer(run: Path, factor: float) -> None:
    """Every update of a run, times ``factor``."""
    steps = pd.read_csv(run / "steps.csv")
    steps["step_s"] += (factor - 1.0) * steps["train_s"]
    steps["train_s"] *= factor
    steps.to_csv(run / "steps.csv", index=False)


def write_pulses(run: Path, factor: float, of_long: float | None = None) -> None:
    """speed_probes.csv of a machine ``factor`` times as slow, in arithmetic ``of_long`` times; a
    beat in twenty is off."""
    rng, steps = np.random.default_rng(int(1000 * factor)), len(pd.read_csv(run / "steps.csv"))
    table = {"steps_done": np.arange(steps + 1)}
    factors = {"short_s": factor, "long_s": factor if of_long is None else of_long}
    for name, seconds in PULSE.items():
        noise = np.exp(0.03 * rng.normal(size=steps + 1))
        table[name] = factors[name] * seconds * np.where(rng.random(steps + 1) < 0.05, 1.3, noise)
    pd.DataFrame(table).to_csv(run / "speed_probes.csv", index=False)
