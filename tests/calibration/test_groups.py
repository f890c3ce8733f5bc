"""Measured groups: whole, with what was never finished filled in."""

import numpy as np
import pytest

from rollcast.calibration.fits import groups
from rollcast.calibration.fits.responses import Responses


def responses(count: int = 200, size: int = 4, unfinished: float = 0.0) -> Responses:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(count), size)
    middle = 50 * np.exp(0.6 * rng.normal(size=count))
    tokens = np.maximum(np.rint(middle[group] * np.exp(0.3 * rng.normal(size=len(group)))), 1)
    finished = rng.random(len(group)) >= unfinished
    got = np.where(finished, tokens, np.maximum(np.rint(tokens * rng.random(len(group))), 1))
    reward = np.where(finished, rng.integers(0, 2, len(group)).astype(float), np.nan)
    return Responses(
        group,
        got,
        np.full(len(group), 7.0),
        finished,
        np.zeros(len(group), bool),
        reward,
        group // 20 * 1.0,
        500,
    )


def test_whole_groups_stay_as_they_were() -> None:
    found = responses()
    kept = groups.measured(found)
    assert len(kept) == 200
    assert kept.max_new_tokens == 500
    assert list(kept.version) == sorted(kept.version)
    rows = {tuple(found.tokens[found.group == g].astype(int)) for g in range(200)}
    assert set(kept.new_tokens) == rows
    assert set(kept.prompt_tokens) == {7}


def test_the_unfinished_get_at_least_as_far_as_they_had() -> None:
    found, whole = responses(unfinished=0.25), responses()
    kept = groups.measured(found)
    assert np.isfinite([r for rewards in kept.rewards for r in rewards]).all()
    by_first = {}
    for g in range(found.groups):
        mine = found.group == g
        if found.finished[mine].any():
            by_first.setdefault(int(found.launched[mine][0]), []).append(mine)
    for tokens, version in zip(kept.new_tokens, kept.version, strict=True):
        assert any((found.tokens[mine] <= tokens).all() for mine in by_first[version])
    filled = [n for tokens in kept.new_tokens for n in tokens]
    assert np.mean(filled) == pytest.approx(whole.tokens.mean(), rel=0.06)
    left_as_they_were = found.tokens.mean()
    assert left_as_they_were < 0.93 * whole.tokens.mean()


def test_what_outran_everyone_runs_to_the_cap() -> None:
    found = responses(count=30)
    found.tokens[0], found.finished[0], found.reward[0] = 450, False, np.nan
    assert max(n for tokens in groups.measured(found).new_tokens for n in tokens) == 500


def test_many_groups_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_GROUPS", 50)
    kept = groups.measured(responses())
    assert len(kept) == 50
    assert (min(kept.version), max(kept.version)) == (0, 9)
