"""Language models as their architecture, from which every size and flop count follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.checks import flag, join, known_keys, nearest, number, whole
from simulator.errors import ScenarioError
from simulator.results.read import read_json

_WHOLE = {
    "layers": 1,
    "hidden": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 1,
    "vocab": 1,
    "intermediate": 0,
    "experts": 0,
    "experts_per_token": 0,
    "moe_intermediate": 0,
    "shared_expert_intermediate": 0,
}
_FLAGS = ("tied_embeddings", "qkv_bias", "qk_norm", "shared_expert_gate")
_REQUIRED = ("layers", "hidden", "heads", "kv_heads", "vocab")


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer with gated MLPs (SwiGLU), dense or mixture of experts.

    Widths are in elements. ``intermediate`` is the MLP width of a dense layer, and
    ``moe_intermediate`` that of one expert; the last ``moe_layers`` layers hold experts (None: all
    of them where ``experts`` > 0). Weights take ``weight_bytes_per_parameter`` bytes each and the
    KV cache ``kv_bytes_per_element``.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    moe_layers: int | None = None
    shared_expert_intermediate: int = 0
    shared_expert_gate: bool = False
    weight_bytes_per_parameter: float = 2.0
    kv_bytes_per_element: float = 2.0
    source: str = "given in the scenario"

    def __post_init__(self) -> None:
        _check(self, "model")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "model") -> Model:
        """An architecture by field name. ``preset: NAME`` starts from a preset instead.

        ``head_dim`` defaults to hidden / heads. Raises ScenarioError naming the key that is
        unknown, missing or out of range.
        """
        given = dict(mapping)
        names = [f.name for f in fields(cls)]
        known_keys(given, [*names, "preset"], field)
        preset = given.pop("preset", None)
        for name, value in given.items():
            given[name] = _parse(name, value, join(field, name))
        if preset is not None:
            model = replace(load_model(preset, join(field, "preset")), **given)
            _check(model, field)
            return model
        for name in _REQUIRED:
            if name not in given:
                raise ScenarioError(join(field, name), "missing; give its value, or a preset")
        given.setdefault("name", "custom")
        given.setdefault("intermediate", 0)
        given.setdefault("head_dim", max(1, given["hidden"] // given["heads"]))
        try:
            return cls(**given)
        except ScenarioError as error:
            raise ScenarioError(field + error.field.removeprefix("model"), error.message) from None

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


def _parse(name: str, value: object, field: str) -> Any:
    """``value`` as the type of the model's field ``name``."""
    if name in ("name", "source"):
        return str(value)
    if name in _FLAGS:
        return flag(value, field)
    if name == "moe_layers":
        return None if value is None else whole(value, field)
    if name in _WHOLE:
        return whole(value, field, minimum=_WHOLE[name])
    return number(value, field, above=True)


def _check(model: Model, field: str) -> None:
    """Raises ScenarioError where the fields contradict one another."""
    for name in (f.name for f in fields(model)):
        _parse(name, getattr(model, name), join(field, name))
    if model.heads % model.kv_heads:
        raise ScenarioError(
            join(field, "kv_heads"), f"{model.kv_heads} does not divide {model.heads} heads"
        )
    if model.experts:
        if not 1 <= model.experts_per_token <= model.experts:
            raise ScenarioError(
                join(field, "experts_per_token"), f"give 1 to {model.experts}, the experts"
            )
        if not model.moe_intermediate:
            raise ScenarioError(join(field, "moe_intermediate"), "missing: the width of an expert")
    elif model.experts_per_token or model.moe_intermediate or model.moe_layers:
        raise ScenarioError(join(field, "experts"), "missing: the model names widths of experts")
    if model.sparse_layers > model.layers:
        raise ScenarioError(join(field, "moe_layers"), f"more than the {model.layers} layers")
    if model.sparse_layers < model.layers and not model.intermediate:
        raise ScenarioError(join(field, "intermediate"), "missing: the width of a dense MLP")


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
    config = read_json(path, field)
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
    layers = whole(_get(config, "num_hidden_layers", field), field, minimum=1)
    step = whole(config.get("decoder_sparse_step") or 1, field, minimum=1)
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
