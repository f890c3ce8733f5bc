"""Options: what a scenario, a spelt policy or a fitted file may say, declared once, by annotations.

An option is a field of a frozen dataclass, and its annotation is all there is to know of it::

    @dataclass(frozen=True)
    class APRIL(Policy):
        over_sampling: Annotated[float, Between(1, 1000), Doc("groups launched a step ...")] = 2.0

`read` makes such an object of a mapping, `check` looks at one that Python code built, and
`declared` lists the options with their ranges, defaults, units and meanings, from which
``rollcast explain`` makes its reference. Plain annotations do: ``share: float = 0.5`` is checked to
be a finite number. What is wrong is said in one wording, by a ScenarioError that names the key:
unknown (with the nearest valid name), missing, or not what it must be.
"""

from __future__ import annotations

import difflib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from simulator.errors import ScenarioError
from simulator.later import Later

T = TypeVar("T")
A_MAPPING = "a mapping of keys to values"


# What an annotation may say


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of numbers, its ends included unless ``above`` or ``below`` says otherwise."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def hold(self, value: float) -> bool:
        """Whether ``value`` lies in the range."""
        low = value > self.least if self.above else value >= self.least
        return low and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        least, most = figure(self.least), figure(self.most)
        if self.most == math.inf:
            if self.least == -math.inf:
                return ""
            return f"above {least}" if self.above else f"of {least} or more"
        if self.least == -math.inf:
            return f"below {most}" if self.below else f"of {most} or less"
        if self.above:
            return f"above {least} and {'below' if self.below else 'up to'} {most}"
        return f"from {least} to {'below ' if self.below else ''}{most}"


def AtLeast(least: float) -> Bounds:
    """``least`` or more."""
    return Bounds(least)


def Above(least: float, most: float = math.inf, *, below: bool = False) -> Bounds:
    """More than ``least``, and ``most`` at most (less than it, with ``below``)."""
    return Bounds(least, most, above=True, below=below)


def Between(least: float, most: float, *, below: bool = False) -> Bounds:
    """From ``least`` to ``most``, or to less than it."""
    return Bounds(least, most, below=below)


