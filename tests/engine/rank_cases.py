"""What is asked of the ranks of a trainer, and of one process beside them: see `rank_processes`."""

import copy
import importlib.util
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from saves import saved
from tiny_models import adapt, build, make_groups, response_log_probs
from torch import Tensor
from torch.distributed.tensor import DTensor

from rollcast.engine.actors.wire import ByWire
from rollcast.engine.edges import SampledGroup, TrainerSave
from rollcast.engine.errors import RankLostError
from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer.reference import Reference, of_its_own
from rollcast.engine.trainer.saved import model_tensors, optimizer_tensors
from rollcast.engine.trainer.sharded import Sharded, Sharding
from rollcast.engine.trainer.shards import held, whole
from rollcast.engine.trainer.trainer import Trainer
from rollcast.simulator.errors import RunError

Shapes = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Case:
    """parts: the shapes of each part of each step. start: a save to go on from. folder: for one at
    the end."""

    steps: Sequence[Sequence[Shapes]]
    kind: str = "qwen3"
    config: TrainerConfig = field(default_factory=TrainerConfig)
    shared: bool = False
    float64: bool = True
    overrides: dict[str, Any] = field(default_factory=dict)
    start: TrainerSave | None = None
    folder: Path | None = None
    by_layer: bool = True
    mixed: bool = False
    pure: bool = False
    sends: str | None = None


@dataclass
class Found:
    """What a trainer came to: the gradient of its last update (after clipping), and so on."""

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    save: TrainerSave | None
    metrics: Any
    held: dict[str, tuple[int, int]]  # elements in this process, of weights and of moments


@dataclass
class Drift:
    """made_whole: elements of the largest tensor that was, by torch's DTensor."""

    losses: list[float]
    moved: dict[str, Tensor]
    made_whole: int
    types: set[str]
    policies: set[Any]
    gathered: list[int]


def make(case: Case, ranks: bool) -> tuple[Any, Trainer]:
    dtype = torch.float64 if case.float64 else torch.float32
    model = build(case.kind, dtype, **case.overrides)
    if case.config.lora is not None:
        adapt(model, case.config.lora)
    sharded = Sharded(model, "cpu", Sharding(case.by_layer, case.mixed)) if ranks else None
    reference = reference_of(case, ranks)
    trainer = Trainer(model, case.config, sharded, reference=reference, sends=case.sends)
    if case.start is not None:
        trainer.load(case.start)
    return model, trainer


def reference_of(case: Case, ranks: bool) -> Reference | None:
    """Another model of the same shape."""
    if case.config.loss.kl_coefficient is None or case.config.lora is not None:
        return None
    dtype = torch.float64 if case.float64 else torch.float32
    model = build(case.kind, dtype, seed=1, **case.overrides)
    sharded = Sharded(model, "cpu", Sharding(case.by_layer)) if ranks else None
    return of_its_own(model, case.config, sharded)


def groups_of(shapes: Shapes, seed: int) -> list[SampledGroup]:
    return make_groups(shapes, seed=seed)


def train(case: Case, ranks: bool = True) -> Found:
    """The steps of a case, over the ranks or in one process."""
    model, trainer = make(case, ranks)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        gradients.update({name: whole(p.grad).clone() for name, p in named})

    trainer._optimizer.register_step_pre_hook(keep)
    metrics = None
    for number, parts in enumerate(case.steps):
        for place, shapes in enumerate(parts):
            metrics = trainer.step(
                groups_of(shapes, 10 * number + place),
                shared_prefix=case.shared,
                version=0,
                final=place == len(parts) - 1,
            )
    moments = trainer._optimizer.state
    sizes = {
        name: (held(p).numel(), held(moments[p]["exp_avg"]).numel() if p in moments else 0)
        for name, p in named
    }
    weights = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    state = {**model_tensors(model), **optimizer_tensors(trainer._optimizer)}
    kept = {name: whole(tensor).clone() for name, tensor in state.items()}
    kept = kept if trainer._ranks.number == 0 else {}
    save = None if case.folder is None else saved(trainer, case.folder)
    return Found(gradients, weights, kept, save, metrics, sizes)


def looks(case: Case, sequences: Sequence[Sequence[int]], ranks: bool = True) -> Any:
    """What it says without an update: log-probabilities either way, and its pulse."""
    _, trainer = make(case, ranks)
    groups = groups_of(case.steps[0][0], 0)
    beat = trainer.pulse()
    assert beat.long_s > 0
    return (trainer.log_probs(sequences), response_log_probs(trainer, groups, case.shared))


def fail(case: Case, how: str) -> tuple[str, str, float]:
    """An update that fails: at a rollout without a probability (``how`` is its number), or in the
    last rank alone, within a layer (``forward``, ``backward``) or in its gradient. What was raised,
    and how far the next update is from what it would have been."""
    model, trainer = make(case, True)
    _, twin = make(case, True)
    groups = groups_of(case.steps[0][0], 0)
    bad, handle = groups, None
    if how.isdecimal():
        bad = copy.deepcopy(groups)
        rollout = [rollout for group in bad for rollout in group.rollouts][int(how)]
        object.__setattr__(rollout, "log_probs", [float("nan")] * len(rollout.response))
    last = trainer._ranks.number == trainer._ranks.count - 1
    if how == "gradient":
        trainer._ranks.gather()
        if last:
            handle = model.lm_head.weight.register_hook(lambda grad: grad * float("inf"))
        trainer._ranks.scatter()
    elif last and how in ("forward", "backward"):
        name = "forward_pre" if how == "forward" else "full_backward"
        handle = getattr(model.model.layers[0].mlp, f"register_{name}_hook")(_tear)
    kind = said = ""
    try:
        trainer.step(bad, shared_prefix=case.shared, version=0)
    except RunError as error:
        kind, said = type(error).__name__, str(error)
    if handle is not None:
        handle.remove()
    for one in (trainer, twin):
        one.step(groups, shared_prefix=case.shared, version=0)
    a, b = dict(trainer.weights()), dict(twin.weights())
    return kind, said, max((float((a[name] - b[name]).abs().max()) for name in a), default=0.0)


