"""What a scenario may say of a model: its architecture, in elements and layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from rollcast.simulator.costs.presets.mixers import CompressedAttention, SparseAttention, StateSpace
from rollcast.simulator.costs.presets.precision import FormatName, Precision
from rollcast.simulator.costs.presets.routing import SKEW_SOURCE
from rollcast.simulator.costs.presets.vision import VisionTower
from rollcast.simulator.values import Above, Between, Doc, Options

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
