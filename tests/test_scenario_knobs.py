"""What can be set of a set-up: keys that a scenario reads, under the stacks that can."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs.backends import BACKENDS, backends_of
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.stacks import FOLDERS, STACKS
from rollcast.simulator.scenario.file import override, parse_scenario
from rollcast.simulator.scenario.knobs import Knob, knobs_of
from rollcast.simulator.scenario.scenario import outline
from rollcast.simulator.stacks.settings import meanings
from rollcast.simulator.stacks.stack import all_stacks
from tests.laws import SEARCHING
from tests.planner.test_plan import SCENARIO
from tests.refusals import refuses

DENSE, MIXTURE = load_model("qwen3-8b"), load_model("qwen3-30b-a3b")
PAIRS = [(stack, backend) for stack in STACKS for backend in backends_of(stack)]
FIRST = {backend: stack for stack, backend in reversed(PAIRS)}
TRAINER = "cost.roofline.trainer"


def keys(*args: object) -> set[str]:
    return {knob.key for knob in knobs_of(*args)}  # type: ignore[arg-type]


@pytest.mark.parametrize(("stack", "backend"), PAIRS)
def test_a_scenario_of_that_stack_reads_every_value(stack: str, backend: str) -> None:
    """In the gate all of the first stack of a backend, and the last one of the others."""
    whole = SEARCHING or FIRST[backend] == stack
    its = {"stack": stack, "trainer": {"backend": backend}}
    raw = override(parse_scenario(SCENARIO), [f"cost.roofline={json.dumps(its)}"])
    for knob in knobs_of(stack, backend, "colocated", DENSE):
        for value in knob.values if whole else knob.values[-1:]:
            more = [f"{knob.key}={json.dumps(value)}"]
            if knob.key.endswith("microbatch_rollouts"):
                more.append(f"{TRAINER}.batching=padded")
            if knob.key.endswith("states_on_host"):
                more.append(f"{TRAINER}.sharding=fsdp")
            outline(override(raw, more))


@given(
    st.sampled_from([None, *STACKS]),
    st.sampled_from(["colocated", "disaggregated"]),
    st.sampled_from([None, DENSE, MIXTURE]),
)
def test_a_stack_is_offered_what_its_own_files_have(
    stack: str | None, placement: str, model: object
) -> None:
    found = knobs_of(stack, None, placement, model)  # type: ignore[arg-type]
    assert found
    assert len({knob.key for knob in found}) == len(found)
    folder = all_stacks().get(FOLDERS[stack].name) if stack else None
    for knob in found:
        assert knob.values
        assert knob.words
        named = {setting for setting in knob.settings if setting in meanings()}
        if folder is not None and named:
            assert named & folder.launch.keys.keys(), knob.key
        if placement == "disaggregated":
            assert not knob.key.endswith(("offload_optimizer", "engine_sleep"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_splits_are_those_of_the_backend(backend: str) -> None:
    splits = backends_of("unknown")[backend].splits  # type: ignore[index]
    offered = keys(None, backend, "disaggregated", MIXTURE)
    for way in ("tensor", "pipeline", "context", "sequence", "expert"):
        assert (f"{TRAINER}.{way}_parallel" in offered) == (f"{way}_parallel" in splits)


def test_a_dense_model_has_no_experts_to_deal() -> None:
    assert f"{TRAINER}.expert_parallel" in keys("slime", "megatron", "colocated", MIXTURE)
    assert f"{TRAINER}.expert_parallel" not in keys("slime", "megatron", "colocated", DENSE)


def test_by_hand() -> None:
    verl, megatron = (keys("verl", b, "colocated", DENSE) for b in ("fsdp", "megatron"))
    assert f"{TRAINER}.states_on_host" in verl - megatron
    assert f"{TRAINER}.optimizer_on_host" in megatron - verl
    assert f"{TRAINER}.sequence_parallel" in verl - megatron
    assert f"{TRAINER}.sequence_parallel" not in keys("trl", None, "colocated", DENSE)
    heads = next(
        knob
        for knob in knobs_of("slime", None, "colocated", load_model("qwen2.5-7b"))
        if knob.key == f"{TRAINER}.tensor_parallel"
    )
    assert heads.values == (1, 2, 4)  # 28 heads


def test_others_leave_out_the_scenario_s_own() -> None:
    knob = Knob("k", (1, 2, 4), "", "trainer")
    assert knob.others(2) == (1, 4)
    assert knob.others(3) == (1, 2, 4)


@pytest.mark.parametrize(
    ("stack", "backend", "field"),
    [("verll", None, "cost.roofline.stack"), ("prime-rl", "megatron", f"{TRAINER}.backend")],
)
def test_a_stack_or_backend_that_is_none(stack: str, backend: str | None, field: str) -> None:
    with refuses(field):
        knobs_of(stack, backend, "colocated", None)
