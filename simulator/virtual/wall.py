"""The date and time of day of a run."""

from __future__ import annotations

import datetime as real_datetime
from typing import Any

from rollcast.simulator.virtual.kernel import Kernel

EPOCH_S = 1_800_000_000
"""`time.time` as a run begins: 15 January 2027, 08:00 UTC."""

_DateTime = real_datetime.datetime
_Date = real_datetime.date


class _Like(type):
    """Makes real datetimes, or dates, instances of the double."""

    real: type[Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, cls.real)


def virtual_date(kernel: Kernel) -> type[Any]:
    """A double of `datetime.date` whose ``today`` is of the run."""

    class date(_Date, metaclass=_Like):  # noqa: N801
        """`datetime.date` on the virtual clock; what it makes is of the real class."""

        __slots__ = ()
        real = _Date

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return _Date.__new__(_Date if cls is date else cls, *args, **options)

        @classmethod
        def today(cls) -> Any:
            made: Any = _Date if cls is date else cls
            return made.fromtimestamp(EPOCH_S + kernel.now_s) if kernel.mine() else _Date.today()

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return handler(_Date)

    return date


def virtual_datetime(kernel: Kernel) -> type[Any]:
    """A double of `datetime.datetime` whose ``now`` and ``utcnow`` are of the run."""

    class datetime(_DateTime, metaclass=_Like):  # noqa: N801
        """`datetime.datetime` on the virtual clock; what it makes is of the real class."""

        __slots__ = ()  # as large as the real one, which C extensions check
        real = _DateTime

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return _DateTime.__new__(_DateTime if cls is datetime else cls, *args, **options)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            if not kernel.mine():
                return _DateTime.now(tz)
            return _DateTime.fromtimestamp(EPOCH_S + kernel.now_s, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(real_datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return handler(_DateTime)

    return datetime
