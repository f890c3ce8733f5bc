"""A run told in counts: what its rollouts' tokens have in common comes back from its table."""

from array import array
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.engine.common import CommonTokens, common
from rollcast.simulator.core.rollout import UNSHARED, Shared
from rollcast.simulator.core.spans import Segments
from rollcast.simulator.errors import RunError
from rollcast.simulator.workload.base import Path
from rollcast.simulator.workload.recorded import RecordedWorkload, paths

Key = tuple[int, int]
PROMPT = 2


def table(rows: Iterable[tuple[Key, int, int, int, Shared]]) -> Segments:
    """Segments as (key, attempt, version, tokens with the prompt, what is shared)."""
    columns = Segments().__getstate__()
    for (group, index), attempt, version, tokens, shared in rows:
        known = {"group": group, "index": index, "attempt": attempt, "version": version}
        known |= {"prompt_tokens": PROMPT, "total_tokens": tokens - PROMPT}
        known |= {f"shared_{name}": value for name, value in shared._asdict().items()}
        for name, column in columns.items():
            column.append(known.get(name, 0))
    segments = Segments()
    segments.__setstate__(
        {name: array(column.typecode, column) for name, column in columns.items()}
    )
    return segments


def owner(path: Path, tokens: int) -> object:
    """Who owns so many leading tokens; None where nobody else has them."""
    return next((owner for end, owner in path if end >= tokens), None)


@st.composite
def runs(draw: st.DrawFn) -> list[list[tuple[Key, tuple[int, ...]]]]:
    """By version, segments as they end: keys and tokens. Some are stopped, and resumed in the same
    version or in another."""
    text = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=8).map(tuple)
    keys = st.tuples(st.integers(0, 2), st.integers(0, 3))
    reached: dict[Key, tuple[int, ...]] = {}
    versions = []
    for _ in range(draw(st.integers(1, 3))):
        ended = []
        for key in draw(st.lists(keys, min_size=1, max_size=10)):
            prompt = (key[0] % 2, 0)
            reached[key] = reached.get(key, prompt) + draw(text)
            ended.append((key, reached[key]))
        versions.append(ended)
    return versions


def compare(versions: Sequence[Sequence[tuple[Key, tuple[int, ...]]]]) -> Segments:
    rows = []
    for version, ended in enumerate(versions):
        seen = CommonTokens()
        for key, tokens in ended:
            rows.append((key, 0, version, len(tokens), seen.add(key, 0, tokens)))
    return table(rows)


@given(runs())
def test_two_rollouts_own_the_same_beginning_if_it_is_the_same(
    versions: list[list[tuple[Key, tuple[int, ...]]]],
) -> None:
    found = paths(compare(versions))
    for version, ended in enumerate(versions):
        whole = dict(ended)
        for key, tokens in whole.items():
            path = found[version, (key[0], 0, key[1])]
            ends = [end for end, _ in path]
            assert ends == sorted(set(ends))
            others = [common(tokens, t) for other, t in whole.items() if other != key]
            assert (ends[-1] if ends else 0) == max(others, default=0)
            for other, theirs in whole.items():
                their_path = found[version, (other[0], 0, other[1])]
                for n in range(1, common(tokens, theirs) + 1):
                    assert other == key or owner(path, n) == owner(their_path, n) is not None
                beyond = common(tokens, theirs) + 1
                mine, others_owner = owner(path, beyond), owner(their_path, beyond)
                assert other == key or mine is None or mine != others_owner


def test_of_a_rollout_that_is_started_again_the_first_attempt_is_forgotten() -> None:
    seen = CommonTokens()
    assert seen.add((0, 0), 0, (5, 6, 7, 8)) == UNSHARED
    assert seen.add((0, 0), 1, (5, 6, 9)) == UNSHARED
    assert seen.add((0, 1), 0, (5, 6, 7, 8)) == Shared(2, 0, 0)


def test_a_row_that_shares_with_none_before_it_is_an_error() -> None:
    segments = table([((0, 0), 0, 0, 9, UNSHARED), ((0, 1), 0, 0, 9, Shared(12, 0, 0))])
    with pytest.raises(RunError, match=r"segment 1 .* 12 tokens of rollout \(0, 0\)"):
        RecordedWorkload(segments, 40)


def test_a_run_that_knows_nothing_of_tokens_shares_its_prompts_alone() -> None:
    segments = table(((0, index), 0, 0, 9, UNSHARED) for index in range(2))
    assert RecordedWorkload(segments, 40).draw(0, 2).sharing is None
