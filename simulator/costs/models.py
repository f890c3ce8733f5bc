"""Language models as their architecture, from which every size and flop count follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar

from simulator.errors import ScenarioError
from simulator.options import Above, AtLeast, Between, Doc, Options, join, nearest, read, whole

ELEMENTS = "elements"
WIDTH = Between(1, 10**7)
MAYBE_WIDTH = Between(0, 10**7)
BYTES = Above(0, 64)


@dataclass(frozen=True, slots=True)
class Model(Options):
    """A decoder-only transformer with gated MLPs (SwiGLU), dense or mixture of experts.

    Widths are in elements. ``intermediate`` is the MLP width of a dense layer, and
    ``moe_intermediate`` that of one expert; the last ``moe_layers`` layers hold experts (None: all
    of them where ``experts`` > 0). Weights take ``weight_bytes_per_parameter`` bytes each and the
    KV cache ``kv_bytes_per_element``.
    """

    FIELD = "model"
    ALSO: ClassVar[Mapping[str, Doc]] = {
        "preset": Doc("a model preset (rollcast presets models), whose figures other keys override")
    }

    name: Annotated[str, Doc("what reports call it")]
    layers: Annotated[int, Between(1, 100_000), Doc("decoder layers", unit="layers")]
    hidden: Annotated[int, WIDTH, Doc("width of the residual stream", unit=ELEMENTS)]
    heads: Annotated[int, WIDTH, Doc("attention heads of a layer", unit="heads")]
    kv_heads: Annotated[
        int, WIDTH, Doc("heads of keys and values, a divisor of heads", unit="heads")
    ]
    head_dim: Annotated[
        int, WIDTH, Doc("width of a head; hidden / heads if left out", unit=ELEMENTS)
    ]
    intermediate: Annotated[
        int, MAYBE_WIDTH, Doc("MLP width of a dense layer; 0 if left out", unit=ELEMENTS)
    ]
    vocab: Annotated[int, WIDTH, Doc("tokens of the vocabulary", unit="tokens")]
    tied_embeddings: Annotated[bool, Doc("whether the LM head is the embedding")] = False
    qkv_bias: Annotated[bool, Doc("whether the projections of attention have biases")] = False
    qk_norm: Annotated[bool, Doc("whether queries and keys are normalised")] = False
    experts: Annotated[
        int,
        MAYBE_WIDTH,
        Doc("routed experts of a sparse layer; 0 is dense", unit="experts"),
    ] = 0
    experts_per_token: Annotated[
        int, MAYBE_WIDTH, Doc("routed experts that a token uses", unit="experts")
    ] = 0
    moe_intermediate: Annotated[
        int, MAYBE_WIDTH, Doc("MLP width of a routed expert", unit=ELEMENTS)
    ] = 0
    moe_layers: Annotated[
        int | None,
        MAYBE_WIDTH,
        Doc("sparse layers, the last ones; null is all where there are experts", unit="layers"),
    ] = None
    shared_expert_intermediate: Annotated[
        int, MAYBE_WIDTH, Doc("MLP width of the expert that every token uses", unit=ELEMENTS)
    ] = 0
    shared_expert_gate: Annotated[bool, Doc("whether that expert has a gate")] = False
    weight_bytes_per_parameter: Annotated[
        float, BYTES, Doc("of the weights in the engine", unit="bytes", source="bfloat16")
    ] = 2.0
    kv_bytes_per_element: Annotated[
        float, BYTES, Doc("of the KV cache", unit="bytes", source="bfloat16")
    ] = 2.0
    source: Annotated[str, Doc("where these figures come from")] = "given in the scenario"

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "model") -> Model:
        """An architecture by field name. ``preset: NAME`` starts from a preset instead.

        ``head_dim`` defaults to hidden / heads. Raises ScenarioError naming the key that is
        unknown, missing or out of range.
        """
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
            if not self.moe_intermediate:
                raise self.refuse("moe_intermediate", "missing: the width of an expert")
        elif self.experts_per_token or self.moe_intermediate or self.moe_layers:
            raise self.refuse("experts", "missing: the model names widths of experts")
        if self.sparse_layers > self.layers:
            raise self.refuse("moe_layers", f"more than the {self.layers} layers")
        if self.sparse_layers < self.layers and not self.intermediate:
            raise self.refuse("intermediate", "missing: the width of a dense MLP")

    @property
    def sparse_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return (self.layers if self.moe_layers is None else self.moe_layers) if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Projection weights of the attention of all layers (no biases or norms)."""
        width = self.heads * self.head_dim
        return self.layers * 2 * self.hidden * (width + self.kv_heads * self.head_dim)

    @property
    def dense_mlp_parameters(self) -> int:
        """MLP weights that every token uses: dense layers, shared experts and routers."""
        shared = 3 * self.hidden * self.shared_expert_intermediate
        gate = self.hidden if self.shared_expert_gate else 0
        dense = (self.layers - self.sparse_layers) * 3 * self.hidden * self.intermediate
        return dense + self.sparse_layers * (shared + gate + self.hidden * self.experts)

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

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in the engine's precision."""
        return self.parameters * self.weight_bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes_per_element

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
    def attention_flop_per_pair(self) -> int:
        """Flop of all layers for one query-key pair: scores, and the weighted sum of values."""
        return 4 * self.layers * self.heads * self.head_dim

    def experts_touched(self, tokens: float) -> float:
        """Expected distinct experts of a layer that ``tokens`` tokens reach, if routing is uniform:
        ``E (1 - (1 - k/E)^n)``."""
        if not self.experts:
            return 0.0
        missed: float = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1.0 - missed)


