"""What can be changed of a set-up beside its GPUs and policy: the trainer's memory and layout, the
engine's room, and what a step trains on.

A table: keys of the scenario with the values to try, and where they apply. What a stack can set is
read from its own files: ways to split a model from ``costs.yaml``, launch settings from
``launch.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollcast.simulator.costs.backends import BACKENDS, Backend, backends_of
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.stacks import FOLDERS, UNKNOWN, known_stack
from rollcast.simulator.launches.costs import FUSED_CHUNK_TOKENS
from rollcast.simulator.stacks.settings import MEANINGS
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.values import choice

Effect = Literal["trainer", "engine", "training"]
"""What a knob acts on: the trainer's speed and memory, the engine's, or what is learned."""

_ROOFLINE, _TRAINER = "cost.roofline", "cost.roofline.trainer"
_SHARDED: tuple[Backend, ...] = ("fsdp", "fsdp2", "dtensor", "deepspeed")
_POWERS = tuple(2**i for i in range(15))


@dataclass(frozen=True, slots=True)
class Knob:
    """A key of the scenario. values: to try, in order. words: what it does. effect: on what; one on
    ``training`` changes what is learned, and is nobody's to change unasked. settings: names of
    `MEANINGS` by which a launch says it, the likeliest first."""

    key: str
    values: tuple[Any, ...]
    words: str
    effect: Effect
    settings: tuple[str, ...] = ()

    def others(self, now: Any) -> tuple[Any, ...]:
        """The values that are not the scenario's own."""
        return tuple(value for value in self.values if value != now)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a knob applies. backends, placement: None for any. split: whether it is a way to split
    a model, of ``costs.yaml``."""

    knob: Knob
    backends: tuple[Backend, ...] | None = None
    placement: Literal["colocated"] | None = None
    split: bool = False


def _trainer(key: str, values: tuple[Any, ...], words: str, *settings: str) -> Knob:
    return Knob(f"{_TRAINER}.{key}", values, words, "trainer", settings)


def _way(key: str, words: str) -> _Entry:
    name = f"{_TRAINER}.{key}"
    return _Entry(Knob(name, _POWERS[:6], words, "trainer", (name,)), split=True)


_TABLE = (
    _Entry(
        Knob(
            f"{_ROOFLINE}.offload_optimizer",
            (True, False),
            "the trainer's states wait in host memory while rollouts run",
            "trainer",
            ("run.offload_optimizer", "run.offload_parameters"),
        ),
        placement="colocated",
    ),
    _Entry(
        _trainer(
            "optimizer_on_host",
            (True, False),
            "the optimiser's states stay in host memory, and its step runs on the CPU",
            "run.cpu_optimizer",
        ),
        backends=("megatron", "deepspeed"),
    ),
    _Entry(
        _trainer(
            "states_on_host",
            (True, False),
            "weights, gradients and optimiser states stay in host memory during the update",
            "run.cpu_offload",
        ),
        backends=_SHARDED,
    ),
    _Entry(
        _trainer(
            "offload_activations",
            (True, False),
            "activations wait in host memory for the backward",
            "run.offload_activations",
        ),
        backends=("fsdp", "fsdp2", "megatron"),
    ),
    _Entry(
        _trainer(
            "recompute",
            ("none", "full"),
            "layers are computed again in the backward, or their activations kept",
            "run.recompute",
        ),
        backends=_SHARDED,
    ),
    _Entry(
        _trainer(
            "recompute",
            ("none", "attention", "full"),
            "layers are computed again in the backward, or their activations kept",
            "run.recompute",
        ),
        backends=("megatron",),
    ),
    _Entry(
        _trainer(
            "microbatch_tokens",
            (2048, 4096, 8192, 16384, 32768, 65536),
            "tokens of one pass on a GPU",
            "run.max_pass_tokens",
        )
    ),
    _Entry(
        _trainer(
            "microbatch_rollouts",
            (1, 2, 4, 8, 16, 32, 64),
            "rows of one padded pass on a GPU",
            "run.micro_batch_rollouts",
        )
    ),
    _Entry(
        _trainer(
            "log_prob_microbatch_tokens",
            (2048, 4096, 8192, 16384, 32768, 65536),
            "tokens of a pass for log-probabilities on a GPU",
            "run.log_prob_pass_tokens",
        )
    ),
    _Entry(
        _trainer(
            "log_prob_microbatch_rollouts",
            (1, 2, 4, 8, 16, 32, 64),
            "rows of a padded pass for log-probabilities on a GPU",
            "run.log_prob_micro_rollouts",
        )
    ),
    _Entry(
        _trainer(
            "batching",
            ("packed",),
            "sequences end to end, without padding",
            "run.packing",
        )
    ),
    _Entry(
        _trainer(
            "logits_chunk_tokens",
            (FUSED_CHUNK_TOKENS,),
            "head and loss take a chunk of the tokens at a time, without all logits in memory",
            "run.fused_head",
        )
    ),
    _Entry(
        _trainer(
            "kernels",
            ("fused", "eager"),
            "elementwise kernels are fused, and move less memory",
            "run.fused_kernels",
        ),
        backends=_SHARDED,
    ),
    _Entry(
        _trainer(
            "sharding",
            ("fsdp", "hybrid"),
            "who holds the shards of the states: all GPUs, or those of a node",
            "run.shard_gpus",
        ),
        backends=("fsdp", "fsdp2"),
    ),
    _Entry(
        _trainer(
            "sharding",
            ("fsdp", "zero1"),
            "what is sharded: all states (ZeRO-3), or the optimiser's",
            "run.zero_stage",
        ),
        backends=("deepspeed",),
    ),
    _Entry(
        _trainer(
            "sharding",
            ("zero1", "none"),
            "whether data-parallel GPUs share the optimiser's states",
            "run.zero_stage",
        ),
        backends=("megatron",),
    ),
    _Entry(
        _trainer(
            "reduce_every_microbatch",
            (True, False),
            "gradients are reduced after each pass, or kept whole until the step",
            "run.reduce_every_pass",
        ),
        backends=("fsdp", "fsdp2", "deepspeed"),
    ),
    _way("tensor_parallel", "GPUs that split every layer of the trainer"),
    _Entry(
        _trainer(
            "tensor_sequence_parallel",
            (True,),
            "GPUs of a tensor-parallel group share the tokens of norms and of the residual stream",
            f"{_TRAINER}.tensor_sequence_parallel",
        ),
        backends=("megatron", "dtensor"),
    ),
    _way("pipeline_parallel", "pipeline stages of the trainer"),
    _way("context_parallel", "GPUs that share a sequence by ring attention"),
    _way("sequence_parallel", "GPUs that share a sequence, and attention by heads"),
    _way("expert_parallel", "GPUs among which the trainer deals its experts"),
    _Entry(
        Knob(
            f"{_TRAINER}.weights",
            ("lora",),
            "adapters are trained, the model itself is frozen",
            "training",
            ("run.lora_rank",),
        )
    ),
    _Entry(
        Knob(
            "cluster.tensor_parallel",
            _POWERS[:6],
            "GPUs of one replica",
            "engine",
            ("cluster.tensor_parallel",),
        )
    ),
    _Entry(
        Knob(
            f"{_ROOFLINE}.kv_memory_utilization",
            (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9),
            "share of a GPU's memory that the engine takes",
            "engine",
            ("run.gpu_memory_share",),
        )
    ),
    _Entry(
        Knob(
            f"{_ROOFLINE}.engine_sleep",
            ("discard", "offload", "none"),
            "what the engine does with its weights while the trainer works",
            "engine",
            ("run.sleep_level", "run.free_engine"),
        ),
        placement="colocated",
    ),
    _Entry(
        Knob(
            f"{_ROOFLINE}.cuda_graphs",
            (True, False),
            "whether the engine replays CUDA graphs, which take memory",
            "engine",
            ("run.enforce_eager",),
        )
    ),
    _Entry(
        Knob(
            "workload.max_new_tokens",
            _POWERS[8:],
            "at how many tokens responses are cut",
            "training",
            ("workload.max_new_tokens", "run.max_context_tokens", "run.max_total_tokens"),
        )
    ),
    _Entry(
        Knob(
            "workload.batch_groups",
            _POWERS[2:13],
            "prompts of a step",
            "training",
            ("workload.batch_groups", "run.batch_rollouts"),
        )
    ),
)


def knobs_of(
    stack: str | None, backend: str | None, placement: str, model: Model | None
) -> tuple[Knob, ...]:
    """What can be set under a stack, in the order of the table.

    stack: of ``cost.roofline.stack``; None: any. backend: of its trainer; None: its default.
    placement: colocated or disaggregated. model: whose heads, layers and experts the values of a
    split divide; None: any. A setting for which the launch tables have a name is offered where the
    stack's own table has a key for it. Raises ScenarioError for a stack or backend that is none.
    """
    name = UNKNOWN if stack is None else known_stack(stack, f"{_ROOFLINE}.stack")
    known = backends_of(name)
    chosen = next(iter(known)) if backend is None else backend
    choice(chosen, f"{_TRAINER}.backend", tuple(known) if stack else BACKENDS)
    splits = known[chosen].splits  # type: ignore[index]
    return tuple(_fitting(chosen, placement, splits, model, _takes(name)))


def _takes(stack: str) -> frozenset[str] | None:
    """The settings that the stack's launch can say; None where its launch is not known."""
    folder = all_stacks().get(FOLDERS[stack].name)
    if folder is None:
        return None
    keys = folder.launch.keys
    return frozenset(ours for ours in keys if any(key.holds(None) for key in keys[ours]))


def _fitting(
    backend: str,
    placement: str,
    splits: tuple[str, ...],
    model: Model | None,
    takes: frozenset[str] | None,
) -> Iterator[Knob]:
    for entry in _TABLE:
        knob = entry.knob
        if entry.backends is not None and backend not in entry.backends:
            continue
        if entry.placement not in (None, placement):
            continue
        if entry.split and knob.key.rpartition(".")[2] not in splits:
            continue
        named = [setting for setting in knob.settings if setting in MEANINGS]
        if takes is not None and named and takes.isdisjoint(named):
            continue
        values = tuple(value for value in knob.values if _divides(knob.key, value, model))
        if len(values) > 1 or not entry.split:
            yield replace(knob, values=values)


def _divides(key: str, value: Any, model: Model | None) -> bool:
    """Whether a model can be split so."""
    if model is None:
        return True
    if key.endswith((".tensor_parallel", ".sequence_parallel")):
        return bool(model.heads % value == 0)
    if key.endswith(".pipeline_parallel"):
        return bool(value <= model.layers)
    if key.endswith(".expert_parallel"):
        return bool(model.experts and model.experts % value == 0)
    return True


__all__ = ["Effect", "Knob", "knobs_of"]
