"""A stack's preset figure by figure, each by its key in a scenario and with its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollcast.simulator.costs.backends import Backend, backends_of
from rollcast.simulator.costs.presets.provenance import Provenance
from rollcast.simulator.costs.stacks import STACKS, Spread
from rollcast.simulator.values import given


class Figure(NamedTuple):
    """A figure. key: below ``cost.roofline``. value: with the factors within which it is true."""

    key: str
    value: str
    source: Provenance


def stack_figures(name: str, backend: Backend | None = None) -> Iterator[Figure]:
    """What a stack's preset says of engine, loop, sync, phases (with a trainer's backend) and
    rest."""
    stack = STACKS[name]
    source = stack.sources
    for key in ("engine", "cuda_graphs", "engine_sleep", "offload_optimizer"):
        value = getattr(stack, key)
        unknown = value is None and key == "cuda_graphs"
        yield Figure(key, "unknown" if unknown else _text(value), source["settings"])
    share, apart = stack.kv_memory_utilization, stack.apart_kv_memory_utilization
    if share is not None:
        text = f"{share:g}" if apart is None else f"{share:g} colocated, {apart:g} apart"
        yield Figure("kv_memory_utilization", text, source["settings"])
    sync = f"{stack.colocated} colocated, {stack.disaggregated} apart"
    yield Figure("sync", sync, source["settings"])
    for key in ("loop_s", "loop_per_rollout_s"):
        yield Figure(key, _text(getattr(stack, key), stack.loop_spread), source["loop"])
    for key, value in given(stack.fixed).items():
        text = _text(value or 0.0, stack.fixed_spread if value else None)
        yield Figure(f"fixed.{key}", text, source["fixed"])
    for key, value in given(stack.factors_on(backend)).items():
        if value is not None:
            yield Figure(f"phase_factors.{key}", _text(value), source["phase_factors"])
    for key in ("rest_s", "rest_per_token_s"):
        if key == "rest_s" or getattr(stack, key):
            yield Figure(key, _text(getattr(stack, key), stack.rest_spread), source["rest"])


def trainer_figures(name: str, backend: Backend) -> Iterator[Figure]:
    """What the stack's trainer does with a backend."""
    its = backends_of(name)[backend]
    for key, value in its.options.items():
        yield Figure(f"trainer.{key}", _text(value), its.sources[key])


def _text(value: object, spread: Spread | None = None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
    return text if spread is None else f"{text}, {spread[0]:g} to {spread[1]:g} times"
