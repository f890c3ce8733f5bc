"""A genuine run of TRL here, imported, and what it foretells of another group size and another cap.

TRL's own `GRPOTrainer` trains the built-in model on the built-in task; `rollcast import` reads what
it leaves; `rollcast simulate` of the imported scenario forecasts the run with another group size
and with another cap; and TRL runs again with those. The first run is repeated at the end: what the
machine's own speed moved by in between is no error of a forecast, and is reported beside it.

    python benchmarks/own_run.py [--vllm] [--steps 20] [--repeats 1] [--keep DIR]
    python benchmarks/own_run.py --vllm --judge DIR

needs what the engine needs, and ``pip install --no-deps trl accelerate datasets pyarrow xxhash
multiprocess tensorboard trackio`` (with ``gradio_client`` and ``orjson``, which trackio imports).
With ``--vllm`` TRL generates with colocated vLLM, else with transformers. On a CPU vLLM has to be
told to run eagerly in float32, and takes new weights by its ``reload_weights``: nothing else of TRL
is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TARGET = 0.15
WARM_STEPS = 1
MICRO_BATCH = 32
DRAWS = 20


@dataclass(frozen=True)
class Run:
    """One of TRL's. steps: of the optimiser, one a batch of ``groups`` x ``size`` rollouts."""

    name: str
    groups: int = 8
    size: int = 8
    cap: int = 256

    def overrides(self, base: Run) -> list[str]:
        """Of the imported scenario of ``base``, to be this run."""
        keys = {"groups": "batch_groups", "size": "group_size", "cap": "max_new_tokens"}
        return [
            f"workload.{key}={getattr(self, ours)}"
            for ours, key in keys.items()
            if getattr(self, ours) != getattr(base, ours)
        ]


BASE = Run("base")
CHANGED = (Run("group_16", size=16), Run("cap_96", cap=96))


# In a process of its own: TRL


def train(run: Run, folder: Path, steps: int, vllm: bool, seed: int) -> None:
    """Runs TRL; what it leaves is in ``folder``."""
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
    task = CollatzTask(max_new_tokens=run.cap)
    given = [task.prompt(i, seed) for i in range(run.groups * steps)]
    answers = {prompt.text: prompt for prompt in given}

    def right(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        return [task.reward(answers[p], c) for p, c in zip(prompts, completions, strict=True)]

    rollouts = run.groups * run.size
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=rollouts // MICRO_BATCH,
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
        **(
            {
                "vllm_mode": "colocate",
                "vllm_gpu_memory_utilization": 0.3,
                "vllm_max_model_length": 1024,
            }
            if vllm
            else {}
        ),
    )
    trainer = GRPOTrainer(
        model=str(warm_start()),
        reward_funcs=right,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in given]}),
    )
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


def trained(run: Run, folder: Path, args: argparse.Namespace, seed: int) -> Path:
    """TRL's run in a process of its own, whose caches and thread pools end with it."""
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRACKIO_DIR": str(folder / "trackio"),
        "PYTHONPATH": str(ROOT),
        "WANDB_DISABLED": "true",
    }
    spelt = [f"--{key}={value}" for key, value in asdict(run).items()]
    command = [
        sys.executable,
        str(Path(__file__)),
        "--train",
        str(folder),
        *spelt,
        f"--steps={args.steps}",
        f"--seed={seed}",
    ]
    command += ["--vllm"] if args.vllm else []
    with (folder / "console.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        tail = (folder / "console.log").read_text("utf-8", "replace")[-3000:]
        sys.exit(f"TRL did not run:\n{tail}")
    return folder


def measured(folder: Path) -> dict[str, float]:
    """What a run took, without the steps that warm up; seconds."""
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


def rollcast(*command: str) -> str:
    """The command line, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "rollcast", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def forecast(scenario: Path, steps: int, overrides: list[str]) -> dict[str, float]:
    """Of the run time of so many steps: seconds, with the 90 % interval."""
    sets = [word for override in (f"steps={steps}", *overrides) for word in ("--set", override)]
    summary = json.loads(rollcast("simulate", str(scenario), *sets, f"--draws={DRAWS}", "--json"))
    low, high = summary["intervals"]["makespan_s"]
    return {
        "run_s": summary["makespan_s"],
        "low_s": low,
        "high_s": high,
        "mean_new_tokens": summary["generated_tokens"] / summary["rollouts"],
    }


def run_all(args: argparse.Namespace, folder: Path) -> None:
    """Rounds, each with its own seed: the first run, those that are changed, the first again."""
    for seed in range(args.repeats):
        place = folder / str(seed)
        trained(BASE, place / "base", args, seed)
        for run in CHANGED:
            trained(run, place / run.name, args, seed)
        trained(BASE, place / "base_again", args, seed)


def judged(place: Path) -> list[dict[str, Any]]:
    """The forecasts of one round from its first run, and what the others took."""
    mine = place / "mine"
    base = place / "base"
    rollcast("import", str(base), "--out", str(mine), "--no-advise", "--json", "--force")
    first, rows = measured(base), []
    again = measured(place / "base_again")
    moved = again["run_s"] / first["run_s"] - 1
    for run in (BASE, *CHANGED):
        took = again if run is BASE else measured(place / run.name)
        predicted = forecast(mine / "scenario.yaml", int(took["steps"]), run.overrides(BASE))
        error = predicted["run_s"] / took["run_s"] - 1
        inside = predicted["low_s"] <= took["run_s"] <= predicted["high_s"]
        rows.append(
            {
                "round": place.name,
                "run": run.name,
                "forecast": predicted,
                "measured": took,
                "error": error,
                "inside": inside,
                "machine_moved": moved,
            }
        )
        print(
            f"{place.name} {run.name}: {predicted['run_s']:.1f} s ({predicted['low_s']:.1f} to "
            f"{predicted['high_s']:.1f}) foretold, {took['run_s']:.1f} s taken: {error:+.1%}; "
            f"the first run again {moved:+.1%}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where TRL's folders stay")
    parser.add_argument("--judge", type=Path, help="folders that --keep left, judged anew")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/own_run.json")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    for key, value in asdict(BASE).items():
        parser.add_argument(f"--{key}", type=type(value), default=value, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        run = Run(args.name, args.groups, args.size, args.cap)
        train(run, args.train, args.steps, args.vllm, args.seed)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.judge or args.keep or Path(scratch)
        if not args.judge:
            run_all(args, folder)
        rows = [row for place in sorted(folder.iterdir()) for row in judged(place)]
    import torch
    import trl

    worst = max(abs(row["error"]) for row in rows if row["run"] != "base")
    content = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "generation": "vllm" if args.vllm else "transformers",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "steps": args.steps,
        "target": TARGET,
        "worst_error": worst,
        "rows": rows,
    }
    args.results.write_text(json.dumps(content, indent=1) + "\n")
    print(f"worst {worst:.1%}; target {TARGET:.0%}")


if __name__ == "__main__":
    main()
