"""The trainer: sampled groups in, one step of weight updates out."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rollcast.engine.edges import Beat, SampledGroup, TrainerState, TrainMetrics
from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer import saved
from rollcast.engine.trainer.batch import Example, make_examples
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.errors import NonFiniteLoss
from rollcast.engine.trainer.losses import ONE, LossTotals, importance_weights, policy_loss
from rollcast.engine.trainer.microbatch import Packing, SharedGroup, plan_packing
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.model import Forward, LogProbModel
from rollcast.engine.trainer.moe import Router, RouterBalance, RouterSums
from rollcast.engine.trainer.prefix_reuse import PrefixReuse
from rollcast.engine.trainer.pulse import Pulse
from rollcast.engine.trainer.ranks import Alone, Ranks
from rollcast.engine.trainer.shards import held, whole, whole_ones
from rollcast.engine.trainer.shares import shares
from rollcast.simulator.errors import ScenarioError


@dataclass(slots=True)
class _Sums:
    """What adds up over the microbatches of a step."""

    loss: float = 0.0
    aux_loss: float = 0.0
    grad_norm: float = 0.0
    ratio: float = 0.0
    clipped: float = 0.0
    tokens: int = 0
    computed_tokens: int = 0
    padding_tokens: int = 0
    microbatches: int = 0
    updates: int = 0

    def add(self, other: _Sums) -> None:
        """Adds another's."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class _Begun:
    """A batch of which parts have come: their totals, and the sum of their losses."""

    totals: LossTotals = field(default_factory=lambda: LossTotals(0, 0))
    loss: float = 0.0


