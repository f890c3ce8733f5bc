"""What a scenario may say of the real engine alone: ``engine.task`` and ``engine.trainer``.

Declared apart from what carries them out, so that they can be read, and explained, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from rollcast.engine.adapter_options import LoraConfig
from rollcast.engine.edges import Sampling
from rollcast.engine.run_options import EvaluationOptions, SaveOptions, WandbOptions
from rollcast.simulator.costs.trainer.packing import prefix_pass_tokens
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.schedule import RateSchedule
from rollcast.simulator.values import (
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
Checkpoint = Literal["auto", "none", "prefix", "all"]
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
        float,
        Above(0, 1, below=True),
        Doc("the probability ratio is clipped at 1 minus this", unit="ratio"),
    ] = 0.2
    clip_high: Annotated[
        float, POSITIVE, Doc("the probability ratio is clipped at 1 plus this", unit="ratio")
    ] = 0.2
    aggregation: Annotated[
        Aggregation,
        Doc(
            "sequence_mean: mean over a rollout's trained tokens, then over rollouts (a "
            "fully masked rollout counts with loss 0); token_mean: mean over all trained "
            "tokens of the batch"
        ),
    ] = "sequence_mean"
    sequence_ratio: Annotated[
        bool,
        Doc("whether a rollout has one ratio, the geometric mean of its tokens' ratios (GSPO)"),
    ] = False
    advantage_epsilon: Annotated[
        float, POSITIVE, Doc("added to the standard deviation of a group's rewards", unit="reward")
    ] = GRPO_EPSILON
    divide_by_std: Annotated[
        bool, Doc("whether advantages are divided by the standard deviation of the group's rewards")
    ] = True
    drop_zero_variance: Annotated[
        bool, Doc("whether groups with equal rewards are left out, as in DAPO")
    ] = False
    importance_cap: Annotated[
        float | None,
        POSITIVE,
        Doc(
            "cap of the truncated importance weight exp(trainer - sampled) of each token; "
            "null: no weight; needs old_log_probs: trainer",
            unit="ratio",
        ),
    ] = None
    kl_coefficient: Annotated[
        float | None,
        NOT_NEGATIVE,
        Doc(
            "weight, in the loss, of each token's divergence from the model that the run began "
            "with; "
            "0: measured alone; null: no such reference model",
            unit="per nat",
            source="GRPO, arXiv 2402.03300, equation 4: the k3 estimator",
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

_CHUNK_TOKENS, _MOST_LOGITS_BYTES = 1024, 1_000_000_000
_KEPT_BYTES_PER_UNIT, _KEPT_SHARE = 34.0, 0.25


def head_chunk(tokens: int, vocabulary: int) -> int | None:
    """How many tokens of a microbatch the head takes at a time where float32 logits of all of them
    are too many bytes; None where they are not."""
    return _CHUNK_TOKENS if 4 * tokens * vocabulary > _MOST_LOGITS_BYTES else None


def recomputes(units: int, device_bytes: float) -> bool:
    """Whether ``checkpoint: auto`` recomputes a microbatch of so many tokens times layers times
    hidden units, each of which a 16-bit pass keeps 34 bytes of (Korthikanti et al., arXiv
    2205.05198, without attention's squares): where that is over a quarter of a GPU."""
    return units * _KEPT_BYTES_PER_UNIT > device_bytes * _KEPT_SHARE


_COUNT = AtLeast(1)
FINEST_RATE = 0.02 * 2**-9
"""AdamW moves a weight by about its learning rate, and bfloat16 (8 bits of precision) rounds a
change below 2^-9 of the weight away; 0.02 is the usual spread of initial weights."""


@dataclass(frozen=True, slots=True)
class TrainerConfig(RateSchedule):
    """How a step updates the weights.

    Weights and AdamW's moments are in ``dtype``; passes compute in the engine's type
    (``engine.dtype``). So with bfloat16 engines float32 weights are gathered, or cast, to bfloat16
    for the passes, and gradients are reduced in float32.
    """

    FIELD = "engine.trainer"

    loss: Annotated[LossConfig, Doc("loss: a name or a mapping of settings")] = field(
        default_factory=lambda: GRPO
    )
    lora: Annotated[
        LoraConfig | None,
        Doc("low-rank adapters that are trained in place of the weights; null: none"),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Doc(
            "type of the weights that are trained, and of the optimiser's states; with bfloat16 "
            "small updates round away"
        ),
    ] = "float32"
    learning_rate: Annotated[float, POSITIVE, Doc("learning rate of AdamW", unit="per step")] = 1e-6
    betas: Annotated[
        tuple[float, float],
        Between(0, 1, below=True),
        Doc("beta1 and beta2 of AdamW", unit="factors"),
    ] = (0.9, 0.95)
    adam_epsilon: Annotated[float, POSITIVE, Doc("epsilon of AdamW", unit="gradient")] = 1e-8
    weight_decay: Annotated[float, NOT_NEGATIVE, Doc("weight decay of AdamW", unit="per step")] = (
        0.0
    )
    max_grad_norm: Annotated[
        float | None, POSITIVE, Doc("gradient clipping norm; null: no clipping", unit="norm")
    ] = 1.0
    microbatch_tokens: Annotated[
        int, _COUNT, Doc("tokens of a dense microbatch, padding included")
    ] = 4096
    packing: Annotated[
        Literal["auto", "always", "never"],
        Doc(
            "whether the rollouts of a dense microbatch are one row of tokens without padding: "
            "always, never (a row each), or auto (on GPUs whose attention kernel takes such rows)"
        ),
    ] = "auto"
    suffix_microbatch_tokens: Annotated[
        int | None,
        _COUNT,
        Doc(
            "tokens of a microbatch of suffixes with a shared prefix, padding included; "
            "null: as microbatch_tokens"
        ),
    ] = None
    prefix_microbatch_tokens: Annotated[
        int | None,
        _COUNT,
        Doc(
            "tokens of shared prefixes that are computed together, padding included (a longer one "
            "is computed by itself); 1: each by itself; null: half of microbatch_tokens"
        ),
    ] = None
    minibatches: Annotated[
        int,
        _COUNT,
        Doc("optimiser updates per pass, each over a share of the groups", unit="updates"),
    ] = 1
    epochs: Annotated[int, _COUNT, Doc("passes over the batch", unit="passes")] = 1
    old_log_probs: Annotated[
        OldLogProbs,
        Doc(
            "denominator of the probability ratio: sampled (log-probabilities from "
            "sampling, of whichever version) or trainer (recomputed once before the first "
            "update; loss.importance_cap then corrects for stale tokens)"
        ),
    ] = "sampled"
    temperature: Annotated[
        float,
        POSITIVE,
        Doc(
            "temperature of the sampled log-probabilities; leave out to use that of sampling",
            unit="factor",
        ),
    ] = 1.0
    autocast: Annotated[
        bool | None,
        Doc(
            "whether passes compute in bfloat16 with float32 weights; null: where engine.dtype is "
            "bfloat16"
        ),
    ] = None
    offload: Annotated[
        bool,
        Doc(
            "whether weights, gradients and optimiser states stay in host memory, where the "
            "optimiser then works; for trainers of several ranks"
        ),
    ] = False
    reference_offload: Annotated[
        bool,
        Doc(
            "whether the reference model of loss.kl_coefficient stays in host memory between its "
            "passes"
        ),
    ] = False
    checkpoint: Annotated[
        Checkpoint,
        Doc(
            "activation checkpointing: none, prefix (the shared prefix), all, or auto (all on a "
            "GPU of which the activations of one microbatch would take a quarter, else none)"
        ),
    ] = "auto"
    offload_prefix: Annotated[
        bool,
        Doc(
            "whether activations of the shared prefix are offloaded to host memory until "
            "its backward"
        ),
    ] = False
    head_chunk_tokens: Annotated[
        int | None,
        _COUNT,
        Doc(
            "tokens per chunk of the output head, which keeps no logits; null: 1,024 where the "
            "logits of a microbatch take more than 1 GB, else all at once"
        ),
    ] = None
    router_aux_coefficient: Annotated[
        float | None,
        NOT_NEGATIVE,
        Doc(
            "weight of the load-balancing loss of a mixture of experts, over the whole "
            "batch of an update; null: the model's own if it asks for router logits",
            unit="factor",
        ),
    ] = None
    prefix_backend: Annotated[
        Backend,
        Doc(
            "how suffixes read the shared prefix: attention (our kernel) or cache (a cache "
            "copied for each suffix)"
        ),
    ] = "attention"
    seed: Annotated[
        int,
        SEED,
        Doc("seed of the order of groups over minibatches; left out: the seed of the run"),
    ] = 0

    @property
    def prefix_pass_tokens(self) -> int:
        """Tokens of shared prefixes that are computed together at most; a cache takes one."""
        if self.prefix_backend == "cache":
            return 1
        return prefix_pass_tokens(self.microbatch_tokens, self.prefix_microbatch_tokens)

    def agree(self) -> None:
        """An importance weight has something to compare with, and updates are not rounded away."""
        if self.dtype == "bfloat16" and self.learning_rate < FINEST_RATE:
            raise self.refuse(
                "learning_rate",
                f"is {self.learning_rate:g}, but bfloat16 weights of 0.02, which is usual, change "
                f"from about {FINEST_RATE:.0e} on: make engine.trainer.dtype float32 (with "
                "engine.dtype bfloat16, passes still compute in bfloat16)",
            )
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
        Doc("built-in task: collatz (one turn) or calculator (several turns); null: collatz"),
    ] = None
    style: Annotated[
        Literal["bare", "worded"],
        Doc("built-in task: prompts of about 6 (bare) or 540 (worded) characters"),
    ] = "bare"
    log_sd: Annotated[
        float | None,
        NOT_NEGATIVE,
        Doc(
            "built-in task: spread of the log length of traces; null: the task's own",
            unit="standard deviation of the log",
        ),
    ] = None
    prompts: Annotated[Path | None, Doc("your own task: JSON Lines file of prompts")] = None
    reward: Annotated[
        str,
        Doc(
            "your own task: package.module:function that grades a response; its file is "
            "beside the scenario or on the Python path"
        ),
    ] = ""
    environment: Annotated[
        str,
        Doc(
            "your own task: package.module:Class that answers turns "
            "(rollcast.engine.environments.Environment); without reward, its answers carry "
            "the reward"
        ),
    ] = ""
    chat: Annotated[bool, Doc("your own task: whether prompts go through the chat template")] = (
        False
    )
    reward_timeout_s: Annotated[
        float, POSITIVE, Doc("your own task: maximum time of a call of the reward function")
    ] = 30.0
    reward_concurrency: Annotated[
        int,
        Between(1, 1024),
        Doc(
            "your own task: calls of the reward function at once, each in a thread; 1 for a "
            "function that is not safe for several",
            unit="calls",
        ),
    ] = 16
    reward_failed: Annotated[
        float,
        Doc(
            "your own task: reward of a call that raises, takes too long or returns no number; "
            "the run ends where the first 64 calls all fail",
            unit="reward",
        ),
    ] = 0.0

    @property
    def has_turns(self) -> bool:
        """Whether rollouts have several turns."""
        return bool(self.environment) or self.name == "calculator"

    def agree(self) -> None:
        """It is one of the two."""
        of_user = self.prompts is not None or bool(self.reward) or bool(self.environment)
        if of_user and self.prompts is None:
            raise self.refuse("prompts", "missing; a task needs prompts and reward")
        if of_user and not (self.reward or self.environment):
            raise self.refuse("reward", "missing; a task needs prompts and reward")
        if self.name == "calculator" and self.style != "bare":
            raise self.refuse("style", "the task calculator has bare prompts alone; leave it out")
        mine, message = (
            (_OF_BUILT_IN, "is of the built-in task; leave it out, or leave out prompts and reward")
            if of_user
            else (_OF_OWN, "is for a task of your own, with prompts and reward")
        )
        for key in mine:
            if getattr(self, key) != self.__dataclass_fields__[key].default:
                raise self.refuse(key, message)


_OF_BUILT_IN = ("name", "style", "log_sd")
_OF_OWN = ("chat", "reward_timeout_s", "reward_concurrency", "reward_failed")

SECTIONS: Mapping[str, type] = {
    "engine.task": TaskSpec,
    "engine.trainer": TrainerConfig,
    "engine.sampling": Sampling,
    "engine.save": SaveOptions,
    "engine.evaluation": EvaluationOptions,
    "engine.wandb": WandbOptions,
}
"""What the simulator's own sections leave to the real engine, by key."""
