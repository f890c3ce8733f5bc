"""What a scenario may say of a model: its architecture, in elements and layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.presets.routing import SKEW_SOURCE
from rollcast.simulator.costs.presets.vision import VisionTower
from rollcast.simulator.values import Above, Between, Doc, Options

CHUNK = 128  # tokens that state-space layers take at once in training (Mamba-2, arXiv 2405.21060)
INDEX_BYTES = 132 / 128  # of an index key's element: fp8, and four bytes of scale for 128

Some = Annotated[int, Between(1, 10**7)]
Any_ = Annotated[int, Between(0, 10**7)]


@dataclass(frozen=True, slots=True)
class Reach:
    """What the attention of some layers reads and computes of the tokens before one.

    kv_bytes: of a token in the cache of one layer. flop: of a query-key pair in one layer;
    decode_flop: the same in decoding. heads: by which GPUs split it; 0: each holds all.
    seen_tokens: a query attends to no more of them; 0: to all. held: whether the cache keeps no
    more of them either (a window does, a choice does not).
    """

    layers: float
    kv_bytes: float
    flop: float
    decode_flop: float
    heads: int
    seen_tokens: int = 0
    held: bool = False

    def shards(self, gpus: int) -> int:
        """Parts into which ``gpus`` GPUs split its cache."""
        return min(gpus, self.heads) if self.heads else 1

    def kept_share(self, tokens: int) -> float:
        """Share of ``tokens`` that stay in the cache."""
        return min(1.0, self.seen_tokens / tokens) if self.held else 1.0


@dataclass(frozen=True, slots=True)
class StateSpace(Options):
    """Mamba-2 layers (arXiv 2405.21060): each head keeps head_dim x state_dim numbers."""

    FIELD = "model.state_space"

    layers: Annotated[Some, Doc("number of state-space layers", unit="layers")]
    heads: Annotated[Some, Doc("number of heads of a layer", unit="heads")]
    head_dim: Annotated[Some, Doc("width of a head", unit="elements")]
    state_dim: Annotated[Some, Doc("state of each element of a head", unit="elements")]
    groups: Annotated[Some, Doc("groups of heads that share inputs and outputs of the state")] = 1
    conv_kernel: Annotated[Some, Doc("width of the causal convolution", unit="tokens")] = 4
    state_bytes_per_element: Annotated[
        float,
        Between(0.5, 8),
        Doc("bytes of an element of the state", unit="bytes", source="float32, as Nemotron-H"),
    ] = 4.0

    @property
    def _convolved(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer: projections to gate, convolved inputs and step, and back."""
        width = self.heads * self.head_dim
        inside = hidden * (width + self._convolved + self.heads)
        return inside + width * hidden + self._convolved * self.conv_kernel

    @property
    def state_bytes(self) -> float:
        """Bytes that all layers keep of one rollout: states, and in 16 bit the tokens convolved."""
        state_bytes = self.heads * self.head_dim * self.state_dim * self.state_bytes_per_element
        return self.layers * (state_bytes + 2 * (self.conv_kernel - 1) * self._convolved)

    @property
    def flop_per_token(self) -> int:
        """Flop of all layers for one token in training, projections aside: the state's update and
        reading, and the products within a chunk."""
        width, state = self.head_dim, self.state_dim
        return self.layers * self.heads * (4 * width * state + 2 * CHUNK * (width + state))

    @property
    def elements_per_token(self) -> int:
        """Elements of one token that a layer makes."""
        return 3 * self.heads * self.head_dim + 2 * self._convolved


@dataclass(frozen=True, slots=True)
class SparseAttention(Options):
    """Attention to the tokens that an indexer chooses (DSA, DeepSeek-V3.2-Exp).

    The indexer scores all tokens before one, by an fp8 key of its own for each.
    """

    FIELD = "model.sparse"

    top_tokens: Annotated[Some, Doc("tokens that a query attends to at most", unit="tokens")]
    index_heads: Annotated[Some, Doc("number of the indexer's query heads", unit="heads")]
    index_head_dim: Annotated[Some, Doc("width of the indexer's key", unit="elements")]

    def parameters(self, hidden: int, queries: int) -> int:
        """Weights of the indexer of one layer, whose queries come from ``queries`` elements."""
        projected = queries * self.index_heads * self.index_head_dim
        return projected + hidden * (self.index_head_dim + self.index_heads)

    def index(self, layers: float, ratio: int = 1) -> Reach:
        """What the indexer reads, one key for each ``ratio`` tokens."""
        flop = 2 * self.index_heads * self.index_head_dim / ratio
        kv_bytes = INDEX_BYTES * self.index_head_dim / ratio
        return Reach(layers, kv_bytes, flop, flop, heads=0)


