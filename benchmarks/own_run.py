"""A genuine run of TRL here, imported, and its forecast of another group size and another cap.

TRL's own `GRPOTrainer` trains the built-in model on the built-in task; `rollcast import` reads what
it leaves; `rollcast simulate` of the imported scenario forecasts the run with another group size
and with another cap; and TRL runs again with those. The first run is repeated at the end: what the
machine's own speed moved by in between is no error of a forecast, and is reported beside it.

    python -m benchmarks.own_run [--vllm] [--steps 20] [--repeats 1] [--keep DIR]
    python -m benchmarks.own_run --vllm --judge DIR

needs what the engine needs, and ``pip install --no-deps trl accelerate datasets pyarrow xxhash
multiprocess tensorboard trackio`` (with ``gradio_client`` and ``orjson``, which trackio imports).
With ``--vllm`` TRL generates with colocated vLLM, else with transformers. On a CPU vLLM has to be
told to run eagerly in float32, and takes new weights by its ``reload_weights``: nothing else of TRL
is changed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS, in_process, machine, parser, rollcast, write_json

TARGET = 0.15
WARM_STEPS = 1
MICRO_BATCH = 32
DRAWS = 20


@dataclass(frozen=True)
class Run:
    """One of TRL's: steps over ``groups`` x ``size`` rollouts."""

    name: str
    groups: int = 8
    size: int = 8
    cap: int = 256

    def overrides(self, base: Run) -> list[str]:
        """Of the imported scenario of ``base``, to be this run."""
        keys = {"groups": "batch_groups", "size": "group_size", "cap": "max_new_tokens"}
        changed = [ours for ours in keys if getattr(self, ours) != getattr(base, ours)]
        return [f"workload.{keys[ours]}={getattr(self, ours)}" for ours in changed]


BASE = Run("base")
CHANGED = (Run("group_16", size=16), Run("cap_96", cap=96))


# In a process of its own: TRL


def train(shape: dict[str, Any], folder: str, steps: int, vllm: bool, seed: int) -> None:
    """Runs TRL, whose caches and thread pools end with the process; what it leaves is in
    ``folder``."""
    os.environ |= {"TRACKIO_DIR": f"{folder}/trackio", "WANDB_DISABLED": "true"}
    from rollcast.engine.vllm.environment import prepare

    prepare()
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from rollcast.engine.tasks.collatz import CollatzTask
    from rollcast.engine.tasks.warm_start import warm_start

    if vllm:
        _vllm_on_a_cpu()
    torch.set_num_threads(1)
    run = Run(**shape)
    task = CollatzTask(max_new_tokens=run.cap)
    given = [task.prompt(i, seed) for i in range(run.groups * steps)]
    answers = {prompt.text: prompt for prompt in given}

    def right(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        return [task.reward(answers[p], c) for p, c in zip(prompts, completions, strict=True)]

    engine: dict[str, Any] = {
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": 1024,
    }
    config = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=run.groups * run.size // MICRO_BATCH,
        num_generations=run.size,
        max_completion_length=run.cap,
        use_vllm=vllm,
        learning_rate=1e-5,
        temperature=1.0,
        logging_steps=1,
        log_completions=True,
        save_strategy="no",
        report_to=["tensorboard", "trackio"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=seed,
        shuffle_dataset=False,
        disable_tqdm=True,
        project=run.name,
        **(engine if vllm else {}),
    )
    trainer = GRPOTrainer(
        model=str(warm_start()),
        reward_funcs=right,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in given]}),
    )
    with Path(folder, "console.log").open("w") as log, redirect_stdout(log):
        trainer.train()
    trainer.save_state()


def _vllm_on_a_cpu() -> None:
    """vLLM's prepacked weights take no single tensors; everything else is as TRL has it."""
    from functools import partial

    from trl.extras.profiling import profiling_decorator
    from trl.generation import vllm_generation as theirs

    theirs.LLM = partial(theirs.LLM, enforce_eager=True, dtype="float32")

    def sync_weights(self: Any) -> None:
        state = self.model.state_dict().items()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": state})
        self.llm.reset_prefix_cache()

    timed = getattr(theirs.VLLMGeneration.sync_weights, "__wrapped__", None) is not None
    theirs.VLLMGeneration.sync_weights = (
        profiling_decorator(sync_weights) if timed else sync_weights
    )


