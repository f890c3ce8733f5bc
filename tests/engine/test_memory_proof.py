"""The trainer as it is built, under torch's memory tracker, without a GPU: see `memory_proof`.

The figures of real models take a minute each: ``make memory-proof``.
"""

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from frozen_layers import LAYERS, peak_inputs
from memory_proof import proved
from rank_processes import imported


def measured(*arguments: object) -> dict[str, float]:
    """In a process of its own: torch knows one group of ranks at a time."""
    with ProcessPoolExecutor(1, imported()) as process:
        return process.submit(proved, *map(str, arguments)).result()


def test_a_rank_holds_its_shards_and_one_layer() -> None:
    """A model of 26M parameters: an eighth of its float32 weights, gradients and moments is 0.048
    GiB. One layer, logits by chunks and checkpointed activations of 1,024 tokens come on top;
    whole gradients would be another 0.1."""
    found = measured("small", 8, 1024)
    states = 4 * 4 * 25.8e6 / 8 / 2**30
    assert states < found["optimizer"] < 1.4 * states
    assert found["passes"] < 0.28
    assert found["passes_forecast"] == pytest.approx(found["passes"], rel=0.1)


def test_fsdp1_keeps_inputs_and_gradients_of_frozen_layers_checkpointed_reentrantly() -> None:
    """As many as there are layers, twice, at the end of the backward; without either once."""
    found = {}
    for frozen, reentrant in ((True, True), (True, False), (False, True)):
        with ProcessPoolExecutor(1, imported()) as process:
            found[frozen, reentrant] = process.submit(peak_inputs, frozen, reentrant).result()
    more = found.pop((True, True)) - max(found.values())
    assert LAYERS - 3 < more <= LAYERS


SLOW = pytest.mark.skipif(not os.environ.get("ROLLCAST_MEMORY_PROOF"), reason="make memory-proof")


@SLOW
@pytest.mark.parametrize(
    ("arguments", "part", "most"),
    [(("7b",), "passes", 26), (("7b", "lora"), "passes", 13), (("32b", "offload"), "device", 28)],
)
def test_real_models_train_on_eight_gpus_at_16k(
    arguments: tuple[str, ...], part: str, most: float
) -> None:
    """GiB of a GPU. Of what is offloaded the tracker sees the states too, which are left out."""
    name, *options = arguments
    found = measured(name, 8, 16_384, *options)
    assert found[part] <= most
    assert found[f"{part}_forecast"] == pytest.approx(found[part], rel=0.1)
    if not options:
        assert found["optimizer"] <= 18


@SLOW
def test_a_shared_prefix_is_trained_on_by_layer() -> None:
    """Of the model above, whole weights and gradients would be 0.23 GiB more; whole ones of 7B
    would not fit."""
    assert measured("small", 8, 1024, "shared")["passes"] < 0.25
    assert measured("7b", 8, 16_384, "shared")["passes"] <= 26