@dataclass(frozen=True, slots=True)
class CompressedAttention(Options):
    """Attention to compressed tokens and a window (DeepSeek-V4), with one vector as key and value.

    Lightly compressed layers attend to the entries that ``model.sparse`` chooses, whose
    ``top_tokens`` then counts entries; heavily compressed ones to all of theirs. Layers that are
    neither see the window alone. Hyper-connections are left out.
    """

    FIELD = "model.compressed"

    light_layers: Annotated[Any_, Doc("layers that compress lightly", unit="layers")]
    heavy_layers: Annotated[Any_, Doc("layers that compress heavily", unit="layers")]
    output_groups: Annotated[Some, Doc("groups of heads of the output projection")]
    output_rank: Annotated[Some, Doc("latent width of a group's output", unit="elements")]
    light_ratio: Annotated[Some, Doc("tokens of an entry, lightly compressed", unit="tokens")] = 4
    heavy_ratio: Annotated[Some, Doc("tokens of an entry, heavily compressed", unit="tokens")] = 128

    def parameters(self, hidden: int, head_dim: int) -> int:
        """Weights of the compressors of all layers: a value and a gate for each entry; light ones
        overlap, and take twice as many."""
        return (4 * self.light_layers + 2 * self.heavy_layers) * hidden * head_dim

    def output_parameters(self, hidden: int, width: int) -> int:
        """Weights of one layer's output projection of heads that are ``width`` wide together."""
        return width * self.output_rank + self.output_groups * self.output_rank * hidden


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight is kept.

    bytes_per_parameter: its scales included. product: the tensor cores that multiply it; with
    "weight_only", and on a GPU that has no such cores, it is brought to 16 bit first, and the
    product runs at the 16 bit peak.
    """

    bytes_per_parameter: float
    product: Literal["bf16", "fp8", "fp4", "weight_only"]
    source: str


@cache
def formats() -> Mapping[str, Format]:
    """Every format by name."""
    return {name: Format(**entry) for name, entry in read_presets("formats.yaml").items()}


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(formats())]


@dataclass(frozen=True, slots=True)
class Precision(Options):
    """The format of each part's weights. Published checkpoints keep the last three in 16 bit."""

    FIELD = "model.precision"

    attention: Annotated[FormatName, Doc("format of the attention projections")] = "bf16"
    mlp: Annotated[FormatName, Doc("format of dense MLPs and shared experts")] = "bf16"
    experts: Annotated[FormatName, Doc("format of the routed experts")] = "bf16"
    router: Annotated[FormatName, Doc("format of the routers")] = "bf16"
    embeddings: Annotated[FormatName, Doc("format of the token embedding")] = "bf16"
    head: Annotated[
        FormatName, Doc("format of the LM head, also if it shares the embedding's weights")
    ] = "bf16"

    @classmethod
    def of_layers(cls, name: FormatName) -> Precision:
        """``name`` for attention, MLPs and experts; router, embeddings and head in 16 bit."""
        return cls(attention=name, mlp=name, experts=name)


Width = Annotated[int, Between(1, 10**7)]
Count = Annotated[int, Between(0, 10**7)]
Bytes = Annotated[float, Above(0, 64)]
_elements = partial(Doc, unit="elements")
_layers = partial(Doc, unit="layers")
_heads = partial(Doc, unit="heads")


