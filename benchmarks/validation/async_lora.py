"""An asynchronous LoRA run in five configurations: what bounds a step, and what packing gains."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from benchmarks.validation.case import Case, Check, Role
from benchmarks.validation.files import column
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import Iteration, RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.attention_kernels import with_kernel

MODEL = load_model("qwen2.5-1.5b")  # the widths of Qwen2.5-Math-1.5B
PROMPT, COMPLETION = 135, 1065  # tokens: about 1,200 a sequence
GROUP = 8
PACKED_SAMPLES, SAMPLES = 152, 128  # a step; about 150 where they are packed, here whole groups
# A layer's forward of one sequence: fitted to the run of one sequence a microbatch.
LAUNCH_S_PER_LAYER = 2.97e-3
# What the trainer waited for, as far as published: its step is forward and backward and 0.2 to 1 s,
# but for the third run, where it waited 0.6 s for rollouts. The fourth one's is not published.
Bottleneck = Literal["training", "generation"]
KNOWN: dict[int, Bottleneck] = {1: "training", 2: "training", 3: "generation", 5: "training"}


@cache
def _gpu() -> Gpu:
    return with_kernel(load_gpu("h200-sxm"), "flash_2", "gpu")


@dataclass(frozen=True)
class Row:
    """One configuration. forward_backward_s: of a step."""

    run: int = column()
    trainer_gpus: int = column()
    replicas: int = column()
    in_flight: int = column()
    packed: bool = column("microbatch", {"one sequence": False, "16384 tokens": True})
    recompute: Literal["full", "none"] = column()
    forward_backward_s: float = column()

    @property
    def name(self) -> str:
        return (
            f"run {self.run}: {'packed' if self.packed else 'one sequence a microbatch'}, "
            f"recomputation {self.recompute}, {self.replicas} replicas, {self.in_flight} in flight"
        )

    @property
    def role(self) -> Role:
        """Only the run of one sequence a microbatch had a part in a figure of the trainer."""
        return "held out" if self.packed else "calibrated"

    @cached_property
    def load(self) -> TrainLoad:
        samples = PACKED_SAMPLES if self.packed else SAMPLES
        return TrainLoad([(PROMPT, [COMPLETION] * GROUP)] * (samples // GROUP))

    @cached_property
    def training_s(self) -> float:
        """Forecast of forward and backward of a step."""
        trainer = RooflineTrainer(
            MODEL,
            _gpu(),
            self.trainer_gpus,
            weights="lora",
            recompute=self.recompute,
            log_prob_passes=0,
            batching="packed" if self.packed else "one_sequence",
            microbatch_tokens=16_384 if self.packed else None,
            launch_s_per_layer=LAUNCH_S_PER_LAYER,
        )
        return trainer.train(self.load).total_s

    @cached_property
    def generation_s(self) -> float:
        """Forecast of the time in which the replicas generate what a step trains on, all that may
        be in flight running, half done in the mean. A sync holds up trainer and engines alike."""
        running = self.in_flight // self.replicas
        context = running * (PROMPT + COMPLETION // 2)
        iteration_s = RooflineCost(MODEL, _gpu()).iteration_s(Iteration(running, context))
        return self.load.rollouts * COMPLETION / (self.replicas * running / iteration_s)

    @property
    def bottleneck(self) -> Bottleneck:
        """Forecast of what a step waits for."""
        return "training" if self.training_s > self.generation_s else "generation"


def judge(rows: Sequence[Row]) -> Judged:
    """Cases of forward and backward, and of steps of one sequence a microbatch over packed ones,
    recomputation alike; the share of the known bottlenecks that are forecast as the other one."""
    cases = [
        Case("forward and backward", r.name, "s", r.forward_backward_s, r.training_s, r.role)
        for r in rows
    ]
    cases += [
        Case(
            "packing",
            f"run {before.run} over run {after.run}, forward and backward",
            "",
            before.forward_backward_s / after.forward_backward_s,
            before.training_s / after.training_s,
        )
        for before in rows
        for after in rows
        if after.packed and not before.packed and after.recompute == before.recompute
    ]
    known = [row for row in rows if row.run in KNOWN]
    wrong = sum(row.bottleneck != KNOWN[row.run] for row in known) / max(len(known), 1)
    spelt = "; ".join(
        f"run {row.run} {row.bottleneck} ({row.training_s:.1f} s to train, "
        f"{row.generation_s:.1f} s to generate)"
        for row in rows
    )
    check = Check("bottlenecks misnamed", wrong, 0.0, len(known))
    return Judged(cases, [check], [f"Forecast bottlenecks: {spelt}."])