def _tear(*_: Any) -> None:
    raise RuntimeError("no memory left")


def lose(case: Case) -> str:
    """The last rank dies in an update: what becomes of the others."""
    _, trainer = make(case, True)
    if trainer._ranks.number == trainer._ranks.count - 1:
        os._exit(1)
    try:
        trainer.step(groups_of(case.steps[0][0], 0), shared_prefix=case.shared, version=0)
    except RankLostError as error:
        return str(error)
    return ""


def drift(case: Case, steps: int, ranks: bool = True) -> Drift:
    """How far so many updates on one batch take the weights, each with its loss; and what is made
    whole meanwhile."""
    dtype = torch.bfloat16 if case.pure else torch.float32
    model = build(case.kind, dtype, **case.overrides)
    sharded = Sharded(model, "cpu", Sharding(case.by_layer, case.mixed)) if ranks else None
    trainer = Trainer(model, case.config, sharded)
    before = {name: t.float().clone() for name, t in trainer.weights().items()}
    counted: list[int] = []
    full = DTensor.full_tensor

    def counting(tensor: Any, **options: Any) -> Tensor:
        counted.append(tensor.numel())
        found: Tensor = full(tensor, **options)
        return found

    DTensor.full_tensor = counting  # type: ignore[method-assign]
    try:
        groups = groups_of(case.steps[0][0], 0)
        metrics = [trainer.step(groups, shared_prefix=case.shared, version=0) for _ in range(steps)]
    finally:
        DTensor.full_tensor = full  # type: ignore[method-assign]
    after = {name: t.float() for name, t in trainer.weights().items()}
    moved = {name: after[name] - before[name] for name in after}
    held = {str(t.dtype) for t in (*model.parameters(), *moments(trainer))}
    policies = {m._get_fsdp_state()._mp_policy for m in sharded._modules} if sharded else set()
    losses, gathered = ([getattr(m, n) for m in metrics] for n in ("loss", "gathered_bytes"))
    return Drift(losses, moved, max(counted, default=0), held, policies, gathered)


def moments(trainer: Trainer) -> list[Tensor]:
    states = trainer._optimizer.state.values()
    return [t for state in states for name, t in state.items() if name != "step"]


def export(case: Case, folder: Path, dtype: str) -> dict[str, Tensor]:
    """The steps of a case, and the model in a folder; its weights."""
    _, trainer = make(case, True)
    for number, (shapes,) in enumerate(case.steps):
        trainer.step(groups_of(shapes, 10 * number), shared_prefix=False, version=0)
    trainer.export(folder, dtype)
    return {name: tensor.clone() for name, tensor in trainer.weights().items()}


def carried(case: Case, packed_tensor: Path, limit: int) -> tuple[dict[str, Tensor], list[int]]:
    """A step of a case; then its weights by vLLM's packed producer on the first rank to its packed
    consumer on the last, over gloo in the place of NCCL. The first rank: what it gave, and the
    bytes of each bucket; the last: what it got. packed_tensor: vLLM's module, loaded without the
    rest of vLLM. Streams of a GPU are left out."""
    spec = importlib.util.spec_from_file_location("packed_tensor", packed_tensor)
    assert spec
    assert spec.loader
    packed: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packed)
    packed._get_streams = lambda device, count: (SimpleNamespace(synchronize=lambda: None),) * count
    torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment,misc]
    torch.accelerator.current_device_index = lambda: 0
    _, trainer = make(case, True)
    trainer.step(groups_of(case.steps[0][0], 0), shared_prefix=False, version=0)
    wire, last = ByWire(), dist.get_world_size() - 1
    ends, buckets = dist.new_group([0, last]), []

    class Group:
        """As much of vLLM's communicator as either end calls."""

        def broadcast(self, tensor: Tensor, src: int) -> None:
            buckets.append(tensor.numel() * tensor.element_size())
            dist.broadcast(tensor, src, group=ends)

    weights = trainer.weights()
    told = [wire.pack(weights) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, 0)
    found: dict[str, Tensor] = {}
    if dist.get_rank() == 0:
        found = wire._tensors(told[0])
        packed.packed_nccl_broadcast_producer(
            iter(found.items()), Group(), 0, lambda pair: pair[1], limit, 2
        )
    elif dist.get_rank() == last:
        dtypes = [getattr(torch, dtype) for dtype in told[0].dtypes]
        shapes = zip(map(list, told[0].shapes), dtypes, strict=True)
        packed.packed_nccl_broadcast_consumer(
            zip(told[0].names, shapes, strict=True),
            Group(),
            0,
            lambda pairs: found.update({name: tensor.clone() for name, tensor in pairs}),
            limit,
            2,
            "cpu",
        )
    return found, buckets
