"""The files of ``rollcast calibrate`` (fitted ones) and of ``rollcast probe`` (trainer and engine
timed on batches of many shapes)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.columns import LARGEST_TOKENS, MOST, Figure
from rollcast.simulator.results.read import check, read_json
from rollcast.simulator.results.schema import (
    ITERATIONS,
    LAYOUTS,
    PREFIX_PASSES,
    SPEED_PROBES,
    Document,
)
from rollcast.simulator.values.readers import (
    Choice,
    Flag,
    Keys,
    ListOf,
    Named,
    Nullable,
    Reader,
    Row,
    Text,
)
from rollcast.simulator.values.words import short

SCHEMA = "rollcast-fitted/1"
_NO_FITTED_FILE = f"so it is not a fitted file ({SCHEMA!r}), which rollcast calibrate writes"


_ERRORS = Named(Figure())
_OF_LAYOUT = Keys({"standard_errors": _ERRORS})
_RATIO, _SLOWER = Figure(most=1e6), Figure(1e-6, most=1e6)
_SPREAD = Keys({"names": ListOf(Text()), "matrix": ListOf(ListOf(Figure(-MOST)))})
_RUN = Keys(
    {
        "policy": Text(),
        "seed": Figure(whole=True, most=2**64),
        "steps": Figure(whole=True),
        "makespan_s": Figure(null=True),
    }
)
PARTS: Mapping[str, Reader] = {
    "fits": Keys(
        {
            "iteration": Keys(
                {
                    "standard_errors": _ERRORS,
                    "step_ratio": _SLOWER,
                    "step_ratio_standard_error": _RATIO,
                    "assumed_prefill_token": Flag(),
                }
            ),
            "dense": _OF_LAYOUT,
            "shared_prefix": Nullable(_OF_LAYOUT),
            "overheads": Keys(
                {
                    name: Keys({"standard_error_s": Figure()})
                    for name in ("sync", "to_train", "to_rollout")
                }
            ),
        },
        may={"actors": Nullable(_OF_LAYOUT)},
    ),
    "covariance": Keys({"iteration": _SPREAD}),
    "lengths": Keys({"lengths": Keys()}),
    "rewards": Keys({"rewards": Keys()}),
    "groups": Keys(),
    "step_ratios": ListOf(Row((_SLOWER, _SLOWER, _RATIO, Figure(whole=True))), least=1),
    "step_pulses": ListOf(Row((_SLOWER, _SLOWER)), least=1),
    "policies": ListOf(Text()),
    "provenance": Keys({"runs": ListOf(_RUN)}, may={"engine": Nullable(Keys())}),
}
"""Parts beside costs and their range (`simulator.costs.fitted`); forecasts need them all."""


def read_fitted(path: Path, field: str) -> Mapping[str, Any]:
    """The content of a fitted file, checked. Raises ScenarioError (``field``)."""
    content = read_json(path, field, path.name, _NO_FITTED_FILE)
    return check_schema(content, path.name, field)


def check_schema(content: object, name: str, field: str) -> Mapping[str, Any]:
    """``content``, if it is of our schema. Raises ScenarioError (``field``)."""
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, Mapping) else None
        problem = f"is of schema {short(schema)}" if schema else "names no schema"
        raise ScenarioError(field, f"{name} {problem}, {_NO_FITTED_FILE}")
    check(content, Keys(may=PARTS), name, field)
    return content


PROBE_SCHEMA = "rollcast-probe/2"
PROBE_FILE = "probe.json"
PROBE_UPDATE = {
    **dict.fromkeys(
        ("computed_tokens", "padding_tokens", "rollouts", "microbatches"), Figure(whole=True)
    ),
    **dict.fromkeys(("log_prob_s", "total_s"), Figure()),
}
"""Figures of a probe's update."""

PROBE_BURST = (
    "start_s",
    "seconds",
    "rollouts",
    "context_tokens",
    "prefill_tokens",
    "prefill_pairs",
    "prefill_rollouts",
)
"""Columns of `ITERATIONS` in a probe's burst."""

PROBE_BESIDE = ("iterations_alone_s", "iterations_beside_s", "update_alone_s", "update_beside_s")
"""Figures of a replica and a trainer side by side."""

_PULSE = Keys({name: SPEED_PROBES[name].shape for name in ("short_s", "long_s")})
_LENGTH = Figure(whole=True, most=LARGEST_TOKENS)
_AS_COLUMNS = {name: ListOf(ITERATIONS[name].shape, least=1) for name in PROBE_BURST}
PROBE = Document(
    PROBE_FILE,
    "times of synthetic updates and of synthetic batches of rollouts",
    shape=Keys(
        {
            "schema": Choice((PROBE_SCHEMA,)),
            "updates": ListOf(
                Keys(
                    {
                        "layout": Choice(LAYOUTS),
                        **PROBE_UPDATE,
                        "groups": ListOf(Row((_LENGTH, ListOf(_LENGTH)))),
                        "pulse": _PULSE,
                    },
                    may={PREFIX_PASSES: Figure(whole=True)},
                )
            ),
            "bursts": ListOf(Keys({"iterations": Keys(_AS_COLUMNS), "pulse": _PULSE})),
        },
        may={
            "engine": Nullable(Keys()),
            "beside": ListOf(
                Keys({"iterations": Figure(whole=True), **dict.fromkeys(PROBE_BESIDE, Figure())})
            ),
        },
    ),
)