# Here: runs, import, forecasts


def measured(folder: Path) -> dict[str, float]:
    """Seconds of a run without the steps that warm up."""
    import numpy as np

    from rollcast.calibration.fits.steps import steps_of
    from rollcast.calibration.logs.gather import read_log

    steps = steps_of(read_log([folder]))
    kept = steps.rows(WARM_STEPS, len(steps))
    return {
        "steps": len(kept),
        "run_s": float(np.nansum(kept.whole_s)),
        "generation_s": kept.median("generation_s"),
        "update_s": kept.median("update_s"),
        "mean_new_tokens": float(np.nanmean(kept.column("mean_new_tokens"))),
    }


def forecast(scenario: Path, steps: int, overrides: list[str]) -> dict[str, float]:
    """Of the run time of so many steps: seconds, with the 90 % interval."""
    sets = [f"--set={override}" for override in (f"steps={steps}", *overrides)]
    summary = json.loads(rollcast("simulate", scenario, *sets, f"--draws={DRAWS}", "--json"))
    low, high = summary["intervals"]["makespan_s"]
    tokens = summary["generated_tokens"] / summary["rollouts"]
    seconds = {"run_s": summary["makespan_s"], "low_s": low, "high_s": high}
    return {**seconds, "mean_new_tokens": tokens}


def run_all(folder: Path, repeats: int, steps: int, vllm: bool) -> None:
    """Rounds, each with its own seed: the first run, those that are changed, the first again."""
    for seed in range(repeats):
        runs = [("base", BASE), *((run.name, run) for run in CHANGED), ("base_again", BASE)]
        for name, run in runs:
            place = folder / str(seed) / name
            place.mkdir(parents=True)
            in_process("benchmarks.own_run:train", asdict(run), str(place), steps, vllm, seed)


def judged(place: Path) -> Iterator[dict[str, Any]]:
    """The forecasts of one round from its first run, and what the others took."""
    mine, base = place / "mine", place / "base"
    rollcast("import", base, "--out", mine, "--no-advise", "--json", "--force")
    again = measured(place / "base_again")
    moved = again["run_s"] / measured(base)["run_s"] - 1
    for run in (BASE, *CHANGED):
        took = again if run is BASE else measured(place / run.name)
        expected = forecast(mine / "scenario.yaml", int(took["steps"]), run.overrides(BASE))
        error = expected["run_s"] / took["run_s"] - 1
        print(
            f"{place.name} {run.name}: forecast {expected['run_s']:.1f} s ({expected['low_s']:.1f} "
            f"to {expected['high_s']:.1f}), measured {took['run_s']:.1f} s: {error:+.1%}; the "
            f"first run again {moved:+.1%}",
            flush=True,
        )
        yield {
            "round": place.name,
            "run": run.name,
            "forecast": expected,
            "measured": took,
            "error": error,
            "inside": expected["low_s"] <= took["run_s"] <= expected["high_s"],
            "machine_moved": moved,
        }


def main() -> None:
    """Trains, imports and forecasts; writes the results."""
    options = parser(__doc__)
    options.add_argument("--vllm", action="store_true")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--keep", type=Path, help="where TRL's folders stay")
    options.add_argument("--judge", type=Path, help="folders that --keep left, judged anew")
    options.add_argument("--results", type=Path, default=RESULTS / "own_run.json")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.judge or given.keep or Path(scratch)
        if not given.judge:
            run_all(folder, given.repeats, given.steps, given.vllm)
        rows = [row for place in sorted(folder.iterdir()) for row in judged(place)]
    import torch
    import trl

    worst = max(abs(row["error"]) for row in rows if row["run"] != "base")
    content = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "generation": "vllm" if given.vllm else "transformers",
        "machine": f"{machine()}, {os.cpu_count()} cores, one thread",
        "steps": given.steps,
        "target": TARGET,
        "worst_error": worst,
        "rows": rows,
    }
    write_json(given.results, content)
    print(f"worst {worst:.1%}; target {TARGET:.0%}")


if __name__ == "__main__":
    main()
