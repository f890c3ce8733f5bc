"""What a scenario may say of the real engine alone: ``engine.task`` and ``engine.trainer``.

Declared apart from what carries them out, so that they can be read, and explained, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from engine.edges import Sampling
from simulator.errors import ScenarioError
from simulator.options import (
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Above,
    AtLeast,
    Between,
    Doc,
    Options,
    nearest,
    read,
)

GRPO_EPSILON = 1e-6
"""Added to the standard deviation in GRPO as commonly implemented."""

Aggregation = Literal["sequence_mean", "token_mean"]
OldLogProbs = Literal["sampled", "trainer"]
Checkpoint = Literal["none", "prefix", "all"]
Backend = Literal["attention", "cache"]
"""How suffixes read the prefix: by `engine.trainer.attention`, or by an ordinary DynamicCache that
copies the prefix for every suffix (slower and larger, but it needs nothing from the model's
attention)."""


@dataclass(frozen=True, slots=True)
class LossConfig(Options):
    """A clipped policy-gradient loss; see `engine.trainer.losses`."""

    FIELD = "engine.trainer.loss"
    ALSO: ClassVar[Mapping[str, Doc]] = {
        "name": Doc("grpo, dapo or gspo, whose settings other keys override; grpo if left out")
    }

    clip_low: Annotated[
        float, Above(0, 1, below=True), Doc("the ratio is at least 1 less this", unit="ratio")
    ] = 0.2
    clip_high: Annotated[float, POSITIVE, Doc("the ratio is at most 1 and this", unit="ratio")] = (
        0.2
    )
    aggregation: Annotated[
        Aggregation,
        Doc(
            "sequence_mean averages over a rollout's trained tokens, then over all rollouts, of "
            "which one whose every token is masked counts with a loss of 0; token_mean averages "
            "over all trained tokens of the batch"
        ),
    ] = "sequence_mean"
    sequence_ratio: Annotated[
        bool, Doc("whether a rollout has one ratio, the geometric mean of its tokens'")
    ] = False
    advantage_epsilon: Annotated[
        float, POSITIVE, Doc("added to the standard deviation of a group's rewards", unit="reward")
    ] = GRPO_EPSILON
    divide_by_std: Annotated[
        bool, Doc("whether advantages are divided by that standard deviation at all")
    ] = True
    drop_zero_variance: Annotated[
        bool, Doc("whether groups whose advantages are all 0 are left out, as DAPO does")
    ] = False
    importance_cap: Annotated[
        float | None,
        POSITIVE,
        Doc(
            "cap of the truncated importance weight exp(trainer - sampled) on each token's loss; "
            "null is no weight; needs old_log_probs: trainer",
            unit="ratio",
        ),
    ] = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = FIELD) -> LossConfig:
        """``name`` says what the other keys start from. Raises ScenarioError."""
        base = cls.from_text(mapping.get("name", "grpo"), field)
        return read(cls, mapping, field, base=base)

    @classmethod
    def from_text(cls, name: Any, field: str = FIELD) -> LossConfig:
        """The loss of that name. Raises ScenarioError."""
        if not isinstance(name, str) or name not in LOSSES:
            raise ScenarioError(field, f"unknown loss {name!r}; {nearest(str(name), LOSSES)}")
        return LOSSES[name]


GRPO = LossConfig()
DAPO = LossConfig(clip_high=0.28, aggregation="token_mean", drop_zero_variance=True)
GSPO = LossConfig(clip_low=3e-4, clip_high=4e-4, sequence_ratio=True)
LOSSES = {"grpo": GRPO, "dapo": DAPO, "gspo": GSPO}

_COUNT = AtLeast(1)


@dataclass(frozen=True, slots=True)
class TrainerConfig(Options):
    """How a step updates the weights.

    The model keeps its own type and device; a bfloat16 model is trained in bfloat16 weights, where
    small updates round away, so ``autocast`` over float32 weights is the safer bfloat16.
    """

    FIELD = "engine.trainer"

    loss: Annotated[LossConfig, Doc("the loss, by its name or by its settings")] = field(
        default_factory=lambda: GRPO
    )
    learning_rate: Annotated[float, POSITIVE, Doc("AdamW's", unit="per step")] = 1e-6
    betas: Annotated[
        tuple[float, float], Between(0, 1, below=True), Doc("AdamW's", unit="factors")
    ] = (0.9, 0.95)
    adam_epsilon: Annotated[float, POSITIVE, Doc("AdamW's", unit="gradient")] = 1e-8
    weight_decay: Annotated[float, NOT_NEGATIVE, Doc("AdamW's", unit="per step")] = 0.0
    max_grad_norm: Annotated[
        float | None,
        POSITIVE,
        Doc("gradients are scaled down to this norm; null for no clipping", unit="norm"),
    ] = 1.0
    microbatch_tokens: Annotated[int, _COUNT, Doc("of a dense microbatch, padding included")] = 4096
    suffix_microbatch_tokens: Annotated[
        int | None,
        _COUNT,
        Doc(
            "of a suffix microbatch, padding included, beside the prefix's keys, values and their "
            "gradients; null for the same"
        ),
    ] = None
    minibatches: Annotated[
        int, _COUNT, Doc("updates a pass, each over its share of the groups", unit="updates")
    ] = 1
    epochs: Annotated[int, _COUNT, Doc("passes over the batch", unit="passes")] = 1
    old_log_probs: Annotated[
        OldLogProbs,
        Doc(
            "the ratio's denominator: what each token was sampled with, by whichever version; or "
            "the trainer's own, computed once before the first update, so that tokens of earlier "
            "versions start at a ratio of 1 and only loss.importance_cap corrects for their age "
            "and for the engine's other arithmetic"
        ),
    ] = "sampled"
    temperature: Annotated[
        float,
        POSITIVE,
        Doc("of the sampled log-probabilities; leave it out, it is sampling's", unit="factor"),
    ] = 1.0
    autocast: Annotated[bool, Doc("whether passes compute in bfloat16 over float32 weights")] = (
        False
    )
    checkpoint: Annotated[
        Checkpoint,
        Doc(
            "what the backward computes again instead of keeping: nothing, the shared prefix, or "
            "dense and suffix forwards too"
        ),
    ] = "none"
    offload_prefix: Annotated[
        bool, Doc("whether the shared prefix's activations wait in host memory for its backward")
    ] = False
    head_chunk_tokens: Annotated[
        int | None,
        _COUNT,
        Doc("of the output head at a time, keeping no logits; null for all at once"),
    ] = None
    router_aux_coefficient: Annotated[
        float | None,
        NOT_NEGATIVE,
        Doc(
            "weight of a mixture-of-experts model's load-balancing loss over the update's whole "
            "batch, for which a pass counts the experts; null for the model's own where it asks "
            "for router logits",
            unit="factor",
        ),
    ] = None
    prefix_backend: Annotated[
        Backend,
        Doc("how suffixes read the shared prefix: our attention, or a cache that copies it"),
    ] = "attention"
    seed: Annotated[
        int, SEED, Doc("of the order of groups over minibatches; the run's if left out")
    ] = 0

    def agree(self) -> None:
        """An importance weight has something to compare with."""
        if self.loss.importance_cap is not None and self.old_log_probs != "trainer":
            raise self.refuse(
                "loss.importance_cap",
                "needs old_log_probs: trainer; with the sampled log-probabilities the ratio itself "
                "holds that correction",
            )


@dataclass(frozen=True, slots=True)
class TaskSpec(Options):
    """What to ask and how to judge it: a built-in task (see `engine.tasks.collatz` and, of several
    turns, `engine.tasks.calculator`), or one's own by ``prompts`` and ``reward``, by ``prompts``
    and ``environment``, or by all three."""

    FIELD = "engine.task"

    name: Annotated[
        Literal["collatz", "calculator"] | None,
        Doc("a built-in task: collatz, of one turn, or calculator, of several; null is collatz"),
    ] = None
    style: Annotated[
        Literal["bare", "worded"],
        Doc("prompts of about 6 characters, or of about 540; the built-in task's"),
    ] = "bare"
    log_sd: Annotated[
        float | None,
        NOT_NEGATIVE,
        Doc(
            "spread of the log length of traces; null is the task's own; the built-in task's",
            unit="standard deviation of the log",
        ),
    ] = None
    prompts: Annotated[Path | None, Doc("a JSON Lines file of prompts, for a task of your own")] = (
        None
    )
    reward: Annotated[
        str,
        Doc(
            "package.module:function that judges a response, its file beside the scenario or on "
            "the Python path, for a task of your own"
        ),
    ] = ""
    environment: Annotated[
        str,
        Doc(
            "package.module:Class that answers turns, as engine.environments.Environment does, "
            "for a task of your own; without reward, what its answers earn is the reward"
        ),
    ] = ""
    chat: Annotated[
        bool, Doc("whether prompts go through the chat template, for a task of your own")
    ] = False
    reward_timeout_s: Annotated[
        float, POSITIVE, Doc("that a reward may take, for a task of your own")
    ] = 30.0

    @property
    def has_turns(self) -> bool:
        """Whether rollouts have several turns."""
        return bool(self.environment) or self.name == "calculator"

    def agree(self) -> None:
        """It is one of the two."""
        own = self.prompts is not None or bool(self.reward) or bool(self.environment)
        if own and self.prompts is None:
            raise self.refuse("prompts", "missing; a task needs prompts and reward")
        if own and not (self.reward or self.environment):
            raise self.refuse("reward", "missing; a task needs prompts and reward")
        if self.name == "calculator" and self.style != "bare":
            raise self.refuse("style", "the task calculator has bare prompts alone; leave it out")
        mine, message = (
            (_OF_BUILT_IN, "is of the built-in task; leave it out, or leave out prompts and reward")
            if own
            else (_OF_OWN, "is for a task of your own, with prompts and reward")
        )
        for key in mine:
            if getattr(self, key) != self.__dataclass_fields__[key].default:
                raise self.refuse(key, message)


_OF_BUILT_IN = ("name", "style", "log_sd")
_OF_OWN = ("chat", "reward_timeout_s")

SECTIONS: Mapping[str, type] = {
    "engine.task": TaskSpec,
    "engine.trainer": TrainerConfig,
    "engine.sampling": Sampling,
}
"""What the simulator's own sections leave to the real engine, by key."""
