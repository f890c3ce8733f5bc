"""A launch's scenario: what the settings say, what is assumed, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping
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

TRAINER_GPUS = "cluster.trainer_gpus"


def _values(said: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    parts = drafted(launched({**VERL, **said}), asked(**more)).parts
    return {part.key: part.value for part in parts}


def test_a_launch_becomes_the_scenario_that_it_says() -> None:
    values = _values({})
    assert values["model"] == "qwen2.5-7b"
    assert values["workload.batch_groups"] == 64
    assert values["workload.group_size"] == 8
    assert values["workload.max_new_tokens"] == 2048
    assert values["cluster.replicas"] == 4
    assert values["cluster.tensor_parallel"] == 2
    assert values["cluster.trainer_gpus"] == 8
    assert values["cluster.placement"] == "colocated"
    assert values["cost.roofline.stack"] == "verl-0.7"
    assert values["cost.roofline.kv_memory_utilization"] == 0.6
    assert values["cost.roofline.trainer.minibatches"] == 2
    assert values["cost.roofline.trainer.microbatch_tokens"] == 12288
    assert values["policy"] == []


ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
PACKED = "actor_rollout_ref.model.use_remove_padding"


def test_eager_attention_is_priced_and_can_be_left() -> None:
    """Where rows are padded: what keeps packed sequences apart is never eager."""
    rows = {"actor_rollout_ref.actor.use_dynamic_bsz": False, ATTENTION: "eager"}
    ours = "cost.roofline.trainer.attention"
    for packed, attention, said in ((False, "eager", "eager"), (True, "eager", None)):
        assert _values({**rows, PACKED: packed, ATTENTION: attention}).get(ours) == said
    assert ours not in _values({**rows, PACKED: False, ATTENTION: "sdpa"})
    launch = launched({**VERL, **rows, PACKED: False})
    knob = next(k for k in knobs_of("verl", "fsdp", "colocated", None) if k.key == ours)
    assert knob.others("eager") == (None,)
    assert knob.others(None) == ()
    takes = frozenset(all_stacks()["verl"].launch.keys)
    assert overrides(ours, None, launch.settings, takes) == {"run.attention": "flash_attention_2"}


@pytest.mark.parametrize(
    ("key", "value", "ours", "expected"),
    [
        ("actor_rollout_ref.rollout.enforce_eager", True, "cost.roofline.cuda_graphs", False),
        ("actor_rollout_ref.model.lora_rank", 32, "cost.roofline.trainer.weights", "lora"),
        (
            "actor_rollout_ref.model.enable_gradient_checkpointing",
            False,
            "cost.roofline.trainer.recompute",
            "none",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
            True,
            "cost.roofline.offload_optimizer",
            True,
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            2,
            "cost.roofline.trainer.sequence_parallel",
            2,
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.fsdp_size",
            4,
            "cost.roofline.trainer.sharding",
            "hybrid",
        ),
        ("actor_rollout_ref.actor.use_kl_loss", True, "cost.roofline.trainer.log_prob_passes", 2),
        ("algorithm.adv_estimator", "gae", "cost.roofline.trainer.critic", True),
    ],
)
def test_settings_of_memory_reach_the_costs(
    key: str, value: object, ours: str, expected: object
) -> None:
    assert _values({})[ours] != expected if ours in _values({}) else True
    assert _values({key: value})[ours] == expected


_MEGATRON = "actor_rollout_ref.actor.megatron"
_OVERRIDDEN = f"{_MEGATRON}.override_transformer_config"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({f"{_MEGATRON}.tensor_model_parallel_size": 4}, {"tensor_parallel": 4}),
        ({"--config-name": "ppo_megatron_trainer.yaml"}, {"recompute": "none"}),
        (
            {
                f"{_OVERRIDDEN}.recompute_granularity": "selective",
                f"{_OVERRIDDEN}.recompute_modules": ["core_attn", "moe"],
                f"{_MEGATRON}.expert_model_parallel_size": 1,
            },
            {"recompute": "mlp"},
        ),
        (
            {
                f"{_MEGATRON}.param_offload": True,
                "actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload": (
                    True
                ),
            },
            {"optimizer_on_host": True},
        ),
    ],
)
def test_verls_megatron_is_told_by_its_own_keys(
    said: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Whatever the default of ``strategy`` is: it is not of the other configuration."""
    bare = {key: value for key, value in VERL.items() if not key.endswith("strategy")}
    parts = {p.key: p.value for p in drafted(launched({**bare, **said}), asked()).parts}
    trainer = "cost.roofline.trainer"
    assert parts[f"{trainer}.backend"] == "megatron"
    assert f"{trainer}.sharding" not in parts
    for key, value in expected.items():
        assert parts.get(f"{trainer}.{key}") == value


