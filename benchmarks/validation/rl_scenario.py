"""Published RL runs as scenarios."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from benchmarks.validation.case import Role
from benchmarks.validation.files import column
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.known_lengths import ASSUMED_SD, LEAST_ASSUMED_SD, MOST_ASSUMED_SD

# Standard deviations of the log. All of it within groups: neither policy here looks at groups, and
# a step's mean then hardly varies with the draw.
SPREADS = {"assumed": ASSUMED_SD, "narrow": LEAST_ASSUMED_SD, "wide": MOST_ASSUMED_SD}
# Shares of responses that never stop by themselves, as shares of the assumed one.
RUNAWAYS = {"assumed": 1.0, "none": 0.0, "twice": 2.0}
DRAWS = 20  # of a step: the ends are the least and the largest of them, or nearly
STEPS = 4  # the last but one counts: nothing is generated beside the last
SPLITS = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel")
NVLINK_GPUS = {"h100-sxm": 8, "a100-80gb": 8, "h20": 8, "gb200": 72}  # GPUs that talk over NVLink
FRAMEWORKS = {
    "nemo": "NeMo-RL",
    "nemo-0.4": "NeMo-RL",
    "nemo-0.3": "NeMo-RL",
    "verl": "verl",
    "verl-0.11": "verl",
}
UNFUSED = ("nemo-0.3", "nemo-0.4")
"""NeMo-RL before it fused the MLPs of every model (pull request 1241)."""
LOG_PROB_ROWS = {"llama-3.1-8b": 2, "qwen3-30b-a3b": 4, "qwen3-32b": 4}
"""Longest sequences in a microbatch of log-probabilities: logprob_batch_size in NeMo-RL's recipes
(examples/configs/recipes/llm/performance and grpo_math_1B.yaml); 1 of other models."""
STACKS = {
    "nemo": "nemo-rl",
    "nemo-0.4": "nemo-rl-0.4",
    "nemo-0.3": "nemo-rl-0.3",
    "verl": "verl-0.5",
    "verl-0.11": "verl",
}


def read_parallel(text: str, where: str) -> tuple[int, ...]:
    """Tensor x context x expert x pipeline parallel; nothing where none is published."""
    sizes = tuple(int(part) if part.isdigit() else 0 for part in text.split("x")) if text else ()
    if text and (len(sizes) != len(SPLITS) or not all(sizes)):
        raise ScenarioError(where, f"{text!r} is not like 4x1x1x4")
    return sizes


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run. runaway: the share of responses that reach the cap whatever their prompt;
    mean_new_tokens: of the others."""

    name: str = column()
    framework: str = column(valid=tuple(FRAMEWORKS))
    gpu: str = column()
    model: str = column()
    overlapped: bool = column("mode", {"on_policy": False, "one_step_off": True})
    rollout_gpus: int = column()
    trainer_gpus: int = column()
    tensor_parallel: int = column()
    groups: int = column()
    group_size: int = column()
    minibatches: int = column()
    prompt_tokens: int = column()
    total_tokens: int = column()
    parallel: tuple[int, ...] = column(made=read_parallel)
    recompute: Literal["full", "none"] = column()
    mean_new_tokens: float = column(least=1.0)
    runaway: float = column(least=0.0)
    kv_memory_utilization: float = column(least=0.01)
    log_prob_passes: int = column(least=0)
    role: Role = column()

    @property
    def max_new_tokens(self) -> int:
        return self.total_tokens - self.prompt_tokens

    @property
    def stack(self) -> str:
        return FRAMEWORKS[self.framework]


AnyRun = TypeVar("AnyRun", bound=Run)


def scenario(run: Run, spread: str = "assumed", runaways: str = "assumed") -> dict[str, Any]:
    """The scenario of a run, with one of ``SPREADS`` and one of ``RUNAWAYS`` for what its lengths'
    mean leaves open."""
    runaway, cap = RUNAWAYS[runaways] * run.runaway, run.max_new_tokens
    engine = {"max_seqs": 256, "max_batched_tokens": 8192}
    if run.stack == "verl":  # verl's defaults of the time, and its recipe
        engine = {"max_seqs": 1024, "max_batched_tokens": max(8192, run.total_tokens)}
    return {
        "name": run.name,
        "model": run.model,
        "gpu": run.gpu,
        "cluster": {
            "placement": "disaggregated" if run.overlapped else "colocated",
            "replicas": run.rollout_gpus // run.tensor_parallel,
            "tensor_parallel": run.tensor_parallel,
            "trainer_gpus": run.trainer_gpus,
        },
        "engine": engine,
        "workload": {
            "batch_groups": run.groups,
            "group_size": run.group_size,
            "prompt_tokens": run.prompt_tokens,
            "max_new_tokens": cap,
            "lengths": {
                "mean_tokens": (1 - runaway) * run.mean_new_tokens + runaway * cap,
                "sd": SPREADS[spread],
                "between_share": 0.0,
                "runaway": runaway,
            },
        },
        "policy": "one_step_off" if run.overlapped else [],
        "cost": {
            "roofline": {
                "stack": STACKS[run.framework],
                "kv_memory_utilization": run.kv_memory_utilization,
                "trainer": _trainer(run),
            }
        },
        "steps": STEPS,
        "seed": 0,
    }


def megatron(
    gpu: str, parallel: tuple[int, ...], total_tokens: int, recompute: str
) -> dict[str, Any]:
    """The trainer's options in recipes for Megatron, on Blackwell with the attention of Transformer
    Engine."""
    options: dict[str, Any] = {key: n for key, n in zip(SPLITS, parallel, strict=True) if n > 1}
    options["backend"] = "megatron"
    if gpu == "gb200":
        options["attention"] = "cudnn"
    options["recompute"] = recompute
    options["microbatch_tokens"] = total_tokens
    options["gpus_per_node"] = NVLINK_GPUS[gpu]
    return options


def _trainer(run: Run) -> dict[str, Any]:
    options: dict[str, Any] = {
        "log_prob_passes": run.log_prob_passes,
        "minibatches": run.minibatches,
    }
    if run.parallel:
        options |= megatron(run.gpu, run.parallel, run.total_tokens, run.recompute)
    if run.framework in UNFUSED and run.parallel and run.model.startswith("llama"):
        options["kernels"] = "fused_mlps"  # its configs had them before all others
    if run.stack == "NeMo-RL" and run.model in LOG_PROB_ROWS:
        options["log_prob_microbatch_tokens"] = LOG_PROB_ROWS[run.model] * run.total_tokens
    return options


def smaller(run: AnyRun) -> AnyRun:
    """The run with an eighth of its batch, whose draws take an eighth of the time: how far a draw
    moves a step hangs little on its size."""
    return replace(run, groups=max(run.groups // 8, run.minibatches))


def drawn_name(rng: np.random.Generator, names: Mapping[str, float]) -> str:
    """One of the names."""
    return list(names)[rng.integers(len(names))]


def built(keys: Mapping[str, Any], draw: int | None = None) -> Scenario:
    """The scenario of these keys, with its costs drawn anew."""
    made = from_raw(RawScenario(dict(keys)))
    if draw is None:
        return made
    return replace(made, cost=made.cost.drawn(Drawn(np.random.default_rng(draw))))
