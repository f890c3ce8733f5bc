"""Optimiser steps of prime-rl's published baselines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.validation.architectures import architecture
from benchmarks.validation.case import Case, Role
from benchmarks.validation.draws import trainer_interval
from benchmarks.validation.files import column
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu

DRAWS = 200
# A cross-entropy alone, where RL takes a chunked fp32 log-softmax: fitted with the others.
SFT_TRAFFIC_PER_LOGIT = 8.7
# Of a routed expert run on its own, in one layer and forward, where the stack has no grouped
# kernels: fitted to the two Qwen3-30B-A3B rows of B200.
LOOPED_EXPERT_S = 0.4e-3
BOARDS = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
    "NVIDIA RTX A6000": "RTX A6000",
}
SEEN = ("H100", "H200")
_PRESETS = {"H100": "h100-sxm", "H200": "h200-sxm", "B200": "b200"}
_FULL_NAMES = {
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "Qwen3-4B": "Qwen/Qwen3-4B-Instruct-2507",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B-Instruct-2507",
    "INTELLECT-3": "PrimeIntellect/INTELLECT-3",
}


@cache
def board(name: str) -> Gpu:
    """The GPU, with memory enough: whether a step fits is not what is judged here."""
    if name in _PRESETS:
        return replace(load_gpu(_PRESETS[name]), memory_bytes=1e12)
    peaks = {"bandwidth_bytes_per_s": 768e9, "bf16_flop_per_s": 154.8e12}
    return Gpu.from_mapping({"name": "rtx-a6000", "preset": "l40s", "memory_bytes": 1e12, **peaks})


def _short(name: str, where: str) -> str:
    return name.rsplit("/", 1)[-1].replace("-Instruct-2507", "")


@dataclass(frozen=True, slots=True)
class Row:
    """A baseline: ``micro_batches`` sequences of ``length`` tokens a GPU and step; 0 seconds
    where it ran out of memory."""

    gpu: str = column(valid=BOARDS)
    gpus: int = column("num_gpus")
    model: str = column(made=_short)
    kind: str = column("type", ("rl", "sft"))
    lora: bool = column("lora_rank", made=lambda cell, where: bool(cell))
    length: int = column("seq_len")
    micro_batches: int = column()
    recompute: str = column("ac", ("Recompute", "Offload"))
    attention: str = column()
    success: bool = column(valid={"True": True, "False": False})
    step_s: float = column("step_time_s", least=0.0)

    @property
    def name(self) -> str:
        weights = "adapters" if self.lora else "all weights"
        return (
            f"{self.gpu}, {self.model}, {self.kind}, {self.gpus} GPU, {self.length} tokens, "
            f"{weights}, {self.recompute.lower()}, flash attention {self.attention[-1]}"
        )

    @property
    def full_name(self) -> str:
        return _FULL_NAMES.get(self.model, self.model)

    @property
    def looped(self) -> bool:
        """Whether routed experts run one by one: the stack had no grouped kernels for B200."""
        return self.gpu == "B200" and architecture(self.full_name).experts > 0

    @property
    def group(self) -> str:
        """The GPU, and mixtures apart where they run one by one."""
        return f"{self.gpu}, mixtures" if self.looped else self.gpu

    @property
    def role(self) -> Role:
        """Half of the rows of H100 and H200 were seen, and B200's of one mixture."""
        if self.gpu in SEEN or (self.looped and self.model == "Qwen3-30B-A3B"):
            return "calibrated"
        return "held out"

    @property
    def load(self) -> TrainLoad:
        return TrainLoad([(0, [self.length] * (self.micro_batches * self.gpus))])


def trainer_of(row: Row) -> RooflineTrainer:
    """The trainer of a baseline, from the presets and what is known of its stack."""
    rl_traffic = RooflineTrainer.traffic_per_logit
    return RooflineTrainer(
        architecture(row.full_name),
        board(row.gpu),
        row.gpus,
        weights="lora" if row.lora else "full",
        attention="flash_2" if row.attention.endswith("2") else "flash_3",
        log_prob_passes=0,
        microbatch_tokens=row.length,
        expert_launch_s=LOOPED_EXPERT_S if row.looped else 0.0,
        traffic_per_logit=rl_traffic if row.kind == "rl" else SFT_TRAFFIC_PER_LOGIT,
    )


def case_of(row: Row) -> Case:
    """A step with its interval."""
    trainer = trainer_of(row)
    ends = trainer_interval(trainer, row.load, DRAWS)
    seconds = trainer.train(row.load).total_s
    return Case(row.group, row.name, "s", row.step_s, seconds, row.role, *ends)


def judge(rows: Sequence[Row]) -> Judged:
    """Every baseline that succeeded."""
    ran = [row for row in rows if row.success]
    return Judged([case_of(row) for row in ran], facts={"failed": str(len(rows) - len(ran))})
