"""Objects as plain data and back: the same object, or a sentence; never code."""

import json
import sys
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import Policy, chain
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.loop import Loop
from rollcast.simulator.loop.policy_state import load_state, save_state
from rollcast.simulator.policies import POLICIES, parse_policy
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.plain import from_plain, to_plain
from tests.scenarios import TINY


class Pair(NamedTuple):
    left: int
    right: float | None


@dataclass(slots=True)
class Whole:
    name: str
    kind: Literal["a", "b"]
    pairs: list[Pair]
    by_number: dict[int, tuple[float, ...]]
    queue: deque[bool]
    anything: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("count", "inner")
    count: int
    inner: Whole | None

    def __init__(self, count: int, inner: Whole | None) -> None:
        self.count, self.inner = count, inner


numbers = st.floats(allow_nan=False)
pairs = st.builds(Pair, st.integers(), st.none() | numbers)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
wholes = st.builds(
    Whole,
    st.text(),
    st.sampled_from(["a", "b"]),
    st.lists(pairs),
    st.dictionaries(st.integers(), st.lists(numbers).map(tuple)),
    st.lists(st.booleans()).map(deque),
    st.dictionaries(st.text(), plain),
)


@given(wholes)
def test_an_object_comes_back_from_json(whole: Whole) -> None:
    text = json.dumps(to_plain(whole))
    assert from_plain(json.loads(text), Whole, "it") == whole
    back: Slotted = from_plain(json.loads(json.dumps(to_plain(Slotted(3, whole)))), Slotted, "it")
    assert (back.count, back.inner) == (3, whole)


@given(plain)
def test_other_data_are_refused_or_of_the_type(data: Any) -> None:
    for hint in (Whole, Pair, list[Pair], Slotted, dict[int, float], tuple[int, str]):
        try:
            found = from_plain(data, hint, "it")
        except ValueError:
            continue
        assert json.loads(json.dumps(to_plain(found))) == data or data in ({}, [])


@pytest.mark.parametrize(
    ("data", "hint", "message"),
    [
        (True, int, "it: must be a whole number, got True"),
        (1.5, int, r"it: must be a whole number, got 1\.5"),
        ("x" * 99, float, r"it: must be a number, got 'xxx.*\.\.\."),
        ([1, 2, 3], Pair, r"it: must be a list of 2, got \[1, 2, 3\]"),
        ([[1, "x"]], list[Pair], r"it\[0\].right: must be a number, got 'x'"),
        ({"name": "x"}, Whole, "it: must be the fields of a Whole, got"),
        ({"x": 1}, list[int], "it: must be a list, each entry a whole number, got"),
        ([[0, 1], [0, 2]], dict[int, float], "it: holds 0 twice"),
        ("c", Literal["a", "b"], "it: must be one of a, b, got 'c'"),
    ],
)
def test_what_is_wrong_is_said(data: Any, hint: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        from_plain(data, hint, "it")


def test_what_is_no_plain_data_is_not_written() -> None:
    for value in (object(), {1, 2}, b"x", np.zeros(2), [Random(0)]):
        with pytest.raises(TypeError, match="is no plain data"):
            to_plain(value)


# States of policies


@dataclass(frozen=True)
class Learnt:
    rates: tuple[tuple[int, float], ...]
    seen: frozenset[int] = frozenset()
    scale: Any = None


class Remembering(Policy):
    """A policy whose state is given."""

    def __init__(self, first: Any = None) -> None:
        self.first = first

    def init(self) -> Any:
        return self.first


inner = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | numbers | st.text(),
    lambda each: (
        st.lists(each)
        | st.lists(each).map(tuple)
        | st.lists(each).map(deque)
        | st.dictionaries(st.text() | st.integers() | st.just("is"), each)
        | st.tuples(st.integers(), st.none() | numbers).map(lambda pair: Pair(*pair))
    ),
    max_leaves=10,
)
learnt = st.builds(
    Learnt,
    st.lists(st.tuples(st.integers(), numbers)).map(tuple),
    st.frozensets(st.integers()),
    inner,
)


@given(inner | learnt | st.sets(st.integers()))
def test_a_state_comes_back_from_json(state: Any) -> None:
    policy = Remembering()
    back = load_state(policy, json.loads(json.dumps(save_state(policy, state))))
    assert back == state
    assert type(back) is type(state)


@pytest.mark.parametrize("kind", ["bool", "int64", "float64"])
def test_arrays_of_numbers_come_back(kind: str) -> None:
    policy, state = Remembering(), np.arange(6).reshape(2, 3).astype(kind)
    back = load_state(policy, json.loads(json.dumps(save_state(policy, (state, np.int64(3))))))
    assert back[1] == 3
    assert back[0].dtype == state.dtype
    assert (back[0] == state).all()
    assert back[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Random(0), "it holds a random.Random"),
        ((1, [object()]), "it holds a builtins.object"),
        ({"f": len}, "it holds a builtins.builtin_function_or_method"),
        (np.array(["x"]), "it holds an array of str"),
        (np.random.default_rng(0), "it holds a numpy.random._generator.Generator"),
    ],
)
def test_a_state_that_is_no_plain_data_is_an_error_that_says_so(state: Any, said: str) -> None:
    with pytest.raises(RunError, match=f"Remembering's state cannot be saved: {said}") as caught:
        save_state(chain(Remembering(), Remembering()), (None, state))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policys_state_comes_back(name: str) -> None:
    spelt = "pods(keep=2)" if name == "pods" else name
    world = from_raw(parse_scenario(TINY), "cluster.placement=disaggregated").world()
    policy = parse_policy(spelt if name == "sagc" else f"sagc+{spelt}", seed=3)
    loop = Loop(world, policy, StepPlan(Batch(4, 4)))
    loop.run(5)
    state = loop.policy_state
    back = load_state(policy, json.loads(json.dumps(save_state(policy, state))))
    assert back == state
    assert back[0].draws == 5


@pytest.mark.parametrize(
    "data",
    [
        {"is": "record", "of": "Popen", "fields": {}},
        {"is": "record", "of": "Remembering", "fields": {"first": 1}},
        {"is": "record", "of": "Pair", "fields": {"left": 1}},
        {"is": "record", "of": "Pair", "fields": {"left": "x", "right": None}},
        {"is": "record", "of": ["Pair"], "fields": {}},
        {"is": "system", "of": ["true"]},
        {"is": "tuple"},
        {"is": "set", "of": [[1]]},
        {"is": "mapping", "of": [[1, 2, 3]]},
        {"is": "mapping", "of": [[[1], 2]]},
        {"is": "array", "of": [1, 2, 3], "shape": [2], "dtype": "float64"},
        {"is": "array", "of": ["x"], "shape": [1], "dtype": "float64"},
        {"is": "array", "of": [2**70], "shape": [1], "dtype": "int64"},
        {"is": "array", "of": [1], "shape": [1], "dtype": "object"},
    ],
)
def test_data_that_are_no_state_are_refused(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentences differ
        load_state(Remembering(), data)
    with pytest.raises(ValueError, match="Remembering's state is a tuple in place of a list"):
        load_state(Remembering([]), {"is": "tuple", "of": []})
    with pytest.raises(ValueError, match="not one state for each policy"):
        load_state(chain(Remembering()), [None, None])


def test_a_state_nested_too_deep_is_refused() -> None:
    data: Any = None
    for _ in range(2 * sys.getrecursionlimit()):
        data = [data]
    with pytest.raises(ValueError, match="Remembering's state"):
        load_state(Remembering(), data)
    with pytest.raises(RunError, match="cannot be saved"):
        save_state(Remembering(), data)
