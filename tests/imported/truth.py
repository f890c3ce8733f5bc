"""A run whose truth is known, simulated and written as each stack writes its logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rollcast.simulator.core.spans import TRAINED, Run
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
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


LINEAR = {
    "iteration_s": 0.012,
    "per_rollout_s": 1e-4,
    "per_context_token_s": 0.0,
    "per_prefill_token_s": 1.6e-5,  # a forward's on one of eight GPUs
    "train_per_token_s": 9e-6,
    "log_prob_per_token_s": 2e-6,
    "sync_s": 1.5,
    "padded": True,
}
"""Of a stack whose updates pad each rollout to the longest of the batch."""
APART = {"placement": "disaggregated", "replicas": 4, "trainer_gpus": 4}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "colocated": {},
    "apart": {"cluster": APART},
    "overlapped": {
        "cluster": APART,
        "policy": [{"pipeline_rl": {"in_flight": 1.0, "queue": 1.0}}],  # of prime-rl
        "cost": {"roofline": {"trainer": {"log_prob_passes": 0}}, "scale": SCALE},
    },
    "padded": {"cost": {"linear": LINEAR}},
}
"""How a stack's runs differ from `SCENARIO`."""


def _trained(made: Run, step: int) -> list[tuple[list[int], list[float]]]:
    """Tokens and rewards of the rollouts that a step trains on, by group, as they were launched."""
    rows = made.segments
    chosen = (rows["outcome"] == TRAINED) & (rows["trained_step"] == step)
    columns = [rows[key][chosen].tolist() for key in ("group", "index", "total_tokens", "reward")]
    groups: dict[int, tuple[list[int], list[float]]] = {}
    for group, _, tokens, reward in sorted(zip(*columns, strict=True)):
        members = groups.setdefault(group, ([], []))
        members[0].append(tokens)
        members[1].append(reward)
    return list(groups.values())


@cache
def run(variant: str = "colocated", first: int = 1) -> tuple[Truth, ...]:
    """The steps of the truth. ``sync_s`` is all that brings the weights to the engine: the sync and
    both switches."""
    scenario = from_raw(RawScenario({**SCENARIO, **VARIANTS[variant]}))
    made = simulate(scenario).run
    found = []
    for i, record in enumerate(made.steps):
        groups = _trained(made, i)
        load = TrainLoad([(PROMPT, tokens) for tokens, _ in groups])
        phases = dict(scenario.cost.train(load).phases_s)
        grade = phases.pop("log_prob", 0.0)
        found.append(
            Truth(
                i + first,
                tuple(tuple(tokens) for tokens, _ in groups),
                tuple(tuple(rewards) for _, rewards in groups),
                record.rollout_s,
                grade,
                sum(phases.values()),
                record.sync_s + record.switch_s,
                record.step_s,
                record.switch_s,
                max(record.step_s - record.train_s - record.sync_s, 0.0)
                if scenario.policy
                else 0.0,
            )
        )
        assert abs(record.train_s - grade - sum(phases.values())) < 1e-6
    return tuple(found)


