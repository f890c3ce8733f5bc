"""RL steps of large mixtures, whose generation is known from a run with training beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.validation.architectures import architecture
from benchmarks.validation.case import Case
from benchmarks.validation.files import column
from benchmarks.validation.rl_scenario import STACKS, megatron, read_parallel
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import RooflineCost, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.roofline.options import RooflineSection

_MODELS = {
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-Instruct-2507",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
}


@dataclass(frozen=True)
class Row:
    """An on-policy run on ``gpus`` GPUs, all of which generate and then train.

    overlapped_step_s: of the same model where as many GPUs generate and as many more train beside
    them, one step off. Training is by far the shorter, so it is what generation and the sync
    between them take, and what a step holds besides.
    """

    name: str = column()
    gpu: str = column()
    model: str = column()
    gpus: int = column()
    tensor_parallel: int = column()
    parallel: tuple[int, ...] = column(made=read_parallel)
    groups: int = column()
    group_size: int = column()
    prompt_tokens: int = column()
    total_tokens: int = column()
    mean_new_tokens: float = column(least=1.0)
    step_s: float = column()
    overlapped_step_s: float = column()

    @cached_property
    def cost(self) -> RooflineCost:
        """The costs of training and of switches: the engine sleeps with its weights in host memory
        (level 1), the trainer's states are copied tensor by tensor."""
        model = replace(architecture(_MODELS[self.model]), precision="bf16")
        gpu = load_gpu(self.gpu)
        trainer = megatron(self.gpu, self.parallel, self.total_tokens, "full")
        keys = {"stack": STACKS["nemo"], "trainer": {**trainer, "log_prob_passes": 2}}
        section = RooflineSection.from_mapping(keys, "cost.roofline")
        replica, replicas = self.tensor_parallel, self.gpus // self.tensor_parallel
        return RooflineCost.from_options(
            model, gpu, section, trainer_gpus=self.gpus, tensor_parallel=replica, replicas=replicas
        )

    @cached_property
    def sync_more_s(self) -> float:
        """By how much the sync between GPUs that share is longer than the overlapped run's."""
        apart = replace(self.cost, placement="disaggregated", sync=None)
        return self.cost.sync_s - apart.sync_s

    @cached_property
    def training_s(self) -> float:
        """Forecast of log-probs and the update, every response of the mean length."""
        responses = [round(self.mean_new_tokens)] * self.group_size
        load = TrainLoad([(self.prompt_tokens, responses)] * self.groups)
        return self.cost.trainer_of.train(load).total_s

    @property
    def switches_s(self) -> float:
        """Forecast of the switch to training and back."""
        return self.cost.switch_to_train_s + self.cost.switch_to_rollout_s

    @property
    def forecast_s(self) -> float:
        """Generation as published, training, switches and what the sync takes more as forecast."""
        return self.overlapped_step_s + self.sync_more_s + self.training_s + self.switches_s


def judge(rows: Sequence[Row]) -> Judged:
    spelt = ", ".join(f"{row.name} {row.training_s:.0f} and {row.switches_s:.0f} s" for row in rows)
    return Judged(
        [Case(row.model, row.name, "s", row.step_s, row.forecast_s) for row in rows],
        notes=[f"Training and both switches are forecast as {spelt}"],
    )
