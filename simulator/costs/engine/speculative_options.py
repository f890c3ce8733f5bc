"""Speculative decoding: a cheap draft proposes tokens, and one pass of the model verifies them.

Leviathan et al. (2022, arXiv 2211.17192). What it saves is decided by how many drafted tokens are
accepted, and by what drafting and verifying take at the batch size of the moment
(`simulator.costs.engine.speculation` prices both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.presets.one_layer import mtp_layer, one_layer
from rollcast.simulator.costs.presets.provenance import figures, sources
from rollcast.simulator.costs.ranges import Seconds
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import SHARE, Between, Doc, Options, join, number, reader_of

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "ngram"]
MOST_TOKENS = 64

EAGLE3_VOCAB = 32_000  # tokens that its head knows
HEAD_WIDTH = 128
MLP_RATIO = 6  # of an EAGLE layer of a mixture, over its width: heads for gpt-oss, Qwen3-30B-A3B
_F = figures("speculative")
_ACCEPTED = (
    "probability that a drafted token is accepted, given that those before it were; or a list: the "
    "share of drafts whose token at each position was accepted, as vLLM logs it"
)


@dataclass(frozen=True, kw_only=True)
class Speculative(Options):
    """How an engine speculates.

    Say how much is accepted by ``acceptance`` or by ``tokens_per_step``. ``draft_model`` is the
    model of the method of that name; ``eagle`` is one layer of the model's widths with its own LM
    head, ``eagle3`` one whose head knows 32,000 tokens, ``mtp`` one more layer of the model itself
    (DeepSeek-V3, arXiv 2412.19437), run once for each token; ``ngram`` looks tokens up in the
    context, for nothing. Raises ScenarioError for options that contradict one another.
    """

    FIELD = "cost.roofline.speculative"
    SOURCES = sources("speculative")

    method: Annotated[Method, Doc("how tokens are drafted")]
    tokens: Annotated[
        int,
        Between(1, MOST_TOKENS),
        Doc("number of tokens drafted per rollout and verification", unit="tokens"),
    ]
    acceptance: Annotated[float | tuple[float, ...] | None, Doc(_ACCEPTED, unit="share")] = None
    tokens_per_step: Annotated[
        float | None,
        Between(1, MOST_TOKENS + 1),
        Doc(
            "mean acceptance length: tokens that a rollout gains per verification, the "
            "model's own token included; give it instead of acceptance",
            unit="tokens",
        ),
    ] = None
    draft_model: Annotated[
        str | Model | None,
        Doc(
            "draft model of the method draft_model: a preset, the path of a config.json, "
            "or a mapping of keys"
        ),
    ] = None
    off_above_rollouts: Annotated[
        int | None,
        Between(1, 10**6),
        Doc(
            "number of running rollouts on a replica above which nothing is drafted "
            "(vLLM's disable_by_batch_size); null: no limit",
            unit="rollouts",
        ),
    ] = None
    draft_host_s: Annotated[
        Seconds,
        Doc("time per drafted token beside the kernels of the draft, whatever the batch size"),
    ] = _F.draft_host_s
    verify_host_s: Annotated[
        Seconds,
        Doc("time per verification beside the pass of the model, such as rejection sampling"),
    ] = _F.verify_host_s

    def agree(self) -> None:
        """How much is accepted is said once, and a draft is described where there is one."""
        self._check_acceptance()
        if (self.draft_model is None) == (self.method == "draft_model"):
            if self.draft_model is None:
                raise self.refuse("draft_model", "missing: method draft_model needs one")
            raise self.refuse(
                "draft_model", f"method {self.method} has a draft of its own; leave it out"
            )
        if self.draft_model is not None:
            model = load_any(self.draft_model, join(self.FIELD, "draft_model"))
            object.__setattr__(self, "draft_model", model)

    def _check_acceptance(self) -> None:
        accepted, field = self.acceptance, join(self.FIELD, "acceptance")
        if (accepted is None) == (self.tokens_per_step is None):
            raise self.refuse("acceptance", "give either it or tokens_per_step")
        if self.tokens_per_step is not None and self.tokens_per_step > self.tokens + 1:
            raise self.refuse(
                "tokens_per_step",
                f"more than the {self.tokens} drafted tokens and one of the model",
            )
        if isinstance(accepted, list | tuple):
            shares = reader_of(tuple[Annotated[float, SHARE], ...]).read(accepted, field)
            if len(shares) != self.tokens:
                raise self.refuse(
                    "acceptance", f"give one share for each of the {self.tokens} drafted tokens"
                )
            if any(later > earlier for earlier, later in pairwise(shares)):
                raise self.refuse(
                    "acceptance", "must not rise: a token is accepted only if those before it are"
                )
            object.__setattr__(self, "acceptance", shares)
        elif accepted is not None:
            object.__setattr__(self, "acceptance", number(accepted, field, SHARE))

    @property
    def expected_tokens(self) -> float:
        """Tokens that a rollout gains a verification, the model's own included."""
        if self.tokens_per_step is not None:
            return self.tokens_per_step
        if isinstance(self.acceptance, tuple):
            return 1.0 + math.fsum(self.acceptance)
        rate = self.acceptance or 0.0
        return math.fsum(rate**i for i in range(self.tokens + 1))

    def draft_of(self, model: Model) -> Model | None:
        """What drafts for ``model``; None where nothing is computed. Its LM head is that which it
        multiplies with, its own or the model's."""
        if isinstance(self.draft_model, Model):
            return self.draft_model
        if self.method == "ngram":
            return None
        return mtp_layer(model) if self.method == "mtp" else eagle_layer(model, self.method)

    def draft_weight_bytes(self, model: Model) -> float:
        """Bytes of the draft's weights; embeddings, and but for ``eagle3`` the head, are the
        model's."""
        draft = self.draft_of(model)
        if draft is None:
            return 0.0
        if self.method in ("eagle", "mtp"):
            return draft.weight_bytes - draft.head_parameters * draft.bytes_of(draft.parts.head)
        return draft.weight_bytes


def load_any(spec: str | Model, field: str) -> Model:
    """A model by name, path or keys. Raises ScenarioError."""
    try:
        return load_model(spec, field)
    except OSError:
        raise ScenarioError(field, "is neither a preset nor a path") from None


def eagle_layer(model: Model, method: Method) -> Model:
    """A dense layer in 16 bit as wide as ``model``; its projections of hidden states (2h x h, in
    EAGLE-3 wider queries, keys and values) count as width of an MLP."""
    hidden = model.hidden
    heads: dict[str, Any] = {"gated_mlp": True, "sparse": None, "compressed": None}
    if model.kv_lora_rank or model.compressed:
        count = max(1, hidden // HEAD_WIDTH)
        heads |= {
            "heads": count,
            "kv_heads": count,
            "head_dim": HEAD_WIDTH,
            "kv_lora_rank": 0,
            "q_lora_rank": 0,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "v_head_dim": 0,
        }
    more = hidden // 2 if method == "eagle3" else round(2 * hidden / 3)
    return one_layer(
        model,
        **heads,
        experts=0,
        experts_per_token=0,
        moe_intermediate=0,
        moe_layers=None,
        shared_expert_intermediate=0,
        shared_expert_gate=False,
        intermediate=(model.intermediate or MLP_RATIO * hidden) + more,
        vocab=min(model.vocab, EAGLE3_VOCAB) if method == "eagle3" else model.vocab,
        precision="bf16",
        weight_bytes_per_parameter=None,
    )