SETTINGS = {
    "verl": {
        "actor_rollout_ref.model.path": "/models/Qwen/Qwen3-8B",
        "data.train_batch_size": GROUPS,
        "actor_rollout_ref.rollout.n": SIZE,
        "data.max_response_length": CAP,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "trainer.nnodes": 1,
        "actor_rollout_ref.rollout.max_num_seqs": 256,
        "trainer.n_gpus_per_node": 8,
        "actor_rollout_ref.hybrid_engine": True,
        "trainer.use_v1": False,
    },
    "nemo_rl": {
        "policy.model_name": "Qwen/Qwen3-8B",
        "grpo.num_prompts_per_step": GROUPS,
        "grpo.num_generations_per_prompt": SIZE,
        "policy.generation.max_new_tokens": CAP,
        "policy.generation.vllm_cfg.tensor_parallel_size": 1,
        "cluster.num_nodes": 1,
        "cluster.gpus_per_node": 8,
        "policy.generation.colocated.enabled": True,
        "grpo.async_grpo.enabled": False,
    },
    "roll": {
        "pretrain": "Qwen/Qwen3-8B",
        "rollout_batch_size": GROUPS,
        "response_length": CAP,
        "num_return_sequences_in_group": SIZE,
        "num_gpus_per_node": 8,
        "async_generation_ratio": 0,
        "actor_train.device_mapping": "list(range(0,8))",
        "actor_infer.device_mapping": "list(range(0, 8))",
    },
    "slime": {
        "hf-checkpoint": "/models/Qwen3-8B",
        "rollout-batch-size": GROUPS,
        "colocate": True,
        "n-samples-per-prompt": SIZE,
        "rollout-max-response-len": CAP,
        "actor-num-nodes": 1,
        "actor-num-gpus-per-node": 8,
        "rollout-num-gpus-per-engine": 1,
        "sglang-max-running-requests": 256,
    },
    "openrlhf": {
        "pretrain": "Qwen/Qwen3-8B",
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SIZE,
        "generate_max_len": CAP,
        "vllm_num_engines": 8,
        "vllm_tensor_parallel_size": 1,
        "colocate_all_models": True,
        "actor_num_nodes": 1,
        "actor_num_gpus_per_node": 8,
    },
    "areal": {
        "actor.path": "Qwen/Qwen3-8B",
        "train_dataset.batch_size": GROUPS,
        "gconfig.n_samples": SIZE,
        "gconfig.max_new_tokens": CAP,
        "cluster.n_nodes": 1,
        "rollout.max_head_offpolicyness": 0,
        "cluster.n_gpus_per_node": 8,
        "allocation_mode": "vllm:d4t1+fsdp:d4",
        "vllm.max_num_seqs": 256,
    },
    "prime_rl": {
        "model.name": "Qwen/Qwen3-8B",
        "orchestrator.batch_size": GROUPS * SIZE,
        "orchestrator.group_size": SIZE,
        "orchestrator.max_off_policy_steps": 1,
        "orchestrator.train.sampling.max_completion_tokens": CAP,
        "deployment.num_infer_gpus": 4,
        "deployment.num_train_gpus": 4,
        "inference.parallel.tp": 1,
    },
    "trl": {
        "_name_or_path": "Qwen/Qwen3-8B",
        "num_generations": SIZE,
        "max_completion_length": CAP,
        "generation_batch_size": GROUPS * SIZE,
        "per_device_train_batch_size": 4,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 4,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_tensor_parallel_size": 1,
        "logging_steps": 1,
    },
    "skyrl": {
        "trainer.policy.model.path": "Qwen/Qwen3-8B",
        "trainer.train_batch_size": GROUPS,
        "generator.n_samples_per_prompt": SIZE,
        "trainer.placement.colocate_all": True,
        "generator.sampling_params.max_generate_length": CAP,
        "trainer.placement.policy_num_nodes": 1,
        "trainer.placement.policy_num_gpus_per_node": 8,
    },
}


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
    """How a stack writes it: its metrics, and its dumps if it has any.

    known: the phases that its times hold, alone or with others. variant: of the run that it writes.
    gpu: that the user names.
    """

    write: Callable[[Path, tuple[Truth, ...]], None]
    level: int
    known: tuple[str, ...] = ("decode", "prefill", "log_prob", "update", "sync", "switch")
    variant: str = "colocated"
    gpu: str | None = GPU


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
    written.lines(
        folder / "metrics.jsonl", ({"_step": t.step, **written.roll_values(t)} for t in truth)
    )
    written.roll_dump(folder / "dump", list(truth))
    config("roll", folder / "config.yaml")


