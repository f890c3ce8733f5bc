"""The file of ``rollcast probe``: trainer and engine timed on batches of many shapes."""

from __future__ import annotations

from rollcast.simulator.results.columns import LARGEST_TOKENS, Figure
from rollcast.simulator.results.schema import BEAT, ITERATIONS, LAYOUTS, Document
from rollcast.simulator.values.readers import Choice, Keys, ListOf, Nullable, Row

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

_PULSE = Keys({"short_s": BEAT, "long_s": BEAT})
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
                    }
                )
            ),
            "bursts": ListOf(Keys({"iterations": Keys(_AS_COLUMNS), "pulse": _PULSE})),
        },
        may={
            "engine": Nullable(Keys()),
            "beside": ListOf(
                Keys(
                    {
                        "iterations": Figure(whole=True),
                        **dict.fromkeys(PROBE_BESIDE, Figure()),
                    }
                )
            ),
        },
    ),
)
