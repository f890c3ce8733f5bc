"""What Weights & Biases says of the machine and the command line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.formats import machine
from rollcast.calibration.logs.formats.configs import NotConfigError
from rollcast.calibration.logs.gather import read_log
from tests.imported import truth
from tests.logs import genuine

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 4}


def _values(path: Path) -> dict[str, object]:
    return {part.key: part.value for part in draft(read_log([path]))}


def test_a_genuine_run_folder_names_its_gpus() -> None:
    own = _values(genuine.log("public/verl_logic_rl/output.log.gz"))  # beside the log
    assert (own["gpu"], own["cluster.trainer_gpus"]) == ("a40", 8)


def test_what_a_configuration_says_counts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = truth.write("verl", tmp_path, monkeypatch)
    assert _values(folder)["gpu"] is None
    (folder / machine.FILE).write_text(json.dumps(H100))
    own = _values(folder)
    assert own["gpu"] == "h100-sxm"
    assert own["cluster.trainer_gpus"] == 8  # of trainer.n_gpus_per_node


def test_arguments_are_settings() -> None:
    words = ["data.train_batch_size=512", "--lr", "1e-6", "+trainer.nnodes=2", "train"]
    _, of_command = machine.from_metadata(json.dumps({**H100, "args": words}))
    said = {one.key: one.value for one in of_command}
    assert said == {"data.train_batch_size": 512, "lr": 1e-6, "trainer.nnodes": 2}


@pytest.mark.parametrize("text", ["", "[1]", "{", '"gpu"', "\x00"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(NotConfigError):
        machine.from_metadata(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(_JSON, _JSON, _JSON)
def test_whatever_stands_there(gpu: object, count: object, words: object) -> None:
    content = json.dumps({"gpu": gpu, "gpu_count": count, "args": words})
    of_machine, _ = machine.from_metadata(content)
    for one in of_machine:
        assert one.key != machine.COUNT or 0 < one.value <= 1024