def _skyrl(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{written.skyrl_console(t)}\n" for t in truth)
    (folder / "console.log").write_text(text, encoding="utf-8")
    config("skyrl", folder / "config.yaml")


def _slime(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{line}\n" for t in truth for line in written.slime_lines(t))
    (folder / "console.log").write_text(text, encoding="utf-8")
    options = " ".join(
        f"--{key}" if value is True else f"--{key} {value}"
        for key, value in SETTINGS["slime"].items()
    )
    (folder / "run.sh").write_text(f"python3 train.py {options}\n", encoding="utf-8")
    for t in truth:
        written.torch_file(folder / f"{t.step}.pt", written.slime_samples(t))


def _openrlhf(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{written.openrlhf_console(t)}\n" for t in truth)
    (folder / "console.log").write_text(text, encoding="utf-8")
    config("openrlhf", folder / "config.yaml")


def _areal(folder: Path, truth: tuple[Truth, ...]) -> None:
    text = "".join(f"{written.areal_console(t)}\n" for t in truth)
    (folder / "console.log").write_text(text, encoding="utf-8")
    written.areal_dump(folder, list(truth))
    config("areal", folder / "config.yaml")


def _prime(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.prime_metrics(folder / "metrics.jsonl", list(truth))
    written.prime_traces(folder, list(truth))
    config("prime_rl", folder / "config.yaml")


def _trl(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.trl_state(folder / "trainer_state.json", list(truth))
    written.trl_trackio(folder / "trl.db", list(truth), SETTINGS["trl"])
    written.trl_completions(folder / "completions", list(truth))


def _table(folder: Path, truth: tuple[Truth, ...]) -> None:
    written.table(
        folder / "steps.csv",
        [
            {
                "step": t.step,
                "step_s": t.step_s,
                "generation_s": t.generation_s,
                "log_prob_s": t.log_prob_s,
                "update_s": t.update_s,
                "sync_s": t.sync_s,
                "mean_new_tokens": t.mean,
                "max_new_tokens": max(t.flat),
                "min_new_tokens": min(t.flat),
                "truncated_share": t.cut,
                "mean_prompt_tokens": PROMPT,
                "rollouts": GROUPS * SIZE,
            }
            for t in truth
        ],
    )
    written.table(
        folder / "rollouts.csv",
        [
            {
                "step": t.step,
                "group": f"{t.step}-{g}",
                "index": i,
                "prompt_tokens": PROMPT,
                "new_tokens": n,
                "reward": r,
            }
            for t in truth
            for g, (ns, rs) in enumerate(zip(t.lengths, t.rewards, strict=True))
            for i, (n, r) in enumerate(zip(ns, rs, strict=True))
        ],
    )
    (folder / "settings.yaml").write_text(
        yaml.safe_dump(
            {
                "model": MODEL,
                "gpu": GPU,
                "workload": {"batch_groups": GROUPS, "group_size": SIZE, "max_new_tokens": CAP},
                "cluster": {
                    "replicas": 8,
                    "trainer_gpus": 8,
                    "placement": "colocated",
                    "tensor_parallel": 1,
                },
            }
        ),
        encoding="utf-8",
    )


FORMS = {
    "verl": Form(_verl, 2),
    "nemo_rl": Form(_nemo, 2),
    "roll": Form(_roll, 2),
    "skyrl": Form(_skyrl, 1),
    "table": Form(_table, 2),
    "slime": Form(_slime, 3),
    "openrlhf": Form(_openrlhf, 1),
    "areal": Form(_areal, 3, ("decode", "prefill", "log_prob", "update", "sync"), "apart"),
    "prime_rl": Form(_prime, 3, ("decode", "update", "sync"), "overlapped"),
    "trl": Form(_trl, 2, variant="padded", gpu=None),
}


GENERATION = {"verl": "timing_s/gen", "skyrl": "timing/generate", "openrlhf": "timing/generation"}
"""Their own word for it."""


def write(stack: str, folder: Path, monkeypatch: Any) -> Path:
    """The truth in a stack's form, in ``folder``."""
    for name, value in (("GROUPS", GROUPS), ("SIZE", SIZE), ("CAP", CAP), ("PROMPT", PROMPT)):
        monkeypatch.setattr(written, name, value)
    FORMS[stack].write(folder, run(FORMS[stack].variant))
    return folder
