"""A launch's scenario: what the settings say, what is assumed, and the way back."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from check.launches import VERL, asked, launched

from rollcast.simulator.check.question import question
from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import preset_of
from rollcast.simulator.launches.draft import Asked, drafted
from rollcast.simulator.launches.overrides import overrides
from rollcast.simulator.launches.parts import Part, nested
from rollcast.simulator.scenario.knobs import knobs_of
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.workload.base import longest_rollout
from tests.refusals import refuses
from tests.tables import cases

TRAINER_GPUS = "cluster.trainer_gpus"


def _values(said: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    parts = drafted(launched({**VERL, **said}), asked(**more)).parts
    return {part.key: part.value for part in parts}


@pytest.mark.parametrize(
    ("stack", "given", "but", "release", "added", "holds", "passes"),
    cases(
        Path(__file__).parent / "drafts.yaml",
        *("given", "but", "release", "asked", "holds", "passes"),
    ),
)
def test_a_launch_becomes_the_scenario_that_it_says(
    stack: str,
    given: Mapping[str, Any],
    but: Collection[str],
    release: str,
    added: Mapping[str, Any],
    holds: Mapping[str, Any],
    passes: Any,
) -> None:
    base, usual = (VERL, "0.7") if stack == "verl" else ({}, None)
    said = {key: its for key, its in {**base, **given}.items() if key not in but}
    parts = drafted(launched(said, stack, release or usual), asked(**added)).parts
    values = {part.key: part.value for part in parts}
    wanted = holds or {"cost.roofline.trainer.log_prob_passes": passes}
    assert {key: values.get(key) for key in wanted} == wanted


def test_eager_attention_can_be_left() -> None:
    ours = "cost.roofline.trainer.attention"
    eager = {"actor_rollout_ref.model.override_config.attn_implementation": "eager"}
    launch = launched({**VERL, **eager})
    knob = next(k for k in knobs_of("verl", "fsdp", "colocated", None) if k.key == ours)
    assert knob.others("eager") == (None,)
    assert knob.others(None) == ()
    takes = frozenset(all_stacks()["verl"].launch.keys)
    assert overrides(ours, None, launch.settings, takes) == {"run.attention": "flash_attention_2"}


def test_what_a_script_leaves_to_fill_in_is_asked_for() -> None:
    with pytest.raises(ScenarioError, match=r"whole number above 0 is wanted, or --gpus"):
        _values({"trainer.nnodes": "TO_BE_FILLED"})


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("actor_rollout_ref.rollout.gpu_memory_utilization", [-0.1, 7, "abc", math.nan], [0.5, 1]),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", ["abc", -8, 7.5, math.inf], [32]),
        ("actor_rollout_ref.model.lora_rank", ["abc", 10**25], [0, 16, None]),
        ("trainer.total_training_steps", ["nan", [1]], [-1, None, 10]),
        ("trainer.save_freq", ["abc", 1.5, -3], [-1, 0, 0.1, 20]),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_place(
    key: str, wrong: list[Any], right: list[Any]
) -> None:
    for value in right:
        _values({key: value})
    for value in wrong:
        with pytest.raises(ScenarioError, match=rf"{key} in .* is .*(number|share) .*wanted"):
            _values({key: value})


@pytest.mark.parametrize("devices", [2, "0-7"])
def test_devices_that_are_no_list_are_refused(devices: object) -> None:
    said = {"actor_train.device_mapping": devices, "rollout_batch_size": 8}
    with refuses("actor_train.device_mapping in run.sh, line 1", "such as list\\(range"):
        drafted(launched(said, "roll"), asked(gpus=8))


def test_lengths_that_nobody_says_are_assumed_and_told() -> None:
    draft = drafted(launched(), asked())
    assumed = {part.key: part.source for part in draft.assumed}
    assert "--mean-tokens" in assumed["workload.lengths.mean_tokens"]
    assert "--prompt-tokens" in assumed["workload.prompt_tokens.median_tokens"]
    assert draft.steps == 100
    endless = launched({**VERL, "trainer.total_training_steps": 1_000_000})
    assert drafted(endless, asked()).steps is None  # epochs or somebody end it
    assert drafted(endless, asked(steps=1_000_000)).steps == 1_000_000
    prompts = _values({}, prompt_tokens=90)["workload.prompt_tokens.median_tokens"]
    assert prompts == pytest.approx(90 * math.exp(-0.125), abs=0.1)


@pytest.mark.parametrize(("gpus", "message"), [(12, "no whole nodes"), (0, "at least 1")])
def test_gpus_that_make_no_nodes_are_refused(gpus: int, message: str) -> None:
    with refuses("--gpus", message):
        drafted(launched(), asked(gpus=gpus))


@pytest.mark.parametrize(
    ("stack", "said", "gpus", "message"),
    [
        ("verl", VERL, 1, "an engine takes 2 "),
        ("verl", {**VERL, "actor_rollout_ref.rollout.pipeline_model_parallel_size": 3}, 16,
         "an engine takes 6 "),
        ("slime", {"rollout-num-gpus": 8}, 8, "gives 8 of them to one side alone"),
        ("slime", {"rollout-num-gpus": 8, "actor-num-nodes": 1, "actor-num-gpus-per-node": 4}, 16,
         "gives 8 to rollouts and 4 to the trainer"),
    ],
)  # fmt: skip
def test_gpus_that_the_launch_gives_otherwise_are_refused(
    stack: str, said: Mapping[str, Any], gpus: int, message: str
) -> None:
    with refuses("--gpus", message):
        drafted(launched(said, stack), asked(gpus=gpus))


def test_a_preset_of_the_release() -> None:
    assert preset_of("verl", "0.7.1") == "verl-0.7"
    assert preset_of("verl", "0.1") == "verl-0.2"  # the oldest that is known
    assert preset_of("verl", "1.3") == "verl-0.9"
    assert preset_of("verl", None) == "verl"
    assert preset_of("openrlhf", "0.12") == "openrlhf-0.11"
    assert preset_of("nemo_rl", "0.1") == "nemo-rl-0.3"
    assert preset_of("roll", "0.1") == "roll"
    assert preset_of("nemo_rl", None) == "nemo-rl"
    assert preset_of("trl", "1.9", "transformers") == "trl-transformers"
    assert preset_of("trl", None, "colocate") == "trl"
    assert preset_of("trl", "0.20", "colocate") == "trl-0.15"
    assert preset_of("trl", "1.16", None) == "trl-1.9"
    assert backends_of("verl")["fsdp"].options["critic_batching"] == "padded_to_cap"


# Back into the stack's words


def test_passes_for_log_probabilities_change_only_where_a_launch_sets_them() -> None:
    key = "cost.roofline.trainer.log_prob_microbatch_rollouts"
    name = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    takes = frozenset({"run.log_prob_micro_rollouts"})
    set_, unset = (
        drafted(launched({**VERL, **said}), asked()).settings for said in ({name: 8}, {})
    )
    assert overrides(key, 2, set_, takes) == {"run.log_prob_micro_rollouts": 2}
    assert not overrides(key, 2, unset, takes)


def _singles() -> list[tuple[str, Any]]:
    known = drafted(launched(), asked()).settings
    table = all_stacks()["verl"].launch
    takes = frozenset(ours for ours in table.keys if table.has(ours, "0.7", known))
    return [
        (knob.key, value)
        for knob in knobs_of("verl-0.7", "fsdp", "colocated", None)
        for value in knob.values
        if overrides(knob.key, value, known, takes)
    ]


@pytest.mark.parametrize(("key", "value"), _singles())
def test_what_a_setting_says_is_what_the_scenario_has(key: str, value: Any) -> None:
    """A key of the scenario, said in settings, comes back as that key's value."""
    known = drafted(launched(), asked()).settings
    table = all_stacks()["verl"].launch
    takes = frozenset(ours for ours in table.keys if table.has(ours, "0.7", known))
    asks = question(launched(), asked())
    settings = overrides(key, value, known, takes)
    try:
        changed = asks.with_settings(settings)
    except ScenarioError:
        return  # this model or this number of GPUs cannot be split so
    if key.endswith("engine_sleep") and value == "offload":
        assert changed.value(key) == "discard"  # verl has no level: the search drops it
        return
    assert changed.value(key) == value
    lines = table.written(settings, "0.7", known)
    assert len(lines) >= len(settings)
    again = launched({**VERL, **dict(_pair(line) for line in lines)})
    assert {p.key: p.value for p in drafted(again, asked()).parts}.get(key) == value


