"""Options of scenarios, policies and fitted files, declared once, by annotations.

An option is a field of a frozen dataclass::

    @dataclass(frozen=True)
    class APRIL(Policy):
        over_sampling: Annotated[float, Between(1, 1000), Doc("groups launched a step ...")] = 2.0

`read` makes the object from a mapping, `check` checks one that Python code built, and `declared`
lists the options with ranges, defaults, units and meanings, for ``rollcast explain``. Plain
annotations do: ``share: float = 0.5`` is checked to be a finite number. A ScenarioError names the
key that is unknown (with the nearest valid name), missing or wrong.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from rollcast.simulator.errors import OldName, ScenarioError
from rollcast.simulator.values.later import Later
from rollcast.simulator.values.readers import (
    ANY,
    AnyOf,
    Anything,
    Bounds,
    Choice,
    File,
    Flag,
    Nullable,
    Number,
    Reader,
    Row,
    Text,
)
from rollcast.simulator.values.words import A_MAPPING, check_unknown_keys, join, missing, wrong

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Doc:
    """What an option means.

    unit: of its number, where the end of its name does not say (``_s``, ``_tokens``, ...).
    source: where its default comes from.
    """

    meaning: str
    unit: str = ""
    source: str = ""

    @property
    def sentence(self) -> str:
        """The meaning as it stands alone."""
        first = self.meaning.split(" ", 1)[0]
        text = (
            self.meaning[:1].upper() + self.meaning[1:]
            if first.replace("-", "").isalpha() and first.islower()
            else self.meaning
        )
        return f"{text}." if text else ""


class Options:
    """Base of a frozen dataclass whose fields are options: whoever builds one, they are checked.

    FIELD: the dotted key that errors start with where Python code builds it. TAG: the key, and the
    value of it, that choose this class among others (`declared`'s first option where None).
    CHOSEN_BY: keys of which each chooses it, whatever tags the others have.
    ALSO: keys that a ``from_mapping`` of its own reads beside the fields. RENAMED: keys by their
    old names, which are still read. DEFAULTS: in words, what ``from_mapping`` takes where a field
    without a default is not given. FIXED: fields that are no options. SOURCES: where defaults come
    from, by key, for a `Doc` that has no source. A class method ``from_text(text, field)`` reads a
    name that stands for a mapping.
    """

    __slots__ = ()
    FIELD: ClassVar[str] = ""
    TAG: ClassVar[tuple[str, str] | None] = None
    CHOSEN_BY: ClassVar[tuple[str, ...]] = ()
    ALSO: ClassVar[Mapping[str, Doc]] = {}
    RENAMED: ClassVar[Mapping[str, str]] = {}
    DEFAULTS: ClassVar[Mapping[str, str]] = {}
    FIXED: ClassVar[tuple[str, ...]] = ()
    SOURCES: ClassVar[Mapping[str, object]] = {}

    def __post_init__(self) -> None:
        check(self, self.FIELD)
        self.agree()

    def agree(self) -> None:
        """Raises ScenarioError where options that are each right contradict one another."""

    @classmethod
    def refuse(cls, key: str, message: str) -> ScenarioError:
        """The error of one option, for `agree` to raise."""
        return ScenarioError(join(cls.FIELD, key), message)


@dataclass(frozen=True, slots=True)
class Section(Reader):
    """The options of one of several dataclasses; the first whose tag is met is taken."""

    listed: tuple[type | Later, ...]

    @property
    def kinds(self) -> tuple[type, ...]:
        """The dataclasses."""
        return tuple(kind.kind if isinstance(kind, Later) else kind for kind in self.listed)

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
        for kind in self.kinds:
            value = _renamed(kind, value, field)
        return _nested(self._kind(value, field), value, field)

    def below(self) -> tuple[type, ...]:
        """The classes."""
        return self.kinds

    def check_keys(self, value: object, field: str) -> None:
        """Looks at the keys."""
        if not isinstance(value, Mapping):
            return
        for kind in self.kinds:
            value = _renamed(kind, value, field)
        check_unknown_keys(value, {key for kind in self.kinds for key in keys(kind)}, field)
        try:
            kind = self._kind(value, field)
        except ScenarioError:
            return  # said when it is read
        valid = keys(kind)
        others = [key for key in value if key not in valid]
        for key in others:
            if value[key] is not None:
                chosen = _choice(kind, value)
                beside = [name for name in valid if name != chosen.partition(":")[0]]
                only = f", or give beside it only {', '.join(beside)}" if beside else ""
                raise ScenarioError(
                    join(field, key), f"does not go with {chosen}; set one of them to null{only}"
                )
        _check_keys(kind, {key: item for key, item in value.items() if key in valid}, field)

    def _kind(self, value: Mapping[Any, Any], field: str) -> type:
        if len(self.kinds) == 1:
            return self.kinds[0]
        for kind in self.kinds:
            if any(value.get(key) is not None for key in getattr(kind, "CHOSEN_BY", ())):
                return kind
        words: list[Any] = []
        others: list[str] = []
        key = ""
        for kind in self.kinds:
            key, valid = tag(kind)
            named = value.get(key)
            if named is not None and (valid is None or named in valid):
                return kind
            words.extend(valid or ())
            others.extend([] if valid else [key])
        place, choice = join(field, key), Choice(tuple(words))
        if value.get(key) is None:
            instead = f", or instead {' or '.join(others)}" if others else ""
            raise missing(place, choice.wanted + instead)
        choice.read(value[key], place)
        raise AssertionError("a word that names no class")


def _choice(kind: type, value: Mapping[Any, Any]) -> str:
    """The key of ``value`` that chooses ``kind``, with its value where that matters."""
    for key in getattr(kind, "CHOSEN_BY", ()):
        if value.get(key) is not None:
            return str(key)
    key, valid = tag(kind)
    return f"{key}: {value[key]}" if valid is not None else key


@dataclass(frozen=True, slots=True)
class Either(Reader):
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

    def check_keys(self, value: object, field: str) -> None:
        """As the section."""
        self.section.check_keys(value, field)


_SIMPLE: Mapping[Any, Reader] = {bool: Flag(), str: Text(), Path: File()}


@lru_cache(maxsize=1024)
def _compiled(hint: Any, bounds: Bounds = ANY) -> Reader:
    """The reader of an annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own_bounds = [note for note in arguments[1:] if isinstance(note, Bounds)]
        return _compiled(arguments[0], own_bounds[-1] if own_bounds else bounds)
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
    readers = [_compiled(argument, bounds) for argument in arguments if argument is not NoneType]
    kinds = [kind for reader in readers if isinstance(reader, Section) for kind in reader.listed]
    single = [reader for reader in readers if not isinstance(reader, Section)]
    result: Reader
    if kinds and len(single) <= 1:
        section = Section(tuple(kinds))
        result = Either(single[0], section) if single else section
    else:
        if kinds or any(isinstance(reader, Anything) for reader in single):
            single = [Anything()]
        result = single[0] if len(single) == 1 else AnyOf(tuple(single))
    return Nullable(result) if NoneType in arguments else result


# Options of a class


@dataclass(frozen=True, slots=True)
class Option:
    """One option. default_factory: makes its default; `dataclasses.MISSING` if required."""

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
        ends = [end for end in _UNITS if f"_{self.key}".endswith(end)]
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
    options = []
    for field in fields(kind):
        if not field.init or field.name.startswith("_") or field.name in getattr(kind, "FIXED", ()):
            continue
        hint = hints.get(field.name, Any)
        factory = field.default_factory
        default = partial(getattr, field, "default") if factory is MISSING else factory
        notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
        doc = next((note for note in reversed(notes) if isinstance(note, Doc)), Doc(""))
        source = getattr(kind, "SOURCES", {}).get(field.name, "")
        if source and not doc.source:
            doc = replace(doc, source=str(source))
        options.append(Option(field.name, _compiled(hint), default, doc))
    return tuple(options)


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a class; one that names what only a type checker sees is left out."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        hints: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        names = vars(sys.modules.get(owner.__module__, object))
        for key, hint in inspect.get_annotations(owner).items():
            try:
                hints[key] = eval(hint, dict(names)) if isinstance(hint, str) else hint
            except Exception:  # whatever an annotation raises
                hints.pop(key, None)
    return hints


def keys(kind: type) -> tuple[str, ...]:
    """Every key that a mapping for ``kind`` may hold."""
    known = [option.key for option in declared(kind)]
    chosen = getattr(kind, "TAG", None)
    return (*([chosen[0]] if chosen else []), *known, *getattr(kind, "ALSO", {}))


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

    field: the mapping's dotted key. base: the object that other keys are taken from; else
    ``defaults``, then the class. A key set to null counts as not given unless None is a valid
    value.

    Raises ScenarioError naming the first unknown key anywhere below, else the first that is missing
    or wrong.
    """
    if isinstance(value, kind):
        return value
    _check_keys(kind, value, field)
    return _build(kind, value, field, base, defaults or {})


def check(made: object, field: str) -> None:
    """Converts the options of an object built in Python to their types, in place. Raises
    ScenarioError naming the first wrong one below ``field``."""
    kind: Any = type(made)
    for key, read_one, place, default in _readers(kind, field):
        value = getattr(made, key)
        if value is default:
            continue
        taken = read_one(value, place)
        if taken is not value:
            object.__setattr__(made, key, taken)


@lru_cache(maxsize=1024)
def _readers(
    kind: type, field: str
) -> tuple[tuple[str, Callable[[object, str], Any], str, object], ...]:
    """Each option's key, what reads it, its dotted name, and its default where reading that leaves
    it as it is: most options are not given. One that a factory makes is another each time."""
    options, found = declared(kind), []
    defaults = {one.name: one.default for one in fields(kind)} if options else {}
    for option in options:
        read_one, place = option.reader.read, join(field, option.key)
        default = defaults.get(option.key, MISSING)
        try:
            kept = default is not MISSING and read_one(default, place) is default
        except ScenarioError:
            kept = False
        found.append((option.key, read_one, place, default if kept else MISSING))
    return tuple(found)


def given(made: object) -> dict[str, Any]:
    """The options of an object by name."""
    return {option.key: getattr(made, option.key) for option in declared(type(made))}


def _check_keys(kind: type, value: object, field: str) -> None:
    """Raises ScenarioError for the first unknown key in ``value`` or below it."""
    if not isinstance(value, Mapping):
        return
    value = _renamed(kind, value, field)
    check_unknown_keys(value, keys(kind), field)
    for option in declared(kind):
        if option.key in value:
            option.reader.check_keys(value[option.key], join(field, option.key))


def _renamed(kind: type, value: Mapping[Any, Any], field: str) -> Mapping[Any, Any]:
    """``value`` with today's names of its keys, and a warning for each old one. Raises
    ScenarioError for a key under both names."""
    for old, key in getattr(kind, "RENAMED", {}).items():
        if old not in value:
            continue
        place, now = join(field, old), join(field, key)
        if key in value:
            raise ScenarioError(
                place, f"is the old name of {now}, which is given too; leave it out"
            )
        warnings.warn(f"{place} is called {now} now; use that name", OldName, stacklevel=2)
        value = {key if given == old else given: item for given, item in value.items()}
    return value


def _nested(kind: type, value: Mapping[Any, Any], field: str) -> Any:
    from_mapping = getattr(kind, "from_mapping", None)
    if from_mapping is not None:
        return from_mapping(value, field)
    return _build(kind, value, field, None, {})


def _build(
    kind: type[T], value: object, field: str, base: T | None, defaults: Mapping[str, Any]
) -> T:
    if not isinstance(value, Mapping):
        raise wrong(field, A_MAPPING, value)
    value = _renamed(kind, value, field)
    values: dict[str, Any] = {}
    for option in declared(kind):
        item = value.get(option.key)
        if item is None and (option.key not in value or not isinstance(option.reader, Nullable)):
            if base is None and option.key in defaults:
                values[option.key] = defaults[option.key]
            elif base is None and option.required:
                raise missing(join(field, option.key), option.reader.wanted)
            continue
        values[option.key] = option.reader.read(item, join(field, option.key))
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
    reader.check_keys(value, field)
    return reader.read(value, field)