def test_gpus_of_the_user_stand_for_what_a_script_leaves_to_fill_in() -> None:
    said = {"trainer.nnodes": "TO_BE_FILLED"}
    assert _values(said, gpus=16)["cluster.trainer_gpus"] == 16
    with pytest.raises(ScenarioError, match=r"whole number above 0 is wanted, or --gpus"):
        _values(said)


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("actor_rollout_ref.rollout.gpu_memory_utilization", [-0.1, 7, "abc", math.nan], [0.5, 1]),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", ["abc", -8, 7.5, math.inf], [32]),
        ("actor_rollout_ref.model.lora_rank", ["abc", 10**25], [0, 16, None]),
        ("trainer.total_training_steps", ["nan", [1]], [-1, None, 10]),
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


def test_a_gpu_of_trls_engine_is_told_before_the_default_of_its_mode() -> None:
    said = {
        "accelerate.num_processes": 3,
        "vllm_device": "auto",
        "use_vllm": True,
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 4,
        "num_generations": 6,
    }
    parts = {p.key: p.value for p in drafted(launched(said, "trl", None), asked(gpus=4)).parts}
    assert (parts["cluster.trainer_gpus"], parts["cluster.replicas"]) == (3, 1)
    assert parts["cluster.placement"] == "disaggregated"


@pytest.mark.parametrize("padding", [True, False])
def test_fixed_rows_a_pass(padding: bool) -> None:
    """Padded to the caps, or end to end: as many of them either way, in every pass."""
    values = _values(
        {
            "actor_rollout_ref.actor.use_dynamic_bsz": False,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.model.use_remove_padding": not padding,
        },
        mean_tokens=600.0,
        prompt_tokens=100,
    )
    trainer = "cost.roofline.trainer"
    if padding:
        assert values[f"{trainer}.batching"] == "padded_to_cap"
        assert values[f"{trainer}.padded_prompt_tokens"] == VERL["data.max_prompt_length"]
    else:
        assert values[f"{trainer}.batching"] == "packed"
    assert values[f"{trainer}.microbatch_rollouts"] == 4
    assert values[f"{trainer}.log_prob_microbatch_rollouts"] == 8
    assert not {f"{trainer}.microbatch_tokens", f"{trainer}.log_prob_microbatch_tokens"} & set(
        values
    )


@pytest.mark.parametrize("packs", [None, True])
def test_a_critic_of_verl_pads_its_rows_unless_it_is_told_not_to(packs: bool | None) -> None:
    said = {"algorithm.adv_estimator": "gae", "data.max_prompt_length": 900}
    if packs is not None:
        said["critic.model.use_remove_padding"] = packs
    values = _values(said)
    trainer = "cost.roofline.trainer"
    assert values[f"{trainer}.critic"] is True
    assert values.get(f"{trainer}.critic_batching") == ("packed" if packs else None)
    assert values.get(f"{trainer}.padded_prompt_tokens") == (None if packs else 900)
    assert backends_of("verl")["fsdp"].options["critic_batching"] == "padded_to_cap"


def test_what_the_user_adds_goes_before_the_launch() -> None:
    values = _values({}, gpus=16, mean_tokens=700.0, prompt_tokens=90)
    assert values["cluster.replicas"] == 8
    assert values["cluster.trainer_gpus"] == 16
    assert values["workload.lengths.mean_tokens"] == 700.0
    assert values["workload.prompt_tokens.median_tokens"] == pytest.approx(
        90 * math.exp(-0.125), abs=0.1
    )


