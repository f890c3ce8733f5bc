"""Costs from first principles: a model's flop and bytes against a GPU's peaks (the roofline).

Williams, Waterman and Patterson (2009): a kernel takes the longer of its flop at peak compute and
its bytes at peak bandwidth, each times a measured efficiency. An iteration is the sum of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from rollcast.simulator.costs.base import (
    Curve,
    Extremes,
    TrainCost,
    TrainLoad,
)
from rollcast.simulator.costs.engine.hosts import Unsaid
from rollcast.simulator.costs.memory.kv_pool import (
    kv_pool_tokens,
    unsaid_reserve_bytes,
    weight_bytes_per_gpu,
    workspace_bytes,
)
from rollcast.simulator.costs.memory.processes import usable_bytes
from rollcast.simulator.costs.presets.gpus import TRAINER_EFFICIENCIES, Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline import warnings
from rollcast.simulator.costs.roofline.draws import (
    SYNCS,
    case_errors,
    cost_spreads,
    drawn_errors,
    drawn_fixed,
    drawn_gpu,
    drawn_links,
    drawn_speculative,
    moved,
    narrowing,
    of_the_case,
    residual_spreads,
    spreads,
    stack_spreads,
    times,
    trainer_spreads,
)
from rollcast.simulator.costs.roofline.iterations import EngineIterations
from rollcast.simulator.costs.roofline.options import (
    FIELD,
    LAUNCHES,
    RooflineOptions,
    RooflineSection,
)
from rollcast.simulator.costs.scaled import PHASES, SOURCES, ScaledCost
from rollcast.simulator.costs.stacks import STACKS, StackPreset, told_of
from rollcast.simulator.costs.sync.sleep import Sleep, engine_switch_s
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import GRADES
from rollcast.simulator.values import AtLeast, choice, given, whole
from rollcast.simulator.values.chance import Chance, Narrowed

Placement = Literal["colocated", "disaggregated"]
_NARROW = 1.8  # bytes a weight, below which the trainer's 16 bit weights are quantised for engines


@dataclass(frozen=True)
class RooflineCost(EngineIterations):
    """Prices a run from ``model`` and ``gpu``, each replica ``pipeline_parallel`` stages of
    ``tensor_parallel`` GPUs.

    ``trainer`` prices the updates (default: :class:`RooflineTrainer` on ``trainer_gpus``).
    With adapters the frozen weights stay where they are unless the trainer ``parks_frozen``, and a
    sync sends all weights, merged, unless ``sync`` is of adapters. Raises ScenarioError for a
    number out of range or a model that does not fit.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1
    replicas: int = 1
    trainer_gpus: int = 1
    placement: Placement = "colocated"
    trainer: RooflineTrainer | None = None
    pipeline_parallel: int = 1
    _curves: dict[int, Curve] = field(default_factory=dict, init=False, repr=False, compare=False)

    FIXED = (
        *("model", "gpu", "tensor_parallel", "pipeline_parallel", "replicas"),
        *("trainer_gpus", "placement", "trainer", *RooflineOptions.FIXED),
    )

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel", "replicas", "trainer_gpus"):
            whole(getattr(self, name), f"cluster.{name}", AtLeast(1))
        choice(self.placement, "cluster.placement", get_args(Placement))
        if self.host_factor is None:
            slower = figures("grace").host_factor if self.gpu.grace else 1.0
            object.__setattr__(self, "host_factor", slower)
        self._take_stack()
        if isinstance(self.kv_memory_utilization, Unsaid) and self.stack is not None:
            stack = STACKS[self.stack]
            share, apart = stack.kv_memory_utilization, stack.apart_kv_memory_utilization
            share = apart if apart and self.placement != "colocated" else share
            if share is not None:
                object.__setattr__(self, "kv_memory_utilization", share)
        if self.engine_sleep is not None and isinstance(self.switch_fixed_s, Unsaid):
            choice(self.engine_sleep, f"{FIELD}.engine_sleep", get_args(Sleep))
            level: Sleep = self.engine_sleep
            adapter = self._adapter_of_stack()
            if level == "discard" and adapter is not None and not adapter.preset.brings_base:
                level = "offload"  # no sync brings the weights that adapters are of
            slept = engine_switch_s(self.model, self.gpu, self.engine_gpus, level)
            object.__setattr__(self, "switch_fixed_s", slept)
        if isinstance(self.reserve_bytes, Unsaid):
            reserve_bytes = unsaid_reserve_bytes(self.model, self.engine)
            object.__setattr__(self, "reserve_bytes", reserve_bytes)
        if isinstance(self.launch_s_per_layer, Unsaid):
            known = figures("roofline")
            newer = self.gpu.host_link_bytes_per_s >= known.newer_host_bytes_per_s
            launch_s = known.launch_s_per_layer if newer else known.older_launch_s_per_layer
            if self.stack is not None and self.engine is None:
                launch_s = known.own_launch_s_per_layer
            object.__setattr__(self, "launch_s_per_layer", Unsaid(launch_s))
        for name in LAUNCHES:
            if isinstance(getattr(self, name), Unsaid):
                object.__setattr__(self, name, self.gpu.launch_factor * getattr(self, name))
        super().__post_init__()
        if self.stack is not None and self.sync is None:
            object.__setattr__(self, "sync", self._sync_of_stack(STACKS[self.stack]))

    def _adapter_of_stack(self) -> WeightSync | None:
        """How the stack sends adapters on this cluster; None where it has none or merges them."""
        stack = None if self.stack is None else STACKS[self.stack]
        if stack is None or self.trainer_of.weights != "lora":
            return None
        merges = self.merges_adapters
        if merges or (merges is None and self.placement in stack.merged):
            return None
        apart = None if self.placement == "colocated" else stack.apart_adapter
        return WeightSync(apart or stack.adapter)

    def _sync_of_stack(self, stack: StackPreset) -> WeightSync:
        """How the stack sends weights on this cluster."""
        adapter = self._adapter_of_stack()
        if adapter is not None:
            return adapter
        mechanism, each_s = stack.colocated, stack.per_tensor_s
        if self.placement != "colocated":
            apart_s = stack.apart_per_tensor_s
            mechanism, each_s = stack.disaggregated, each_s if apart_s is None else apart_s
        sync, made_s = WeightSync(mechanism, per_tensor_s=each_s), 0.0
        if self.model.experts and self.trainer_of.backend == "megatron":
            made_s += stack.export_per_tensor_s
        if self.model.weight_bytes < _NARROW * self.model.parameters:
            made_s += stack.quantise_per_tensor_s
        return replace(sync, per_tensor_s=sync.figures.per_tensor_s + made_s) if made_s else sync

    def agree(self) -> None:
        """The model's heads and layers can be dealt to the GPUs of a replica, and options agree."""
        model = self.model
        if not self.data_parallel_attention and model.heads % self.tensor_parallel:
            raise ScenarioError(
                "cluster.tensor_parallel",
                f"{self.tensor_parallel} does not divide the {model.heads} attention heads "
                f"of {model.name}",
            )
        if self.pipeline_parallel > model.layers:
            raise ScenarioError(
                "cluster.pipeline_parallel",
                f"{self.pipeline_parallel} stages are more than the {model.layers} layers of "
                f"{model.name}",
            )
        self._speculation_agrees()
        mechanism = self.sync.mechanism if self.sync else None
        if self.serves_adapters and self.trainer_of.weights != "lora":
            raise self.refuse(
                "sync",
                f"{mechanism} sends adapters alone; set cost.roofline.trainer.weights to lora",
            )
        if mechanism and mechanism.startswith("cuda_ipc") and self.placement != "colocated":
            raise self.refuse(
                "sync",
                f"{mechanism} hands weights over within a GPU; with cluster.placement "
                "disaggregated give another mechanism, such as nccl_broadcast",
            )

    def _speculation_agrees(self) -> None:
        speculative = self.speculative
        if speculative is None:
            return
        if self.pipeline_parallel > 1:
            raise self.refuse(
                "speculative", "is not modelled over stages; set cluster.pipeline_parallel to 1"
            )
        draft = speculative.draft_of(self.model)
        heads = draft.heads if draft is not None and speculative.method == "draft_model" else 0
        if heads % self.tensor_parallel:
            raise self.refuse(
                "speculative.draft_model",
                f"its {heads} attention heads are not divided by cluster.tensor_parallel, "
                f"{self.tensor_parallel}",
            )

    @classmethod
    def from_options(
        cls,
        model: Model,
        gpu: Gpu,
        options: RooflineSection | None = None,
        *,
        trainer_gpus: int = 1,
        trainer_gpu: Gpu | None = None,
        padded_tokens: int = 0,
        **cluster: Any,
    ) -> RooflineCost:
        """A cost model with the options of a scenario's ``cost.roofline``. trainer_gpu: where it is
        of another kind. padded_tokens: of a rollout padded to its caps, 0 where unknown. cluster:
        the other fields (tensor_parallel, pipeline_parallel, replicas, placement)."""
        options = options or RooflineSection()
        trainer = RooflineTrainer(
            model,
            trainer_gpu or gpu,
            trainer_gpus,
            padded_tokens=padded_tokens,
            **given(options.trainer),
        )
        offload_said = options.offload_said
        said = {**given(options), "offload_said": offload_said, "trainer": trainer, **cluster}
        return cls(model, gpu, trainer_gpus=trainer_gpus, **said)

    @cached_property
    def trainer_of(self) -> RooflineTrainer:
        """What prices the updates."""
        return self.trainer or RooflineTrainer(self.model, self.gpu, self.trainer_gpus)

    @cached_property
    def two_kinds(self) -> bool:
        """Whether the trainer's GPUs are of another kind than the engines'."""
        own = {name: getattr(self.gpu, name) for name in TRAINER_EFFICIENCIES}  # by its kernel
        return replace(self.trainer_of.gpu, **own) != self.gpu

    @property
    def kv_pool_tokens(self) -> int:
        """Tokens of KV that one replica holds (:func:`kv_pool_tokens`)."""
        return self.pool_beside(self.reserve_bytes)

    @property
    def knows_memory(self) -> bool:
        """Always."""
        return True

    def pool_beside(self, reserve_bytes: float) -> int:
        """The same where the engine needs so much of its share for itself. Raises ScenarioError
        where weights leave no room."""
        speculative = self.speculative
        return kv_pool_tokens(
            self.model,
            self.gpu,
            self.tensor_parallel,
            self.engine_share,
            reserve_bytes,
            self.kv_rollout_tokens,
            self.data_parallel_attention,
            self.pipeline_parallel,
            speculative.draft_of(self.model) if speculative else None,
            self.more_weight_bytes,
        )

    @property
    def beside_trainer(self) -> bool:
        """Whether the engine's share for KV is of what weights leave, the trainer's too."""
        return (
            self.stack is not None
            and self.placement == "colocated"
            and STACKS[self.stack].beside_trainer
        )

    @cached_property
    def engine_share(self) -> float:
        """Share of a GPU's memory that the engine's weights, workspace and KV have: as it is given,
        or for KV so much of what is free beside the others (determine_num_available_blocks of
        verl/third_party/vllm/vllm_v_0_6_3/worker.py in verl 0.2)."""
        if not self.beside_trainer:
            return self.kv_memory_utilization
        own = self.reserve_bytes + weight_bytes_per_gpu(
            self.model,
            self.tensor_parallel,
            self.pipeline_parallel,
            self.data_parallel_attention,
            self.more_weight_bytes,
        )
        free = usable_bytes(self.gpu) - own - self.trainer_of.loaded_bytes
        return (own + self.kv_memory_utilization * max(free, 0.0)) / self.gpu.memory_bytes

    @property
    def more_weight_bytes(self) -> float:
        """Of an engine's weights beyond the model's: those of a draft, and below 0 where it has the
        trainer's in fewer bits."""
        draft = self.speculative.draft_weight_bytes(self.model) if self.speculative else 0.0
        if not self.borrows:
            return draft
        return draft + self.model.weight_bytes * (self.trainer_of.base_bytes_each / 2 - 1)

    @property
    def borrows(self) -> bool:
        """Whether the engine's weights are the trainer's."""
        frozen = self.trainer_of.weights == "lora"
        return self.shares_weights and frozen and self.placement == "colocated"

    def workspace_bytes(self, batched_tokens: int, seqs: int) -> float:
        """The least that an engine of so many tokens and rollouts at once needs beside weights and
        KV; no more than ``reserve_bytes``."""
        least = workspace_bytes(self.model, self.tensor_parallel, batched_tokens, seqs)
        return min(least, self.reserve_bytes)

    @property
    def engine_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def in_prompt_order(self) -> bool:
        """As training stacks do; our own trainer, whose costs are measured, does not."""
        return True

    def train(self, load: TrainLoad) -> TrainCost:
        """The update's phases (:meth:`RooflineTrainer.train`) with the stack's factors and fixed
        seconds (those of the update as ``overhead``), the driver's before each pass, copies of
        states in the phases that need them, and ``rest`` after them."""
        cost = self.trainer_of.train(load)
        driver_s, copied_s = self.trainer_of.driver_s(load), self._copied_s
        factors, fixed, phases = self.phase_factors, self.fixed, []
        for name, seconds in cost.phases_s:
            of = "reference" if name == "reference" else "log_prob" if name in GRADES else "update"
            added_s = fixed.log_prob or 0.0 if name == "log_prob" else 0.0
            added_s += driver_s if name in GRADES or name == "forward" else 0.0
            added_s += copied_s.get(name, 0.0)
            phases.append((name, factors.of(of) * seconds + added_s))
        update_s = fixed.update or 0.0 if phases else 0.0
        rest_s = factors.of("rest") * (self.rest_s + self.rest_per_token_s * load.tokens)
        if self.placement != "colocated":
            rest_s += self.trainer_of.collected_s(load.rollouts)
        after = (("overhead", update_s), ("rest", rest_s))
        phases += [(name, seconds) for name, seconds in after if seconds]
        return replace(cost, phases_s=tuple(phases))

    def opening_s(self, rollouts: int) -> float:
        """Seconds of a step's generation in which no rollout runs: fixed ones, and where the
        trainer waits meanwhile those in which the rollouts are put together, at its end; and those
        in which an HTTP client sends them."""
        waits = self.placement == "colocated"
        collected_s = self.trainer_of.collected_s(rollouts) if waits else 0.0
        sent_s: float = (self.client_factor or 0.0) * figures("client").send_s * rollouts
        return (self.fixed.generation or 0.0) + collected_s + sent_s

    def reading_s(self, rollouts: int, at_once: int) -> float:
        """Seconds in which an HTTP client reads the responses. For each, httpx's pool looks at all
        idle connections, and for each of these at all connections; idle ones stay for 5 s, so that
        what a response takes grows with the root of those in flight."""
        each_s: float = figures("client").read_s * math.sqrt(at_once)
        return (self.client_factor or 0.0) * each_s * rollouts

    @property
    def sync_s(self) -> float:
        """Seconds to bring new weights to every replica: by ``sync``, or all weights
        (adapters are merged first) at ``sync_bytes_per_s`` or the GPU's interconnect, plus
        ``sync_fixed_s``, whatever the number of replicas: broadcasts run side by side; and the
        stack's fixed seconds. Of two kinds of GPU the slower interconnect counts, and they are
        taken to share no node. Weights that leave a node come from one GPU: a network slower than
        that on which the mechanisms were measured limits them."""
        gpus = (self.gpu, self.trainer_of.gpu)
        engine_gpus = self.replicas * self.engine_gpus
        node = min(max(engine_gpus, self.trainer_gpus), self.gpus_per_node)
        link = min(gpu.pcie_share * gpu.link_bytes_per_s(node) for gpu in gpus)
        network = min(self.network_bytes_per_s, self.trainer_of.network_bytes_per_s)
        slower = network < figures("roofline").network_bytes_per_s
        leaves = self.two_kinds or self.trainer_gpus + engine_gpus > self.gpus_per_node
        if slower and leaves and self.placement != "colocated" and not self.serves_adapters:
            link = min(link, network)
        if self.sync is not None:
            seconds = self.sync.seconds(
                self.model, self.trainer_gpus, engine_gpus, link, apart=self.two_kinds
            )
        else:
            rate = min(self.sync_bytes_per_s, link)
            seconds = self.sync_fixed_s + self.model.weight_bytes / rate
        return self.phase_factors.of("sync") * (seconds + (self.fixed.sync or 0.0))

    @cached_property
    def _copied_s(self) -> Mapping[str, float]:
        """Seconds by phase of the trainer in which states come from host memory and go back."""
        trainer = self.trainer_of
        if not self.offloads or trainer.states_copied == "switches":
            return {}
        read_s = math.fsum(trainer.read_copies_s(self.offload_bytes_per_s))
        down_s, up_s = self._update_copies_s
        last_s = 0.0 if trainer.states_copied == "phases_but_last" else down_s
        copied_s = {"log_prob": read_s, "values": read_s, "forward": up_s + last_s}
        if trainer.weights == "lora":  # the reference is the same model
            copied_s["reference"] = read_s
        return copied_s

    @property
    def _update_copies_s(self) -> tuple[float, float]:
        """Seconds in which what an update needs leaves the GPUs, and comes back."""
        trainer, rate = self.trainer_of, self.offload_bytes_per_s
        return (trainer.read_copies_s if trainer.weights == "lora" else trainer.copies_s)(rate)

    @property
    def offloads(self) -> bool:
        """Whether a colocated trainer's states leave its GPUs between steps. DeepSpeed moves none
        whose optimiser is on the host (deepspeed/runtime/engine.py, offload_states, and OpenRLHF's
        offload_deepspeed_states)."""
        trainer = self.trainer_of
        on_host = trainer.optimizer_on_host or trainer.states_on_host
        stays = trainer.backend == "deepspeed" and on_host
        return bool(self.placement == "colocated" and self.offload_optimizer and not stays)

    def _switch_s(self, back: bool) -> float:
        if self.placement != "colocated":
            return 0.0
        moved_s, when = 0.0, self.trainer_of.states_copied
        if self.offloads and when == "switches":
            moved_s = self.trainer_of.copies_s(self.offload_bytes_per_s)[back]
        elif self.offloads and when == "phases_but_last" and not back:
            moved_s, _ = self._update_copies_s
        stack_s = 0.5 * (self.fixed.switch or 0.0)
        return self.phase_factors.of("sync") * (self.switch_fixed_s + moved_s + stack_s)

    @property
    def switch_to_train_s(self) -> float:
        """Colocated: free the KV pool (fixed) and load the trained states from the host, unless the
        phases that need them do."""
        return self._switch_s(back=True)

    @property
    def switch_to_rollout_s(self) -> float:
        """Colocated: move the trained states to the host and map the KV pool (fixed)."""
        return self._switch_s(back=False)

    def drawn(self, chance: Chance) -> ScaledCost:
        """The costs drawn anew: their figures (:meth:`with_figures_drawn`), and beyond them what
        the roofline is off by for such a model."""
        narrowed, backend = narrowing(self.stack, self.settings_known), self.trainer_of.backend
        inner = self.with_figures_drawn(Narrowed(chance, narrowed, SYNCS))
        errors = residual_spreads(
            self.model,
            of_the_case(self.phase_factors, self.stack, self.model, self.gpu, backend, narrowed),
            speculates=self.speculative is not None,
            several_gpus=self.engine_gpus > 1,
            narrowed=narrowed,
        )
        drawn = drawn_errors(errors, chance)
        sd_apart = narrowed * case_errors()["apart"]
        for phase in ("decode", "update"):
            apart = math.exp(sd_apart * chance.normal(f"{SOURCES[phase]}/{phase}, GPUs apart"))
            drawn[phase] *= apart if self.placement == "disaggregated" else 1.0
        sd = self.phase_factors.reference_sd
        if sd is not None:  # a draw of its own, in the place of that of the log-probabilities
            cause = f"{SOURCES['log_prob']}/reference, model error"
            own = math.exp(sd * chance.normal(cause)) / drawn["log_prob"]
            reference = self.phase_factors.of("reference") * own
            inner = replace(inner, phase_factors=replace(inner.phase_factors, reference=reference))
        return ScaledCost(inner, {**dict.fromkeys(PHASES, 1.0), **drawn})

    def with_figures_drawn(self, chance: Chance) -> RooflineCost:
        """The costs with every uncertain figure drawn anew."""
        trainer = self.trainer_of
        inside = min(self.engine_gpus, self.gpus_per_node)
        trainer_inside = min(trainer.gpus, trainer.gpus_per_node)
        trainer_gpu = drawn_gpu(trainer.gpu, chance)
        if self.two_kinds:  # whose figures err apart
            whose = " of the engines"
            gpu = drawn_gpu(self.gpu, chance, whose)
            gpu = drawn_links(gpu, inside, chance, whose)
            trainer_gpu = drawn_links(trainer_gpu, trainer_inside, chance)
        else:  # the engine's too, but for the trainer's attention
            trainer_gpu = drawn_links(trainer_gpu, max(inside, trainer_inside), chance)
            gpu = trainer_gpu
        changed = times(trainer, trainer_spreads(trainer.kernels), chance)
        known = cost_spreads(self.engine, self.engine_sleep)
        if self.stack is not None:
            known = (*known, *stack_spreads(self.stack, self))
        drawn: dict[str, Any] = times(self, known, chance)
        if self.stack is not None:
            drawn["fixed"] = drawn_fixed(self.stack, self.fixed, chance)
        sync = self.sync
        if sync is not None:
            sync = sync.slowed(chance.factor("sync/mechanism", sync.preset.low, sync.preset.high))
        if self.engine_gpus > self.gpus_per_node:
            drawn.update(times(self, spreads("network"), chance))
        if self.cuda_graphs == "unknown":
            other = chance.normal("host time/cuda_graphs") > 0  # half of the draws
            drawn["cuda_graphs"] = self.with_graphs != other
        drawn["speculative"] = drawn_speculative(self.speculative, chance)
        trainer = moved(trainer, {"gpu": trainer_gpu, **changed})
        return moved(self, {"gpu": gpu, "trainer": trainer, "sync": sync, **drawn})

    def warnings(self, extremes: Extremes) -> list[str]:
        """Ranges that the run left, and figures that nobody measured."""
        gpu, trainer = self.gpu, self.trainer_of
        of_stack = () if self.stack is None else told_of(self.stack)
        drafted = self.speculative.tokens if self.speculative else 0
        most = figures("fitted_up_to")
        limits = (
            (extremes.rollouts, most.rollouts, "rollouts running on a replica"),
            (extremes.rollout_tokens, most.rollout_tokens, "tokens in a rollout"),
            (extremes.prefill_tokens, most.prefill_tokens, "tokens prefilled in an iteration"),
            (self.tensor_parallel, most.tensor_parallel, "GPUs in a replica"),
            (drafted, most.drafted, "tokens drafted at once"),
        )
        sentences = [
            *of_stack,
            *warnings.of_gpus(gpu, trainer.gpu),
            *warnings.of_ranges(limits),
            *warnings.of_model(self.model, gpu, self.reserve_bytes),
            *warnings.of_images(trainer),
            *warnings.of_delta_nets(trainer),
            *warnings.of_lengths(trainer),
        ]
        if self.cuda_graphs == "unknown":
            graphs, eager = (replace(self, cuda_graphs=given) for given in (True, False))
            sentences.append(warnings.of_graphs(graphs, eager, self.with_graphs, extremes))
        if self.pipeline_parallel > 1:
            sentences.append(
                "stages of a pipeline are taken to be even and their messages to hide nothing; no "
                "engine with stages was measured"
            )
        if (
            self.offloads
            and trainer.state_copies == "pageable"
            and isinstance(self.switch_fixed_s, Unsaid)
        ):
            sentences.append(
                f"switches: the default switch_fixed_s, {self.switch_fixed_s:g} s, is of an engine "
                "in TRL's loop; stacks that copy states to pageable memory, such as NeMo-RL, keep "
                "the engine's weights there too, which takes longer; set engine_sleep or "
                "switch_fixed_s beside state_copies"
            )
        if self.tensor_parallel > 1 and gpu.over_pcie:
            sentences.append(warnings.over_pcie(gpu))
        return sentences
