"""Host memory of a node: pinned blocks, processes, what a stack's release keeps there, and Ray's
limit."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs.memory.pinned import fused_matrices, pinned_bytes, rounding
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.ledger import ledger_of
from rollcast.simulator.studies.simulate import from_raw

GIB = 2.0**30


def ledger(
    stack: str, trainer: dict[str, Any] | None = None, *, gpus: int = 8, **roofline: Any
) -> Any:
    """Of Qwen2.5-7B on a node of ``gpus`` A100, engine and trainer together."""
    scenario = {
        "model": "qwen2.5-7b",
        "gpu": "a100-80gb",
        "cluster": {"placement": "colocated", "replicas": gpus, "trainer_gpus": gpus},
        "workload": {
            "batch_groups": 16,
            "group_size": 8,
            "prompt_tokens": 100,
            "max_new_tokens": 500,
            "lengths": {"mean_tokens": 200},
        },
        "cost": {"roofline": {"stack": stack, "trainer": trainer or {}, **roofline}},
        "steps": 1,
        "seed": 0,
    }
    return ledger_of(from_raw(RawScenario(scenario)))


def test_a_node_holds_what_ray_does_only_where_ray_is() -> None:
    system = {stack: ledger(stack).host_bytes["system"] for stack in ("verl", "slime", "trl")}
    assert system["verl"] == system["slime"] == 4 * system["trl"]


@given(st.floats(1, 1e14))
def test_a_pinned_block_is_a_power_of_two_and_less_than_twice_as_large(size: float) -> None:
    block = pinned_bytes(size)
    assert math.log2(block).is_integer()
    assert size <= block < 2 * size or block == size


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(1, 1e12)), min_size=1))
def test_rounding_is_between_one_and_two(blocks: list[tuple[float, float]]) -> None:
    assert 1 <= rounding(blocks) < 2


def test_blocks_of_an_engine_are_nearly_all_of_its_weights() -> None:
    for name in ("qwen2.5-7b", "qwen3-30b-a3b", "llama-3.2-1b", "deepseek-v3"):
        model = load_model(name, "model")
        held = sum(count * size for count, size in fused_matrices(model, 1, 2.0))
        assert held == pytest.approx(2 * model.parameters, rel=0.02)


def test_an_engine_that_sleeps_with_7b_pins_nearly_twice_its_weights() -> None:
    """By hand: of each layer blocks of 32, 32, 512 and 256 MiB, and two of 2 GiB."""
    by_hand = 8 * (28 * 832 * 2.0**20 + 2 * 2 * GIB)
    assert ledger("verl-0.5").host_bytes["engine_weights"] == pytest.approx(by_hand, rel=0.01)


def test_zero_3_on_the_host_by_hand() -> None:
    """One GPU: weights and moments, seven gradient groups and a rest, both in 16 bit, and weights
    twice."""
    owned = float(load_model("qwen2.5-7b", "model").parameters)
    rest = owned - 7e9
    by_hand = 12 * owned + 7 * 4 * GIB + pinned_bytes(4 * rest) + 2 * 16 * GIB + 1.44 * 2 * owned
    trainer = {"backend": "deepspeed", "sharding": "fsdp", "states_on_host": True}
    pinned = {**trainer, "pinned_optimizer": True}
    held = ledger("trl", pinned, gpus=1).host_bytes["optimizer"]
    assert held == pytest.approx(by_hand, rel=1e-6)
    loose = ledger("trl", trainer, gpus=1).host_bytes["optimizer"]
    assert loose == pytest.approx(18 * owned + 16 * GIB, rel=1e-6)


def test_a_critic_on_the_same_gpus_doubles_the_optimiser() -> None:
    trainer = {"optimizer_on_host": True}
    alone = ledger("openrlhf", trainer).host_bytes["optimizer"]
    both = ledger("openrlhf", {**trainer, "critic": True}).host_bytes["optimizer"]
    assert both == pytest.approx(2 * alone)


def test_a_model_is_whole_in_each_process_while_zero_2_flattens_it() -> None:
    trainer = {"sharding": "zero2", "log_prob_passes": 1}
    whole = 2 * load_model("qwen2.5-7b", "model").parameters
    twice = ledger("openrlhf-0.8", trainer, offload_optimizer=False).host_bytes
    once = ledger("openrlhf", trainer, offload_optimizer=False).host_bytes
    assert twice["loading"] == pytest.approx(2 * 8 * whole)
    assert once["loading"] == pytest.approx(8 * whole)


def test_gradients_that_are_freed_are_not_in_host_memory() -> None:
    """Megatron in verl: 2 + 12 bytes a parameter are copied, of 2 + 4 + 12."""
    away = {"offload_optimizer": True}
    copied = ledger("verl", {"backend": "megatron", "drops_gradients": False}, **away)
    freed = ledger("verl", {"backend": "megatron"}, **away)
    states = (copied.host_bytes["offloaded_states"], freed.host_bytes["offloaded_states"])
    owned = load_model("qwen2.5-7b", "model").parameters
    assert states[0] - states[1] == pytest.approx(1.44 * 8 * 4 * owned, rel=0.01)


def test_the_policy_waits_too_where_the_reference_is_swapped_in() -> None:
    trainer = {"backend": "megatron", "log_prob_passes": 2, "reference_on_host": True}
    swapped, apart = (ledger(stack, trainer).host_bytes["reference"] for stack in ("slime", "verl"))
    assert swapped == pytest.approx(2 * apart)


def test_ray_ends_workers_where_a_twentieth_is_left() -> None:
    assert ledger("verl", host_memory_bytes=1e12).host_capacity_bytes == pytest.approx(0.95e12)
    assert ledger("trl", host_memory_bytes=1e12).host_capacity_bytes == 1e12
    assert ledger("verl").host_capacity_bytes is None


def test_a_node_with_too_little_memory_does_not_fit() -> None:
    known = ledger("verl-0.5", offload_optimizer=True)
    needed = known.host_total
    assert known.host_chance == 1.0
    assert known.fits
    short = replace(known, host_capacity_bytes=0.8 * needed)
    ample = replace(known, host_capacity_bytes=2 * needed)
    assert not short.fits
    assert short.fits_probability < 0.1
    assert ample.fits
    assert ample.fits_probability == known.fits_probability


@pytest.mark.parametrize("size", [0, -1, "512GB", True])
def test_host_memory_that_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ScenarioError, match="host_memory_bytes"):
        ledger("verl", host_memory_bytes=size)


def test_an_engine_before_v1_pins_a_block_of_swap_space_a_layer() -> None:
    """By hand: 4 GiB over 28 layers are 146 MiB, in blocks of 256 MiB."""
    old = ledger("verl", engine="vllm-0.8-v0").host_bytes
    assert old["swap"] == pytest.approx(8 * 28 * 256 * 2.0**20)
    assert "swap" not in ledger("verl").host_bytes


def test_a_checkpoint_copies_what_its_stack_has_in_a_state_dict() -> None:
    """verl the model's fp32 weights, EasyR1 what the optimiser keeps too; none who never saves."""
    parameters = load_model("qwen2.5-7b", "model").parameters
    assert ledger("verl").host_bytes["checkpoint"] == pytest.approx(4 * parameters, rel=1e-3)
    assert ledger("easyr1").host_bytes["checkpoint"] == pytest.approx(12 * parameters, rel=1e-3)
    assert "checkpoint" not in ledger("verl", saves_checkpoints=False).host_bytes
    assert "checkpoint" not in ledger("verl", {"weights": "lora"}).host_bytes
    assert "checkpoint" not in ledger("slime").host_bytes