@dataclass(frozen=True, slots=True)
class ModelOptions(Options):
    """What a scenario may say of a :class:`rollcast.simulator.costs.presets.models.Model`."""

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
    linear_state_bytes_per_element: Annotated[
        Bytes,
        Doc(
            "bytes of an element of the state of linear attention", unit="bytes", source="bfloat16"
        ),
    ] = 2.0
    mlp_layers: Annotated[Count | None, _layers("number of layers that have an MLP; null: all")] = (
        None
    )
    gated_mlp: Annotated[
        bool, Doc("whether MLPs and experts are gated: three matrices, or two (ReLU squared)")
    ] = True
    full_head_dim: Annotated[
        Count, _elements("width of a head in layers without a window; 0: head_dim")
    ] = 0
    full_kv_heads: Annotated[
        Count, _heads("key-value heads of layers without a window; 0: kv_heads")
    ] = 0
    shared_keys_values: Annotated[
        bool, Doc("whether keys and values of layers without a window share a projection")
    ] = False
    state_space: Annotated[
        StateSpace | None, Doc("layers with a state space (Mamba-2); null: none")
    ] = None
    sparse: Annotated[
        SparseAttention | None, Doc("attention to the tokens that an indexer chooses; null: to all")
    ] = None
    compressed: Annotated[
        CompressedAttention | None, Doc("attention to compressed tokens; null: to tokens")
    ] = None
    mtp_layers: Annotated[
        Count,
        _layers(
            "layers that predict further tokens (MTP) and that the trainer trains; an engine's are "
            "those of cost.roofline.speculative"
        ),
    ] = 0
    vision: Annotated[
        VisionTower | None, Doc("tower that turns images into tokens; null: text alone")
    ] = None
    image_share: Annotated[
        float, Between(0, 1), Doc("share of the prompts' tokens that are images", unit="share")
    ] = 0.0
    image_tokens: Annotated[
        int, Between(1, 10**7), Doc("tokens of one image", source="assumed: 1,024 x 1,024 pixels")
    ] = 1024
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
        if (self.mlp_layers or 0) > self.layers:
            raise self.refuse("mlp_layers", f"more than the {self.layers} layers")
        if self.sparse_layers > self.layers - self.layers_without_mlp:
            raise self.refuse("moe_layers", f"more than the {self.layers} layers with an MLP")
        if self.dense_layers:
            self._need("the width of a dense MLP", "intermediate")
        self._attention_agrees()
        if self.image_share and self.vision is None:
            raise self.refuse("image_share", "the model has no vision tower (model.vision)")
        if self.weight_bytes_per_parameter is not None and self.precision != "bf16":
            raise self.refuse(
                "weight_bytes_per_parameter", "contradicts precision; leave one of the two out"
            )

    def _need(self, why: str, *keys: str) -> None:
        for key in keys:
            if not getattr(self, key):
                raise self.refuse(key, f"missing: {why}")

    def _attention_agrees(self) -> None:
        if self.kv_lora_rank:
            widths = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            self._need("kv_lora_rank says that attention is latent", *widths)
        elif self.compressed:
            self._compression_agrees()
        elif self.q_lora_rank or self.qk_nope_head_dim or self.qk_rope_head_dim or self.v_head_dim:
            raise self.refuse("kv_lora_rank", "missing: the model names widths of latent attention")
        if self.windowed_layers:
            self._need("the window of the windowed layers", "window_tokens")
        if self.linear_layers:
            keys = ("linear_key_heads", "linear_value_heads", "linear_head_dim")
            self._need("the model has linear_layers", *keys)
        special = self.windowed_layers + self.layers - self.attention_layers
        if special > self.layers:
            key = "windowed_layers" if self.windowed_layers else "linear_layers"
            key = key if self.windowed_layers or self.linear_layers else "state_space.layers"
            raise self.refuse(key, f"with it {special} layers, more than the {self.layers}")

    def _compression_agrees(self) -> None:
        kept = self.compressed
        assert kept is not None
        self._need("the window beside compressed tokens", "window_tokens", "q_lora_rank")
        if kept.light_layers and self.sparse is None:
            raise self.refuse("sparse", "missing: lightly compressed layers choose entries")
        if kept.light_layers + kept.heavy_layers > self.layers:
            raise self.refuse("compressed.heavy_layers", f"more than the {self.layers} layers")
        if self.windowed_layers or self.attention_layers < self.layers:
            raise self.refuse("compressed", "windowed, linear or state-space layers beside it")

    @property
    def layers_without_mlp(self) -> int:
        """Layers that mix tokens alone."""
        return 0 if self.mlp_layers is None else self.layers - self.mlp_layers

    @property
    def sparse_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        most = self.layers - self.layers_without_mlp
        return (most if self.moe_layers is None else self.moe_layers) if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.layers_without_mlp - self.sparse_layers

    @property
    def recurrent_layers(self) -> int:
        """Layers that keep a state of constant size: linear attention and state spaces."""
        return self.linear_layers + (self.state_space.layers if self.state_space else 0)

    @property
    def attention_layers(self) -> int:
        """Layers whose attention keeps keys and values: all but the recurrent ones."""
        return self.layers - self.recurrent_layers

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees every token."""
        return self.attention_layers - self.windowed_layers

    @property
    def parts(self) -> Precision:
        """The format of each part."""
        given = self.precision
        return given if isinstance(given, Precision) else Precision.of_layers(given)