class Trainer:
    """Updates a Hugging Face causal language model from sampled groups.

    The model is changed in place and keeps its device and type. On the CPU, equal inputs and seeds
    give equal weights; on CUDA as far as its kernels do (torch.use_deterministic_algorithms).
    Raises UnsupportedModelError on a model that cannot be computed exactly. It is a
    `engine.edges.Trainer`.

    ranks: the processes among which ``model`` is split, None for this one alone. Each has a trainer
    and makes the same calls in the same order, with whole batches; each computes its share of a
    batch, and the update is that of one process but for rounding. Seconds are this rank's, and what
    it waits for the others counts as ``gradient_s``. Weights and state are rank 0's to hand out;
    the others give empty ones. Raises RankLostError where the others are lost.

    hands_back: whether memory that is of use to the next update alone is given to whoever shares
    the GPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig | None = None,
        ranks: Ranks | None = None,
        *,
        hands_back: bool = False,
    ) -> None:
        self.model = model
        self._hands_back = hands_back
        self.config = config or TrainerConfig()
        self._ranks: Ranks = ranks or Alone()
        if model.is_gradient_checkpointing:
            # From here on config.checkpoint decides.
            model.gradient_checkpointing_disable()  # type: ignore[no-untyped-call]
        text_config = model.config.get_text_config()
        with self._gathered():
            self._runner = LogProbModel(
                model,
                temperature=self.config.temperature,
                autocast=self.config.autocast,
                head_chunk_tokens=self.config.head_chunk_tokens,
                router=Router.of(text_config, self.config.router_aux_coefficient),
            )
        self.context_tokens: int | None = getattr(text_config, "max_position_embeddings", None)
        self.vocab_size: int = text_config.vocab_size
        self._pulse: Pulse | None = None
        self._reuse: PrefixReuse | None = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.config.learning_rate,
            betas=self.config.betas,
            eps=self.config.adam_epsilon,
            weight_decay=self.config.weight_decay,
        )
        self._shuffle = random.Random(self.config.seed)
        self._begun: _Begun | None = None

    def step(
        self,
        groups: Sequence[SampledGroup],
        *,
        shared_prefix: bool,
        version: int,
        mask_before_version: int | None = None,
        final: bool = True,
    ) -> TrainMetrics:
        """Train on ``groups`` with the weights of ``version``.

        shared_prefix: the layout; the update is the same.
        mask_before_version: leave tokens of earlier versions out of the loss.
        final: False for a part of a batch, whose gradients are kept for the part that is; the
            update is that of the whole batch at once. What fails drops all parts.

        Raises NonFiniteLoss with weights, optimiser and random state as they were; ValueError on
        groups that cannot have been sampled, or a batch in parts where the configuration asks for
        several updates of it; ScenarioError on a rollout beyond the model's context.
        """
        examples = self._examples(groups, version, mask_before_version)
        if self.config.loss.drop_zero_variance:
            varied = {e.group for e in examples if e.advantage != 0}
            examples = [e for e in examples if e.group in varied]
        if self._begun is not None or not final:
            return self._step_part(examples, shared_prefix, final)
        shuffled = self._shuffle.getstate()
        updates = self._order(examples)
        clock, sums = Clock(self.model.device), _Sums()
        self._reset_peak()
        undo = self._snapshot() if len(updates) > 1 else None
        old: dict[Example, Tensor] = {}
        try:
            with in_mode(self.model, training=True):
                balance = None
                if examples and self.config.old_log_probs == "trainer":
                    balance = self._observe(examples, shared_prefix, clock, old)
                for index, batch in enumerate(updates):
                    if index > 0 or self.config.minibatches > 1:
                        balance = None  # the counts are of other examples, or of older weights
                    self._update(batch, shared_prefix, clock, sums, old, balance)
        except BaseException:
            self._shuffle.setstate(shuffled)
            if undo is not None:
                undo()
            raise
        finally:
            self._drop_gradients()
            self._hand_back()
        return self._metrics(examples, clock, sums)

    def _reset_peak(self) -> None:
        """The peak of memory is that of the update which begins now."""
        if self.model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.model.device)

    def _hand_back(self) -> None:
        """Gives up memory of the GPU that nothing is in, which torch keeps for the next update."""
        if self._hands_back:
            torch.cuda.empty_cache()

    def _step_part(
        self, examples: Sequence[Example], shared_prefix: bool, final: bool
    ) -> TrainMetrics:
        """Gradients of a part of a batch, not yet divided by what the whole batch counts; the
        update, if it is the final one."""
        if self._begun is None:
            self._reset_peak()
        begun = self._begun or _Begun()
        clock, sums = Clock(self.model.device), _Sums()
        old: dict[Example, Tensor] = {}
        done = False
        try:
            self._require_one_update()
            with in_mode(self.model, training=True):
                if examples and self.config.old_log_probs == "trainer":
                    self._observe(examples, shared_prefix, clock, old)
                begun.totals += LossTotals.of(examples)
                updates = final and begun.totals.trained_tokens > 0
                with self._gathered(clock):
                    self._accumulate(examples, shared_prefix, clock, sums, old, ONE, None)
                    if updates:
                        self._reduce(clock)
                begun.loss += sums.loss
                divisor = begun.totals.divisor(self.config.loss)
                sums.loss = begun.loss / divisor
                if updates:
                    for parameter in self._parameters:
                        if parameter.grad is not None:
                            parameter.grad.div_(divisor)
                    self._apply(clock, sums)
            done = not final
        finally:
            self._begun = begun if done else None
            if not done:
                self._drop_gradients()
        return self._metrics(examples, clock, sums)

    def _require_one_update(self) -> None:
        config = self.config
        if config.minibatches > 1 or config.epochs > 1 or self._runner.router is not None:
            raise ValueError(
                "a batch that comes in parts is trained on in one update: minibatches and epochs "
                "of 1, and no router to balance"
            )

    def weights(self) -> Mapping[str, Tensor]:
        """The weights, named as Hugging Face does; valid until the next `step`."""
        tensors: Mapping[str, Tensor] = self.model.state_dict(keep_vars=True)
        return whole_ones(tensors, keep=self._ranks.number == 0)

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The weights' log-probability (temperature 1) of each token but the first, per sequence:
        the model's own forward pass, without anything of the trainer's."""
        rows: list[list[float]] = []
        with self._gathered(), in_mode(self.model, training=False), torch.no_grad():
            for tokens in sequences if self._ranks.number == 0 else ():
                ids = torch.tensor([[*tokens]], device=self.model.device)
                logits = self.model(input_ids=ids).logits[0, :-1].float()
                chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
                rows.append([float(value) for value in chosen[:, 0].tolist()])
        self._hand_back()
        return rows

    def response_log_probs(
        self, groups: Sequence[SampledGroup], *, shared_prefix: bool = False
    ) -> list[list[list[float]]]:
        """The log-probability of each response token as an update computes it, by group and
        rollout."""
        newest = max((max(r.versions, default=0) for g in groups for r in g.rollouts), default=0)
        examples = self._examples(groups, newest, None)
        by_example: dict[Example, Tensor] = {}
        self._observe(examples, shared_prefix, Clock(self.model.device), by_example)
        rows = iter(examples)
        return [[by_example[next(rows)].tolist() for _ in group.rollouts] for group in groups]

    def pulse(self) -> Beat:
        """How fast the device is just now; see `engine.trainer.pulse`. Ranks take it at once, as
        they compute an update."""
        with self._gathered():
            if self._pulse is None:
                self._pulse = Pulse(self.model)
            return self._pulse.take()

    def state(self) -> TrainerState:
        """Weights, optimiser and random states: what a resumed run needs. Gradients of parts are
        left out."""
        tensors = {
            **saved.model_tensors(self.model),
            **saved.optimizer_tensors(self._optimizer),
            **saved.random_tensors(),
        }
        kept = whole_ones(tensors, keep=self._ranks.number == 0)
        return TrainerState(kept, {"shuffle": saved.shuffle(self._shuffle)})

    def load_state(self, state: TrainerState) -> None:
        """Goes on from a `state`, of however many ranks; each takes its part of it. Raises
        ValueError for one of another model or optimiser."""
        known = ("model", "optimizer", "random")
        if unknown := [name for name in state.tensors if name.partition("/")[0] not in known]:
            raise ValueError(f"the tensor {unknown[0]} is none of a trainer's")
        saved.load_model(self.model, state.tensors)
        saved.load_optimizer(self._optimizer, self._parameters, state.tensors)
        saved.load_random(state.tensors)
        saved.load_shuffle(self._shuffle, state.plain.get("shuffle"))
        self._begun = None
        self._drop_gradients()

    # -- the ranks --------------------------------------------------------------------------------

    @contextmanager
    def _gathered(self, clock: Clock | None = None) -> Iterator[None]:
        """The enclosed code, which does not change the weights, has whole ones."""
        with nullcontext() if clock is None else clock("forward"):
            self._ranks.gather()
        try:
            yield
        finally:
            self._ranks.scatter()

    def _share(self, examples: Sequence[Example], shared_prefix: bool) -> list[Example]:
        """What this rank computes of a batch."""
        every = shares(examples, self._ranks.count, shared_prefix=shared_prefix)
        return every[self._ranks.number]

    def _reduce(self, clock: Clock) -> None:
        """Adds up the ranks' gradients."""
        with clock("gradient"):
            self._ranks.reduce()

    def _drop_gradients(self) -> None:
        self._ranks.drop()
        self._optimizer.zero_grad(set_to_none=True)

    # -- one update -------------------------------------------------------------------------------

    def _update(
        self,
        examples: Sequence[Example],
        shared_prefix: bool,
        clock: Clock,
        sums: _Sums,
        old: dict[Example, Tensor],
        balance: RouterBalance | None,
    ) -> None:
        totals = LossTotals.of(examples)
        if totals.trained_tokens == 0:
            return
        if self._runner.router is not None and balance is None:
            balance = self._observe(examples, shared_prefix, clock, None)
        self._optimizer.zero_grad(set_to_none=True)
        with self._gathered(clock):
            self._accumulate(examples, shared_prefix, clock, sums, old, totals, balance)
            self._reduce(clock)
        self._apply(clock, sums)

    def _accumulate(
        self,
        examples: Sequence[Example],
        shared_prefix: bool,
        clock: Clock,
        sums: _Sums,
        old: dict[Example, Tensor],
        totals: LossTotals,
        balance: RouterBalance | None,
    ) -> None:
        """Adds the gradients of this rank's share of the examples' share of the loss, and to
        ``sums`` what all ranks counted."""
        packing = self._pack(self._share(examples, shared_prefix), shared_prefix)
        pass_sums = _Sums(
            computed_tokens=packing.tokens,
            padding_tokens=packing.padding_tokens,
            microbatches=packing.microbatches,
        )

        def train(batch: Sequence[Example], run: Callable[[], Forward]) -> None:
            self._train_microbatch(batch, run, totals, clock, pass_sums, old, balance)

        with self._ranks.together(waiting=clock("gradient")):
            for batch in packing.dense:
                with self._runner.checkpointed(self.config.checkpoint == "all"):
                    train(batch, partial(self._runner.dense, batch))
            for group in packing.shared:
                self._train_shared(group, train, clock, pass_sums, balance)
        for counted in self._ranks.exchange(pass_sums):
            sums.add(counted)

    def _train_shared(
        self,
        group: SharedGroup,
        train: Callable[[Sequence[Example], Callable[[], Forward]], None],
        clock: Clock,
        sums: _Sums,
        balance: RouterBalance | None,
    ) -> None:
        """Phases A, B and C of one group."""
        reuse = self._prefix_reuse()
        with reuse.engaged():
            with clock("forward"):
                prefix = reuse.begin(group.prefix)
            for batch in group.microbatches:
                train(batch, partial(reuse.suffix, prefix, batch))
            own_loss = None
            if balance is not None and prefix.router is not None:
                own_loss = balance.loss(prefix.router, times=group.rollouts)
                sums.aux_loss += float(own_loss.detach())
            with clock("backward"):
                reuse.finish(prefix, own_loss)

    def _train_microbatch(
        self,
        batch: Sequence[Example],
        run: Callable[[], Forward],
        totals: LossTotals,
        clock: Clock,
        sums: _Sums,
        old: dict[Example, Tensor],
        balance: RouterBalance | None,
    ) -> None:
        """Forward, loss and backward; the same for either layout."""
        with clock("forward"):
            forward = run()
            log_probs = forward.log_probs
            sampled = torch.cat([torch.tensor(e.sampled, dtype=log_probs.dtype) for e in batch])
            sampled = sampled.to(log_probs.device)
            denominator, correction = sampled, None
            if old:
                denominator = torch.cat([old[e] for e in batch])
                cap = self.config.loss.importance_cap
                if cap is not None:
                    correction = importance_weights(denominator, sampled, cap)
            parts = policy_loss(self.config.loss, totals, batch, log_probs, denominator, correction)
            loss = parts.loss
            if balance is not None and forward.router is not None:
                aux_loss = balance.loss(forward.router)
                sums.aux_loss += float(aux_loss.detach())
                loss = loss + aux_loss
            if not torch.isfinite(loss):
                raise NonFiniteLoss(
                    f"the loss of a microbatch of {len(batch)} rollouts is {loss.item()}; the "
                    "weights are those from before this step"
                )
        with clock("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        sums.loss += float(parts.loss.detach())
        sums.ratio += float(parts.ratio_sum)
        sums.clipped += float(parts.clipped)
        sums.tokens += parts.trained_tokens

    def _apply(self, clock: Clock, sums: _Sums) -> None:
        """Clip the gradients and update the weights."""
        with clock("gradient"):
            limit = self.config.max_grad_norm
            with self._ranks.bound():
                norm = whole(
                    torch.nn.utils.clip_grad_norm_(
                        self._parameters, float("inf") if limit is None else limit
                    )
                )
            if not torch.isfinite(norm):
                raise NonFiniteLoss(
                    f"the norm of the gradient is {norm.item()}; the weights are those from before "
                    "this step"
                )
        with clock("optimizer"), self._ranks.bound():
            self._optimizer.step()
        sums.grad_norm += float(norm)
        sums.updates += 1

    # -- passes without gradient ------------------------------------------------------------------

    def _observe(
        self,
        examples: Sequence[Example],
        shared_prefix: bool,
        clock: Clock,
        log_probs: dict[Example, Tensor] | None,
    ) -> RouterBalance | None:
        """Put each example's log-probabilities into ``found``, and return the expert counts."""
        balance = RouterBalance(self._runner.router) if self._runner.router else None

        def note(batch: Sequence[Example], forward: Forward) -> None:
            if log_probs is not None:
                lengths = [len(e.response) for e in batch]
                log_probs.update(zip(batch, torch.split(forward.log_probs, lengths), strict=True))
            count(forward.router)

        def count(router: RouterSums | None, times: int = 1) -> None:
            if balance is not None and router is not None:
                balance.count(router, times)

        packing = self._pack(self._share(examples, shared_prefix), shared_prefix)
        with in_mode(self.model, training=False), torch.no_grad(), clock("log_prob"):
            with self._gathered(), self._ranks.together():
                for batch in packing.dense:
                    note(batch, self._runner.dense(batch))
                for group in packing.shared:
                    reuse = self._prefix_reuse()
                    with reuse.engaged():
                        prefix = reuse.begin(group.prefix)
                        count(prefix.router, group.rollouts)
                        for batch in group.microbatches:
                            note(batch, reuse.suffix(prefix, batch))
            if self._ranks.count > 1:
                self._pool(examples, log_probs, balance)
        return balance

    def _pool(
        self,
        examples: Sequence[Example],
        log_probs: dict[Example, Tensor] | None,
        balance: RouterBalance | None,
    ) -> None:
        """Puts together what the ranks found. A later update deals the examples out anew, so each
        rank needs the log-probabilities of all."""
        device = self.model.device
        if log_probs is not None:
            by_place = {
                place: log_probs[e].cpu() for place, e in enumerate(examples) if e in log_probs
            }
            for theirs in self._ranks.exchange(by_place):
                log_probs |= {examples[place]: row.to(device) for place, row in theirs.items()}
        if balance is not None:
            balance.count_all(self._ranks.exchange(balance.counted()), device)

    # -- preparation ------------------------------------------------------------------------------

    def _prefix_reuse(self) -> PrefixReuse:
        """Built when first asked for: a model may be trained dense that has no shared prefix."""
        if self._reuse is None:
            self._reuse = PrefixReuse(
                self._runner,
                backend=self.config.prefix_backend,
                checkpoint=self.config.checkpoint,
                offload=self.config.offload_prefix,
            )
        return self._reuse

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
        """The batch of each update: whole groups, dealt out anew in every epoch."""
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

    def _pack(self, examples: Sequence[Example], shared_prefix: bool) -> Packing:
        budget_tokens = self.config.microbatch_tokens
        return plan_packing(
            examples,
            shared_prefix=shared_prefix,
            budget_tokens=budget_tokens,
            suffix_budget_tokens=self.config.suffix_microbatch_tokens or budget_tokens,
        )

    def _snapshot(self) -> Callable[[], None]:
        """A copy of this rank's weights and optimiser in host memory; call it to put them back."""
        weights = [held(p).detach().to("cpu", copy=True) for p in self._parameters]
        optimizer = copy.deepcopy(self._optimizer.state_dict())

        def undo() -> None:
            with torch.no_grad():
                for parameter, weight in zip(self._parameters, weights, strict=True):
                    held(parameter).copy_(weight)
            self._optimizer.load_state_dict(optimizer)

        return undo

    def _metrics(self, examples: Sequence[Example], clock: Clock, sums: _Sums) -> TrainMetrics:
        updates, tokens = max(1, sums.updates), max(1, sums.tokens)
        trained = sum(e.trained_tokens for e in examples)
        device = self.model.device
        return TrainMetrics(
            log_prob_s=clock.seconds["log_prob"],
            forward_s=clock.seconds["forward"],
            backward_s=clock.seconds["backward"],
            gradient_s=clock.seconds["gradient"],
            optimizer_s=clock.seconds["optimizer"],
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
            microbatches=sums.microbatches,
            updates=sums.updates,
            peak_bytes=(torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None),
        )
