"""What each stack's launch settings imply: GPUs, batches and models that others decide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place, Setting, Settings, meanings
from rollcast.simulator.stacks.stack import Stack, all_stacks
from tests.tables import cases

STACKS = all_stacks()
HERE = Place("run.sh", 1)
ALLOWED: Mapping[str, frozenset[Any]] = {
    "run.recompute": frozenset({"full", "selective", "mlp", "none"}),
    "run.strategy": frozenset({"fsdp", "fsdp2", "megatron", "deepspeed", "dtensor", "ddp"}),
    "run.quantized_base": frozenset({"4bit", "8bit", "none"}),
    "run.trainer_dtype": frozenset({"fp32", "bf16", "fp16"}),
}


def known(stack: str, said: Mapping[str, Any], release: str | None = None) -> Settings:
    """What holds in a run that was given this, by the stack's keys."""
    launch, implied = STACKS[stack].launch, STACKS[stack].implied
    read = launch.read([Given(key, its, HERE) for key, its in said.items()], implied)
    return {**launch.unsaid(read, Place(stack), implied, release), **read}


@pytest.mark.parametrize(
    ("stack", "said", "release", "held"),
    cases(Path(__file__).parent / "implied.yaml", "given", "release", "holds"),
)
def test_settings_imply_others(
    stack: str, said: dict[str, Any], release: str, held: dict[str, Any]
) -> None:
    got = known(stack, said, release or None)
    assert {ours: got[ours].value if ours in got else None for ours in held} == held


def test_all_gpus_of_nodes_that_are_not_counted_are_not_guessed() -> None:
    said = {"cluster.component_placement.actor,rollout,reward": "all", "cluster.num_nodes": 2}
    assert "cluster.trainer_gpus" not in known("rlinf", said)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_the_stacks_defaults_are_of_our_words(stack: Stack) -> None:
    rest = stack.launch.unsaid({}, HERE, stack.implied)
    assert rest.keys() <= meanings().keys()
    for ours, allowed in ALLOWED.items():
        for key in stack.launch.keys.get(ours, ()):
            spelt = [*key.values, *([key.ours(key.default)] if key.has_default else [])]
            assert set(spelt) <= allowed, (ours, key.key)


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-4, 10**6),
    st.floats(allow_nan=True),
    st.text(max_size=12),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["sglang:d4t2+d8", "list(range(0,8))", "0-7", "all", "gae", "megatron"]),
)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
@given(data=st.data())
def test_any_values_are_read_without_an_error(stack: Stack, data: st.DataObject) -> None:
    """And what was said is said, whatever follows; rules see each key as odd as it may be."""
    keys = data.draw(st.lists(st.sampled_from(sorted(stack.launch.meanings)), max_size=25))
    given = [Given(key, data.draw(ANY), HERE) for key in keys]
    read = stack.launch.read(given, stack.implied)
    rest = stack.launch.unsaid(read, Place(stack.name), stack.implied)
    assert not read.keys() & rest.keys()
    assert all(isinstance(one, Setting) for one in (*read.values(), *rest.values()))
    assert {*read, *rest} <= meanings().keys()