def _pair(line: str) -> tuple[str, Any]:
    import yaml

    key, _, value = line.partition("=")
    return key.lstrip("+"), yaml.safe_load(value)


def test_many_knobs_can_be_said() -> None:
    assert len({key for key, _ in _singles()}) >= 10


# What is missing, and what cannot be


@pytest.mark.parametrize(
    ("without", "gpu", "words"),
    [
        ("actor_rollout_ref.model.path", "h100-sxm", "which model; give --model"),
        (None, None, "which GPU; give --gpu"),
        ("actor_rollout_ref.model.path", None, "which model and which GPU"),
    ],
)
def test_what_is_missing_is_asked_for(without: str | None, gpu: str | None, words: str) -> None:
    said = {key: value for key, value in VERL.items() if key != without}
    with pytest.raises(ScenarioError, match=words):
        question(launched(said), asked(gpu))


def test_what_says_the_gpus_is_named_once() -> None:
    """The user's number stands for nodes and for GPUs of each."""
    (trainer,) = (p for p in drafted(launched(), asked(gpus=16)).parts if p.key == TRAINER_GPUS)
    assert trainer.source == "--gpus in the command line"


@pytest.mark.parametrize("more", [{}, {"use_vllm": True, "vllm_device": "auto"}])
def test_gpus_are_asked_for_where_a_launch_names_none(more: Mapping[str, Any]) -> None:
    stack = launched({"model_name_or_path": "Qwen/Qwen2.5-1.5B", **more}, "trl", None)
    with pytest.raises(ScenarioError, match="how many GPUs"):
        question(stack, asked())