ANY = Bounds()
SHARE = Between(0, 1)
POSITIVE = Above(0)
NOT_NEGATIVE = AtLeast(0)
SEED = Between(0, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Doc:
    """What an option means.

    unit: of its number, where the end of its name does not say (``_s``, ``_tokens``, ...).
    source: where its default comes from.
    """

    meaning: str
    unit: str = ""
    source: str = ""


class Options:
    """Base of a frozen dataclass whose fields are options: whoever builds one, they are checked.

    FIELD: the dotted key that errors start with where Python code builds it. TAG: the key, and the
    value of it, that choose this class among others (`declared`'s first option where None).
    ALSO: keys that a ``from_mapping`` of its own reads beside the fields. FIXED: fields that are no
    options. A class method ``from_text(text, field)`` reads a name that stands for a mapping.
    """

    __slots__ = ()
    FIELD: ClassVar[str] = ""
    TAG: ClassVar[tuple[str, str] | None] = None
    ALSO: ClassVar[Mapping[str, Doc]] = {}
    FIXED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check(self, self.FIELD)
        self.agree()

    def agree(self) -> None:
        """Raises ScenarioError where options that are each right contradict one another."""

    @classmethod
    def refuse(cls, key: str, message: str) -> ScenarioError:
        """The error of one option, for `agree` to raise."""
        return ScenarioError(join(cls.FIELD, key), message)


# Words


def join(field: str, key: str) -> str:
    """The dotted name of ``key`` inside ``field``."""
    return f"{field}.{key}" if field and key else field or key


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that offers the valid names nearest to ``name``, or lists all of them."""
    names = sorted(set(valid))
    close = difflib.get_close_matches(name.lower()[:100], names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"valid: {', '.join(names)}"


def known_keys(given: Mapping[Any, Any], valid: Iterable[str], field: str) -> None:
    """Raises ScenarioError for the first key of ``given`` that is not among ``valid``."""
    names = list(valid)
    for key in given:
        if key not in names:
            raise ScenarioError(join(field, str(key)), f"unknown key; {nearest(str(key), names)}")


def missing(field: str, wanted: str) -> ScenarioError:
    """The error of an option that must be given."""
    return ScenarioError(field, f"missing; give {wanted}")


def wrong(field: str, wanted: str, value: object) -> ScenarioError:
    """The error of an option that is not what it must be."""
    return ScenarioError(field, f"must be {wanted}, got {short(value)}")


def short(value: object) -> str:
    """A value as it is shown in an error."""
    try:
        text = repr(value)
    except ValueError:  # of a whole number with thousands of digits
        return "a number too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def figure(value: float) -> str:
    """A number as it is shown in a range."""
    return str(value) if isinstance(value, int) else f"{value:g}"


# Readers: one for each kind of annotation


class Reader(Protocol):
    """Reads the value of one option."""

    @property
    def wanted(self) -> str:
        """What a value must be, as a noun."""
        ...

    def read(self, value: object, field: str) -> Any:
        """The value in its proper type. Raises ScenarioError naming ``field``."""
        ...

    def below(self) -> tuple[type, ...]:
        """The dataclasses whose options may stand below this one."""
        ...

    def strange(self, value: object, field: str) -> None:
        """Raises ScenarioError for an unknown key below this option."""
        ...


class _Leaf:
    """A reader without keys below it."""

    __slots__ = ()

    def below(self) -> tuple[type, ...]:
        """None."""
        return ()

    def strange(self, value: object, field: str) -> None:
        """Nothing is."""


@dataclass(frozen=True, slots=True)
class Anything(_Leaf):
    """Whatever its annotation says is for others to check."""

    wanted: str = "a value"

    def read(self, value: object, field: str) -> Any:
        """The value as it is."""
        return value


@dataclass(frozen=True, slots=True)
class Number(_Leaf):
    """A finite number in a range; a whole one may be written as 8.0, any as '1e9', which YAML 1.1
    takes for text."""

    whole: bool
    bounds: Bounds = ANY

    @property
    def wanted(self) -> str:
        """Its kind and its range."""
        return f"a {'whole number' if self.whole else 'number'} {self.bounds}".rstrip()

    def read(self, value: object, field: str) -> Any:
        """An int or a float."""
        number = self._taken(value)
        if number is None or not self.bounds.hold(number):
            raise wrong(field, self.wanted, value)
        return number

    def _taken(self, value: object) -> int | float | None:
        if isinstance(value, bool):
            return None
        if self.whole and isinstance(value, Integral):
            return int(value)
        if not isinstance(value, Real) and (self.whole or not isinstance(value, str)):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        if not math.isfinite(number) or (self.whole and not number.is_integer()):
            return None
        return int(number) if self.whole else number


@dataclass(frozen=True, slots=True)
class Flag(_Leaf):
    """True or false."""

    wanted: str = "true or false"

    def read(self, value: object, field: str) -> bool:
        """A bool."""
        if not isinstance(value, bool):
            raise wrong(field, self.wanted, value)
        return value


@dataclass(frozen=True, slots=True)
class Text(_Leaf):
    """A text."""

    wanted: str = "text"

    def read(self, value: object, field: str) -> str:
        """A str."""
        if not isinstance(value, str):
            raise wrong(field, self.wanted, value)
        return value


@dataclass(frozen=True, slots=True)
class File(_Leaf):
    """The path of a file or folder; ``~`` is the user's home."""

    wanted: str = "the path of a file"

    def read(self, value: object, field: str) -> Path:
        """A path, which nobody has looked for yet."""
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise wrong(field, self.wanted, value)
        try:
            return Path(value).expanduser()
        except RuntimeError:
            raise wrong(field, self.wanted, value) from None


@dataclass(frozen=True, slots=True)
class Choice(_Leaf):
    """One of several words."""

    valid: tuple[Any, ...]

    @property
    def wanted(self) -> str:
        """The words."""
        words = ", ".join(map(str, self.valid))
        return words if len(self.valid) == 1 else f"one of {words}"

    def read(self, value: object, field: str) -> Any:
        """The word."""
        if any(value == word and type(value) is type(word) for word in self.valid):
            return value
        error = wrong(field, self.wanted, value)
        hint = nearest(value, map(str, self.valid)) if isinstance(value, str) else ""
        if not hint.startswith("did"):
            raise error
        raise ScenarioError(field, f"{error.message} ({hint})")


@dataclass(frozen=True, slots=True)
class Row:
    """A list: of any length with ``rest``, or of one entry for each of ``entries``."""

    entries: tuple[Reader, ...]
    rest: bool

    @property
    def wanted(self) -> str:
        """What its entries are."""
        each = dict.fromkeys(entry.wanted for entry in self.entries)
        if self.rest:
            return f"a list, each entry {self.entries[0].wanted}"
        each_one = "each " if len(each) == 1 else ""
        return f"a list of {len(self.entries)}, {each_one}{', then '.join(each)}"

    def read(self, value: object, field: str) -> tuple[Any, ...]:
        """A tuple."""
        if not self._fits(value):
            raise wrong(field, self.wanted, value)
        listed = cast(Sequence[Any], value)
        readers = self._readers(listed)
        return tuple(
            reader.read(item, f"{field}[{i}]")
            for i, (reader, item) in enumerate(zip(readers, listed, strict=True))
        )

    def below(self) -> tuple[type, ...]:
        """What stands in its entries."""
        return tuple(kind for entry in self.entries for kind in entry.below())

    def strange(self, value: object, field: str) -> None:
        """Looks into each entry."""
        if self._fits(value):
            listed = cast(Sequence[Any], value)
            for i, (reader, item) in enumerate(zip(self._readers(listed), listed, strict=True)):
                reader.strange(item, f"{field}[{i}]")

    def _fits(self, value: object) -> bool:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        return self.rest or len(value) == len(self.entries)

    def _readers(self, listed: Sequence[Any]) -> Sequence[Reader]:
        return self.entries * len(listed) if self.rest else self.entries


@dataclass(frozen=True, slots=True)
class Nullable:
    """Something, or nothing: None stands for itself."""

    inner: Reader

    @property
    def wanted(self) -> str:
        """What it must be if it is anything."""
        return self.inner.wanted

    def read(self, value: object, field: str) -> Any:
        """None, or what the inner reader makes of it."""
        return None if value is None else self.inner.read(value, field)

    def below(self) -> tuple[type, ...]:
        """As the inner one."""
        return self.inner.below()

    def strange(self, value: object, field: str) -> None:
        """As the inner one."""
        self.inner.strange(value, field)


@dataclass(frozen=True, slots=True)
class Section:
    """The options of one of several dataclasses; the first whose tag is met is taken."""

    listed: tuple[type | Later, ...]

    @property
    def kinds(self) -> tuple[type, ...]:
        """The dataclasses."""
        return tuple(each.kind if isinstance(each, Later) else each for each in self.listed)

    @property
    def wanted(self) -> str:
        """A mapping, and a name where one stands for it."""
        return A_MAPPING if self._named is None else f"a name or {A_MAPPING}"

    @property
    def _named(self) -> Callable[[str, str], Any] | None:
        return getattr(self.kinds[0], "from_text", None)

    def read(self, value: object, field: str) -> Any:
        """An object of the class."""
        if isinstance(value, self.kinds):
            return value
        if isinstance(value, str) and self._named is not None:
            return self._named(value, field)
        if not isinstance(value, Mapping):
            raise wrong(field, self.wanted, value)
        return _nested(self._kind(value, field), value, field)

    def below(self) -> tuple[type, ...]:
        """The classes."""
        return self.kinds

    def strange(self, value: object, field: str) -> None:
        """Looks at the keys."""
        if not isinstance(value, Mapping):
            return
        known_keys(value, {key for kind in self.kinds for key in keys(kind)}, field)
        try:
            kind = self._kind(value, field)
        except ScenarioError:
            return  # said when it is read
        _strange(kind, value, field)

    def _kind(self, value: Mapping[Any, Any], field: str) -> type:
        if len(self.kinds) == 1:
            return self.kinds[0]
        words: list[Any] = []
        others: list[str] = []
        key = ""
        for kind in self.kinds:
            key, valid = tag(kind)
            found = value.get(key)
            if found is not None and (valid is None or found in valid):
                return kind
            words.extend(valid or ())
            others.extend([] if valid else [key])
        place, choice = join(field, key), Choice(tuple(words))
        if value.get(key) is None:
            instead = f", or instead {' or '.join(others)}" if others else ""
            raise missing(place, choice.wanted + instead)
        choice.read(value[key], place)
        raise AssertionError("a word that names no class")


@dataclass(frozen=True, slots=True)
class Either:
    """A single value, or options."""

    single: Reader
    section: Section

    @property
    def wanted(self) -> str:
        """Both."""
        return f"{self.single.wanted}, or {self.section.wanted}"

    def read(self, value: object, field: str) -> Any:
        """A mapping as options, all else as a single value."""
        if isinstance(value, (Mapping, *self.section.kinds)):
            return self.section.read(value, field)
        try:
            return self.single.read(value, field)
        except ScenarioError:
            raise wrong(field, self.wanted, value) from None

    def below(self) -> tuple[type, ...]:
        """The section's."""
        return self.section.below()

    def strange(self, value: object, field: str) -> None:
        """As the section."""
        self.section.strange(value, field)


_SIMPLE: Mapping[Any, Reader] = {bool: Flag(), str: Text(), Path: File()}


@lru_cache(maxsize=1024)
def _compiled(hint: Any, bounds: Bounds = ANY) -> Reader:
    """The reader of an annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = [note for note in arguments[1:] if isinstance(note, Bounds)]
        return _compiled(arguments[0], own[-1] if own else bounds)
    if origin in (Union, UnionType):
        return _union(arguments, bounds)
    if origin is Literal:
        return Choice(arguments)
    if origin is tuple and arguments and arguments != ((),):
        rest = len(arguments) == 2 and arguments[1] is Ellipsis
        entries = arguments[:1] if rest else arguments
        return Row(tuple(_compiled(entry, bounds) for entry in entries), rest)
    if hint in (int, float):
        return Number(hint is int, bounds)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, Later) or (isinstance(hint, type) and is_dataclass(hint)):
        return Section((hint,))
    return Anything()


def _union(arguments: tuple[Any, ...], bounds: Bounds) -> Reader:
    readers = [_compiled(each, bounds) for each in arguments if each is not NoneType]
    kinds = [kind for reader in readers if isinstance(reader, Section) for kind in reader.listed]
    single = [reader for reader in readers if not isinstance(reader, Section)]
    found: Reader
    if kinds and len(single) <= 1:
        section = Section(tuple(kinds))
        found = Either(single[0], section) if single else section
    else:
        found = single[0] if len(single) == 1 and not kinds else Anything()
    return Nullable(found) if NoneType in arguments else found


# Options of a class


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a class. default_factory: makes its default when somebody asks for it;
    `dataclasses.MISSING` where it must be given."""

    key: str
    reader: Reader
    default_factory: Callable[[], Any]
    doc: Doc

    @property
    def default(self) -> Any:
        """What it is where it is not given; `dataclasses.MISSING` where it must be."""
        return self.default_factory()

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def unit(self) -> str:
        """The unit of its number; '' where it has none."""
        if self.doc.unit:
            return self.doc.unit
        ends = [end for end in _UNITS if self.key.endswith(end)]
        return _UNITS[max(ends, key=len)] if ends else ""


_UNITS = {
    "_s": "seconds",
    "_tokens": "tokens",
    "_groups": "groups",
    "_gpus": "GPUs",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second",
    "_flop_per_s": "floating-point operations per second",
    "_usd_per_hour": "US dollars per hour",
    "_efficiency": "share of a peak",
}


_DECLARED: dict[type, tuple[Option, ...]] = {}


def declared(kind: type) -> tuple[Option, ...]:
    """The options of a dataclass, in order; none of another class."""
    if kind not in _DECLARED:
        _DECLARED[kind] = _options(kind) if is_dataclass(kind) else ()
    return _DECLARED[kind]


def _options(kind: type) -> tuple[Option, ...]:
    hints = _hints(kind)
    found = []
    for each in fields(kind):
        if not each.init or each.name.startswith("_") or each.name in getattr(kind, "FIXED", ()):
            continue
        hint = hints.get(each.name, Any)
        factory = each.default_factory
        default = partial(getattr, each, "default") if factory is MISSING else factory
        notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
        docs = [note for note in notes if isinstance(note, Doc)]
        found.append(Option(each.name, _compiled(hint), default, docs[-1] if docs else Doc("")))
    return tuple(found)


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a class; one that names what only a type checker sees is left out."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        names = vars(sys.modules.get(owner.__module__, object))
        for key, hint in inspect.get_annotations(owner).items():
            try:
                found[key] = eval(hint, dict(names)) if isinstance(hint, str) else hint
            except Exception:  # whatever an annotation raises
                found.pop(key, None)
    return found


def keys(kind: type) -> tuple[str, ...]:
    """Every key that a mapping for ``kind`` may hold."""
    own = [option.key for option in declared(kind)]
    chosen = getattr(kind, "TAG", None)
    return (*([chosen[0]] if chosen else []), *own, *getattr(kind, "ALSO", {}))


def tag(kind: type) -> tuple[str, tuple[Any, ...] | None]:
    """The key that chooses ``kind`` among several, and its values; any value for None."""
    chosen = getattr(kind, "TAG", None)
    if chosen is not None:
        return chosen[0], (chosen[1],)
    first = declared(kind)[0]
    return first.key, first.reader.valid if isinstance(first.reader, Choice) else None


# Reading


def read(
    kind: type[T],
    value: object,
    field: str = "",
    *,
    base: T | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """The object of ``kind`` that a mapping describes.

    field: the mapping's dotted key. base: what a key that is not given is taken from; without it,
    from ``defaults``, then from the class. A key set to null counts as not given, unless None is
    among its values.

    Raises ScenarioError that names the key: for an unknown one anywhere below, if there is one,
    else for the first that is missing or wrong.
    """
    if isinstance(value, kind):
        return value
    _strange(kind, value, field)
    return _build(kind, value, field, base, defaults or {})


def check(made: object, field: str) -> None:
    """Brings the options of an object that Python code built to their types, in place.

    Raises ScenarioError naming the first that is wrong, below ``field``."""
    for option in declared(type(made)):
        value = getattr(made, option.key)
        taken = option.reader.read(value, join(field, option.key))
        if taken is not value:
            object.__setattr__(made, option.key, taken)


def given(made: object) -> dict[str, Any]:
    """The options of an object by name."""
    return {option.key: getattr(made, option.key) for option in declared(type(made))}


def _strange(kind: type, value: object, field: str) -> None:
    """Raises ScenarioError for the first unknown key in ``value`` or below it."""
    if not isinstance(value, Mapping):
        return
    known_keys(value, keys(kind), field)
    for option in declared(kind):
        if option.key in value:
            option.reader.strange(value[option.key], join(field, option.key))


def _nested(kind: type, value: Mapping[Any, Any], field: str) -> Any:
    own = getattr(kind, "from_mapping", None)
    if own is not None:
        return own(value, field)
    return _build(kind, value, field, None, {})


def _build(
    kind: type[T], value: object, field: str, base: T | None, defaults: Mapping[str, Any]
) -> T:
    if not isinstance(value, Mapping):
        raise wrong(field, A_MAPPING, value)
    values: dict[str, Any] = {}
    for option in declared(kind):
        place = join(field, option.key)
        item = value.get(option.key)
        if item is None and (option.key not in value or not isinstance(option.reader, Nullable)):
            if base is None and option.key in defaults:
                values[option.key] = defaults[option.key]
            elif base is None and option.required:
                raise missing(place, option.reader.wanted)
            continue
        values[option.key] = option.reader.read(item, place)
    try:
        return kind(**values) if base is None else replace(cast(Any, base), **values)
    except ScenarioError as error:  # it knows where Python code would have built it
        home = getattr(kind, "FIELD", "")
        if not home or (error.field != home and not error.field.startswith(f"{home}.")):
            raise
        raise ScenarioError(field + error.field.removeprefix(home), error.message) from None


def reader_of(hint: Any) -> Reader:
    """The reader of an annotation."""
    try:
        return _compiled(hint)
    except TypeError:  # it cannot be hashed
        return Anything()


def take(hint: Any, value: object, field: str) -> Any:
    """``value`` as an annotation asks, such as a union of dataclasses. Raises ScenarioError."""
    reader = _compiled(hint)
    reader.strange(value, field)
    return reader.read(value, field)


# Single values


def number(value: object, field: str, bounds: Bounds = NOT_NEGATIVE) -> float:
    """``value`` as a finite float in a range. Raises ScenarioError naming ``field``."""
    return float(Number(False, bounds).read(value, field))


def whole(value: object, field: str, bounds: Bounds = NOT_NEGATIVE) -> int:
    """``value`` as an int in a range. Raises ScenarioError naming ``field``."""
    return int(Number(True, bounds).read(value, field))


def flag(value: object, field: str) -> bool:
    """``value`` as a bool. Raises ScenarioError naming ``field``."""
    return Flag().read(value, field)


def choice(value: object, field: str, valid: Iterable[str]) -> str:
    """``value`` as one of the ``valid`` words. Raises ScenarioError naming ``field``."""
    return str(Choice(tuple(valid)).read(value, field))


def mapping(value: object, field: str) -> Mapping[Any, Any]:
    """``value`` as a mapping. Raises ScenarioError naming ``field``."""
    if not isinstance(value, Mapping):
        raise wrong(field, A_MAPPING, value)
    return value
