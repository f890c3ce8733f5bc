"""Reads one section of a scenario key by key, so that every section rejects bad input alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator import checks
from simulator.errors import ScenarioError


class Fields:
    """The keys of one section.

    spec: the section. field: its dotted key, such as ``workload.lengths``. known: the keys it may
    hold. Raises ScenarioError on a section that is not a mapping, and on an unknown key. A key set
    to null counts as absent.
    """

    def __init__(self, spec: object, field: str, known: Iterable[str]) -> None:
        if not isinstance(spec, Mapping):
            raise ScenarioError(field, f"{spec!r} is not a mapping of keys to values")
        checks.known_keys(spec, known, field)
        self._spec: Mapping[str, object] = spec
        self.field = field

    def __contains__(self, key: str) -> bool:
        return self._spec.get(key) is not None

    def name(self, key: str) -> str:
        """The dotted key, for an error."""
        return checks.join(self.field, key)

    def get(self, key: str, default: object = None) -> object:
        """The value as it stands."""
        value = self._spec.get(key)
        return default if value is None else value

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        minimum: float = 0.0,
        above: bool = False,
        maximum: float | None = None,
    ) -> float:
        """A finite number within the bounds; required where there is no default."""
        value = checks.number(self._required(key, default), self.name(key), minimum=minimum,
                              above=above)  # fmt: skip
        if maximum is not None and value > maximum:
            raise ScenarioError(
                self.name(key), f"{value:g} is out of range; give a number of at most {maximum:g}"
            )
        return value

    def whole(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``; required where there is no default."""
        return checks.whole(self._required(key, default), self.name(key), minimum=minimum)

    def choice(self, key: str, valid: Iterable[str]) -> str:
        """One of the ``valid`` names."""
        names = sorted(valid)
        value = self._required(key, None, f"one of {', '.join(names)}")
        if value not in names:
            hint = checks.nearest(str(value), names)
            raise ScenarioError(self.name(key), f"unknown {key} {value!r}; {hint}")
        return str(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return checks.flag(self.get(key, default), self.name(key))

    def _required(self, key: str, default: object, wanted: str = "a number") -> object:
        value = self.get(key, default)
        if value is None:
            raise ScenarioError(self.name(key), f"missing; give {wanted}")
        return value
