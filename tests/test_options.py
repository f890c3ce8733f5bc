"""One reader of checked options: what it takes, and what it says of what it does not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import OldName, ScenarioError
from rollcast.simulator.values import (
    Above,
    AtLeast,
    Between,
    Bounds,
    Doc,
    Options,
    declared,
    nearest,
    number,
    read,
    take,
    whole,
)
from tests.refusals import refuses


@dataclass(frozen=True)
class Inner(Options):
    FIELD = "top.inner"

    low: Annotated[float, AtLeast(0)] = 0.0
    high: float = 1.0

    def agree(self) -> None:
        if self.low > self.high:
            raise self.refuse("low", "is above high")


@dataclass(frozen=True)
class Round(Options):
    TAG = ("shape", "round")

    radius: Annotated[float, Above(0)]


@dataclass(frozen=True)
class Square(Options):
    TAG = ("shape", "square")

    side: Annotated[float, Above(0, 10, below=True)]


@dataclass(frozen=True)
class Top(Options):
    FIELD = "top"

    count: Annotated[int, Between(1, 8), Doc("how many", unit="things")]
    size_tokens: float = 2.0
    kind: Literal["first", "second"] = "first"
    on: bool = False
    limit: Annotated[int, AtLeast(2)] | None = None
    weights: tuple[float, ...] = ()
    pair: tuple[int, float] = (1, 1.0)
    path: Path | None = None
    title: str = "none"
    inner: Inner = field(default_factory=Inner)
    rows: tuple[Inner, ...] = ()
    shape: Round | Square | None = None
    either: Annotated[int, AtLeast(1)] | Inner = 3


def refused(value: Any, key: str, *words: str) -> None:
    with refuses(key) as caught:
        read(Top, value, "top")
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize(
    ("given_", "key", "said"),
    [
        ({}, "count", "missing; give a whole number from 1 to 8"),
        ({"count": None}, "count", "missing; give a whole number from 1 to 8"),
        ({"count": 1, "cuont": 2}, "cuont", "unknown key; did you mean count or on?"),
        ({"count": 1, 3: 2}, "3", "unknown key; valid: count, either, inner"),
        ({"count": 9}, "count", "must be a whole number from 1 to 8, got 9"),
        ({"count": 1.5}, "count", "must be a whole number from 1 to 8, got 1.5"),
        ({"count": True}, "count", "must be a whole number from 1 to 8, got True"),
        ({"count": "4"}, "count", "must be a whole number from 1 to 8, got '4'"),
        ({"count": 1, "size_tokens": math.inf}, "size_tokens", "must be a number, got inf"),
        ({"count": 1, "size_tokens": 10**400}, "size_tokens", "must be a number, got 1000"),
        (
            {"count": 1, "kind": "frist"},
            "kind",
            "must be one of first, second, got 'frist' (did you mean first?)",
        ),
        ({"count": 1, "kind": 1}, "kind", "must be one of first, second, got 1"),
        ({"count": 1, "on": "yes"}, "on", "must be true or false, got 'yes'"),
        ({"count": 1, "limit": 1}, "limit", "must be a whole number of 2 or more, got 1"),
        ({"count": 1, "weights": 3}, "weights", "must be a list, each entry a number, got 3"),
        ({"count": 1, "weights": [1, "x"]}, "weights[1]", "must be a number, got 'x'"),
        (
            {"count": 1, "pair": [1]},
            "pair",
            "must be a list of 2, a whole number, then a number, got [1]",
        ),
        ({"count": 1, "path": ""}, "path", "must be the path of a file, got ''"),
        ({"count": 1, "path": "a\0b"}, "path", "must be the path of a file, got 'a\\x00b'"),
        ({"count": 1, "title": 3}, "title", "must be text, got 3"),
        ({"count": 1, "inner": 3}, "inner", "must be a mapping of keys to values, got 3"),
        ({"count": 1, "inner": {"low": -1}}, "inner.low", "must be a number of 0 or more, got -1"),
        ({"count": 1, "inner": {"low": 2}}, "inner.low", "is above high"),
        ({"count": 1, "rows": [{}, {"low": 2}]}, "rows[1].low", "is above high"),
        ({"count": 1, "shape": {}}, "shape.shape", "missing; give one of round, square"),
        (
            {"count": 1, "shape": {"shape": "suare"}},
            "shape.shape",
            "must be one of round, square, got 'suare' (did you mean square?)",
        ),
        (
            {"count": 1, "shape": {"shape": "round", "side": 1}},
            "shape.side",
            "does not go with shape: round; set one of them to null, or give beside it only radius",
        ),
        (
            {"count": 1, "shape": {"shape": "square", "side": 10}},
            "shape.side",
            "must be a number above 0 and below 10, got 10",
        ),
        (
            {"count": 1, "either": 0},
            "either",
            "must be a whole number of 1 or more, or a mapping of keys to values, got 0",
        ),
        (None, "", "must be a mapping of keys to values, got None"),
        ([1], "", "must be a mapping of keys to values, got [1]"),
    ],
)
def test_each_complaint_names_its_key_in_one_wording(given_: Any, key: str, said: str) -> None:
    refused(given_, f"top.{key}" if key else "top", said)


def test_an_unknown_key_comes_before_anything_that_is_wrong() -> None:
    refused({"count": 99, "inner": {"lwo": 1}}, "top.inner.lwo", "did you mean low?")
    refused({"rows": [{}, {"hihg": 1}]}, "top.rows[1].hihg", "did you mean high?")
    refused({"shape": {"shape": "round", "raduis": 1}}, "top.shape.raduis", "radius")


def test_what_is_right_comes_in_its_type() -> None:
    made = read(
        Top,
        {
            "count": 4.0,
            "size_tokens": "1e3",
            "limit": None,
            "weights": [1, 2],
            "pair": (2, 3),
            "path": "a/b",
            "inner": {"high": 2},
            "shape": {"shape": "square", "side": 1},
            "either": {"low": 1},
            "title": None,
        },
    )
    assert made == Top(
        4,
        1000.0,
        limit=None,
        weights=(1.0, 2.0),
        pair=(2, 3.0),
        path=Path("a/b"),
        inner=Inner(0.0, 2.0),
        shape=Square(1.0),
        either=Inner(1.0),
    )
    assert type(made.count) is int
    assert type(made.size_tokens) is float


def test_null_is_a_value_where_it_may_be_one_and_otherwise_left_out() -> None:
    @dataclass(frozen=True)
    class Nulls(Options):
        norm: float | None = 1.0
        share: float = 0.5

    assert read(Nulls, {"norm": None, "share": None}) == Nulls(None, 0.5)


def test_python_code_is_checked_as_a_scenario_is() -> None:
    for wrong, key in (({"count": 0}, "count"), ({"count": 1, "inner": None}, "inner")):
        with pytest.raises(ScenarioError) as caught:
            Top(**wrong)  # type: ignore[arg-type]
        assert caught.value.field == f"top.{key}"
    with pytest.raises(ScenarioError, match=r"^top\.inner\.low: is above high$"):
        Inner(3.0)


def test_a_base_gives_what_is_not_given() -> None:
    base = Top(3, kind="second")
    assert read(Top, {"on": True}, base=base) == Top(3, kind="second", on=True)
    assert read(Top, {"kind": None}, base=base) == base
    assert read(Top, {}, defaults={"count": 5}) == Top(5)
    assert read(Top, base) is base


def test_an_error_of_another_place_keeps_its_name() -> None:
    @dataclass(frozen=True)
    class Other(Options):
        FIELD = "other"

        share: float = 1.0

        def agree(self) -> None:
            raise ScenarioError("cluster.replicas", "is elsewhere")

    with pytest.raises(ScenarioError, match=r"^cluster\.replicas: is elsewhere$"):
        read(Other, {}, "here")


@dataclass(frozen=True)
class Later(Options):
    RENAMED: ClassVar[dict[str, str]] = {"pace": "speed"}

    speed: Annotated[float, AtLeast(0)] = 1.0


@dataclass(frozen=True)
class Holds(Options):
    one: Later | None = None
    any_of: Round | Later | None = None


@pytest.mark.parametrize("key", ["one", "any_of"])
def test_an_old_name_is_read_and_told(key: str) -> None:
    with pytest.warns(OldName, match=rf"^top\.{key}\.pace is called top\.{key}\.speed now"):
        made = read(Holds, {key: {"pace": 3}}, "top")
    assert getattr(made, key) == Later(3.0)
    with (
        pytest.warns(OldName),
        pytest.raises(ScenarioError, match=rf"^top\.{key}\.speed: must be a number of 0 or more"),
    ):
        read(Holds, {key: {"pace": -1}}, "top")
    with pytest.raises(ScenarioError, match=rf"top\.{key}\.pace: is the old name of .*speed"):
        read(Holds, {key: {"pace": 3, "speed": 3}}, "top")
    with pytest.raises(ScenarioError, match="did you mean speed"):
        read(Holds, {key: {"sped": 3}}, "top")


def test_declared_options_have_units_and_meanings() -> None:
    options = {option.key: option for option in declared(Top)}
    assert options["count"].required
    assert (options["count"].unit, options["count"].doc.meaning) == ("things", "how many")
    assert options["size_tokens"].unit == "tokens"
    assert options["inner"].default == Inner()
    assert declared(int) == ()


def test_hints_name_each_word_once() -> None:
    assert nearest("zzz", ["family", "runaway", "family"]) == "valid: family, runaway"
    assert nearest("famly", ["family", "family"]) == "did you mean family?"
    assert nearest("H200", ["gh200", "h20", "h200-sxm"]) == "did you mean h200-sxm?"


FIGURES = st.floats(allow_nan=False, allow_infinity=False)


@given(FIGURES, FIGURES, FIGURES, st.booleans(), st.booleans())
def test_bounds_hold_what_they_say(
    low: float, high: float, value: float, above: bool, below: bool
) -> None:
    bounds = Bounds(low, high, above, below)
    expected = (value > low if above else value >= low) and (
        value < high if below else value <= high
    )
    assert bounds.hold(value) == expected
    if expected:
        assert number(value, "x", bounds) == value
    else:
        with pytest.raises(ScenarioError, match=r"^x: must be a number (from|above)"):
            number(value, "x", bounds)


@given(st.integers(0, 2**64 - 1))
def test_whole_numbers_are_exact(value: int) -> None:
    assert whole(value, "x", Between(0, 2**64 - 1)) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["low", "high", "shape", "side"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON, st.sampled_from([option.key for option in declared(Top)]))
def test_anything_is_taken_or_refused_by_name(value: Any, key: str) -> None:
    made = attempted(lambda: read(Top, {"count": 1, key: value}, "top"))
    if isinstance(made, ScenarioError):
        place = f"top.{key}"
        assert made.field == place or made.field.startswith((f"{place}.", f"{place}["))
    else:
        assert read(Top, made) is made


@given(JSON)
def test_a_union_takes_or_refuses_anything(value: Any) -> None:
    made = attempted(lambda: take(Round | Square, value, "x"))
    assert isinstance(made, Round | Square) or made.field.startswith("x")


def attempted(call: Callable[[], Any]) -> Any:
    """What a call returns, or the refusal that it raises."""
    try:
        return call()
    except ScenarioError as error:
        return error
