"""Language models as their architecture, from which every size and flop count follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rollcast.simulator.costs.presets.precision import FormatName, Precision, formats
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.presets.routing import SKEW_SOURCE, experts_touched
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Above, Between, Doc, Options, join, nearest, read

LINEAR_CHUNK = 64  # tokens that linear layers take at once in training (arXiv 2412.06464)
SMALL_BYTES = STATE_BYTES = 2  # norms, biases and the state of linear attention: 16 bit

Width = Annotated[int, Between(1, 10**7)]
Count = Annotated[int, Between(0, 10**7)]
Bytes = Annotated[float, Above(0, 64)]
_elements = partial(Doc, unit="elements")
_layers = partial(Doc, unit="layers")
_heads = partial(Doc, unit="heads")


@dataclass(frozen=True, slots=True)
class Model(Options):
    """A decoder-only transformer with gated MLPs (SwiGLU), dense or mixture of experts.

    Layers attend to all tokens with grouped queries; ``windowed_layers`` of them to the last
    ``window_tokens`` only. With ``kv_lora_rank`` attention is latent (MLA, DeepSeek-V2, arXiv
    2405.04434): the cache holds one vector of ``kv_lora_rank + qk_rope_head_dim`` a token and
    layer. ``linear_layers`` keep a state of constant size in place of a cache (gated delta nets,
    Qwen3-Next). ``weight_bytes_per_parameter`` overrides the bytes of every weight; products then
    run at the 16 bit peak.
    """

    FIELD = "model"
    ALSO: ClassVar[Mapping[str, Doc]] = {
        "preset": Doc("a model preset (rollcast presets models); other keys override its figures")
    }

    DEFAULTS: ClassVar[Mapping[str, str]] = {
        "name": "custom",
        "head_dim": "hidden / heads",
        "intermediate": "0",
    }

    name: Annotated[str, Doc("name used in reports")]
    layers: Annotated[int, Between(1, 100_000), _layers("number of decoder layers")]
    hidden: Annotated[Width, _elements("width of the residual stream")]
    heads: Annotated[Width, _heads("number of attention heads per layer")]
    kv_heads: Annotated[Width, _heads("number of key-value heads per layer; it divides heads")]
    head_dim: Annotated[Width, _elements("width of an attention head")]
    intermediate: Annotated[Count, _elements("MLP width of a dense layer")]
    vocab: Annotated[Width, Doc("size of the vocabulary", unit="tokens")]
    tied_embeddings: Annotated[
        bool, Doc("whether the LM head and the token embedding share their weights")
    ] = False
    qkv_bias: Annotated[bool, Doc("whether the query, key and value projections have biases")] = (
        False
    )
    qk_norm: Annotated[bool, Doc("whether queries and keys are normalised")] = False
    experts: Annotated[
        Count, Doc("number of routed experts per sparse layer; 0: a dense model", unit="experts")
    ] = 0
    experts_per_token: Annotated[
        Count, Doc("number of routed experts that each token uses", unit="experts")
    ] = 0
    moe_intermediate: Annotated[Count, _elements("MLP width of a routed expert")] = 0
    moe_layers: Annotated[
        Count | None,
        _layers(
            "number of sparse layers, which are the last ones; null: all, if the model has experts"
        ),
    ] = None
    shared_expert_intermediate: Annotated[
        Count, _elements("MLP width of the shared expert, which every token uses; 0: none")
    ] = 0
    shared_expert_gate: Annotated[bool, Doc("whether the shared expert has a gate")] = False
    routing_skew: Annotated[
        float,
        Between(0, 10),
        Doc(
            "imbalance of the routing: standard deviation of the experts' loads over "
            "their mean; 0: uniform",
            unit="ratio",
            source=SKEW_SOURCE,
        ),
    ] = 1.0
    window_tokens: Annotated[
        Count, Doc("attention window of the windowed layers; 0: none", unit="tokens")
    ] = 0
    windowed_layers: Annotated[Count, _layers("number of layers with sliding-window attention")] = 0
    attention_gate: Annotated[bool, Doc("whether the output of attention is gated")] = False
    q_lora_rank: Annotated[Count, _elements("latent width of queries (MLA); 0: not compressed")] = 0
    kv_lora_rank: Annotated[
        Count, _elements("latent width of keys and values (MLA); 0: no MLA")
    ] = 0
    qk_nope_head_dim: Annotated[
        Count, _elements("width of the part of a query head without positional encoding (MLA)")
    ] = 0
    qk_rope_head_dim: Annotated[
        Count, _elements("width of the part of a query head with rotary positions (MLA)")
    ] = 0
    v_head_dim: Annotated[Count, _elements("width of a head's values (MLA)")] = 0
    linear_layers: Annotated[
        Count, _layers("number of linear-attention layers, whose state has a constant size")
    ] = 0
    linear_key_heads: Annotated[
        Count, _heads("number of query and key heads of a linear-attention layer")
    ] = 0
    linear_value_heads: Annotated[
        Count, _heads("number of value heads of a linear-attention layer")
    ] = 0
    linear_head_dim: Annotated[Count, _elements("width of a head of a linear-attention layer")] = 0
    precision: Annotated[
        FormatName | Precision,
        Doc("weight format of attention, MLPs and experts, or a format for each part"),
    ] = "bf16"
    weight_bytes_per_parameter: Annotated[
        Bytes | None,
        Doc("bytes of every weight in the engine; null: as precision says", unit="bytes"),
    ] = None
    kv_bytes_per_element: Annotated[
        Bytes, Doc("bytes of an element of the KV cache", unit="bytes", source="bfloat16")
    ] = 2.0
    max_positions: Annotated[
        int | None,
        Between(1, 10**9),
        Doc(
            "maximum context length of the model, including an extension such as YaRN; "
            "null: not known",
            unit="tokens",
        ),
    ] = None
    source: Annotated[str, Doc("source of these figures")] = "given in the scenario"

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "model") -> Model:
        """An architecture by field name, or changes of ``preset: NAME``. Raises ScenarioError that
        names the key."""
        preset = mapping.get("preset")
        base = None if preset is None else load_model(preset, join(field, "preset"))
        defaults = {"name": "custom", "intermediate": 0, "head_dim": _head_dim(mapping)}
        return read(cls, mapping, field, base=base, defaults=defaults)

    def agree(self) -> None:
        """Heads divide, and experts are described where there are any."""
        if self.heads % self.kv_heads:
            raise self.refuse("kv_heads", f"{self.kv_heads} does not divide {self.heads} heads")
        if self.experts:
            if not 1 <= self.experts_per_token <= self.experts:
                raise self.refuse("experts_per_token", f"give 1 to {self.experts}, the experts")
            self._need("the width of an expert", "moe_intermediate")
        elif self.experts_per_token or self.moe_intermediate or self.moe_layers:
            raise self.refuse("experts", "missing: the model names widths of experts")
        if self.sparse_layers > self.layers:
            raise self.refuse("moe_layers", f"more than the {self.layers} layers")
        if self.sparse_layers < self.layers:
            self._need("the width of a dense MLP", "intermediate")
        self._attention_agrees()
        if self.weight_bytes_per_parameter is not None and self.precision != "bf16":
            raise self.refuse(
                "weight_bytes_per_parameter",
                "contradicts precision; leave one of the two out",
            )

    def _need(self, why: str, *keys: str) -> None:
        for key in keys:
            if not getattr(self, key):
                raise self.refuse(key, f"missing: {why}")

    def _attention_agrees(self) -> None:
        if self.kv_lora_rank:
            widths = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            self._need("kv_lora_rank says that attention is latent", *widths)
        elif self.q_lora_rank or self.qk_nope_head_dim or self.qk_rope_head_dim or self.v_head_dim:
            raise self.refuse("kv_lora_rank", "missing: the model names widths of latent attention")
        if self.windowed_layers:
            self._need("the window of the windowed layers", "window_tokens")
        if self.linear_layers:
            keys = ("linear_key_heads", "linear_value_heads", "linear_head_dim")
            self._need("the model has linear_layers", *keys)
        special = self.windowed_layers + self.linear_layers
        if special > self.layers:
            key = "windowed_layers" if self.windowed_layers else "linear_layers"
            raise self.refuse(key, f"with it {special} layers, more than the {self.layers}")

    @property
    def sparse_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return (self.layers if self.moe_layers is None else self.moe_layers) if self.experts else 0

    @property
    def attention_layers(self) -> int:
        """Layers whose attention keeps keys and values: all but the linear ones."""
        return self.layers - self.linear_layers

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees every token."""
        return self.attention_layers - self.windowed_layers

    @property
    def parts(self) -> Precision:
        """The format of each part."""
        given = self.precision
        return given if isinstance(given, Precision) else Precision.of_layers(given)

    @property
    def attention_parameters(self) -> int:
        """Projection weights of the attention of all layers (no biases or norms)."""
        width = self.heads * self.head_dim
        if self.kv_lora_rank:
            queries = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
            rank = self.q_lora_rank
            layer = self.hidden * rank + rank * queries if rank else self.hidden * queries
            layer += self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
            layer += self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
            layer += self.heads * self.v_head_dim * self.hidden
        else:
            layer = 2 * self.hidden * (width + self.kv_heads * self.head_dim)
            layer += self.hidden * width if self.attention_gate else 0
        keys, values = self._linear_widths
        linear = self.hidden * (2 * keys + 3 * values + 2 * self.linear_value_heads)
        return self.attention_layers * layer + self.linear_layers * linear

    @property
    def replicated_parameters(self) -> int:
        """Of these, what every GPU of a replica holds whole: projections to latent widths."""
        if not self.kv_lora_rank:
            return 0
        latent = self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
        return self.layers * self.hidden * latent

    @property
    def _linear_widths(self) -> tuple[int, int]:
        """Widths of keys and values of a linear layer."""
        return (
            self.linear_key_heads * self.linear_head_dim,
            self.linear_value_heads * self.linear_head_dim,
        )

    @property
    def router_parameters(self) -> int:
        """Weights of all routers, and of the gates of shared experts."""
        gate = self.hidden if self.shared_expert_gate else 0
        return self.sparse_layers * (gate + self.hidden * self.experts)

    @property
    def dense_mlp_parameters(self) -> int:
        """MLP weights that every token uses: dense layers, shared experts and routers."""
        shared = 3 * self.hidden * self.shared_expert_intermediate
        dense = (self.layers - self.sparse_layers) * 3 * self.hidden * self.intermediate
        return dense + self.sparse_layers * shared + self.router_parameters

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert of one layer."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def head_parameters(self) -> int:
        """Weights of the LM head."""
        return self.vocab * self.hidden

    @property
    def _small_parameters(self) -> int:
        per_layer = 2 * self.hidden
        if self.qkv_bias:
            per_layer += (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.qk_norm:
            per_layer += 2 * self.head_dim
        return self.layers * per_layer + self.hidden

    @property
    def routed_parameters(self) -> int:
        """Weights of the routed experts of all layers."""
        return self.sparse_layers * self.experts * self.expert_parameters

    def _total(self, experts: int) -> int:
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        routed = self.sparse_layers * experts * self.expert_parameters
        shared = self.attention_parameters + self.dense_mlp_parameters
        return embeddings + shared + routed + self._small_parameters

    @property
    def parameters(self) -> int:
        """All parameters, embeddings once if they are tied."""
        return self._total(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the experts it is not routed to."""
        return self._total(self.experts_per_token)

    def bytes_of(self, part: FormatName) -> float:
        """Bytes of a parameter kept in that format, or ``weight_bytes_per_parameter``."""
        bytes_each = self.weight_bytes_per_parameter
        return formats()[part].bytes_per_parameter if bytes_each is None else bytes_each

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in the engine's precision."""
        if self.weight_bytes_per_parameter is not None:
            return self.parameters * self.weight_bytes_per_parameter
        parts = self.parts
        routed = self.routed_parameters
        embeddings = 0 if self.tied_embeddings else self.head_parameters
        shared = self.dense_mlp_parameters - self.router_parameters
        return (
            self.attention_parameters * self.bytes_of(parts.attention)
            + shared * self.bytes_of(parts.mlp)
            + routed * self.bytes_of(parts.experts)
            + self.router_parameters * self.bytes_of(parts.router)
            + embeddings * self.bytes_of(parts.embeddings)
            + self.head_parameters * self.bytes_of(parts.head)
            + self._small_parameters * SMALL_BYTES
        )

    @property
    def formats(self) -> set[FormatName]:
        """The formats of the parts that are multiplied."""
        parts = self.parts
        return {parts.attention, parts.mlp, parts.experts, parts.router, parts.head}

    @property
    def attention_weight_bytes(self) -> float:
        """Of these, the projections of attention."""
        return self.attention_parameters * self.bytes_of(self.parts.attention)

    @property
    def replicated_bytes(self) -> float:
        """Of these, what every GPU of a tensor-parallel replica holds whole."""
        return self.replicated_parameters * self.bytes_of(self.parts.attention)

    @property
    def kv_bytes_per_layer(self) -> float:
        """Bytes that one token leaves in the cache of one layer with attention."""
        if self.kv_lora_rank:
            return (self.kv_lora_rank + self.qk_rope_head_dim) * self.kv_bytes_per_element
        return 2 * self.kv_heads * self.head_dim * self.kv_bytes_per_element

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token leaves in the cache, while windowed layers see it."""
        return self.attention_layers * self.kv_bytes_per_layer

    @property
    def state_bytes(self) -> float:
        """Bytes that a rollout holds whatever its length: the states of linear layers."""
        values = self._linear_widths[1]
        return self.linear_layers * values * self.linear_head_dim * STATE_BYTES

    def kv_bytes_per_token_of(self, rollout_tokens: int) -> float:
        """Bytes per token that a rollout of ``rollout_tokens`` holds, with windows and states."""
        seen = min(1.0, self.window_tokens / rollout_tokens) if self.windowed_layers else 1.0
        layers = self.full_layers + self.windowed_layers * seen
        return layers * self.kv_bytes_per_layer + self.state_bytes / rollout_tokens

    def kv_shards(self, gpus: int) -> int:
        """Parts into which ``gpus`` tensor-parallel GPUs split the cache; none of MLA's."""
        return 1 if self.kv_lora_rank else min(gpus, self.kv_heads)

    @property
    def linear_flop_per_token(self) -> int:
        """Flop of the layers' matrix products for one token: no attention scores, no LM head."""
        routed = self.sparse_layers * self.experts_per_token * self.expert_parameters
        return 2 * (self.attention_parameters + self.dense_mlp_parameters + routed)

    @property
    def head_flop_per_token(self) -> int:
        """Flop of the LM head for one position."""
        return 2 * self.head_parameters

    @property
    def attention_flop_per_layer(self) -> int:
        """Flop of one layer for one query-key pair: scores, and the weighted sum of values."""
        if self.kv_lora_rank:
            width = self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim
            return 2 * self.heads * width
        return 4 * self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of keys and values of one token in a layer in training (of MLA, projected)."""
        if self.kv_lora_rank:
            return self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)
        return 2 * self.kv_heads * self.head_dim

    @property
    def absorbed_flop_per_layer(self) -> int:
        """The same in decoding: MLA multiplies the latent vectors themselves (arXiv 2405.04434)."""
        if self.kv_lora_rank:
            return 2 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)
        return self.attention_flop_per_layer

    @property
    def attention_flop_per_pair(self) -> int:
        """Flop of all layers for one query-key pair, as if no layer had a window."""
        return self.attention_layers * self.attention_flop_per_layer

    @property
    def linear_attention_flop_per_token(self) -> int:
        """Flop of all linear layers for one token in training, projections aside: in chunks of C
        five C x C products of a head's width d, and three with its d x d state (gated delta nets,
        arXiv 2412.06464, section 3.3)."""
        width = self.linear_head_dim
        head = 10 * LINEAR_CHUNK * width + 6 * width * width
        return self.linear_layers * self.linear_value_heads * head

    @property
    def attention_elements_per_token(self) -> tuple[int, int]:
        """Elements of one token that attention of a layer makes (with keys and values, linear):
        queries, keys and values before and after rotation or projection, and its output."""
        if self.kv_lora_rank:
            query = self.qk_nope_head_dim + self.qk_rope_head_dim
            latent = self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
            full = latent + self.heads * (3 * query + 2 * self.v_head_dim)
        else:
            full = (3 * self.heads + 4 * self.kv_heads) * self.head_dim
            full += self.heads * self.head_dim if self.attention_gate else 0
        keys, values = self._linear_widths
        return full, 4 * keys + 4 * values

    def experts_touched(self, tokens: float) -> float:
        """Expected distinct experts of a layer that ``tokens`` tokens reach."""
        if not self.experts:
            return 0.0
        return experts_touched(self.experts, self.experts_per_token, self.routing_skew, tokens)


def _head_dim(mapping: Mapping[str, Any]) -> int:
    """hidden / heads, whatever these are before they are checked; of MLA, a query's width."""
    try:
        if mapping.get("kv_lora_rank"):
            return int(mapping["qk_nope_head_dim"]) + int(mapping["qk_rope_head_dim"])
        return max(1, int(mapping["hidden"]) // int(mapping["heads"]))
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return 1


@cache
def model_presets() -> dict[str, Model]:
    """Every model preset by name."""
    return {
        name: Model.from_mapping({"name": name, **entry}, field=f"presets.models.{name}")
        for name, entry in read_presets("models.yaml").items()
    }


def load_model(spec: str | Path | Mapping[str, Any] | Model, field: str = "model") -> Model:
    """The model that ``spec`` names: a preset, a mapping (:meth:`Model.from_mapping`), or the path
    of a Hugging Face ``config.json`` or of its folder.

    Raises ScenarioError naming ``field``, with the nearest presets for an unknown name.
    """
    if isinstance(spec, Model):
        return spec
    if isinstance(spec, Mapping):
        return Model.from_mapping(spec, field)
    if not isinstance(spec, str | Path):
        raise ScenarioError(field, f"{spec!r} is not a preset's name, a path or a mapping")
    presets = model_presets()
    name = str(spec)
    if name.lower() in presets:
        return presets[name.lower()]
    try:
        path = Path(spec).expanduser()
    except RuntimeError:  # ~ of somebody who has no home here
        raise ScenarioError(field, f"no file {name}; its home folder is not known") from None
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        from rollcast.simulator.costs.presets.hugging_face import read_config

        config = read_config(path, field)
        return model_from_config(config, field, name=path.parent.name or "custom")
    if isinstance(spec, Path) or name.endswith(".json") or name.startswith((".", "/", "~")):
        raise ScenarioError(field, f"no file {name}; give a preset or a path to a config.json")
    short = name.rsplit("/", 1)[-1]
    raise ScenarioError(field, f"unknown model {name!r}; {nearest(short, presets)}")


def model_from_config(config: Mapping[str, Any], field: str = "model", name: str = "") -> Model:
    """A model from the contents of a Hugging Face ``config.json``.

    Covers the families of `simulator.costs.presets.hugging_face`, and weights quantised as
    `simulator.costs.presets.quantised` reads them. Raises ScenarioError for another
    ``model_type`` or ``quant_method``, and for a key that is missing or wrong.
    """
    from rollcast.simulator.costs.presets.hugging_face import keys_of

    return Model.from_mapping(keys_of(config, field, name), field)
