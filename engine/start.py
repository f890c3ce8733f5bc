"""Starts a scenario's task, trainer and engine, in this process or in others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.engine import shared_memory
from rollcast.engine.config import RunSpec, TurnSpec
from rollcast.engine.edges import Engine, Limits, Trainer
from rollcast.engine.engines import EngineStart, adapter
from rollcast.engine.environments.sandbox import Patience
from rollcast.engine.errors import sentence
from rollcast.engine.heap import imported
from rollcast.engine.hub import folder_of
from rollcast.engine.in_process import Lent, in_process
from rollcast.engine.options import TaskSpec, TrainerConfig
from rollcast.engine.quiet import no_bars
from rollcast.engine.room import Devices, parameters, require_room, require_split
from rollcast.engine.sessions import TurnRules
from rollcast.engine.tasks.base import FirstTurns, Task
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import EngineSection
from rollcast.simulator.workload.environment import environment_spec

if TYPE_CHECKING:
    from rollcast.engine.actors.own_folder import OwnFolder
    from rollcast.engine.actors.trainer import Rank
    from rollcast.engine.actors.transport import Need
    from rollcast.engine.actors.weights import Channel


def start_world(spec: RunSpec, lent: Engine | None = None) -> EngineWorld:
    """The world of a scenario in this process; what starts fast starts first, to fail early.

    lent: an engine of the scenario that runs already; it takes the trainer's weights, and is not
    shut down. Raises EngineError or ScenarioError.
    """
    adapter(spec.engine.name).prepare(local_files=not isinstance(spec.model, str))
    try:
        task, path = start_task(spec)
        require_fit(spec, path)
        trainer = start_trainer(spec, path)
    except ScenarioError as error:
        raise spec.raw.locate(error) from None
    if lent is None:
        replica = start_replica(spec, path)
    else:
        replica = Lent(lent)
        replica.load_weights(trainer.weights(), 0)
    try:
        rules = None
        if spec.turns is not None:
            rules = turn_rules(spec.turns, spec.task, task, replica.limits)
        world = in_process(replica, trainer, task, spec.seed, turns=rules, sleeps=spec.engine.sleep)
        world.model_folder = path
        return world
    except ScenarioError as error:
        replica.shutdown()
        raise spec.raw.locate(error) from None


def start_actors(
    spec: RunSpec,
    address: str | None = None,
    *,
    first_turns: bool = False,
    routing: str | None = None,
) -> EngineWorld:
    """The world of a scenario with its replicas and trainer in processes of their own, on Ray.

    address: of a cluster; None: this machine, where each actor has its own cores if there are
    enough. first_turns: rollouts end with their first turn, unjudged. routing: instead of the
    scenario's. Raises EngineError or ScenarioError.
    """
    from rollcast.engine.actors.fleet import Recipe
    from rollcast.engine.actors.on_ray import LOCAL, RayTransport
    from rollcast.engine.actors.weights import ByFiles

    adapter(spec.engine.name).prepare(local_files=not isinstance(spec.model, str))
    turns = None if first_turns else spec.turns
    shape, here = spec.shape, address in (None, LOCAL)
    needs = _needs(spec, here)
    on_gpus = spec.engine.device == "cuda"
    transport = RayTransport(address, gpus=_gpus_here() if on_gpus else 0)
    closing = ExitStack()
    try:
        transport.require(needs)
        transport.reserve(needs)
        task, path = start_task(spec)
        require_split(path, shape.gpus_per_replica)
        if here:
            require_fit(spec, path)
        model = spec.model if isinstance(spec.model, str) and not here else path
        share, width = spec.memory_share, shape.gpus_per_replica
        engine = EngineStart(model, spec.engine, spec.sampling, spec.seed, share, width)
        trainer = TrainerStart(model, spec.engine, spec.trainer, spec.seed)
        way = channel(spec)
        if way is None and here:
            folder = weights_home(path)
            closing.callback(folder.close)
            way = ByFiles(folder.path)
        recipes = Recipes(
            [Recipe(engine, need) for need in needs[: shape.replicas]],
            [Recipe(trainer, need) for need in needs[shape.replicas :]],
            way,
            spec.engine.sleep,
        )
        world = EngineWorld(
            transport,
            recipes,
            shape,
            FirstTurns(task) if first_turns else task,
            spec.seed,
            routing or spec.cluster.routing,
            spec.engine.heartbeat_s,
            None if turns is None else lambda limits: turn_rules(turns, spec.task, task, limits),
        )
        world.model_folder = path
        world.after_close = closing.close
        return world
    except ScenarioError as error:
        transport.close()
        closing.close()
        raise spec.raw.locate(error) from None
    except BaseException:
        transport.close()
        closing.close()
        raise


def weights_home(model: Path) -> OwnFolder:
    """A folder for weights on their way between processes of this machine, in shared memory where
    it has room for those in use, the next and those being written, each at most as large as the
    model's files."""
    from rollcast.engine.actors.own_folder import OwnFolder

    size = sum(path.stat().st_size for path in model.iterdir() if path.is_file())
    return OwnFolder(shared_memory.root(3.3 * size), "rollcast-weights-")


