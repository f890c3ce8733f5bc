"""The forward and backward passes of an update over its microbatches, in either layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rollcast.engine.errors import NonFiniteLoss, UnsupportedModelError
from rollcast.engine.options import Checkpoint, TrainerConfig, recomputes
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.losses import ONE, LossTotals, importance_weights, policy_loss
from rollcast.engine.trainer.microbatch import (
    IDLE,
    Packing,
    SharedPass,
    in_step,
    plan_packing,
    shares,
)
from rollcast.engine.trainer.mismatch import SIZE, compared
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.model import Forward, LogProbModel
from rollcast.engine.trainer.moe import Router, RouterBalance, RouterSums
from rollcast.engine.trainer.packed import engaged, has_kernel, packable
from rollcast.engine.trainer.prefix_reuse import PrefixReuse
from rollcast.engine.trainer.ranks import Ranks
from rollcast.engine.trainer.shards import TALLY

FloatArray = NDArray[np.float64]


@dataclass(slots=True)
class Sums:
    """Sums over the microbatches of a step."""

    loss: float = 0.0
    aux_loss: float = 0.0
    grad_norm: float = 0.0
    ratio: float = 0.0
    clipped: float = 0.0
    divergence: float = 0.0
    tokens: int = 0
    computed_tokens: int = 0
    padding_tokens: int = 0
    pairs: int = 0
    targets: int = 0
    microbatches: int = 0
    prefix_passes: int = 0
    updates: int = 0
    mismatch: FloatArray = field(default_factory=lambda: np.zeros(SIZE))

    def add(self, other: Sums) -> None:
        """Adds another's."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class Work:
    """A step while its passes run.

    old: the trainer's log-probabilities before the first update, by example; empty where the
    sampled ones are the ratio's denominator. reference: the reference model's; empty without one.
    totals: what the loss averages over. balance: expert counts of the update; None without the
    routers' loss. parts: of each microbatch loss, auxiliary loss, sum of ratios, clipped tokens and
    divergence, on the device until all are done. compares: whether the sampled log-probabilities
    are compared with the trainer's (`engine.trainer.mismatch`). gathered_before: bytes made whole
    before the step.
    """

    shared_prefix: bool
    clock: Clock
    sums: Sums = field(default_factory=Sums)
    old: dict[Example, Tensor] = field(default_factory=dict)
    reference: dict[Example, Tensor] = field(default_factory=dict)
    totals: LossTotals = ONE
    balance: RouterBalance | None = None
    parts: list[Tensor] = field(default_factory=list)
    compares: bool = True
    gathered_before: int = field(default_factory=lambda: TALLY.bytes)


