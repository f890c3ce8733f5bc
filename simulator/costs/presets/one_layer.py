"""A layer beside a model's own: that of a draft, or one that predicts a further token (MTP)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from rollcast.simulator.costs.presets.models import Model


def one_layer(model: Model, **changes: Any) -> Model:
    """One layer of full attention with the model's widths."""
    plain: dict[str, Any] = {"layers": 1, "windowed_layers": 0, "linear_layers": 0}
    plain |= {
        "mlp_layers": None,
        "state_space": None,
        "vision": None,
        "image_share": 0.0,
        "mtp_layers": 0,
    }
    if model.compressed:  # of its own window alone
        window_only = replace(model.compressed, light_layers=0, heavy_layers=0)
        plain |= {"compressed": window_only, "sparse": None}
    else:
        plain["window_tokens"] = 0
    return replace(model, tied_embeddings=True, **{**plain, **changes})


def mtp_layer(model: Model) -> Model:
    """One more layer of ``model``, and the projection of hidden state and embedding (2h x h), which
    counts as width of an MLP."""
    more = round(2 * model.hidden / model.mlp_matrices)
    if model.sparse_layers:
        wider = model.shared_expert_intermediate + more
        return one_layer(model, moe_layers=1, shared_expert_intermediate=wider)
    return one_layer(model, intermediate=model.intermediate + more)


class Trained(NamedTuple):
    """Parameters that a trainer holds: those that every token uses, and routed experts."""

    dense: int
    routed: int


def trained_parameters(model: Model) -> Trained:
    """Of a model and its ``mtp_layers``, which share its embedding and LM head."""
    routed, more = model.routed_parameters, model.mtp_layers
    dense = model.parameters - routed
    if not more:
        return Trained(dense, routed)
    one = mtp_layer(model)
    beside = one.parameters - one.routed_parameters - one.head_parameters
    return Trained(dense + more * beside, routed + more * one.routed_parameters)
