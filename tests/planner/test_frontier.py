"""The front of hours against cost, against its definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.planner.frontier import behind_front, on_front

points = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=14)


@given(points)
def test_the_front_holds_what_nothing_beats(found: list[tuple[int, int]]) -> None:
    front = on_front(*zip(*found, strict=True))
    for (a, b), marked in zip(found, front, strict=True):
        beaten = any((c <= a and d < b) or (c < a and d <= b) for c, d in found)
        assert marked != beaten


@given(points)
def test_how_far_behind(found: list[tuple[int, int]]) -> None:
    h, c = (np.array(values, dtype=float) for values in zip(*found, strict=True))
    for i, factor in enumerate(behind_front(h, c)):
        assert factor >= 1
        nearer = h.copy(), c.copy()
        nearer[0][i] /= factor * (1 + 1e-9)
        nearer[1][i] /= factor * (1 + 1e-9)
        assert on_front(*nearer)[i]
        if factor > 1:
            short = h.copy(), c.copy()
            short[0][i] /= factor * (1 - 1e-6)
            short[1][i] /= factor * (1 - 1e-6)
            assert not on_front(*short)[i]


def test_what_is_not_finite_is_never_on_it() -> None:
    assert on_front([1.0, np.inf, 2.0], [1.0, 0.5, np.nan]).tolist() == [True, False, False]
    assert behind_front([1.0, np.inf], [1.0, 0.5]).tolist() == [1.0, np.inf]