def _head_dim(mapping: Mapping[str, Any]) -> int:
    """hidden / heads, whatever these are before they are checked."""
    try:
        return max(1, int(mapping["hidden"]) // int(mapping["heads"]))
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return 1


@cache
def model_presets() -> dict[str, Model]:
    """Every model preset by name."""
    import yaml

    text = resources.files("simulator.costs").joinpath("presets/models.yaml").read_text("utf-8")
    return {
        name: Model.from_mapping({"name": name, **entry}, field=f"presets.models.{name}")
        for name, entry in yaml.safe_load(text).items()
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
    path = Path(spec).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _from_config_file(path, field)
    if isinstance(spec, Path) or name.endswith(".json") or name.startswith((".", "/", "~")):
        raise ScenarioError(field, f"no file {name}; give a preset or a path to a config.json")
    short = name.rsplit("/", 1)[-1]
    raise ScenarioError(field, f"unknown model {name!r}; {nearest(short, presets)}")


def _from_config_file(path: Path, field: str) -> Model:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ScenarioError(field, f"{path} is not readable JSON ({error})") from None
    if not isinstance(config, dict):
        raise ScenarioError(field, f"{path} is not a Hugging Face config: its top is no object")
    return model_from_config(config, field, name=path.parent.name or "custom")


def model_from_config(config: Mapping[str, Any], field: str = "model", name: str = "") -> Model:
    """A model from the contents of a Hugging Face ``config.json``.

    Covers Llama, Mistral, Qwen2 and Qwen3, and the mixtures Qwen2-MoE, Qwen3-MoE and Mixtral.
    Raises ScenarioError for another ``model_type``, and for what would change sizes or costs
    unseen: sliding-window layers and quantised weights.
    """
    kind = str(config.get("model_type", ""))
    if kind not in _FAMILIES:
        raise ScenarioError(
            field, f"model_type {kind!r} is not covered; covered: {', '.join(sorted(_FAMILIES))}"
        )
    if config.get("quantization_config"):
        raise ScenarioError(
            field, "quantised weights are not covered; give the config of the bf16 weights"
        )
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", kind in ("mistral", "mixtral")):
        raise ScenarioError(
            field, f"sliding-window attention ({window} tokens) is not covered; set it to null"
        )
    keys = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "vocab": "vocab_size",
        "intermediate": "intermediate_size",
    }
    given: dict[str, Any] = {}
    for ours, theirs in keys.items():
        if config.get(theirs) is None:
            raise ScenarioError(field, f"the config has no {theirs}")
        given[ours] = config[theirs]
    given["kv_heads"] = config.get("num_key_value_heads") or given["heads"]
    if config.get("head_dim") is not None:
        given["head_dim"] = config["head_dim"]
    given["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    given["qkv_bias"] = bool(config.get("attention_bias", False)) or kind in ("qwen2", "qwen2_moe")
    given["qk_norm"] = kind in ("qwen3", "qwen3_moe")
    given["name"] = name or kind
    given["source"] = f"Hugging Face config, model_type {kind}"
    given.update(_FAMILIES[kind](config, field))
    return Model.from_mapping(given, field)


def _dense(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {}


def _mixtral(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {
        "experts": _get(config, "num_local_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": _get(config, "intermediate_size", field),
    }


def _qwen_moe(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    layers = whole(_get(config, "num_hidden_layers", field), field, AtLeast(1))
    step = whole(config.get("decoder_sparse_step") or 1, field, AtLeast(1))
    dense = set(config.get("mlp_only_layers") or [])
    shared = config.get("shared_expert_intermediate_size") or 0
    return {
        "experts": _get(config, "num_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": _get(config, "moe_intermediate_size", field),
        "moe_layers": sum(i not in dense and (i + 1) % step == 0 for i in range(layers)),
        "shared_expert_intermediate": shared,
        "shared_expert_gate": bool(shared),
    }


def _get(config: Mapping[str, Any], key: str, field: str) -> Any:
    if config.get(key) is None:
        raise ScenarioError(field, f"the config has no {key}")
    return config[key]


_FAMILIES: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "mixtral": _mixtral,
}
