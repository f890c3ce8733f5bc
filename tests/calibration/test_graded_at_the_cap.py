"""Rewards fitted to answers of which the cap cut many short."""

import numpy as np
import pytest

from rollcast.calibration.fits.responses import Responses, lengths, rewards
from rollcast.simulator.workload.lengths import LengthModel
from rollcast.simulator.workload.rewards import BetaBernoulli
from rollcast.simulator.workload.synthetic import SyntheticWorkload

CAP, GROUPS, SIZE = 900, 1500, 8


def found(drawn: SyntheticWorkload) -> Responses:
    """What a synchronous run of these draws would leave."""
    groups = [drawn.draw(group, SIZE) for group in range(GROUPS)]
    tokens = np.array([group.new_tokens for group in groups], dtype=float).ravel()
    return Responses(
        group=np.repeat(np.arange(GROUPS), SIZE),
        tokens=tokens,
        prompt_tokens=np.full(tokens.shape, 10.0),
        finished=np.full(tokens.shape, True),
        capped=tokens >= CAP,
        reward=np.array([group.rewards for group in groups], dtype=float).ravel(),
        launched=np.zeros(tokens.shape),
        cap=CAP,
    )


@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_the_mean_is_that_of_answers_that_are_let_end(correlation: float) -> None:
    truth = BetaBernoulli(0.6, 0.25, correlation, correlation)
    run = found(SyntheticWorkload(LengthModel.lognormal(500, 0.5, 0.4), truth, 10, CAP, seed=5))
    assert 0.1 < run.capped.mean() < 0.3
    fitted = rewards(run, lengths(run)["lengths"])["rewards"]
    assert fitted["mean"] == pytest.approx(0.6, abs=0.03)
    for key in ("length_correlation", "difficulty_length_correlation"):
        assert fitted[key] == pytest.approx(correlation, abs=0.1)
    assert fitted["between_sd"] == pytest.approx(0.25, abs=0.03)