def test_an_impossible_scenario_names_the_launchs_line() -> None:
    said = {**VERL, "actor_rollout_ref.rollout.tensor_model_parallel_size": 3}
    line = list(said).index("actor_rollout_ref.rollout.tensor_model_parallel_size") + 1
    with pytest.raises(ScenarioError, match=f"run.sh, line {line}"):
        question(launched(said), asked())


def test_parts_of_one_scenario() -> None:
    draft = drafted(launched(), Asked(parts=(Part("gpu", "h100-sxm", "given"),)))
    data = nested((part.key, part.value) for part in draft.parts)
    assert data["cluster"]["replicas"] == 4
    assert len({part.key for part in draft.parts}) == len(draft.parts)


def test_a_bound_on_prompt_and_response_bounds_both() -> None:
    nemo = {
        "policy.model_name": "meta-llama/Llama-3.1-8B-Instruct",
        "policy.max_total_sequence_length": 4096,
        "policy.generation.max_new_tokens": 4096,
        "data.max_input_seq_length": 4096,
    }

    def longest(said: Mapping[str, Any], **more: Any) -> tuple[float, float]:
        scenario = question(launched({**nemo, **said}, "nemo_rl", None), asked(**more)).scenario
        return longest_rollout(scenario.workload)

    assert longest({}, gpus=8) == (150, 3946)
    assert longest({}, gpus=8, prompt_tokens=1000) == (1000, 3096)
    assert longest({"policy.generation.max_new_tokens": 3000}, gpus=8) == (1096, 3000)
    roomy = {"data.max_input_seq_length": 512, "policy.generation.max_new_tokens": 2048}
    assert longest(roomy, gpus=8) == (512, 2048)
    shared = {"policy.generation.max_new_tokens": None, "data.max_input_seq_length": 4096}
    assert longest(shared, gpus=8) == (150, 3946)  # prompts may fill all of what both share


@pytest.mark.parametrize(
    ("said", "passes", "alone"),
    [({}, 0, False), ({"beta": 0.04}, 1, True), ({"beta": 0.04, "num_iterations": 2}, 2, False)],
)
def test_a_reference_whose_pass_is_the_only_one_is_there(
    said: Mapping[str, Any], passes: int, alone: bool
) -> None:
    """Of TRL without an engine, and so are its weights."""
    trl = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "per_device_train_batch_size": 8}
    launch = question(launched({**trl, **said}, "trl", "1.16"), asked(gpus=1))
    values = {part.key: part.value for part in launch.parts}
    assert values["cost.roofline.trainer.log_prob_passes"] == passes
    assert values.get("cost.roofline.trainer.reference", False) is alone
    ledger = launch.scenario.ledger
    assert any(one.role == "reference" for one in ledger.holdings) == (passes > 0)
