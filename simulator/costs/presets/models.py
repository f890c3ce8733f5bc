"""Language models as their architecture, from which every size and flop count follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rollcast.simulator.costs.presets.model_options import FormatName, ModelOptions, Reach, formats
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.presets.routing import experts_touched
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import join, nearest, read, short

LINEAR_CHUNK = 64  # tokens that linear layers take at once in training (arXiv 2412.06464)
LINEAR_MOVED = 80
"""Bytes for each element of a head that a kernel of gated delta nets moves. Fitted to
flash-linear-attention on H20 (96 heads, 8,192 tokens: 3.20 ms; FlashKDA's benchmark) and B200 (64
heads: 0.80 ms; FlashInfer pull request 4078). Not used: H20 with 64 heads, GB200, H100 (pull
request 3866), met within 13 %."""
LINEAR_KEPT = 75
"""Elements of 16 bit that flash-linear-attention's backward of a gated delta net keeps of a head of
values beside its vectors: products with the 64 tokens of its chunk, five in fp32 of norms and of
what is forgotten, and one of what is written."""
CONVOLVED_TOKENS = 3  # before one, in the short convolution of linear layers
SMALL_BYTES = 2  # norms, biases and what is convolved: 16 bit


@dataclass(frozen=True, slots=True)
class Model(ModelOptions):
    """A decoder-only transformer with gated MLPs (SwiGLU), dense or mixture of experts.

    Layers attend to all tokens with grouped queries; ``windowed_layers`` of them to the last
    ``window_tokens`` only, with ``sparse`` to those that an indexer chooses. With ``kv_lora_rank``
    attention is latent (MLA, DeepSeek-V2, arXiv 2405.04434): the cache holds one vector of
    ``kv_lora_rank + qk_rope_head_dim`` a token and layer. ``linear_layers`` (gated delta nets,
    Qwen3-Next) and those of ``state_space`` (Mamba-2) keep a state of constant size in place of a
    cache. ``weight_bytes_per_parameter`` overrides the bytes of every weight; products then run at
    the 16 bit peak.
    """

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "model") -> Model:
        """An architecture by field name, or changes of ``preset: NAME``. Raises ScenarioError that
        names the key."""
        preset = mapping.get("preset")
        base = None if preset is None else load_model(preset, join(field, "preset"))
        defaults = {"name": "custom", "intermediate": 0, "head_dim": _head_dim(mapping)}
        return read(cls, mapping, field, base=base, defaults=defaults)

    @property
    def attention_parameters(self) -> int:
        """Projection weights of the attention of all layers (no biases or norms)."""
        if self.kv_lora_rank:
            total = self.attention_layers * self._latent_parameters
        elif self.compressed:
            total = self.attention_layers * self._compressed_parameters
            total += self.compressed.parameters(self.hidden, self.head_dim)
        else:
            seeing_all = self._grouped_parameters(
                self._full_head_dim, self._full_kv_heads, 1 if self.shared_keys_values else 2
            )
            near = self._grouped_parameters(self.head_dim, self.kv_heads, 2)
            total = self.full_layers * seeing_all + self.windowed_layers * near
        return total + self.recurrent_parameters + self._indexer_parameters

    @property
    def recurrent_parameters(self) -> int:
        """Of ``attention_parameters`` those of linear attention and state spaces."""
        keys, values = self._linear_widths
        linear = self.hidden * (2 * keys + 3 * values + 2 * self.linear_value_heads)
        space = self.state_space
        spaces = space.layers * space.parameters(self.hidden) if space else 0
        return self.linear_layers * linear + spaces

    def _grouped_parameters(self, head_dim: int, kv_heads: int, projections: int) -> int:
        """Of one layer with grouped queries, whose keys and values take ``projections``."""
        queries = (3 if self.attention_gate else 2) * self.heads * head_dim
        return self.hidden * (queries + projections * kv_heads * head_dim)

    @property
    def _query_parameters(self) -> int:
        """Of one layer with latent queries, or with plain ones."""
        width = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim or self.head_dim)
        rank = self.q_lora_rank
        return self.hidden * rank + rank * width if rank else self.hidden * width

    @property
    def _latent_parameters(self) -> int:
        layer = self._query_parameters + self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        layer += self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        return layer + self.heads * self.v_head_dim * self.hidden

    @property
    def _compressed_parameters(self) -> int:
        assert self.compressed is not None
        width = self.heads * self.head_dim
        output = self.compressed.output_parameters(self.hidden, width)
        return self._query_parameters + self.hidden * self.head_dim + output

    @property
    def _indexer_parameters(self) -> int:
        """Of all layers: indexers, with their compressors where entries are chosen."""
        sparse, compressed = self.sparse, self.compressed
        if sparse is None:
            return 0
        layer = sparse.parameters(self.hidden, self.q_lora_rank or self.hidden)
        if compressed is None:
            return self.attention_layers * layer
        return compressed.light_layers * (layer + 3 * self.hidden * sparse.index_head_dim)

    @property
    def _full_head_dim(self) -> int:
        return self.full_head_dim or self.head_dim

    @property
    def _full_kv_heads(self) -> int:
        return self.full_kv_heads or self.kv_heads

    @property
    def replicated_parameters(self) -> int:
        """Of these, what every GPU of a replica holds whole: projections to latent widths, and
        indexers."""
        if not (self.kv_lora_rank or self.compressed):
            return 0
        cached = self.kv_lora_rank + self.qk_rope_head_dim if self.kv_lora_rank else self.head_dim
        latent = self.q_lora_rank + cached
        return self.layers * self.hidden * latent + self._indexer_parameters

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
        shared = self.mlp_matrices * self.hidden * self.shared_expert_intermediate
        dense = self.dense_layers * self.mlp_matrices * self.hidden * self.intermediate
        return dense + self.sparse_layers * shared + self.router_parameters

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP or an expert."""
        return 3 if self.gated_mlp else 2

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert of one layer."""
        return self.mlp_matrices * self.hidden * self.moe_intermediate

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
        norms = self.layers * per_layer - self.layers_without_mlp * self.hidden
        return norms + self.hidden

    @property
    def routed_parameters(self) -> int:
        """Weights of the routed experts of all layers."""
        return self.sparse_layers * self.experts * self.expert_parameters

    def _total(self, experts: int) -> int:
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        routed = self.sparse_layers * experts * self.expert_parameters
        shared = self.attention_parameters + self.dense_mlp_parameters
        return embeddings + shared + routed + self._small_parameters + self.vision_parameters

    @property
    def vision_parameters(self) -> int:
        """Weights of the tower."""
        return self.vision.parameters if self.vision else 0

    @property
    def vision_flop_per_prompt_token(self) -> float:
        """Flop of the tower for one token of a prompt, of which ``image_share`` are images."""
        if self.vision is None:
            return 0.0
        return self.image_share * self.vision.flop_per_image_token(self.image_tokens)

    @property
    def patches_per_prompt_token(self) -> float:
        """Patches of images in one token of a prompt."""
        return self.image_share * self.vision.patches_per_token if self.vision else 0.0

    @property
    def parameters(self) -> int:
        """All parameters, embeddings once if they are tied."""
        return self._total(self.experts)

    def share_of_matrices(self, more_than: float) -> float:
        """Share of all parameters in matrices of more than so many: of the embeddings and the LM
        head, of MLPs, of experts one by one, and of attention by the size of its queries'."""
        head, all_ = self.head_parameters, self.parameters
        sizes = (
            (head, head * (1 if self.tied_embeddings else 2)),
            (self.hidden * self.intermediate, self.dense_mlp_parameters),
            (self.hidden * self.moe_intermediate, self.routed_parameters),
            (self.hidden * self.heads * self.head_dim, self.attention_parameters),
        )
        return sum(total for each, total in sizes if each > more_than) / all_

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
            + (self._small_parameters + self.vision_parameters) * SMALL_BYTES
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
        if self.compressed:  # one vector is key and value
            return self.head_dim * self.kv_bytes_per_element
        return 2 * self.kv_heads * self.head_dim * self.kv_bytes_per_element

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """What attention reads of the tokens before one, by kinds of layers."""
        flop, decode_flop = self.attention_flop_per_layer, self.absorbed_flop_per_layer
        each, heads = self.kv_bytes_per_layer, 0 if self.kv_lora_rank else self.kv_heads
        sparse, compressed = self.sparse, self.compressed
        if compressed:
            window = self.window_tokens
            light, heavy = compressed.light_ratio, compressed.heavy_ratio
            chosen = light * sparse.top_tokens if sparse else 0
            kinds = [
                Reach(self.layers, each, flop, flop, 0, window, held=True),
                Reach(compressed.light_layers, each / light, flop / light, flop / light, 0, chosen),
                Reach(compressed.heavy_layers, each / heavy, flop / heavy, flop / heavy, 0),
            ]
            if sparse:
                kinds.append(sparse.index(compressed.light_layers, light))
            return tuple(kind for kind in kinds if kind.layers)
        if sparse:
            layers, flop = self.attention_layers, decode_flop  # latent vectors in prefill, too
            chosen_only = Reach(layers, each, flop, flop, heads, sparse.top_tokens)
            return chosen_only, sparse.index(layers)
        near = Reach(
            self.windowed_layers, each, flop, decode_flop, heads, self.window_tokens, held=True
        )
        wider = self._full_head_dim / self.head_dim
        more = wider * self._full_kv_heads / self.kv_heads
        seeing_all = Reach(
            self.full_layers,
            more * each,
            wider * flop,
            wider * decode_flop,
            0 if self.kv_lora_rank else self._full_kv_heads,
        )
        return tuple(kind for kind in (seeing_all, near) if kind.layers)

    @property
    def latent(self) -> bool:
        """Whether layers keep vectors of which all heads make their keys and values."""
        return any(not kind.heads for kind in self.reaches)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token leaves in the cache, while windowed layers see it."""
        return sum(kind.layers * kind.kv_bytes for kind in self.reaches)

    @property
    def state_bytes(self) -> float:
        """Bytes that a rollout holds whatever its length: the states of recurrent layers, and the
        tokens that they convolve."""
        keys, values = self._linear_widths
        recurrent = values * self.linear_head_dim * self.linear_state_bytes_per_element
        convolved = CONVOLVED_TOKENS * (2 * keys + values) * SMALL_BYTES
        linear = self.linear_layers * (recurrent + convolved)
        return linear + (self.state_space.state_bytes if self.state_space else 0)

    def kv_bytes_per_token_of(self, rollout_tokens: int, gpus: int = 1) -> float:
        """Bytes per token that a rollout of ``rollout_tokens`` holds, with windows and states, on
        each of ``gpus`` tensor-parallel GPUs that share it."""
        cached = sum(
            kind.layers * kind.kept_share(rollout_tokens) * kind.kv_bytes / kind.shards(gpus)
            for kind in self.reaches
        )
        return cached + self.state_bytes / gpus / rollout_tokens

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
    def linear_attention_flop_per_token(self) -> int:
        """Flop of all recurrent layers for one token in training, projections aside: of linear
        ones in chunks of C five C x C products of a head's width d, and three with its d x d state
        (gated delta nets, arXiv 2412.06464, section 3.3)."""
        width = self.linear_head_dim
        head = 10 * LINEAR_CHUNK * width + 6 * width * width
        spaces = self.state_space.flop_per_token if self.state_space else 0
        return self.linear_layers * self.linear_value_heads * head + spaces

    @property
    def linear_attention_bytes_per_token(self) -> int:
        """What kernels of gated delta nets move of one token in training: beside what they are
        given and make, the inverse of a chunk, its corrected keys and values, and a state for each
        chunk go to memory and back (flash-linear-attention)."""
        return self.linear_layers * self.linear_value_heads * LINEAR_MOVED * self.linear_head_dim

    @property
    def attention_elements_per_token(self) -> float:
        """Elements of one token that mixing tokens makes in a mean layer: queries, keys and values
        before and after rotation or projection, and its output; what recurrent layers make."""
        if self.kv_lora_rank:
            query = self.qk_nope_head_dim + self.qk_rope_head_dim
            latent = self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
            full = latent + self.heads * (3 * query + 2 * self.v_head_dim)
        else:
            full = (3 * self.heads + 4 * self.kv_heads) * self.head_dim
            full += self.heads * self.head_dim if self.attention_gate else 0
        return (self.attention_layers * full + self.recurrent_elements_per_token) / self.layers

    @property
    def recurrent_elements_per_token(self) -> int:
        """Elements of one token that all recurrent layers make."""
        keys, values = self._linear_widths
        space = self.state_space
        spaces = space.layers * space.elements_per_token if space else 0
        return self.linear_layers * (4 * keys + 4 * values) + spaces

    @property
    def recurrent_elements_kept(self) -> int:
        """Elements of one token that backwards of all recurrent layers need: of gated delta nets
        what their convolution takes, queries and keys copied for each head of values, values, their
        output, its gate, and both multiplied (transformers, Qwen3NextGatedDeltaNet;
        flash-linear-attention, ChunkGatedDeltaRuleFunction and FusedRMSNormGated)."""
        keys, values = self._linear_widths
        kept = 2 * keys + 7 * values + LINEAR_KEPT * self.linear_value_heads
        return self.recurrent_elements_per_token + self.linear_layers * (
            kept - 4 * keys - 4 * values
        )

    @property
    def recurrent_elements_unfused(self) -> int:
        """Those that Megatron's gated delta nets keep beside: queries and keys normalised before
        they are copied, and what is normalised of their output before its gate multiplies it
        (core/ssm/gated_delta_net: _prepare_input_for_gated_delta_rule, _apply_gated_norm)."""
        keys, values = self._linear_widths
        return self.linear_layers * (2 * keys + values)

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
    try:
        if path.is_dir():
            name, path = str(path / "config.json"), path / "config.json"
        if path.is_file():
            return _of_file(path, field)
    except OSError as error:  # too long a name, above all
        raise ScenarioError(field, f"cannot read {short(name)}: {error.strerror}") from None
    if isinstance(spec, Path) or name.endswith(".json") or name.startswith((".", "/", "~")):
        raise ScenarioError(field, f"no file {name}; give a preset or a path to a config.json")
    last = name.rsplit("/", 1)[-1]
    raise ScenarioError(
        field, f"unknown model {name!r}; {nearest(last, presets, 'rollcast presets models')}"
    )


def _of_file(path: Path, field: str) -> Model:
    """The model of a ``config.json``. Raises ScenarioError with the file and its own key."""
    from rollcast.simulator.costs.presets.hugging_face import read_config, their_key

    config = read_config(path, field)
    try:
        return model_from_config(config, field, name=path.parent.name or "custom")
    except ScenarioError as error:
        key = their_key(error.field.removeprefix(field).lstrip("."))
        raise ScenarioError(field, f"{f'{key} of ' * bool(key)}{path}: {error.message}") from None


def model_from_config(config: Mapping[str, Any], field: str = "model", name: str = "") -> Model:
    """A model from the contents of a Hugging Face ``config.json``.

    Covers the families of `simulator.costs.presets.hugging_face`, and weights quantised as
    `simulator.costs.presets.hugging_face` reads them. Raises ScenarioError for another
    ``model_type`` or ``quant_method``, and for a key that is missing or wrong.
    """
    from rollcast.simulator.costs.presets.hugging_face import keys_of

    return Model.from_mapping(keys_of(config, field, name), field)
