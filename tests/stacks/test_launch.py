"""Launch settings: one table a stack, read in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.simulator.stacks.launch import FORMS, Given, Key, Launch, load_launch
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.stack import LAUNCH_FILE, Stack, all_stacks

STACKS = all_stacks()
HERE = Place("run.sh", 1)


def as_given(line: str) -> Given:
    """An argument as a shell would hand it over."""
    key, _, value = line.partition("=") if "=" in line else line.partition(" ")
    text = value.strip()
    parsed = {"": True, "True": True, "False": False}.get(
        text, int(text) if text.isdigit() else text
    )
    return Given(key.removeprefix("--").rstrip(":"), parsed, HERE)


def test_every_folder_is_a_stack() -> None:
    assert {"areal", "nemo_rl", "openrlhf", "prime_rl", "roll"} < STACKS.keys()
    assert {"skyrl", "slime", "trl", "verl"} < STACKS.keys()
    for stack in STACKS.values():
        assert stack.launch.form in FORMS
        assert stack.launch.releases
        assert {
            "model",
            "workload.group_size",
            "workload.max_new_tokens",
        } <= stack.launch.keys.keys()
        assert stack.log is not None
        assert stack.log.name == stack.name


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_what_is_written_is_read_again(stack: Stack) -> None:
    launch = stack.launch
    for ours in launch.keys:
        for value in (3, True, False):
            for line in launch.written({ours: value}):  # none where a flag is left out
                settings = launch.read([as_given(line)])
                assert {key: s.value for key, s in settings.items()} == {ours: value}, line


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_no_key_of_a_stack_means_two_things(stack: Stack) -> None:
    keys = [key.key for each in stack.launch.keys.values() for key in each]
    assert len(keys) == len(set(keys))


def test_a_script_and_a_logged_configuration_say_the_same() -> None:
    verl = STACKS["verl"].launch
    script = ["algorithm.adv_estimator=grpo", "data.train_batch_size=256", "rollout.n=8"]
    read = verl.read(map(as_given, script))
    assert {key: setting.value for key, setting in read.items()} == {
        "run.algorithm": "grpo",
        "workload.batch_groups": 256,
        "workload.group_size": 8,
    }
    slime = STACKS["slime"].launch
    for line in ("--rollout-batch-size 32", "rollout_batch_size 32"):
        assert slime.read([as_given(line)])["workload.batch_groups"].value == 32
    assert (
        slime.read([as_given("--sglang-disable-radix-cache")])["engine.prefix_caching"].value
        is False
    )
    assert slime.written({"engine.prefix_caching": True, "run.colocated": False}) == []


def test_the_surer_of_two_counts_and_a_conflict_is_told() -> None:
    launch = Launch("key=value", {"run.steps": (Key("steps"), Key("max_steps"))})
    two = [Given("max_steps", 1, HERE), Given("steps", 2, HERE, 1), Given("steps", 3, HERE)]
    assert launch.read(two)["run.steps"].value == 3
    assert launch.conflicts(two) == []
    three = [*two, Given("steps", 4, HERE)]
    [(had, new)] = launch.conflicts(three)
    assert (had.value, new.value) == (3, 4)
    assert launch.read(three)["run.steps"].value == 3


def test_what_settings_imply_counts_before_them() -> None:
    areal = STACKS["areal"]
    read = areal.launch.read([Given("allocation_mode", "sglang:d4t2+fsdp:d8", HERE)], areal.implied)
    assert {key: s.value for key, s in read.items()} == {
        "run.mode": "sglang:d4t2+fsdp:d8",
        "cluster.replicas": 4,
        "cluster.tensor_parallel": 2,
        "cluster.trainer_gpus": 8,
        "run.rollout_gpus": 8,
        "run.colocated": False,
    }


@pytest.mark.parametrize(
    ("stack", "given", "implied"),
    [
        ("verl", "trainer.v1.trainer_mode=separate_async", {"run.colocated": False}),
        (
            "verl",
            "trainer.v1.trainer_mode=colocate_async",
            {"run.colocated": True, "policy": ["colocate_async"]},
        ),
        ("trl", "--vllm_mode server", {"run.colocated": False}),
        ("prime_rl", "--orchestrator.max_off_policy_steps 1", {"policy": ["one_step_off"]}),
        ("prime_rl", "--orchestrator.max_off_policy_steps 2", {}),
    ],
)
def test_modes_imply_a_placement_and_a_policy(
    stack: str, given: str, implied: dict[str, object]
) -> None:
    read = STACKS[stack].launch.read([as_given(given)], STACKS[stack].implied)
    assert {key: s.value for key, s in read.items() if s.implied} == implied


def test_a_release_has_the_keys_of_its_time() -> None:
    verl, openrlhf = STACKS["verl"].launch, STACKS["openrlhf"].launch
    assert verl.name("run.mode", "0.9.1") == "trainer.v1.trainer_mode"
    with pytest.raises(KeyError, match=r"run\.mode"):
        verl.name("run.mode", "0.8")
    for release in (None, "0.11", "0.12.1"):
        assert openrlhf.name("workload.batch_groups", release) == "--rollout.batch_size"
    assert openrlhf.name("workload.batch_groups", "0.10.2") == "--rollout_batch_size"
    assert openrlhf.defaults["workload.batch_groups"] == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: {model: a}", "form must be one of"),
        ("form: key=value\nkeys: {modle: a}", "modle is no setting of ours"),
        ("form: key=value\nkeys: {model: {name: a}}", "model: "),
        ("form: key=value\nkeys: {model: a}\nadvice: {sync: '{run.mode}=1'}", "no key for"),
    ],
)
def test_a_table_that_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / LAUNCH_FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load_launch(path)
