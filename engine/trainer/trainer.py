"""The trainer: sampled groups in, one step of weight updates out."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rollcast.engine.edges import Beat, SampledGroup, SavedFile, TrainerSave, TrainMetrics
from rollcast.engine.errors import NonFiniteLoss
from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer import saved
from rollcast.engine.trainer.adapters import published, without
from rollcast.engine.trainer.batch import Example, make_examples
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.export import write_model
from rollcast.engine.trainer.flops import Flops, peak_flop_per_s
from rollcast.engine.trainer.losses import LossTotals
from rollcast.engine.trainer.mismatch import figures
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.moe import RouterBalance
from rollcast.engine.trainer.passes import Passes, Work, read
from rollcast.engine.trainer.pulse import Pulse
from rollcast.engine.trainer.ranks import Ranks
from rollcast.engine.trainer.reference import Reference
from rollcast.engine.trainer.shard_files import ShardWriter, require_files
from rollcast.engine.trainer.shards import TALLY, Gathered, held, whole
from rollcast.simulator.errors import ScenarioError


@dataclass(slots=True)
class _Begun:
    """A batch that comes in parts: totals and loss of the parts so far."""

    totals: LossTotals = field(default_factory=lambda: LossTotals(0, 0))
    loss: float = 0.0


class Trainer:
    """Updates a Hugging Face causal language model, in place, from sampled groups; an
    `engine.edges.Trainer`.

    On the CPU, equal inputs and seeds give equal weights; on CUDA as far as its kernels do
    (torch.use_deterministic_algorithms). Raises UnsupportedModelError on a model that cannot be
    computed exactly.

    ranks: the processes among which ``model`` is sharded; None: this one alone. Each has a trainer,
    makes the same calls in the same order with whole batches, and computes its share of a batch;
    the update is that of one process but for rounding. Seconds are this rank's; waiting for the
    others counts as ``gradient_s``. Only rank 0 returns weights and state. Raises RankLostError
    where another rank is lost.

    reference: of the model that the run began with, where ``loss.kl_coefficient`` asks for it; with
    adapters, that is the model without them.
    hands_back: whether cached GPU memory is freed after each update, for others on the GPU. sends:
    torch's type of what `weights` returns; None for the model's own. hub_names: whether that is
    named and shaped as the model's files on the hub, and not as transformers has it in memory: a
    mixture's experts apart.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig | None = None,
        ranks: Ranks | None = None,
        *,
        reference: Reference | None = None,
        hands_back: bool = False,
        sends: str | None = None,
        hub_names: bool = False,
    ) -> None:
        self.model = model
        self._sends = None if sends is None else getattr(torch, sends)
        self._convert = partial(revert_weight_conversion, model) if hub_names else None
        self._hands_back = hands_back
        self.config = config or TrainerConfig()
        self._ranks = ranks or Ranks()
        if model.is_gradient_checkpointing:
            # From here on config.checkpoint decides.
            model.gradient_checkpointing_disable()  # type: ignore[no-untyped-call]
        self._passes = Passes(model, self.config, self._ranks)
        if reference is None and self.config.lora and self.config.loss.kl_coefficient is not None:
            reference = Reference(self._passes, partial(without, model))
        self._reference = reference
        text_config = model.config.get_text_config()
        self.context_tokens: int | None = getattr(text_config, "max_position_embeddings", None)
        self.vocab_size: int = text_config.vocab_size
        self._pulse: Pulse | None = None
        self._flops = Flops(model)
        self._peak_flop_per_s = peak_flop_per_s(self._passes.runner.device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.config.learning_rate,
            betas=self.config.betas,
            eps=self.config.adam_epsilon,
            weight_decay=self.config.weight_decay,
            # One pass over the shard, without copies of it; on a CPU for offloaded shards alone,
            # as it rounds differently.
            fused=self._passes.runner.device.type == "cuda" or None,
        )
        self._shuffle = random.Random(self.config.seed)
        self._begun: _Begun | None = None
        self._updates = 0  # of the optimiser
        self._files = ShardWriter(self._ranks)

    def step(
        self,
        groups: Sequence[SampledGroup],
        *,
        shared_prefix: bool,
        version: int,
        mask_before_version: int | None = None,
        final: bool = True,
    ) -> TrainMetrics:
        """See `engine.edges.Trainer.step`.

        Raises NonFiniteLoss with weights, optimiser and random state as they were; ValueError on
        groups that cannot have been sampled, or a batch in parts where the configuration asks for
        several updates of it; ScenarioError on a rollout beyond the model's context. A failure
        drops all parts of the batch.
        """
        examples = self._examples(groups, version, mask_before_version)
        equal = all(example.advantage == 0 for example in examples)
        if self.config.loss.drop_zero_variance:
            varied = {e.group for e in examples if e.advantage != 0}
            examples = [e for e in examples if e.group in varied]
        work = Work(shared_prefix, Clock(self._passes.runner.device))
        if self._begun is not None or not final:
            self._step_part(examples, work, final)
            return self._metrics(examples, work, equal)
        shuffled = self._shuffle.getstate()
        updates = self._order(examples)
        self._reset_peak()
        undo = self._snapshot() if len(updates) > 1 else None
        try:
            with in_mode(self.model, training=True):
                balance = self._old_log_probs(examples, work)
                for index, batch in enumerate(updates):
                    # Later counts are of other examples, or of older weights.
                    first = index == 0 and self.config.minibatches == 1
                    work.balance = balance if first else None
                    work.compares = index == 0
                    self._update(batch, work)
        except BaseException:
            self._shuffle.setstate(shuffled)
            if undo is not None:
                undo()
            raise
        finally:
            self._drop_gradients()
            self._hand_back()
        return self._metrics(examples, work, equal)

    def _old_log_probs(self, examples: Sequence[Example], work: Work) -> RouterBalance | None:
        if examples and self._reference is not None:
            work.reference = self._reference.log_probs(examples, work.clock)
        if not examples or self.config.old_log_probs != "trainer":
            return None
        return self._passes.observe(examples, work, keep=True)

    def _reset_peak(self) -> None:
        device = self._passes.runner.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def _hand_back(self) -> None:
        if self._hands_back:
            torch.cuda.empty_cache()

    def _step_part(self, examples: Sequence[Example], work: Work, final: bool) -> None:
        """Gradients of a part of a batch, divided by the batch's totals only with the final one,
        which makes the update."""
        if self._begun is None:
            self._reset_peak()
        begun = self._begun or _Begun()
        done = False
        try:
            self._require_one_update()
            with in_mode(self.model, training=True):
                self._old_log_probs(examples, work)
                begun.totals += LossTotals.of(examples)
                updates = final and begun.totals.trained_tokens > 0
                with self._passes.weights(work):
                    self._passes.accumulate(examples, work)
                    if updates:
                        self._reduce(work.clock)
                begun.loss += work.sums.loss
                divisor = begun.totals.divisor(self.config.loss)
                work.sums.loss = begun.loss / divisor
                if updates:
                    for parameter in self._parameters:
                        if parameter.grad is not None:
                            parameter.grad.div_(divisor)
                    self._apply(work)
            done = not final
        finally:
            self._begun = begun if done else None
            if not done:
                self._drop_gradients()

    def _require_one_update(self) -> None:
        config = self.config
        if config.minibatches > 1 or config.epochs > 1 or self._passes.router is not None:
            raise ValueError(
                "a batch that comes in parts is trained on in one update: minibatches and epochs "
                "of 1, and no router to balance"
            )

    def _update(self, examples: Sequence[Example], work: Work) -> None:
        work.totals = LossTotals.of(examples)
        if work.totals.trained_tokens == 0:
            return
        if self._passes.router is not None and work.balance is None:
            work.balance = self._passes.observe(examples, work, keep=False)
        self._optimizer.zero_grad(set_to_none=True)
        with self._passes.weights(work):
            self._passes.accumulate(examples, work)
            self._reduce(work.clock)
        self._apply(work)

    def _reduce(self, clock: Clock) -> None:
        with clock("gradient"):
            self._ranks.reduce()

    def _drop_gradients(self) -> None:
        self._ranks.drop()
        self._optimizer.zero_grad(set_to_none=True)

    def _apply(self, work: Work) -> None:
        """Clips the gradients and updates the weights."""
        with work.clock("gradient"):
            limit = self.config.max_grad_norm
            with self._ranks.bound():
                norm = whole(
                    torch.nn.utils.clip_grad_norm_(
                        self._parameters, float("inf") if limit is None else limit
                    )
                )
            (norm,) = read(norm.reshape(1))
            if not isfinite(norm):
                raise NonFiniteLoss(
                    f"the norm of the gradient is {norm}; the weights are those from before "
                    "this step"
                )
        rate = self.config.learning_rate * self.config.rate_factor(self._updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with work.clock("optimizer"), self._ranks.bound():
            self._optimizer.step()
        work.sums.grad_norm += norm
        work.sums.updates += 1
        self._updates += 1

    def weights(self, each: bool = False) -> Mapping[str, Tensor]:
        """See `engine.edges.Trainer.weights`."""
        gathered = Gathered(published(self.model), self._sends, self._convert, on_host=not each)
        if each or self._ranks.number == 0:
            return gathered
        gathered.take_part()
        return {}

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `engine.edges.Trainer.log_probs`; by the model's own forward pass."""
        rows: list[list[float]] = []
        runner = self._passes.runner
        asked = sequences if self._ranks.number == 0 or self._ranks.by_layer else ()
        with self._passes.weights(), in_mode(self.model, training=False):
            for tokens in asked:
                ids = torch.tensor([[*tokens]], device=runner.device)
                rows.append(read(runner.sequence_log_probs(ids)))
        rows = rows if self._ranks.number == 0 else []
        self._hand_back()
        return rows

    def pulse(self) -> Beat:
        """See `engine.trainer.pulse`; all ranks take it at the same time."""
        with self._passes.weights():
            if self._pulse is None:
                self._pulse = Pulse(self._passes.runner)
            return self._pulse.take()

    def save(self, folder: Path) -> Mapping[str, Any]:
        """See `engine.edges.Trainer.save`; without the gradients of parts. A collective call."""
        tensors = {**saved.model_tensors(self.model), **saved.optimizer_tensors(self._optimizer)}
        if self._ranks.number == 0:
            tensors |= saved.random_tensors()
        with self._ranks.bound():
            self._files.begin(tensors, folder)
        return {"shuffle": saved.shuffle(self._shuffle), "updates": self._updates}

    def saved(self, wait_s: float) -> Mapping[str, SavedFile] | None:
        """See `engine.edges.Trainer.saved`."""
        return self._files.ended(wait_s)

    def load(self, save: TrainerSave) -> None:
        """See `engine.edges.Trainer.load`; a collective call."""
        number, count, group = self._ranks.number, self._ranks.count, self._ranks.group
        damage = ""
        try:
            require_files(save.folder, save.files, number, count)
        except ValueError as error:
            damage = str(error)
        if said := [text for text in self._ranks.exchange(damage) if text]:
            raise ValueError(said[0])
        saved.load(self.model, self._optimizer, self._parameters, save.folder, group)
        saved.load_shuffle(self._shuffle, save.plain.get("shuffle"))
        self._updates = saved.whole_number(save.plain.get("updates"))
        self._begun = None
        self._drop_gradients()

    def export(self, folder: Path, dtype: str) -> None:
        """See `engine.edges.Trainer.export`; a collective call, in which rank 0 gathers one tensor
        after another into its host memory and writes."""
        write_model(self.model, self._ranks.number == 0, folder, getattr(torch, dtype))

    def _examples(
        self, groups: Sequence[SampledGroup], version: int, mask_before_version: int | None
    ) -> list[Example]:
        if not groups:
            raise ValueError("there is no group to train on")
        examples = make_examples(
            groups,
            epsilon=self.config.loss.advantage_epsilon,
            divide_by_std=self.config.loss.divide_by_std,
            version=version,
            mask_before_version=mask_before_version,
        )
        for example in examples:
            tokens = len(example.prompt) + len(example.response)
            if self.context_tokens is not None and tokens > self.context_tokens:
                raise ScenarioError(
                    "engine.model",
                    f"a prompt of {len(example.prompt)} and a response of {len(example.response)} "
                    f"tokens do not fit the model's context of {self.context_tokens} tokens",
                )
            ids = (*example.prompt, *example.response)
            if min(ids) < 0 or max(ids) >= self.vocab_size:
                raise ValueError(f"a token is outside the vocabulary of {self.vocab_size}")
        return examples

    def _order(self, examples: Sequence[Example]) -> list[list[Example]]:
        """The batch of each update: whole groups, shuffled in every epoch."""
        minibatches = self.config.minibatches
        groups: dict[int, list[Example]] = defaultdict(list)
        for example in examples:
            groups[example.group].append(example)
        updates: list[list[Example]] = []
        for _ in range(self.config.epochs):
            order = list(groups)
            if minibatches > 1:
                self._shuffle.shuffle(order)
            shares = [order[i::minibatches] for i in range(minibatches)]
            updates += [[e for group in share for e in groups[group]] for share in shares if share]
        return updates

    def _snapshot(self) -> Callable[[], None]:
        """Copies this rank's weights and optimiser to host memory; the result restores them."""
        weights = [held(p).detach().to("cpu", copy=True) for p in self._parameters]
        optimizer = copy.deepcopy(self._optimizer.state_dict())
        updates = self._updates

        def undo() -> None:
            self._updates = updates
            with torch.no_grad():
                for parameter, weight in zip(self._parameters, weights, strict=True):
                    held(parameter).copy_(weight)
            self._optimizer.load_state_dict(optimizer)

        return undo

    def _metrics(self, examples: Sequence[Example], work: Work, equal: bool) -> TrainMetrics:
        mean, p99, divergence, entropy = figures(work.sums.mismatch)
        total_s = sum(work.clock.seconds.values())
        update_s = total_s - work.clock.seconds["log_prob"]
        flops = self._flops.of(work.sums.computed_tokens, work.sums.pairs, work.sums.targets)
        flop_per_s = flops / update_s / self._ranks.count if update_s else 0.0
        sums, seconds = work.sums, work.clock.seconds
        updates, tokens = max(1, sums.updates), max(1, sums.tokens)
        trained = sum(e.trained_tokens for e in examples)
        device = self._passes.runner.device
        return TrainMetrics(
            log_prob_s=seconds["log_prob"],
            forward_s=seconds["forward"],
            backward_s=seconds["backward"],
            gradient_s=seconds["gradient"],
            optimizer_s=seconds["optimizer"],
            loss=sums.loss / updates,
            aux_loss=sums.aux_loss / updates,
            grad_norm=sums.grad_norm / updates,
            clip_fraction=sums.clipped / tokens,
            mean_ratio=sums.ratio / tokens if sums.tokens else 1.0,
            rollouts=len(examples),
            trained_tokens=trained,
            masked_tokens=sum(len(e.response) - e.observed_tokens for e in examples) - trained,
            computed_tokens=sums.computed_tokens,
            padding_tokens=sums.padding_tokens,
            prefix_passes=sums.prefix_passes,
            microbatches=sums.microbatches,
            updates=sums.updates,
            peak_bytes=(torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None),
            mismatch_mean=mean,
            mismatch_p99=p99,
            mismatch_kl=divergence,
            entropy=entropy,
            learning_rate=float(self._optimizer.param_groups[0]["lr"]),
            equal_rewards=equal,
            flop_per_s_per_rank=flop_per_s,
            gathered_bytes=TALLY.bytes - work.gathered_before,
            mfu=flop_per_s / self._peak_flop_per_s if self._peak_flop_per_s else None,
            reference_kl=None if self._reference is None else sums.divergence / tokens,
            tokens_per_s_per_rank=(
                sums.computed_tokens / total_s / self._ranks.count if total_s else 0.0
            ),
        )
