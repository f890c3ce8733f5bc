"""Launch settings: one table a stack, read in both directions."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from benchmarks.validation.memory_cases import LaunchCase
from rollcast.simulator.stacks.keys import Key
from rollcast.simulator.stacks.launch import FORMS, Given, Launch
from rollcast.simulator.stacks.launch_file import load_launch
from rollcast.simulator.stacks.releases import Span
from rollcast.simulator.stacks.settings import Place, Setting, Settings
from rollcast.simulator.stacks.stack import LAUNCH_FILE, Stack, all_stacks
from tests.tables import cases

STACKS = all_stacks()
HERE = Place("run.sh", 1)
MEGATRON = "actor_rollout_ref.actor.megatron"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"


def as_given(line: str) -> Given:
    """An argument as a shell would hand it over."""
    key, _, value = line.partition("=") if "=" in line else line.partition(" ")
    text = value.strip()
    said = {"": True, "true": True, "false": False, "null": None, "none": None}
    parsed = said.get(text.lower(), int(text) if text.isdigit() else text)
    key = key.removeprefix("--").removeprefix("++").rstrip(":")
    off = key.startswith("no-")
    return Given(
        key.removeprefix("no-") if off else key, not off if parsed is True else parsed, HERE
    )


def as_lines(launch: Launch, lines: list[str]) -> list[Given]:
    """What a stack makes of lines that were written for it."""
    if launch.form != "key: value":
        return [as_given(line) for line in lines]
    return [Given(key, value, HERE) for key, value in flat(yaml.safe_load("\n".join(lines)))]


def flat(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in (tree or {}).items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def run_of(values: Mapping[str, object]) -> Settings:
    """Settings of a run, of which only the values matter."""
    return {ours: Setting(ours, value, "", HERE) for ours, value in values.items()}


def test_every_folder_is_a_stack() -> None:
    assert {"areal", "nemo_rl", "openrlhf", "prime_rl", "roll"} < STACKS.keys()
    assert {"rlinf", "skyrl", "slime", "trl", "verl"} < STACKS.keys()
    for stack in STACKS.values():
        assert stack.launch.form in FORMS
        assert stack.launch.releases
        assert {"model", "workload.max_new_tokens"} <= stack.launch.keys.keys()
        assert stack.log is None or stack.log.name == stack.name


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_what_is_written_is_read_again(stack: Stack) -> None:
    launch = stack.launch
    for ours, keys in launch.keys.items():
        for key in keys:
            run = run_of({c: v[0] if isinstance(v, list) else v for c, v in key.where.items()})
            if key.part is not None or key.spelt is not None or key.fork or not key.holds(None):
                continue  # not written so
            for value in key.values or ((True, False) if key.inverted else (3, True, False)):
                if not key.values and any(each.values for each in keys):
                    continue  # of another's words
                lines = launch.written({ours: value}, run=run)
                if lines:  # none where a flag is left out
                    known = {each: one.value for each, one in run.items()}
                    can = {each: its for each, its in known.items() if launch.has(each)}
                    beside = launch.written(can)
                    read = launch.read([*as_lines(launch, beside), *as_lines(launch, lines)])
                    assert read[ours].value == value, lines


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_no_key_of_a_stack_means_two_things(stack: Stack) -> None:
    keys = [
        name
        for each in stack.launch.keys.values()
        for name in {key.key for key in each if key.part is None}
    ]
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


def test_the_surer_of_two_counts_and_a_conflict_is_told() -> None:
    launch = Launch("key=value", {"run.steps": (Key(key="steps"), Key(key="max_steps"))})
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
    assert {
        "run.mode": "sglang:d4t2+fsdp:d8",
        "run.engine": "sglang",
        "run.strategy": "fsdp2",
        "cluster.replicas": 4,
        "cluster.tensor_parallel": 2,
        "cluster.trainer_gpus": 8,
        "run.rollout_gpus": 8,
        "run.colocated": False,
    }.items() <= {key: s.value for key, s in read.items()}.items()


MODE, STEPS = "trainer.v1.trainer_mode", "--orchestrator.max_off_policy_steps"
APART = {"run.colocated": False}
COLOCATED_ASYNC = {"run.asynchronous": True, "policy": ["colocate_async"]}
ONE = {"in_flight": 1.0, "queue": 1.0}


@pytest.mark.parametrize(
    ("stack", "given", "implied"),
    [
        ("verl", f"{MODE}=separate_async", {**APART, "run.asynchronous": True}),
        ("verl", f"{MODE}=colocate_async", {"run.colocated": True, **COLOCATED_ASYNC}),
        ("trl", "--vllm_mode server", {**APART, "run.strategy": "ddp"}),
        ("prime_rl", f"{STEPS} 1", {"policy": [{"pipeline_rl": ONE}], "run.asynchronous": True}),
        ("prime_rl", f"{STEPS} 2", {"run.asynchronous": True}),
        ("prime_rl", f"{STEPS} 0", {"run.asynchronous": False}),
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
    for release in (None, "0.10.2", "0.12.1"):
        assert openrlhf.name("workload.batch_groups", release) == "--rollout.batch_size"
    assert openrlhf.name("workload.batch_groups", "0.10.1") == "--rollout_batch_size"
    assert openrlhf.defaults["workload.batch_groups"] == 1024


VERL = STACKS["verl"].launch


@pytest.mark.parametrize(
    ("stack", "settings", "known", "lines"),
    cases(Path(__file__).parent / "written.yaml", "settings", "run", "lines"),
)
def test_lines_are_those_that_the_stack_takes(
    stack: str, settings: dict[str, object], known: dict[str, object], lines: list[str]
) -> None:
    assert STACKS[stack].launch.written(settings, run=run_of(known)) == lines


def test_a_switch_that_is_turned_off_by_leaving_it_out_is_a_line_where_the_launch_has_it() -> None:
    openrlhf, off = STACKS["openrlhf"].launch, {"run.enforce_eager": False}
    eager = openrlhf.read([Given("enforce_eager", True, HERE)])
    assert openrlhf.written(off, run=eager) == ["remove --enforce_eager"]
    assert openrlhf.written(off) == []


def test_what_a_run_does_not_take_is_not_written() -> None:
    with pytest.raises(KeyError, match=r"run\.cpu_offload"):
        VERL.written({"run.cpu_offload": True}, run=run_of({"run.strategy": "megatron"}))
    with pytest.raises(KeyError, match=r"run\.recompute"):
        VERL.written({"run.recompute": "selective"}, run=run_of({"run.strategy": "fsdp"}))


def test_keys_of_another_kind_of_run_do_not_count() -> None:
    both = [
        Given("actor_rollout_ref.actor.fsdp_config.param_offload", True, HERE),
        Given(f"{MEGATRON}.param_offload", False, HERE),
    ]
    assert VERL.read(both)["run.offload_parameters"].value is True
    split = Given("actor_rollout_ref.actor.strategy", "megatron", HERE)
    assert VERL.read([*both, split])["run.offload_parameters"].value is False


def test_a_run_keeps_its_spelling() -> None:
    openrlhf = STACKS["openrlhf"].launch
    old = openrlhf.read([as_given("--rollout_batch_size 128")])
    more = {"workload.batch_groups": 64, "workload.group_size": 4}
    assert openrlhf.written(more, run=old) == [
        "--rollout_batch_size 64",
        "--n_samples_per_prompt 4",
    ]
    new = openrlhf.read([as_given("--rollout.batch_size 128")])
    assert openrlhf.written({"workload.group_size": 4}, run=new) == [
        "--rollout.n_samples_per_prompt 4"
    ]
    older = openrlhf.read([as_given("--generate_max_len 2048")])  # gone since 0.9.8
    for run, rows in ((older, 4), (old, 1), (new, 1)):  # 4 before 0.10
        assert openrlhf.unsaid(run, HERE)["run.micro_batch_rollouts"].value == rows
    assert openrlhf.unsaid(old, HERE, release="0.9")["workload.max_new_tokens"].value == 1024
    for run in (old, new):
        assert openrlhf.unsaid(run, HERE)["workload.max_new_tokens"].value is None


def test_what_nemo_rl_gathers_and_splits_is_of_its_release() -> None:
    """Its first worker of DTensors gathers all weights for log-probabilities, as all did before
    0.4, when no tied head was split; its optimiser copied no weights before 0.7."""
    nemo = STACKS["nemo_rl"].launch
    copies = "run.foreach_optimizer"
    dtensor = nemo.read([as_given("policy.dtensor_cfg.enabled=true")])
    assert nemo.unsaid(dtensor, HERE, release="0.6")[copies].value is False
    assert nemo.unsaid(dtensor, HERE)[copies].value is True
    fused = nemo.read([as_given("policy.optimizer.kwargs.fused=true")])
    assert fused[copies].value is False

    def of(release: str | None, **said: bool) -> tuple[object, ...]:
        given = {"policy.dtensor_cfg.enabled": True, **said}
        read = nemo.read([Given(key, value, HERE) for key, value in given.items()])
        every = {**nemo.unsaid(read, HERE, release=release), **read}
        return tuple(every[f"run.{key}"].value for key in ("gathers_to_score", "splits_tied_head"))

    assert of("0.3") == (True, False)
    first = {"policy.dtensor_cfg._v2": False}
    for release in ("0.4", "0.7", None):
        assert of(release) == (False, True)
        assert of(release, **first) == (True, True)
    other = nemo.unsaid(nemo.read([as_given("policy.megatron_cfg.enabled=true")]), HERE)
    assert not {"run.gathers_to_score", "run.splits_tied_head"} & other.keys()


def test_norms_beside_a_quantised_base_are_wide_in_some_releases_of_trl() -> None:
    """GRPOTrainer had peft cast them from 0.22 to 0.25, not below ZeRO-3 or FSDP."""
    trl = STACKS["trl"].launch

    def of(release: str | None, **said: object) -> object:
        given = {"load_in_4bit": True, "use_peft": True, **said}
        read = trl.read([Given(key, value, HERE) for key, value in given.items()])
        return {**trl.unsaid(read, HERE, release=release), **read}["run.fp32_norms"].value

    wide = {release: of(release) for release in ("0.21", "0.22", "0.25", "0.26", None)}
    assert wide == {"0.21": False, "0.22": True, "0.25": True, "0.26": False, None: False}
    assert of("0.24", unsloth=True) is False
    keys = {"accelerate.distributed_type": "DEEPSPEED", "accelerate.num_processes": 2}
    stage = "accelerate.deepspeed_config.zero_stage"
    for zero, casts in ((2, True), (3, False)):
        run = LaunchCase(
            "trl",
            {"model_name_or_path": "Qwen/Qwen2.5-7B", "load_in_4bit": True, "use_peft": True}
            | {"lora_r": 16, **keys, stage: zero},
            "a100-80gb",
            2,
            "0.24",
        )
        trainer = run.question().scenario.raw.data["cost"]["roofline"]["trainer"]
        assert trainer.get("fp32_norms", False) is casts


@pytest.mark.parametrize(
    ("release", "said", "reentrant"),
    [("0.26", {}, True), ("0.27", {}, False), ("0.26", {"use_reentrant": False}, False)],
)
def test_checkpoints_of_trl_are_reentrant_before_0_27(
    release: str, said: dict[str, object], reentrant: bool
) -> None:
    """And count with FSDP1 and adapters alone."""
    for version in (1, 2):
        run = LaunchCase(
            "trl",
            {"model_name_or_path": "Qwen/Qwen2.5-7B", "use_peft": True, "lora_r": 16}
            | {f"gradient_checkpointing_kwargs.{key}": value for key, value in said.items()}
            | {"accelerate.distributed_type": "FSDP", "accelerate.num_processes": 2}
            | {"accelerate.fsdp_config.fsdp_version": version},
            "a100-80gb",
            2,
            release,
        )
        trainer = run.question().scenario.raw.data["cost"]["roofline"]["trainer"]
        assert trainer.get("reentrant_checkpoints", False) is (reentrant and version == 1)


def test_values_are_the_same_however_they_are_spelt() -> None:
    for theirs in (True, "True", "true"):
        assert VERL.read([Given(CHECKPOINTING, theirs, HERE)])["run.recompute"].value == "full"
    key = f"{MEGATRON}.override_transformer_config.recompute_granularity"
    for nothing in (None, "null"):
        assert VERL.read([Given(key, nothing, HERE)])["run.recompute"].value == "none"


def test_defaults_hold_where_nothing_is_said() -> None:
    verl, stack = STACKS["verl"], Place("verl")
    said = verl.launch.read([as_given("actor_rollout_ref.actor.strategy=megatron")], verl.implied)
    rest = verl.launch.unsaid(said, stack, verl.implied)
    assert not rest.keys() & said.keys()
    assert rest["run.recompute"].value == "none"
    assert "run.shard_gpus" not in rest
    assert rest["run.gpus_per_node"].value == 8
    assert rest["run.gpus_per_node"].place == stack
    assert rest["run.critic"].value is True  # of the default advantage
    assert VERL.unsaid({}, stack)["run.recompute"].value == "full"


def test_advice_is_in_the_words_of_the_release() -> None:
    old, older, new = Span("0.6", "0.7.1"), Span(None, "0.5"), Span("0.9")
    assert VERL.advised({}, old)["one_step_off"].startswith("recipe.one_step_off_policy.main_ppo")
    assert VERL.advised({}, older)["one_step_off"].startswith("from release 0.5 on: recipe.")
    for span in (new, Span()):
        assert "trainer.v1.trainer_mode=separate_async" in VERL.advised({}, span)["one_step_off"]
    assert VERL.advised(run_of({}), old)["april"].startswith("from release 0.9 on: trainer.v1")
    openrlhf = STACKS["openrlhf"].launch
    run = openrlhf.read([as_given("--rollout_batch_size 128")])
    assert openrlhf.advised(run)["sync"] == "without --async_train"
    assert openrlhf.advised({})["sync"] == "without --train.async_enable"
    for stack in STACKS.values():
        assert not any("{" in words for words in stack.launch.advised({}).values())


def test_keys_of_a_log_tell_the_releases_that_write_them() -> None:
    log = STACKS["verl"].log
    whole = ("timing_s/gen", "timing_s/step", "timing_s/update_actor", "response_length/mean")
    rows = [dict.fromkeys((*whole, "timing_s/reward"), 1.0), {"response/aborted_ratio": 0.0}]
    assert log.written_by(rows) == Span("0.6", "0.7.1")
    assert log.written_by([{**rows[0], "timing_s/update_weights": 1.0}]) == Span("0.7.1", None)
    assert log.written_by([{"timing/gen": 1.0}]) == Span(None, "0.3")
    assert log.written_by([{"timing_s/step": 1.0}, {"timing_s/step": 2.0}]) == Span()  # a chart
    assert log.written_by([]) == Span()
    assert str(Span("0.6", "0.7.1")) == " 0.6 or later, before 0.7.1"


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
