"""SkyRL's fully asynchronous trainer, whole (skyrl/train/fully_async_trainer.py, with its own
fully_async_trainer_sim.py): workers, staleness manager, buffer and loop, unchanged. Replaced: its
base class, its generator, the inference client and what makes tensors."""

from __future__ import annotations

import asyncio
import contextlib
import types
import typing
from typing import Any

from plane import BATCH, GROUP, Adapter, Beside, Quiet, group_of, new_weights, unit
from stand_ins import Anything

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.fleet import Fleet

STALENESS, WORKERS = 2, 48
Names = types.SimpleNamespace


class _Timer:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> bool:
        return False


class _Gauge:
    def set(self, *_: Any) -> None: ...

    @contextlib.contextmanager
    def timed_phase(self, *_: Any) -> Any:
        yield

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


class _Loader(list[Any]):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


class _Generator:
    """Asks the engines. fails: prompts at which it raises. answers: by name."""

    def __init__(self, fleet: Fleet, fails: tuple[int, ...]) -> None:
        self._fleet, self._fails = fleet, fails
        self.answers: dict[str, Any] = {}

    async def generate(self, given: Any, disable_tqdm: bool = True) -> Any:
        name = given["prompts"][0]["uid"]
        number = int(name)
        self._fleet.journal.dispatched(unit(number), self._fleet.updates)
        if number in self._fails:
            await asyncio.sleep(1.0)
            raise RuntimeError("the environment died")
        self.answers[name] = await group_of(self._fleet, number)
        return given


class _Client:
    """The inference client: new weights come while it pauses."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def pause_generation(self) -> None:
        await new_weights(self._fleet, keep=True)

    async def resume_generation(self) -> None:
        await asyncio.sleep(0.0)

    def increment_weight_version(self) -> None: ...


def _modules() -> tuple[Any, Any]:
    """SkyRL's trainer and its simulated one, without what of them needs a GPU."""
    import typing_extensions

    typed_dict, typing.TypedDict = typing.TypedDict, typing_extensions.TypedDict
    try:
        import skyrl.train.fully_async_trainer as plane

        try:
            import skyrl.train.fully_async_trainer_sim as sim
        except ImportError:  # before their simulated trainer
            sim = types.SimpleNamespace(FullyAsyncTrainerSim=plane.FullyAsyncRayPPOTrainer)
    finally:
        typing.TypedDict = typed_dict
    for module in (plane, sim):
        module.logger, module.ResumeMode = Quiet(), Names(NONE=0)
    plane.Timer, plane.tqdm = _Timer, lambda *args, **options: Quiet()
    plane.prepare_generator_input = lambda prompts, n, *args, **options: (
        {"prompts": prompts},
        [prompts[0]["uid"]] * n,
    )
    plane.get_sampling_params_for_backend = lambda *args: None
    return plane, sim


def _config(epochs: int) -> Any:
    return Names(
        trainer=Names(
            eval_interval=0,
            ckpt_interval=0,
            hf_save_interval=0,
            epochs=epochs,
            max_training_steps=None,
            update_ref_every_epoch=False,
            fully_async=Names(simulate_weight_sync_seconds=0.0),  # the engines take it
        ),
        generator=Names(
            n_samples_per_prompt=GROUP, inference_engine=Names(backend="vllm"), sampling_params=None
        ),
        environment=Names(env_class="x"),
    )


def _trainer_of(fleet: Fleet, fails: tuple[int, ...]) -> type[Any]:
    """Their trainer with its parts replaced."""
    plane, sim = _modules()

    class Trainer(sim.FullyAsyncTrainerSim):
        def __init__(self, steps_per_epoch: int, epochs: int) -> None:
            self.resume_mode, self._step_sleep = 0, 0.0
            self.cfg = _config(epochs)
            self.mini_batch_size, self.max_staleness_steps = BATCH, STALENESS
            self.num_parallel_generation_workers = WORKERS
            self.sample_full_batch = False
            self._gen_buffer_maxsize = BATCH * (STALENESS + 1)
            self._phase_gauge = self._loop_gauges = _Gauge()
            self._ray_gpu_monitor = self._vllm_metrics_scraper = None
            self.has_critic, self.ref_model = False, None
            self.num_steps_per_epoch = steps_per_epoch
            self.total_training_steps = steps_per_epoch * epochs
            self.all_metrics, self.all_timings = {}, {}
            self.tracker = Names(log=lambda *args, **options: None, finish=lambda: None)
            self.generator = _Generator(fleet, fails)
            self.inference_engine_client = _Client(fleet)
            prompts = [[{"uid": str(i)}] for i in range(steps_per_epoch * BATCH)]
            self.train_dataloader = _Loader(prompts)
            self.async_train_dataloader = plane._AsyncDataloader(self.train_dataloader, BATCH)
            self._staleness_manager = plane._AsyncStalenessManager(WORKERS, BATCH, STALENESS)

        def _profiler_start(self) -> None: ...

        _profiler_stop = _profiler_step = _profiler_start

        def convert_generation_group_mini_batch_to_training_input(
            self, groups: Any, *_: Any
        ) -> Any:
            names = [group.generator_output["prompts"][0]["uid"] for group in groups]
            self.taken = names
            for name in names:
                fleet.journal.trained(unit(int(name)), fleet.updates)
            return groups

        async def _run_training(self, *args: Any, **options: Any) -> Any:
            await fleet.train([self.generator.answers.pop(name) for name in self.taken])
            return {}

        def init_weight_sync_state(self) -> None:
            if isinstance(sim, types.ModuleType):
                super().init_weight_sync_state()
            if not hasattr(self, "dispatch") or isinstance(self.dispatch, Anything):
                resume = self.inference_engine_client.resume_generation
                self.dispatch = Names(save_weights_for_sampler=resume)
            self.dispatch.finalize_pending_saves = lambda _: None

    return Trainer


async def drive(fleet: Fleet, steps: int, fails: tuple[int, ...] = ()) -> dict[str, Any]:
    """Trains for an epoch. fails: prompts at which the generator raises."""
    trainer = _trainer_of(fleet, fails)(steps, 1)
    await trainer.train()
    return {"manager": str(trainer._staleness_manager._stat)}


ADAPTER = Adapter(
    packages=("skyrl",),
    absent=(
        *("torch", "torchdata", "cloudpathlib", "loguru", "ray", "aiohttp", "omegaconf"),
        *("jaxtyping", "transformers", "hydra", "skyrl_gym", "peft", "wandb", "tqdm"),
        *("skyrl.train.trainer", "skyrl.train.generators", "skyrl.train.utils", "skyrl.backends"),
        *("skyrl.train.dataset", "skyrl.train.config"),
    ),
    module="skyrl.train.fully_async_trainer",
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=2, in_flight=3, exceeded=capacity, refill=group, "
            "weights=keep)",
            "They agree. SkyRL pauses vLLM in the mode keep, so that rollouts in flight keep "
            "their KV cache. Ours computed it anew, as SkyRL once did, and made steps 8 % "
            "longer: ours was wrong, and has `weights: keep` since. SkyRL runs empty at the end"
            " of an epoch, ours has no epochs.",
        ),
    ),
    laws=(
        lambda tried: laws.conserved(tried.journal, patience_steps=40),
        lambda tried: laws.admission_bounded(tried.journal, STALENESS, BATCH),
    ),
)