class Passes:
    """Computes this rank's share of a batch. See `engine.trainer.trainer.Trainer`."""

    def __init__(self, model: PreTrainedModel, config: TrainerConfig, ranks: Ranks) -> None:
        self._model, self._config, self._ranks = model, config, ranks
        self._reuse: PrefixReuse | None = None
        with self.weights():
            self.runner = LogProbModel(
                model,
                temperature=config.temperature,
                autocast=bool(config.autocast),
                head_chunk_tokens=config.head_chunk_tokens,
                router=Router.of(model.config.get_text_config(), config.router_aux_coefficient),
                ranks=ranks,
            )
            self._packs = self._can_pack()

    @property
    def _checkpoint(self) -> Checkpoint:
        """What is recomputed: asked for, or by memory."""
        config = self._config
        if config.checkpoint != "auto":
            return config.checkpoint
        device = self.runner.device
        if device.type != "cuda" or config.prefix_backend == "cache":
            return "none"
        device_bytes = torch.cuda.get_device_properties(device).total_memory
        text = self._model.config.get_text_config()
        units = config.microbatch_tokens * text.hidden_size * text.num_hidden_layers
        return "all" if recomputes(units, device_bytes) else "none"

    @property
    def router(self) -> Router | None:
        """The model's routers, where their loss counts."""
        return self.runner.router

    @contextmanager
    def weights(self, work: Work | None = None) -> Iterator[None]:
        """Weights for passes that do not change them: by layer where the ranks can, else whole."""
        if not self._ranks.by_layer:
            with nullcontext() if work is None else work.clock("forward"):
                self._ranks.gather()
        try:
            yield
        finally:
            self._ranks.scatter()

    def _dense(self, batch: Sequence[Example]) -> Forward:
        return self.runner.packed(batch) if self._packs else self.runner.dense(batch)

    def _attends(self) -> AbstractContextManager[None]:
        """What dense passes, and their backwards, run within."""
        return engaged(self._model) if self._packs else nullcontext()

    def _can_pack(self) -> bool:
        """Whether a dense microbatch is a single row. Raises UnsupportedModelError where that is
        asked for and not exact."""
        asked, runner = self._config.packing, self.runner
        if asked == "never":
            return False
        if not packable(self._model):
            if asked == "auto":
                return False
            raise UnsupportedModelError(
                f"{type(self._model).__name__} has layers that are no softmax attention, which "
                "would run from one packed sequence into the next: leave it out",
                "engine.trainer.packing",
            )
        dtype = torch.bfloat16 if runner.low_precision else torch.float32
        if asked == "auto" and not has_kernel(runner.device, dtype):
            return False
        try:
            self._compare_rows()
        except UnsupportedModelError:
            if asked == "always":
                raise
            return False
        return True

    def _compare_rows(self) -> None:
        """Raises UnsupportedModelError where a few tokens come out otherwise in a packed row."""
        vocabulary = self._model.config.get_text_config().vocab_size
        tokens = [(7 * i + 3) % vocabulary for i in range(24)]
        probes = [_probe(tokens[:6], tokens[6:13]), _probe(tokens[3:8], tokens[10:21])]
        with in_mode(self._model, training=False), torch.no_grad():
            apart = self.runner.run(partial(self.runner.dense, probes)).log_probs
            with engaged(self._model):
                together = self.runner.run(partial(self.runner.packed, probes)).log_probs
        worst = (apart - together).abs().max().item()
        if not worst <= (0.5 if self.runner.low_precision else 1e-3):
            raise UnsupportedModelError(
                f"{type(self._model).__name__} gives other log-probabilities in a packed row (by "
                f"{worst:.2g}): leave it out",
                "engine.trainer.packing",
            )

    def prefix_reuse(self) -> PrefixReuse:
        """Made on first use: a model without a shared prefix can be trained dense."""
        if self._reuse is None:
            self._reuse = PrefixReuse(
                self.runner,
                backend=self._config.prefix_backend,
                checkpoint=self._checkpoint,
                offload=self._config.offload_prefix,
            )
        return self._reuse

    def accumulate(self, examples: Sequence[Example], work: Work) -> None:
        """Adds the gradients of this rank's share of the loss, and the sums of all ranks."""
        packing, turns = self._packing(examples, work)
        sums = Sums(
            computed_tokens=packing.tokens,
            padding_tokens=packing.padding_tokens,
            prefix_passes=len(packing.shared),
            pairs=packing.pairs,
            targets=packing.targets,
            microbatches=packing.microbatches,
        )
        mine = replace(work, sums=sums, parts=[])
        with self._one_for_all(work):
            with self._attends(), self.runner.checkpointed(self._checkpoint == "all"):
                for batch in turns.dense:
                    self._train(batch, partial(self._dense, batch), mine)
            for shared in turns.shared:
                self._train_shared(shared, mine)
            _add_up(mine)
        for counted in self._ranks.exchange(sums):
            work.sums.add(counted)
        if not isfinite(work.sums.loss + work.sums.aux_loss):
            raise NonFiniteLoss(
                f"the loss of an update is {work.sums.loss}; the weights are those from before "
                "this step"
            )

    def _one_for_all(self, work: Work) -> AbstractContextManager[None]:
        """Within passes of all ranks, an exception of one: raised by all where none waits for it in
        the middle of a pass."""
        if self._ranks.by_layer:
            return self._ranks.bound()
        return self._ranks.together(waiting=work.clock("gradient"))

    def _train_shared(self, shared: SharedPass, work: Work) -> None:
        """Phases A, B and C."""
        reuse = self.prefix_reuse()
        with reuse.engaged():
            with work.clock("forward"):
                prefix = reuse.begin(shared.prefixes)
            for batch in shared.microbatches:
                places = [shared.place(e) for e in batch]
                self._train(batch, partial(reuse.suffix, prefix, batch, places), work)
            own_loss = None
            if work.balance is not None and prefix.routers:
                each = zip(prefix.routers, shared.rollouts, strict=True)
                losses = [work.balance.loss(router, times=times) for router, times in each]
                own_loss = torch.stack(losses).sum()
                work.sums.aux_loss += float(own_loss.detach())
            with work.clock("backward"):
                reuse.finish(prefix, own_loss)

    def _train(self, batch: Sequence[Example], run: Callable[[], Forward], work: Work) -> None:
        """Forward, loss and backward of a microbatch."""
        with work.clock("forward"):
            forward = self.runner.run(run)
            log_probs = forward.log_probs
        if batch is IDLE:
            with work.clock("backward"):
                log_probs.backward(torch.zeros_like(log_probs))  # type: ignore[no-untyped-call]
            return
        with work.clock("forward"):
            sampled = torch.cat([torch.tensor(e.sampled, dtype=log_probs.dtype) for e in batch])
            sampled = sampled.to(log_probs.device)
            old, correction = sampled, None
            if work.old:
                old = torch.cat([work.old[e] for e in batch])
                cap = self._config.loss.importance_cap
                if cap is not None:
                    correction = importance_weights(old, sampled, cap)
            reference = None
            if work.reference:
                reference = torch.cat([work.reference[e] for e in batch])
            given = (batch, log_probs, old, correction, reference)
            parts = policy_loss(self._config.loss, work.totals, *given)
            loss = parts.loss
            aux_loss = torch.zeros_like(loss)
            if work.balance is not None and forward.router is not None:
                aux_loss = work.balance.loss(forward.router)
                loss = loss + aux_loss
        with work.clock("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        found = (parts.loss, aux_loss, parts.ratio_sum, parts.clipped, parts.divergence)
        sums = torch.stack([one.detach().double() for one in found])
        if work.compares:
            sums = torch.cat([sums, compared(log_probs.detach(), sampled, parts.trained)])
        work.parts.append(sums)
        work.sums.tokens += parts.trained_tokens

    def observe(
        self, examples: Sequence[Example], work: Work, *, keep: bool
    ) -> RouterBalance | None:
        """Expert counts of a pass without gradient; ``keep``: log-probs into ``work.old``."""
        balance = RouterBalance(self.router) if self.router else None

        def note(batch: Sequence[Example], forward: Forward) -> None:
            if batch is IDLE:
                return
            if keep:
                lengths = [len(e.response) for e in batch]
                work.old.update(zip(batch, torch.split(forward.log_probs, lengths), strict=True))
            count(forward.router)

        def count(router: RouterSums | None, times: int = 1) -> None:
            if balance is not None and router is not None:
                balance.count(router, times)

        _, turns = self._packing(examples, work)
        with in_mode(self._model, training=False), torch.no_grad(), work.clock("log_prob"):
            with self.weights(work), self._one_for_all(work):
                with self._attends():
                    for batch in turns.dense:
                        note(batch, self.runner.run(partial(self._dense, batch)))
                for shared in turns.shared:
                    reuse = self.prefix_reuse()
                    with reuse.engaged():
                        prefix = reuse.begin(shared.prefixes)
                        for router, times in zip(prefix.routers, shared.rollouts, strict=False):
                            count(router, times)
                        for batch in shared.microbatches:
                            places = [shared.place(e) for e in batch]
                            suffix = partial(reuse.suffix, prefix, batch, places)
                            note(batch, self.runner.run(suffix))
            if self._ranks.count > 1:
                self._pool(examples, work.old if keep else None, balance)
        return balance

    def _pool(
        self,
        examples: Sequence[Example],
        log_probs: dict[Example, Tensor] | None,
        balance: RouterBalance | None,
    ) -> None:
        """Shares the results among the ranks: a later update may deal the examples differently."""
        device = self.runner.device
        if log_probs is not None:
            by_place = {
                place: log_probs[e].cpu() for place, e in enumerate(examples) if e in log_probs
            }
            for theirs in self._ranks.exchange(by_place):
                log_probs |= {examples[place]: row.to(device) for place, row in theirs.items()}
        if balance is not None:
            balance.count_all(self._ranks.exchange(balance.counted()), device)

    def _packing(self, examples: Sequence[Example], work: Work) -> tuple[Packing, Packing]:
        """The microbatches of this rank's share, and the passes that it makes for them in step with
        the others."""
        every = shares(examples, self._ranks.count, shared_prefix=work.shared_prefix)
        budget_tokens = self._config.microbatch_tokens
        plan = partial(
            plan_packing,
            shared_prefix=work.shared_prefix,
            budget_tokens=budget_tokens,
            suffix_budget_tokens=self._config.suffix_microbatch_tokens or budget_tokens,
            prefix_budget_tokens=self._config.prefix_pass_tokens,
            packed=self._packs,
        )
        mine = plan(every[self._ranks.number])
        if not self._ranks.by_layer:
            return mine, mine
        turns = in_step(mine, [plan(share) for share in every])
        if turns.shared:  # a model that it is not exact for is no rank's fault
            self.prefix_reuse()
        return mine, turns


def _probe(prompt: Sequence[int], response: Sequence[int]) -> Example:
    count = len(response)
    return Example(0, prompt, response, [0.0] * count, [True] * count, 0.0)


def _add_up(work: Work) -> None:
    """Takes the figures of all microbatches from the device, at once."""
    if work.parts:
        loss, aux_loss, ratio, clipped, divergence, *mismatch = read(torch.stack(work.parts).sum(0))
        work.sums.loss += loss
        work.sums.aux_loss += aux_loss
        work.sums.ratio += ratio
        work.sums.clipped += clipped
        work.sums.divergence += divergence
        if mismatch:
            work.sums.mismatch = work.sums.mismatch + np.array(mismatch)


def read(figures: Tensor) -> list[float]:
    """Figures from the device, which has to be waited for."""
    numbers: list[float] = figures.tolist()
    return numbers
