"""What an RL stack adds to its engine and trainer: host time, syncs, switches, rest of a step.

Each figure is fitted to the published phase that it names, never to whole steps
(`calibration.jury.phases` judges them on phases that were held out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.costs.engines import Engine
from simulator.costs.hardware import Provenance
from simulator.costs.sleep import Sleep
from simulator.costs.sync import Mechanism

Stack = Literal["nemo-rl", "verl-0.5", "verl", "slime"]


@dataclass(frozen=True, slots=True)
class StackPreset:
    """A stack in figures.

    engine: whose iterations it runs. host_s, host_per_rollout_s: of an iteration inside its loop,
    seconds; the engine's own where None. colocated, disaggregated: how weights travel, and
    per_tensor_s of that where it differs from the mechanism's. rest_s: a step outside every phase,
    seconds. The pairs low and high are factors within which the truth is taken to lie.
    """

    engine: Engine
    colocated: Mechanism
    disaggregated: Mechanism
    rest_s: float
    rest_spread: tuple[float, float]
    rest: Provenance
    cuda_graphs: bool = True
    engine_sleep: Sleep = "discard"
    host_s: float | None = None
    host_per_rollout_s: float | None = None
    host_spread: tuple[float, float] = (0.6, 1.6)
    host: Provenance | None = None
    per_tensor_s: float | None = None


_NEMO_BLOG = "NeMo-RL v0.3's table of phases (NVIDIA blog of 2025-08-20, H100)"
_VERL_REST = Provenance(
    "fitted",
    "a run of 105 steps on A100 (verldata) 3.7 s, py-inference-scheduler's log 1.5 s; held out: "
    "0.3 s on C550, 1.2 s on GH200, and with DAPO's rewards on H20 11 to 55 s",
)
STACKS: Mapping[Stack, StackPreset] = {
    "nemo-rl": StackPreset(
        engine="vllm-0.11",
        colocated="cuda_ipc",
        disaggregated="nccl_packed",
        engine_sleep="offload",
        rest_s=2.5,
        rest_spread=(0.6, 5.0),
        rest=Provenance(
            "fitted",
            f"{_NEMO_BLOG}: 3 and 2 s for Llama-3.1-8B and Qwen3-32B; held out: 3 to 8 s for four "
            "others, 7 to 14 s in a rerun of them (NeMo-RL issue 959)",
        ),
        host_s=3.0e-3,
        host_per_rollout_s=53e-6,
        host_spread=(0.6, 1.5),
        host=Provenance(
            "fitted",
            f"generation in {_NEMO_BLOG}: Llama-3.1-8B and Qwen3-32B; held out: Llama-3.1-70B and "
            "Qwen3-30B-A3B, and reruns",
        ),
    ),
    "verl-0.5": StackPreset(
        engine="vllm-0.8",
        colocated="reshard",
        disaggregated="nccl_broadcast",
        rest_s=2.4,
        rest_spread=(0.1, 25.0),
        rest=_VERL_REST,
        cuda_graphs=False,
        host_s=0.9e-3,
        host_per_rollout_s=79e-6,
        host_spread=(0.5, 1.5),
        host=Provenance(
            "fitted",
            "host_per_rollout_s to generation in a run of 105 steps on A100 (verldata); host_s as "
            "vllm-0.8",
        ),
    ),
    "verl": StackPreset(
        engine="vllm-0.11",
        colocated="reshard",
        disaggregated="nccl_packed",
        rest_s=2.4,
        rest_spread=(0.1, 25.0),
        rest=_VERL_REST,
    ),
    "slime": StackPreset(
        engine="sglang",
        colocated="cuda_ipc",
        disaggregated="nccl_packed",
        rest_s=2.5,
        rest_spread=(0.2, 10.0),
        rest=Provenance("assumed", "as NeMo-RL and verl"),
        per_tensor_s=0.0,
    ),
}  # fmt: skip


def listed() -> str:
    """The stacks with their figures and kinds, in words."""
    found = []
    for name, stack in STACKS.items():
        graphs = "" if stack.cuda_graphs else ", eager"
        host = "" if stack.host is None else f"; host: {stack.host}"
        found.append(
            f"{name} {stack.engine}{graphs}, {stack.colocated} colocated and "
            f"{stack.disaggregated} apart, rest {stack.rest_s:g} s, {stack.rest}{host}"
        )
    return ". ".join(found)
