"""Least squares without negative coefficients."""

import numpy as np
import pytest
from scipy.optimize import nnls

from rollcast.calibration.fits.robust import each_nonnegative, nonnegative


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_many_fits_at_once_are_those_of_each_by_scipy(terms: int) -> None:
    rng = np.random.default_rng(terms)
    X = rng.lognormal(size=(12, terms))
    ys = rng.normal(size=(30, 12)) + X @ rng.exponential(size=terms)
    weights = rng.uniform(0.1, 3.0, ys.shape)
    found = each_nonnegative(X, ys, weights)
    alone = [nnls(X * w[:, None], y * w)[0] for y, w in zip(ys, weights, strict=True)]
    assert found == pytest.approx(np.array(alone), rel=1e-6, abs=1e-8)
    assert found[0] == pytest.approx(nonnegative(X, ys[0], weights[0]), rel=1e-6, abs=1e-8)
    if terms > 1:  # some of them where plain least squares has a negative one
        assert (found == 0).any()
