"""Samples survive a checkpoint as they were, or are refused by what they hold."""

import json

import numpy as np
import pytest

from rollcast.simulator.errors import RunError
from rollcast.simulator.stacks.slime.samples import from_plain_sample, plain_sample
from tests.export.fake_slime import Sample, Status


def test_a_sample_comes_back_as_it_was() -> None:
    sample = Sample(
        group_index=3,
        index=7,
        prompt="why",
        tokens=[1, 2, 3],
        response="because",
        response_length=2,
        reward={"score": np.float64(0.5)},
        loss_mask=[0, 1],
        rollout_log_probs=[-0.25, -1.5],
        status=Status.ABORTED,
        metadata={"tools": [{"name": "search"}], "empty": []},
    )
    sample.routed = np.arange(6, dtype=np.int32).reshape(2, 3)  # type: ignore[attr-defined]
    data = json.loads(json.dumps(plain_sample(sample)))
    routed = data.pop("routed")
    again = from_plain_sample(Sample, {**data})
    del sample.routed  # type: ignore[attr-defined]
    assert again == sample
    made = from_plain_sample(_Kept, {"routed": routed})
    assert made["routed"].dtype == np.int32
    assert made["routed"].tolist() == [[0, 1, 2], [3, 4, 5]]


class _Kept:
    @staticmethod
    def from_dict(data: dict[str, object]) -> dict[str, object]:
        return data


def test_what_is_saved_does_not_change_with_the_sample() -> None:
    sample = Sample(tokens=[1], metadata={"rollcast": {"group": 1}})
    saved = plain_sample(sample)
    sample.tokens.append(2)
    sample.metadata["rollcast"]["group"] = 2
    assert saved["tokens"] == [1]
    assert saved["metadata"] == {"rollcast": {"group": 1}}


def test_a_picture_is_refused() -> None:
    with pytest.raises(RunError, match="holds a bytes, which cannot be saved"):
        plain_sample(Sample(metadata={"image": b"png"}))
