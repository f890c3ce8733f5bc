"""Launch settings: one table a stack, read in both directions."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

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
                    same = sum(each.key == key.key for each in keys)
                    if same > 1 and key.where.keys() - launch.read(as_lines(launch, beside)).keys():
                        continue  # of two with that key, which is told by what is not written so
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
