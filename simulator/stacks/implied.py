"""What settings of a run imply by the rules of a stack's ``launch.yaml``::

    implies:
      run.critic: {run.algorithm: {gae: true, any: false}}   # ours: what it follows from, and how
      run.reference: {run.skip_reference: {true: false}, run.kl_coefficient: positive}
      workload.max_new_tokens: {workload.max_new_tokens: {any: kept}, run.max_total_tokens: whole}

The first setting that is there and says anything decides; a list of such mappings names one twice.
How a value follows is a word of `WORDS`, or a table: by the setting's value, or by a word of
`TESTS` that holds of the setting, the first that fits; ``kept`` leaves ours as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollcast.simulator.stacks.settings import Setting, Settings, meanings, whole_number

TESTS: Mapping[str, Callable[[Setting], bool]] = {
    "any": lambda cause: True,
    "said": lambda cause: not cause.unsaid,
    "given": lambda cause: cause.value is not None,
    "some": lambda cause: bool(cause.value),
    "whole": lambda cause: whole_number(cause.value) is not None,
}
"""Of a setting that is there: whatever it is, no default of the stack's, not null, neither null nor
zero nor false, a whole number above 0."""
WORDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "same": ("any", lambda value: value),
    "whole": ("whole", whole_number),
    "given": ("any", lambda value: value is not None),
    "some": ("any", bool),
    "not 0": ("any", lambda value: value != 0),
    "positive": ("any", lambda value: value > 0 if isinstance(value, int | float) else None),
}
"""The value itself, the same where it is a whole number above 0, and whether it is something."""
Rules = Mapping[str, list[tuple[str, Any]]]
"""By our key, what it follows from in order, and how."""


def rules(data: Mapping[str, Any], where: str) -> Rules:
    """Of ``implies`` in a file. Raises ValueError, which says ``where``, for unknown names."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for ours, causes in data.items():
        listed = causes if isinstance(causes, list) else [causes]
        found[ours] = [pair for one in listed for pair in one.items()]
        for name in (ours, *(cause for cause, _ in found[ours])):
            if name not in meanings():
                raise ValueError(f"{where}: {name} is no setting of ours (meanings.yaml)")
        wrong = [how for _, how in found[ours] if not isinstance(how, dict) and how not in WORDS]
        if wrong:
            raise ValueError(f"{where}: {ours}: {wrong[0]!r} is none of {', '.join(WORDS)}")
    return found


def follow(known: Rules, settings: Settings) -> Iterable[Setting]:
    """The settings that others imply."""
    for ours, causes in known.items():
        there = ((settings[cause], how) for cause, how in causes if cause in settings)
        decided = ((cause, _value(cause, how)) for cause, how in there)
        cause, value = next(((c, v) for c, v in decided if v is not None), (None, None))
        if cause is not None and value != "kept":
            yield cause.implies(ours, value)


def _value(cause: Setting, how: Any) -> Any:
    """What follows from a setting; None for nothing."""
    if not isinstance(how, dict):
        test, value = WORDS[how]
        return value(cause.value) if TESTS[test](cause) else None
    for said, value in how.items():
        if TESTS[said](cause) if said in TESTS else _same(said, cause.value):
            return value
    return None


def _same(said: Any, value: Any) -> bool:
    return bool(said == value) and isinstance(said, bool) == isinstance(value, bool)