def test_a_mean_that_is_the_cap_says_that_every_response_reaches_it() -> None:
    values = _values({})
    cap = values["workload.max_new_tokens"]
    at_cap, below = (_values({}, mean_tokens=tokens) for tokens in (float(cap), cap - 1.0))
    assert "workload.lengths.mean_tokens" not in at_cap
    assert at_cap["workload.lengths.runaway"] == 1
    assert at_cap["workload.lengths.median_tokens"] == cap
    assert below["workload.lengths.mean_tokens"] == cap - 1


def test_lengths_that_nobody_says_are_assumed_and_told() -> None:
    draft = drafted(launched(), asked())
    assumed = {part.key: part.source for part in draft.assumed}
    assert "--mean-tokens" in assumed["workload.lengths.mean_tokens"]
    assert "--prompt-tokens" in assumed["workload.prompt_tokens.median_tokens"]
    assert draft.steps == 100


@pytest.mark.parametrize(("gpus", "message"), [(12, "no whole nodes"), (0, "at least 1")])
def test_gpus_that_make_no_nodes_are_refused(gpus: int, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        drafted(launched(), asked(gpus=gpus))
    assert error.value.field == "--gpus"


def test_a_preset_of_the_release() -> None:
    assert preset_of("verl", "0.7.1") == "verl-0.7"
    assert preset_of("verl", "0.1") == "verl-0.2"  # the oldest that is known
    assert preset_of("verl", "1.3") == "verl-0.9"
    assert preset_of("verl", None) == "verl"
    assert preset_of("nemo_rl", None) == "nemo-rl"
    assert preset_of("trl", "1.9", "transformers") == "trl-transformers"
    assert preset_of("trl", None, "colocate") == "trl"
    assert preset_of("trl", "0.20", "colocate") == "trl-0.15"
    assert preset_of("trl", "1.16", None) == "trl-1.9"


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


def test_gpus_are_asked_for_where_a_launch_names_none() -> None:
    stack = launched({"model_name_or_path": "Qwen/Qwen2.5-1.5B"}, "trl", None)
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


def test_deepspeeds_buckets_and_training_in_32_bit_are_read() -> None:
    zero, common = "deepspeed.zero_optimization", {"model": "Qwen/Qwen2.5-7B", "use_vllm": False}
    said = {**common, "accelerate.num_processes": 8, f"{zero}.stage": 2, "bf16": False}
    more = {f"{zero}.reduce_bucket_size": "auto", f"{zero}.stage3_prefetch_bucket_size": 2e8}
    more[f"{zero}.sub_group_size"] = 1e14
    parts = drafted(launched({**said, **more}, "trl", "1.0"), asked()).parts
    trainer = {part.key.rpartition(".")[2]: part.value for part in parts}
    assert (trainer["reduce_bucket"], trainer["prefetch_bucket"]) == (0, 200_000_000)
    assert trainer["step_group"] == 10**12
    assert trainer["precision"] == "fp32"
    half = drafted(launched({**said, "fp16": True}, "trl", "1.0"), asked()).parts
    assert not any(part.key.endswith(".precision") for part in half)


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


def test_gpus_in_all_hold_the_server_that_generates() -> None:
    said = {"model": "Qwen/Qwen2.5-7B", "use_vllm": True, "vllm_mode": "server"}
    parts = drafted(launched(said, "trl", "1.0"), asked(gpus=8)).parts
    values = {part.key: part.value for part in parts}
    assert (values["cluster.replicas"], values["cluster.trainer_gpus"]) == (1, 7)
    own = drafted(launched({**said, "accelerate.num_processes": 8}, "trl", "1.0"), asked()).parts
    assert {part.key: part.value for part in own}["cluster.trainer_gpus"] == 8


@pytest.mark.parametrize(("sleeps", "how"), [(True, "discard"), (False, "none")])
def test_an_engine_that_is_told_to_sleep_sleeps(sleeps: bool, how: str) -> None:
    """TRL's does not by default (vllm_generation.py: llm.sleep(level=2))."""
    said = {"model": "Qwen/Qwen2.5-7B", "use_vllm": True, "vllm_enable_sleep_mode": sleeps}
    parts = drafted(launched(said, "trl", "1.9"), asked(gpus=8)).parts
    assert {part.key: part.value for part in parts}["cost.roofline.engine_sleep"] == how


ACTOR_LEAVES = {
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
}
GATHERS = ("gathers_to_merge", "gathered_copies")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (True, 2)),
        ({"actor_rollout_ref.rollout.load_format": "safetensors"}, (True, None)),
        (
            {
                "actor_rollout_ref.rollout.load_format": "safetensors",
                "actor_rollout_ref.rollout.layered_summon": True,
            },
            (False, None),
        ),
        ({"actor_rollout_ref.actor.strategy": "fsdp2"}, (None, None)),
        (
            {
                "actor_rollout_ref.model.lora.merge": True,
                "actor_rollout_ref.rollout.layered_summon": True,
            },
            (True, None),
        ),
    ],
)
def test_adapters_of_verl_are_read_out_of_gathered_weights(
    said: Mapping[str, Any], expected: tuple[Any, Any]
) -> None:
    values = _values({"actor_rollout_ref.model.lora_rank": 32, **said})
    assert tuple(values.get(f"cost.roofline.trainer.{key}") for key in GATHERS) == expected
    merges = said.get("actor_rollout_ref.model.lora.merge")
    assert values.get("cost.roofline.merges_adapters") == merges
    alone = _values({"actor_rollout_ref.model.lora.merge": True})  # nothing to merge
    assert "cost.roofline.merges_adapters" not in alone


