"""A run whose truth is known, simulated and written as each stack writes its logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simulator.costs.base import TrainLoad
from simulator.scenario.file import RawScenario
from simulator.studies.simulate import from_raw, simulate
from tests.logs import written
from tests.logs.written import Truth

GROUPS, SIZE, CAP, PROMPT, STEPS = 16, 8, 4096, 200, 36
LENGTHS = {"median_tokens": 600.0, "between_sd": 0.6, "within_sd": 0.3}
SCALE = {"decode": 1.4, "prefill": 1.2, "log_prob": 0.7, "update": 1.3, "sync": 2.0, "switch": 0.5}
MODEL, GPU = "qwen3-8b", "h100-sxm"
SCENARIO: Mapping[str, Any] = {
    "name": "truth",
    "model": MODEL,
    "gpu": GPU,
    "cluster": {"placement": "colocated", "replicas": 8, "trainer_gpus": 8},
    "engine": {"max_seqs": 256, "max_batched_tokens": 8192},
    "workload": {
        "batch_groups": GROUPS,
        "group_size": SIZE,
        "max_new_tokens": CAP,
        "prompt_tokens": PROMPT,
        "lengths": {"family": "lognormal", **LENGTHS},
    },
    "policy": [],
    "cost": {"roofline": {"trainer": {"log_prob_passes": 1}}, "scale": SCALE},
    "steps": STEPS,
    "seed": 5,
}


@cache
def run(first: int = 1) -> tuple[Truth, ...]:
    """The steps of the truth. What brings the weights to the engine is one figure, as in verl: the
    sync and both switches."""
    scenario = from_raw(RawScenario(dict(SCENARIO)))
    records = simulate(scenario).run.steps
    found = []
    for i, record in enumerate(records):
        groups = [scenario.workload.draw(i * GROUPS + g, SIZE, version=i) for g in range(GROUPS)]
        load = TrainLoad([(g.prompt_tokens, g.new_tokens) for g in groups])
        phases = dict(scenario.cost.train(load).phases_s)
        grade = phases.pop("log_prob")
        found.append(Truth(
            i + first,
            tuple(tuple(int(n) for n in g.new_tokens) for g in groups),
            tuple(tuple(float(r) for r in g.rewards) for g in groups),
            record.rollout_s, grade, sum(phases.values()), record.sync_s + record.switch_s,
            record.step_s,
        ))  # fmt: skip
        assert abs(record.train_s - grade - sum(phases.values())) < 1e-6
    return tuple(found)


SETTINGS = {
    "verl": {
        "actor_rollout_ref.model.path": "/models/Qwen/Qwen3-8B", "data.train_batch_size": GROUPS,
        "actor_rollout_ref.rollout.n": SIZE, "data.max_response_length": CAP,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1, "trainer.nnodes": 1,
        "actor_rollout_ref.rollout.max_num_seqs": 256, "trainer.n_gpus_per_node": 8,
        "actor_rollout_ref.hybrid_engine": True, "trainer.use_v1": False,
    },
    "nemo_rl": {
        "policy.model_name": "Qwen/Qwen3-8B", "grpo.num_prompts_per_step": GROUPS,
        "grpo.num_generations_per_prompt": SIZE, "policy.generation.max_new_tokens": CAP,
        "policy.generation.vllm_cfg.tensor_parallel_size": 1, "cluster.num_nodes": 1,
        "cluster.gpus_per_node": 8, "policy.generation.colocated.enabled": True,
        "grpo.async_grpo.enabled": False,
    },
    "roll": {
        "pretrain": "Qwen/Qwen3-8B", "rollout_batch_size": GROUPS, "response_length": CAP,
        "num_return_sequences_in_group": SIZE, "num_gpus_per_node": 8,
        "async_generation_ratio": 0,
    },
    "skyrl": {
        "trainer.policy.model.path": "Qwen/Qwen3-8B", "trainer.train_batch_size": GROUPS,
        "generator.n_samples_per_prompt": SIZE, "trainer.placement.colocate_all": True,
        "generator.sampling_params.max_generate_length": CAP,
        "trainer.placement.policy_num_nodes": 1, "trainer.placement.policy_num_gpus_per_node": 8,
    },
}  # fmt: skip


def config(stack: str, path: Path) -> Path:
    """A stack's configuration, nested."""
    data: dict[str, Any] = {}
    for key, value in SETTINGS[stack].items():
        *above, last = key.split(".")
        place = data
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Form:
    """How a stack writes it: its metrics, its dumps if it has any, and which phases it times."""

    write: Callable[[Path, tuple[Truth, ...]], None]
    level: int
    seen: tuple[str, ...] = ("decode", "log_prob", "update", "sync")


def _verl(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.verl_file(folder / "metrics.jsonl", list(truth))
    written.verl_dump(folder / "dump", list(truth), v1=False)
    config("verl", folder / "config.yaml")


def _nemo(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{written.nemo_console(t)}\n" for t in truth)
    (folder / "console.log").write_text(text, encoding="utf-8")
    written.nemo_dump(folder / "dump", list(truth))
    config("nemo_rl", folder / "config.yaml")


def _roll(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.lines(folder / "metrics.jsonl", ({"_step": t.step, **written.roll_values(t)}
                                             for t in truth))  # fmt: skip
    written.roll_dump(folder / "dump", list(truth))
    config("roll", folder / "config.yaml")


def _skyrl(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{written.skyrl_console(t)}\n" for t in truth)
    (folder / "console.log").write_text(text, encoding="utf-8")
    config("skyrl", folder / "config.yaml")


def _table(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.table(folder / "steps.csv", [
        {"step": t.step, "step_s": t.step_s, "generation_s": t.generation_s,
         "log_prob_s": t.log_prob_s, "update_s": t.update_s, "sync_s": t.sync_s,
         "mean_new_tokens": t.mean, "max_new_tokens": max(t.flat), "min_new_tokens": min(t.flat),
         "truncated_share": t.cut, "mean_prompt_tokens": PROMPT, "rollouts": GROUPS * SIZE}
        for t in truth
    ])  # fmt: skip
    written.table(folder / "rollouts.csv", [
        {"step": t.step, "group": f"{t.step}-{g}", "index": i, "prompt_tokens": PROMPT,
         "new_tokens": n, "reward": r}
        for t in truth
        for g, (ns, rs) in enumerate(zip(t.lengths, t.rewards, strict=True))
        for i, (n, r) in enumerate(zip(ns, rs, strict=True))
    ])  # fmt: skip
    (folder / "settings.yaml").write_text(yaml.safe_dump({
        "model": MODEL, "gpu": GPU,
        "workload": {"batch_groups": GROUPS, "group_size": SIZE, "max_new_tokens": CAP},
        "cluster": {"replicas": 8, "trainer_gpus": 8, "placement": "colocated",
                    "tensor_parallel": 1},
    }), encoding="utf-8")  # fmt: skip


FORMS = {
    "verl": Form(_verl, 2),
    "nemo_rl": Form(_nemo, 2),
    "roll": Form(_roll, 2),
    "skyrl": Form(_skyrl, 1),
    "table": Form(_table, 2),
}


def write(stack: str, folder: Path, monkeypatch: Any) -> Path:
    """The truth in a stack's form, in ``folder``."""
    for name, value in (("GROUPS", GROUPS), ("SIZE", SIZE), ("CAP", CAP), ("PROMPT", PROMPT)):
        monkeypatch.setattr(written, name, value)
    FORMS[stack].write(folder, run())
    return folder
