"""A run whose truth is known, simulated and written as each stack writes its logs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rollcast.simulator.core.spans import TRAINED, Run
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.launches.parts import nested
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


SETTINGS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "settings.yaml").read_text("utf-8")
)


def config(stack: str, folder: Path) -> None:
    """A stack's settings as it keeps them: in its database, a script, or a nested configuration."""
    if stack == "slime":
        said = (
            f"--{key}" if its is True else f"--{key} {its}" for key, its in SETTINGS[stack].items()
        )
        (folder / "run.sh").write_text(f"python3 train.py {' '.join(said)}\n", encoding="utf-8")
    elif stack not in ("trl", "table"):
        text = yaml.safe_dump(nested(SETTINGS[stack].items()))
        (folder / "config.yaml").write_text(text, encoding="utf-8")


Write = Callable[..., object]
"""Writes into a folder the steps that it is given."""


@dataclass(frozen=True)
class Form:
    """How a stack writes it: its metrics, and its dumps if it has any, beside its settings.

    known: the phases that its times hold, alone or with others. variant: of the run that it writes.
    gpu: that the user names.
    """

    write: Sequence[Write]
    level: int
    known: tuple[str, ...] = ("decode", "prefill", "log_prob", "update", "sync", "switch")
    variant: str = "colocated"
    gpu: str | None = GPU


def _table(folder: Path, steps: Sequence[Truth]) -> None:
    beside = {"mean_prompt_tokens": PROMPT, "rollouts": GROUPS * SIZE}
    rows = [written.table_values(t, **beside) for t in steps]
    written.table(folder / "steps.csv", rows)
    columns = ("step", "group", "index", "prompt_tokens", "new_tokens", "reward")
    each = [(t.step, f"{t.step}-{g}", i, PROMPT, n, r) for t in steps for g, i, n, r in t.each]
    written.table(folder / "rollouts.csv", [dict(zip(columns, row, strict=True)) for row in each])
    cluster = {**SCENARIO["cluster"], "tensor_parallel": 1}
    workload = {"batch_groups": GROUPS, "group_size": SIZE, "max_new_tokens": CAP}
    given = {"model": MODEL, "gpu": GPU, "workload": workload, "cluster": cluster}
    (folder / "settings.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")


def _samples(folder: Path, steps: Sequence[Truth]) -> None:
    for t in steps:
        written.torch_file(folder / f"{t.step}.pt", written.slime_samples(t))


def _inside(name: str, write: Write, **more: Any) -> Write:
    """Writes under a name in the folder."""
    return lambda folder, steps: write(folder / name, steps, **more)


METRICS, DUMP = "metrics.jsonl", "dump"
VERL = (_inside(METRICS, written.verl_file), _inside(DUMP, written.verl_dump, v1=False))
NEMO = (written.console(written.nemo_console), _inside(DUMP, written.nemo_dump))
ROLL = (_inside(METRICS, written.history, stack="roll"), _inside(DUMP, written.roll_dump))
TRL = (
    _inside("trainer_state.json", written.trl_state),
    _inside("trl.db", written.trl_trackio, config=SETTINGS["trl"]),
    _inside("completions", written.trl_completions),
)
FORMS = {
    "verl": Form(VERL, 2),
    "nemo_rl": Form(NEMO, 2),
    "roll": Form(ROLL, 2),
    "skyrl": Form([written.console(written.skyrl_console)], 1),
    "table": Form([_table], 2),
    "slime": Form([written.slime_console, _samples], 3),
    "openrlhf": Form([written.console(written.openrlhf_console)], 1),
    "areal": Form(
        [written.FILES["areal"]], 3, ("decode", "prefill", "log_prob", "update", "sync"), "apart"
    ),
    "prime_rl": Form([written.FILES["prime_rl"]], 3, ("decode", "update", "sync"), "overlapped"),
    "trl": Form(TRL, 2, variant="padded", gpu=None),
}


GENERATION = {"verl": "timing_s/gen", "skyrl": "timing/generate", "openrlhf": "timing/generation"}
"""Their own word for it."""


def write(stack: str, folder: Path, monkeypatch: Any) -> Path:
    """The truth in a stack's form, in ``folder``."""
    for name, value in (("GROUPS", GROUPS), ("SIZE", SIZE), ("CAP", CAP), ("PROMPT", PROMPT)):
        monkeypatch.setattr(written, name, value)
    for write_one in FORMS[stack].write:
        write_one(folder, run(FORMS[stack].variant))
    config(stack, folder)
    return folder