@pytest.mark.parametrize(
    ("release", "key"),
    [
        ("0.7", "critic.model.fsdp_config.optimizer_offload"),
        ("0.8", "critic.fsdp.optimizer_offload"),
    ],
)
def test_a_critic_of_verl_stays_unless_its_own_setting_moves_it(release: str, key: str) -> None:
    stays = "cost.roofline.trainer.critic_stays"
    settings = {**VERL, "algorithm.adv_estimator": "gae"}

    def of(more: Mapping[str, Any]) -> Any:
        parts = drafted(launched({**settings, **more}, release=release), asked()).parts
        return {part.key: part.value for part in parts}.get(stays)

    assert of({}) is None  # all stay
    assert of(ACTOR_LEAVES) is True
    assert of({**ACTOR_LEAVES, key: True}) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"critic.ppo_micro_batch_size_per_gpu": 3}, {"critic_microbatch_rollouts": 3}),
        ({"critic.ppo_micro_batch_size": 32}, {"critic_microbatch_rollouts": 4}),
        (
            {"actor_rollout_ref.actor.use_dynamic_bsz": True},
            {"critic_microbatch_tokens": 32_768},
        ),
        (
            {
                "critic.use_dynamic_bsz": True,
                "critic.ppo_max_token_len_per_gpu": 9000,
                "critic.ulysses_sequence_parallel_size": 2,
                "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 4,
            },
            {"critic_microbatch_tokens": 18_000, "critic_sequence_parallel": 2},
        ),
        (
            {"actor_rollout_ref.actor.ulysses_sequence_parallel_size": 4},
            {"critic_sequence_parallel": 1},
        ),
        (
            {"critic.model.enable_gradient_checkpointing": False},
            {"critic_recompute": "none"},
        ),
        (
            {**ACTOR_LEAVES, "critic.model.fsdp_config.optimizer_offload": True},
            {"critic_keeps_weights": True},
        ),
        ({"critic.model.path": "Qwen/Qwen2.5-32B"}, {"critic_model": "qwen2.5-32b"}),
    ],
)
def test_a_critic_of_verl_is_read(said: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """verl/trainer/config/critic/critic.yaml and dp_critic.yaml: what a launch does not say is a
    default of the critic's own, not the policy's."""
    own = ("microbatch_tokens", "microbatch_rollouts", "sequence_parallel", "recompute")
    names = {f"critic_{name}" for name in (*own, "keeps_weights", "model")}

    def of(estimator: str) -> Mapping[str, Any]:
        rows = {"actor_rollout_ref.actor.use_dynamic_bsz": False}
        settings = {**VERL, **rows, "algorithm.adv_estimator": estimator, **said}
        parts = drafted(launched(settings, release="0.7"), asked()).parts
        trainer = "cost.roofline.trainer."
        values = {part.key.removeprefix(trainer): part.value for part in parts}
        return {name: value for name, value in values.items() if name in names}

    assert of("gae") == expected
    assert of("grpo") == {}


def test_parameters_that_are_not_offloaded_stay() -> None:
    stay = "cost.roofline.trainer.keeps_weights"
    assert stay not in _values(ACTOR_LEAVES)
    leaves = {**ACTOR_LEAVES, "actor_rollout_ref.actor.fsdp_config.param_offload": False}
    assert _values(leaves)[stay] is True


_RECOMPUTES = "enable_old_logprobs_recompute"


@pytest.mark.parametrize(
    ("stack", "said", "passes"),
    [
        ("slime", {"use-kl-loss": True}, 2),
        ("slime", {"use-kl-loss": True, "use-rollout-logprobs": True}, 1),
        ("slime", {"use-rollout-logprobs": True, "get-mismatch-metrics": True}, 1),
        ("slime", {"use-rollout-logprobs": True}, 0),
        ("areal", {"actor.recompute_logprob": False, "actor.kl_ctl": 0.0}, 0),
        ("areal", {"actor.use_decoupled_loss": True, "actor.kl_ctl": 0.0}, 1),
        (
            "areal",
            {
                "actor.use_decoupled_loss": True,
                "actor.prox_logp_method": "loglinear",
                "actor.kl_ctl": 0.1,
            },
            1,
        ),
        ("roll", {"init_kl_coef": 0.2}, 2),
        ("roll", {"init_kl_coef": 0}, 0),
        ("roll", {"init_kl_coef": 0, "use_kl_loss": True}, 1),
        ("roll", {"init_kl_coef": 0, _RECOMPUTES: True}, 1),
        ("roll", {"init_kl_coef": 0.2, "force_disable_old_logprobs_recompute": True}, 1),
        ("roll", {"init_kl_coef": 0, "rollout_batch_size": 16}, 1),
        ("rlinf", {"algorithm.recompute_logprobs": False, "algorithm.kl_beta": 0.0}, 0),
        ("rlinf", {"algorithm.recompute_logprobs": True, "algorithm.kl_beta": 0.0}, 1),
        ("rlinf", {"algorithm.recompute_logprobs": False}, 0),
    ],
)
def test_log_probabilities_of_the_engine_are_not_computed_anew(
    stack: str, said: Mapping[str, Any], passes: int
) -> None:
    """And those of a reference are, by each stack's own rule."""
    usual = {
        "roll": {
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_infer.device_mapping": "list(range(0,8))",
            "actor_train.training_args.per_device_train_batch_size": 1,
            "actor_train.training_args.gradient_accumulation_steps": 8,
            "rollout_batch_size": 8,
            "num_return_sequences_in_group": 8,
        }
    }.get(stack, {})
    parts = drafted(launched({**usual, **said}, stack, None), asked(gpus=8)).parts
    values = {part.key: part.value for part in parts}
    assert values["cost.roofline.trainer.log_prob_passes"] == passes


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
    assert ledger is not None
    assert any(one.role == "reference" for one in ledger.holdings) == (passes > 0)


@pytest.mark.parametrize(
    ("stack", "key"), [("trl", "load_in_4bit"), ("openrlhf", "ds.load_in_4bit")]
)
def test_frozen_weights_below_adapters_have_the_bits_that_a_launch_says(
    stack: str, key: str
) -> None:
    adapters = {"trl": {"lora_r": 16, "use_peft": True}, "openrlhf": {"ds.lora.rank": 16}}[stack]
    parts = drafted(launched({**adapters, key: True}, stack, None), asked(gpus=8)).parts
    assert next(part.value for part in parts if part.key.endswith("base_bits")) == 4
