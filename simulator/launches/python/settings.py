"""A stack's keys in the calls of a script, by the stack's own table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollcast.simulator.launches.names import by_name
from rollcast.simulator.launches.python.script import Defined, Made, Parsed
from rollcast.simulator.launches.python.texts import settled
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place

Calls = Mapping[str, Mapping[Any, str]]
"""By what is called, of which the last parts may be given: their keys by argument, by position or
name; ``*`` for every other argument by its own name, true for the call itself."""


def settings(made: Iterable[Made], calls: Calls, sure: int) -> tuple[list[Given], list[str]]:
    """What calls set, and notes. Of calls that set a key again the first counts: one that is given
    to another before others."""
    taker = _Taker(calls, sure)
    found = [one for one in made if by_name(calls, one.name) is not None]
    inner = {id(value) for one in found for value, _ in one.given.values()}
    for one in sorted(found, key=lambda one: id(one) in inner):
        taker.take(one)
    return list(taker.given.values()), taker.notes


class _Taker:
    def __init__(self, calls: Calls, sure: int) -> None:
        self._calls, self._sure = calls, sure
        self.given: dict[str, Given] = {}
        self.notes: list[str] = []
        self._taken: set[int] = set()

    def take(self, made: Made) -> None:
        """The settings of a call, after those of the calls that it is given."""
        table = by_name(self._calls, made.name)
        if id(made) in self._taken:
            return
        self._taken.add(id(made))
        for value, _ in made.given.values():
            if isinstance(value, Made):
                self.take(value)
        if table is None:
            return
        for argument, key in table.items():
            if argument is True:
                self._put(key, True, made.place)
        given: dict[int | str, tuple[Any, Place]] = {**made.given}
        given.update(made.attributes)
        for argument, (value, place) in given.items():
            named = _of(table, argument)
            if not named or isinstance(value, Defined | Parsed):
                continue
            if isinstance(value, Made):
                if by_name(self._calls, value.name) is None:
                    self._put(
                        named, Unknown(f"{value.name}(...)", "it is a call that is not run"), place
                    )
                continue
            inner = value.items() if isinstance(value, Mapping) else ()
            for key, one in inner:
                self._put(f"{named}.{key}", one, place)
            if not inner:
                self._put(named, value, place)

    def _put(self, key: str, value: Any, place: Place) -> None:
        had = self.given.get(key)
        if had is not None and isinstance(value, Unknown):
            return
        if had is not None and not isinstance(had.value, Unknown):
            if had.value != value:
                self.notes.append(
                    f"{key} is {had.value} in {had.place}, and {value} in {place}; the first counts"
                )
            return
        self.given[key] = Given(key, settled(value), place, self._sure)


def _of(table: Mapping[Any, str], argument: int | str) -> str:
    """The key of an argument, '' where it has none."""
    for known, name in table.items():
        if known is not True and known == argument and type(known) is type(argument):
            return name
    return str(argument) if "*" in table and isinstance(argument, str) else ""
