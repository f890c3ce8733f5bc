"""Real runs on a GPU against forecasts from presets alone, piece by piece.

The loop's figures of ``stack: rollcast`` were fitted to another run on the H200, and to none on the
H100 (`benchmarks/data/gpu`). A forecast prices the iterations, updates and syncs that the run
recorded: lengths are its own.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured import runs
from benchmarks.runner import markdown_table
from rollcast.calibration.fits.updates import loads
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection

RUN = "sync-1"
CAMPAIGNS: Mapping[str, str] = {"h200-sxm": "gpu/runs", "h100-sxm": "gpu/h100/runs"}
"""By the preset of their GPU."""
MODEL: Mapping[str, Any] = {
    "name": "on_gpu",
    "layers": 12,
    "hidden": 1024,
    "intermediate": 3072,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 128,
    "vocab": 98,
    "tied_embeddings": False,
    "qk_norm": True,
}
"""The model of `benchmarks.on_gpu.make_model`."""

TRAINER = {"sharding": "none", "microbatch_tokens": 4096, "recompute": "none"}
FORECASTS: Mapping[str, Mapping[str, Any]] = {
    "`engine: vllm-0.26`, no stack": {"engine": "vllm-0.26", "trainer": TRAINER},
    "`stack: rollcast`": {"stack": "rollcast", "trainer": TRAINER},
}
BANDS = ((8, 15), (16, 31), (32, 63), (64, 128))


def cost_of(options: Mapping[str, Any], gpu: str) -> RooflineCost:
    """Of one GPU, on which engine and trainer take turns."""
    section = RooflineSection.from_mapping(options, "cost.roofline")
    return RooflineCost.from_options(load_model(MODEL), load_gpu(gpu), section)


def iterations_s(cost: RooflineCost, run: RunFolder) -> NDArray[np.float64]:
    """Forecast seconds of each recorded iteration."""
    names = ("rollouts", "context_tokens", "prefill_tokens", "prefill_pairs", "prefill_rollouts")
    columns = (run.iterations[name].tolist() for name in (*names, "prefill_context_tokens"))
    return np.array(
        [cost.iteration_s(Iteration(*map(int, row))) for row in zip(*columns, strict=True)]
    )


def pieces(
    run: RunFolder, seconds: NDArray[np.float64], a_step: Mapping[str, float]
) -> list[float]:
    """Milliseconds of a median iteration that prefills nothing, by band; then seconds a step."""
    table = run.iterations
    rollouts, decodes = table["rollouts"], table["prefill_tokens"] == 0
    medians = [
        1e3 * float(np.median(seconds[decodes & (rollouts >= low) & (rollouts <= high)]))
        for low, high in BANDS
    ]
    return [*medians, *a_step.values(), math.fsum(a_step.values())]


def measured(run: RunFolder) -> list[float]:
    """As the run was."""
    steps, count = run.steps, len(run.steps["step"])
    a_step = {
        name: sum(float(steps[f"phases_{part}_s"].sum()) for part in parts) / count
        for name, parts in PHASES.items()
    }
    return pieces(run, run.iterations["seconds"], a_step)


PHASES = {
    "generation": ("generation",),
    "update": ("update", "optimiser"),
    "weight sync": ("sync",),
    "switches and the rest": ("switch", "wait", "other"),
}


def forecast(run: RunFolder, cost: RooflineCost) -> list[float]:
    """As presets have it."""
    seconds, count = iterations_s(cost, run), len(run.steps["step"])
    trained = [dict(cost.train(load).phases_s) for load in loads(run, skips=False).values()]
    rest_s = math.fsum(phases.pop("rest", 0.0) for phases in trained)
    a_step = {
        "generation": float(seconds.sum()) / count + cost.opening_s(0),
        "update": math.fsum(s for phases in trained for s in phases.values()) / count,
        "weight sync": cost.sync_s,
        "switches and the rest": cost.switch_to_train_s + cost.switch_to_rollout_s + rest_s / count,
    }
    return pieces(run, seconds, a_step)


def rows() -> Iterator[tuple[str, list[float]]]:
    """What, and its figures: by GPU measured, then by each of `FORECASTS`."""
    names = [f"an iteration of {low} to {high} rollouts, ms" for low, high in BANDS]
    names += [f"{phase}, s a step" for phase in (*PHASES, "all of it")]
    columns = []
    for gpu, campaign in CAMPAIGNS.items():
        run = RunFolder.open(runs(campaign) / RUN)
        costs = [cost_of(given, gpu) for given in FORECASTS.values()]
        columns += [measured(run), *(forecast(run, cost) for cost in costs)]
    for name, *values in zip(names, *columns, strict=True):
        yield name, values


def table(_: Path) -> str:
    """Markdown."""
    cells = [(name, *(f"{value:.2f}" for value in values)) for name, values in rows()]
    head = [f"{gpu}: {of}" for gpu in CAMPAIGNS for of in ("measured", *FORECASTS)]
    return markdown_table(("what", *head), cells)
