"""The file that ``rollcast calibrate`` writes, of which a scenario uses costs and lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.options import Flag
from simulator.results.read import check, read_json
from simulator.results.shapes import (
    MOST,
    Each,
    Keys,
    Maybe,
    Named,
    Number,
    Several,
    Shape,
    Text,
)

SCHEMA = "rollcast-fitted/1"
_NO_FITTED_FILE = f"so it is not a fitted file ({SCHEMA!r}), which rollcast calibrate writes"


_ERRORS = Named(Number())
_OF_LAYOUT = Keys({"standard_errors": _ERRORS})
_RATIO, _SLOWER = Number(most=1e6), Number(1e-6, most=1e6)
_SPREAD = Keys(
    {"names": Each(Text()), "matrix": Each(Each(Number(-MOST)))},
)
_RUN = Keys(
    {
        "policy": Text(),
        "seed": Number(whole=True, most=2**64),
        "steps": Number(whole=True),
        "makespan_s": Number(null=True),
    }
)
PARTS: Mapping[str, Shape] = {
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
            "shared_prefix": Maybe(_OF_LAYOUT),
            "overheads": Keys(
                {name: Keys({"standard_error_s": Number()})
                 for name in ("sync", "to_train", "to_rollout")}
            ),
        },
        may={"actors": Maybe(_OF_LAYOUT)},
    ),
    "covariance": Keys({"iteration": _SPREAD}),
    "lengths": Keys({"lengths": Keys()}),
    "rewards": Keys({"rewards": Keys()}),
    "groups": Keys(),
    "step_ratios": Each(Several((_SLOWER, _SLOWER, _RATIO, Number(whole=True))), at_least=1),
    "step_pulses": Each(Several((_SLOWER, _SLOWER)), at_least=1),
    "policies": Each(Text()),
    "provenance": Keys({"runs": Each(_RUN)}, may={"engine": Maybe(Keys())}),
}  # fmt: skip
"""What a fitted file holds beside its costs and their range, which `simulator.costs.fitted` reads:
a forecast needs all of it, a scenario's costs none."""


def read_fitted(path: Path, field: str) -> Mapping[str, Any]:
    """The content of a fitted file, each of its parts as it must be. Raises ScenarioError
    (``field``)."""
    content = read_json(path, field, path.name, _NO_FITTED_FILE)
    return check_schema(content, path.name, field)


def check_schema(content: object, name: str, field: str) -> Mapping[str, Any]:
    """``content``, if it is of our schema. Raises ScenarioError (``field``)."""
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, Mapping) else None
        said = f"is of schema {found!r}" if found else "names no schema"
        raise ScenarioError(field, f"{name} {said}, {_NO_FITTED_FILE}")
    check(content, Keys(may=PARTS), name, field)
    return content