def _needs(spec: RunSpec, here: bool) -> list[Need]:
    """Of each replica, then of each rank. here: on this machine, whose cores are split among them;
    beside GPUs any core will do."""
    from rollcast.engine.actors.machine import cores_here, shares
    from rollcast.engine.actors.transport import Need

    shape, gpus = spec.shape, int(spec.engine.device == "cuda")
    width, ranks = shape.gpus_per_replica, shape.trainer_gpus
    actors = shape.replicas * width + (0 if shape.colocated else ranks)
    mine = shares(cores_here(), actors) if here and not gpus else [()] * actors
    per_replica = [sum(mine[at * width : (at + 1) * width], ()) for at in range(shape.replicas)]
    rank_cores = [()] * ranks if shape.colocated else mine[shape.replicas * width :]
    needs = [Need(width, gpus * width, cores) for cores in per_replica]
    needs += [Need(1, gpus, cores) for cores in rank_cores]
    return shared(needs, shape) if gpus and shape.colocated else needs


def shared(needs: Sequence[Need], shape: ClusterShape) -> list[Need]:
    """These needs with shared GPUs: each replica has its own, each rank one of those, in order."""
    from rollcast.engine.actors.transport import Sharing

    width = shape.gpus_per_replica
    sharing = [Sharing(number, tuple(range(width))) for number in range(shape.replicas)]
    sharing += [Sharing(rank // width, (rank % width,)) for rank in range(shape.trainer_gpus)]
    return [replace(need, sharing=one) for need, one in zip(needs, sharing, strict=True)]


def channel(spec: RunSpec) -> Channel | None:
    """How weights leave the trainer; None is the transport's store."""
    from rollcast.engine.actors.weights import ByFiles

    if spec.engine.weights_by != "store":
        return adapter(spec.engine.name).wire(spec.engine.weights_by)
    return None if spec.weights_folder is None else ByFiles(spec.weights_folder)


def start_task(spec: RunSpec) -> tuple[Task, Path]:
    """The task, and the folder of its model."""
    task = spec.task
    model = None if spec.model is None else folder_of(spec.model)
    if task.prompts is not None:
        from rollcast.engine.tasks.custom import FileTask

        assert model is not None
        file_task = FileTask(
            task.prompts,
            task.reward,
            model,
            max_new_tokens=spec.max_new_tokens,
            chat=task.chat,
            reward_timeout_s=task.reward_timeout_s,
            reward_concurrency=task.reward_concurrency,
            reward_failed=task.reward_failed,
            folder=spec.raw.modules,
        )
        return file_task, model
    from rollcast.engine.tasks.collatz import LOG_SD, CollatzTask
    from rollcast.engine.tasks.warm_start import Recipe, warm_start

    log_sd = LOG_SD if task.log_sd is None else task.log_sd
    if spec.turns is not None:
        from rollcast.engine.environments.delays import DrawnDelays
        from rollcast.engine.tasks.calculator import CalculatorTask

        delays = DrawnDelays(spec.turns.environment, spec.seed)
        calculator = CalculatorTask(spec.max_new_tokens, log_sd, delays)
        return calculator, model or warm_start(Recipe(style="calculator"))
    built_in = CollatzTask(task.style, spec.max_new_tokens, log_sd)
    return built_in, model or warm_start(Recipe(style=task.style))


def turn_rules(turns: TurnSpec, named: TaskSpec, task: Any, limits: Limits) -> TurnRules:
    """The rules of the task's turns. Raises ScenarioError if the engine cannot hold the context."""
    cap, most = turns.max_context_tokens, limits.max_model_len
    if cap is not None and cap > most:
        raise ScenarioError(
            "workload.max_context_tokens",
            f"is {cap}, but the model's context and the KV pool of {limits.kv_tokens} tokens allow "
            f"{most}; make it {most} or less",
        )
    away = turns.environment
    return TurnRules(
        turns.make or task.environment,
        task.encode,
        limits.vocab_size,
        environment_spec(away, None),
        Patience(away.call_timeout_s, away.retry),
        turns.max_turns,
        cap or most,
        task.reward if named.reward else None,
    )


def start_trainer(spec: RunSpec, path: Path) -> Trainer:
    """The trainer, with the model in ``path`` on the scenario's device."""
    return TrainerStart(path, spec.engine, spec.trainer, spec.seed)()


def start_replica(spec: RunSpec, path: Path) -> Engine:
    """The engine, with the model in ``path``."""
    share, shares = spec.memory_share, spec.in_process
    return EngineStart(path, spec.engine, spec.sampling, spec.seed, share, shares=shares)()


@dataclass(frozen=True)
class TrainerStart:
    """Makes a trainer, or one of its ranks (an `engine.actors.trainer.RankStart`), in any process.
    model: its folder, or its name on the hub. Beside a sleeping engine it frees cached memory after
    updates."""

    model: Path | str
    engine: EngineSection
    trainer: TrainerConfig
    seed: int

    def __call__(self) -> Trainer:
        """The trainer. Raises ScenarioError where its model cannot be loaded."""
        model = self._trained()
        from rollcast.engine.trainer.trainer import Trainer as TorchTrainer

        device, reference = self.engine.device, None
        model.to(device)
        if self._needs_reference:
            from rollcast.engine.trainer.reference import of_its_own

            visits = device if self.trainer.reference_offload else None
            other = self._loaded(self.engine.dtype).to("cpu" if visits else device)
            reference = of_its_own(other, replace(self.trainer, autocast=False), visits=visits)
        return TorchTrainer(
            model,
            self.trainer,
            reference=reference,
            hands_back=self.engine.sleep,
            sends=self.engine.dtype,
            hub_names=adapter(self.engine.name).HUB_NAMES,
        )

    def meet(self) -> Any:
        """Rank 0's meeting point."""
        from rollcast.engine.trainer.sharded import Meeting

        return Meeting()

    def join(self, rank: Rank, place: Any) -> Trainer:
        """One rank, with its shard of the model. Raises ScenarioError where that cannot be loaded,
        RankLostError where another rank does not join."""
        model = self._trained()
        from rollcast.engine.trainer import sharded
        from rollcast.engine.trainer.trainer import Trainer as TorchTrainer

        sharded.join(place, rank.number, rank.count, self.engine.device)
        mixed = bool(self.trainer.autocast) and self.trainer.dtype == "float32"
        sharding = sharded.Sharding(mixed=mixed, offload=self.trainer.offload)
        # A layer at a time goes to the device, and a shard of it stays there.
        ranks = sharded.Sharded(model, self.engine.device, sharding)
        config, reference = replace(self.trainer, autocast=False), None
        if self._needs_reference:
            from rollcast.engine.trainer.reference import of_its_own

            sharding = sharded.Sharding(offload=config.reference_offload)
            other = self._loaded(self.engine.dtype)
            among = sharded.Sharded(other, self.engine.device, sharding)
            reference = of_its_own(other, config, among)
        return TorchTrainer(
            model,
            config,
            ranks,
            reference=reference,
            hands_back=self.engine.sleep,
            sends=self.engine.dtype,
            hub_names=adapter(self.engine.name).HUB_NAMES,
        )

    @property
    def _needs_reference(self) -> bool:
        """Whether a second model is: one with adapters is its own."""
        return self.trainer.loss.kl_coefficient is not None and self.trainer.lora is None

    def _trained(self) -> Any:
        """The model that is trained."""
        lora = self.trainer.lora
        if lora is None:
            return self._loaded(self.trainer.dtype)
        model = self._loaded(self.engine.dtype)  # which is not trained
        import torch

        from rollcast.engine.trainer.adapters import inject

        inject(model, lora, getattr(torch, self.trainer.dtype))
        return model

    def _loaded(self, dtype: str) -> Any:
        """The model as the run begins."""
        adapter(self.engine.name).prepare(local_files=not isinstance(self.model, str))
        with imported("transformers"):
            import torch
            from transformers import AutoModelForCausalLM

            import_module("rollcast.engine.trainer.trainer")
        path = folder_of(self.model)
        torch.manual_seed(self.seed)
        model: Any  # transformers' own types of ``to`` are of no use
        try:
            with no_bars():
                kind = getattr(torch, dtype)
                model = AutoModelForCausalLM.from_pretrained(
                    path, dtype=kind, trust_remote_code=False
                )
        except Exception as error:  # of several libraries, each with a base of its own
            message = f"the model in {path.name} cannot be loaded: {sentence(error)}"
            raise ScenarioError("engine.model", message) from error
        return model


def require_fit(spec: RunSpec, path: Path) -> None:
    """Raises ScenarioError where the model cannot fit this machine's GPUs."""
    if not spec.engine.device.startswith("cuda"):
        return
    import torch

    shape = spec.shape
    device_bytes = torch.cuda.get_device_properties(torch.device(spec.engine.device)).total_memory
    devices = Devices(
        device_bytes,
        spec.memory_share,
        shape.gpus_per_replica,
        shape.trainer_gpus,
        shape.colocated and not spec.engine.sleep,
    )
    require_room(parameters(path), spec.engine.dtype, spec.trainer, devices, path)


def _gpus_here() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
