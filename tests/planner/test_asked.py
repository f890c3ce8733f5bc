"""What a plan is asked: what stays open, limits held against intervals, amounts as people write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.cli.launching import LaunchOptions, batch_note, scenario_or_launch
from rollcast.simulator.cli.plan_flags import parse_choose
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner import auto, words
from rollcast.simulator.planner.planner import answer, plan, question
from rollcast.simulator.planner.question import Objective, assumptions
from rollcast.simulator.planner.race import LEAST
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.results.text import hours, memory_said
from rollcast.simulator.scenario.file import RawScenario, override, parse_scenario
from rollcast.simulator.scenario.plan_section import LimitSection, PlanSection, amount
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.uncertainty import uncertainty
from rollcast.simulator.values import read
from tests.planner.test_plan import SCENARIO
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("quick_intervals")

RAW = parse_scenario(SCENARIO)


# What is not chosen stays open


def test_one_choice_leaves_the_others_open() -> None:
    free = question(RAW)
    one = question(RAW, read(PlanSection, {"choose": {"gpu": ["h100-sxm", "a100-40gb"]}}, "plan"))
    assert not free.narrowed
    assert one.narrowed.startswith("The search is narrowed by gpu; open are the number of GPUs")
    assert one.choose["gpu"] == ["h100-sxm", "a100-40gb"]
    for key in ("gpus", "placement", "tensor_parallel"):
        assert one.choose[key] == free.choose[key]
    assert list(one.policies) == list(free.policies)


@pytest.mark.parametrize(
    ("choose", "left"),
    [
        ({"cluster.replicas": [2, 4]}, {"placement", "tensor_parallel"}),
        ({"cluster.placement": ["colocated"], "gpus": [8]}, {"tensor_parallel"}),
        ({"tensor_parallel": [1], "placement": ["colocated"], "gpus": [8]}, set()),
        ({"workload.group_size": [4, 8]}, {"gpus", "placement", "tensor_parallel"}),
    ],
)
def test_what_is_chosen_is_not_opened(choose: dict[str, list[object]], left: set[str]) -> None:
    asked = question(RAW, read(PlanSection, {"choose": choose}, "plan"), ["sync"])
    assert set(asked.choose) - set(choose) == left
    assert list(asked.policies) == ["sync"]


def test_a_policy_alone_leaves_the_gpus_open() -> None:
    asked = question(RAW, None, ["sync", "april"])
    assert list(asked.policies) == ["sync", "april"]
    assert len(asked.choose["gpus"]) > 1
    assert "policy" not in asked.narrowed.partition("open are")[2]


def test_the_fewest_gpus_are_those_of_the_chosen_kind() -> None:
    small = question(RAW, read(PlanSection, {"choose": {"gpu": ["t4"]}}, "plan"), ["sync"])
    large = question(RAW, read(PlanSection, {"choose": {"gpu": ["b200"]}}, "plan"), ["sync"])
    assert large.choose["gpus"][0] < small.choose["gpus"][0]
    assert auto.SCHEDULES


# Limits against intervals


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=40), st.floats(1, 100), st.floats(1, 100))
def test_a_chance_is_the_share_of_draws_within_the_limit(
    factors: list[float], took: float, limit: float
) -> None:
    objective = Objective("usd", LimitSection(hours=limit, usd=3 * limit))
    chances = objective.chances(RunCost(100, took, took, 3 * took), factors)
    expected = sum(took * factor <= limit for factor in factors) / len(factors)
    assert chances["hours"] == pytest.approx(expected)
    assert 0 <= chances["usd"] <= 1
    assert not objective.chances(RunCost(100, took, took, None), ())


def test_a_limit_that_the_interval_crosses_is_told_with_a_surer_choice(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    busy = SCENARIO.replace("batch_groups: 8", "batch_groups: 32")
    path.write_text(f"{busy}cost: {{scale: {{sync_sd: 0.05, switch_sd: 0.05}}}}\n")
    choose = {"gpus": [4, 8, 16], "placement": ["colocated"], "tensor_parallel": [1]}
    section = {"run": {"steps": 100}, "choose": choose, "objective": "usd"}
    free = plan(path, section, ["sync"], workers=1)
    assert not free.recommended.chances
    limit = 1.02 * free.recommended.run_cost.hours
    found = plan(path, {**section, "limits": {"hours": limit}}, ["sync"], workers=1)
    top = found.recommended
    assert top.hours.low < limit < top.hours.high
    chance = top.chances["hours"]
    assert chance == np.mean(np.array(top.measured.factors) * top.run_cost.hours <= limit)
    assert 0.2 < chance < 0.9
    said = " ".join(found.sentences)
    assert f"It meets the limit of {hours(limit)} in {chance:.0%} of the draws." in said
    surer = [row for row in found.rows if row.chances.get("hours", 0) >= 0.9]
    assert surer
    assert f"of the draws: {words.choice(surer[0])}" in said
    assert found.rows[0].plain()["hours_chance"] == chance
    assert {row.choice.name: row.chance for row in found.rows} == by_brute_force(path, limit)
    likely = [row for row in found.rows if (row.chance or 0) >= 0.9 and not row.beyond]
    assert surer[0] == min(likely, key=lambda row: row.run_cost.usd or 0)


def by_brute_force(path: Path, limit: float) -> dict[str, float]:
    """The chance of each choice of 4, 8 and 16 colocated GPUs to take at most so many hours for 100
    updates, from the draws of its own run."""
    chances = {}
    for gpus in (4, 8, 16):
        placed = (f"cluster.replicas={gpus}", f"cluster.trainer_gpus={gpus}", f"steps={LEAST[-1]}")
        colocated = ("cluster.placement=colocated", "cluster.tensor_parallel=1")
        result = simulate(load(path, *placed, *colocated).with_policy("sync"))
        mean_s = result.summary["step_s"]
        ratios = uncertainty(result, steps=100).draws["step_s"][:512] / mean_s
        within = ratios * (100 * mean_s / 3600) <= limit
        name = f"gpus {gpus}, placement colocated, tensor_parallel 1, sync"
        chances[name] = float(np.mean(within))
    return chances


def test_without_intervals_nothing_is_said_of_draws(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    choose = {"gpus": [4, 8], "placement": ["colocated"], "tensor_parallel": [1]}
    section = {"run": {"steps": 100}, "choose": choose, "limits": {"hours": 900}}
    found = plan(path, section, ["sync", "april"], workers=1, intervals=False)
    said = " ".join([*found.sentences, *found.changes])
    assert "No intervals were computed: how likely it meets the limits is not known." in said
    assert "without intervals, how sure that order is is not known" in said
    assert "of the draws" not in said
    assert "all draws" not in said
    assert all(row.chance is None for row in found.rows)


def test_choices_without_draws_have_chances_as_the_best_one_spreads(tmp_path: Path) -> None:
    """Of a limit far above, of which nothing is said."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    choose = {"gpus": [4, 8], "placement": ["colocated"], "tensor_parallel": [1, 2]}
    section = {"run": {"steps": 100}, "choose": choose, "limits": {"hours": 900}}
    found = plan(path, section, ["sync", "april", "partial_rollout"], workers=1)
    short = [row for row in found.rows if not row.measured.factors]
    assert short
    assert all(words.chance(row) == "~100%" for row in short)
    assert all(row.chance is not None for row in found.rows)
    assert found.recommended.chances == {"hours": 1.0}
    assert "the limit" not in " ".join(found.sentences[:3])


# As people write


@pytest.mark.parametrize(
    ("given_limits", "key", "value"),
    [
        ({"usd": "16k"}, "usd", 16_000),
        ({"usd": "$16,000"}, "usd", 16_000),
        ({"usd": "1.5M"}, "usd", 1_500_000),
        ({"hours": "5d"}, "hours", 120),
        ({"hours": "5 days"}, "hours", 120),
        ({"hours": "90min"}, "hours", 1.5),
        ({"hours": "36h"}, "hours", 36),
        ({"days": 5}, "hours", 120),
        ({"days": "2.5"}, "hours", 60),
        ({"gpus": 64}, "gpus", 64),
    ],
)
def test_limits(given_limits: dict[str, object], key: str, value: float) -> None:
    section = read(PlanSection, {"limits": given_limits}, "plan")
    assert getattr(section.limits, key) == value


@pytest.mark.parametrize(
    ("given_limits", "field"),
    [
        ({"days": 5, "hours": 3}, "plan.limits.days"),
        ({"days": -1}, "plan.limits.days"),
        ({"days": "soon"}, "plan.limits.days"),
        ({"hours": "5 parsecs"}, "plan.limits.hours"),
        ({"usd": "k"}, "plan.limits.usd"),
        ({"hours": "\u0665"}, "plan.limits.hours"),
        ({"dayz": 5}, "plan.limits.dayz"),
    ],
)
def test_bad_limits(given_limits: dict[str, object], field: str) -> None:
    with refuses(field):
        read(PlanSection, {"limits": given_limits}, "plan")


def test_counts_of_a_run() -> None:
    asked = read(PlanSection, {"run": {"prompts": "40k", "epochs": 2}}, "plan")
    assert asked.run.prompts == 40_000
    with pytest.raises(ScenarioError):
        read(PlanSection, {"run": {"steps": "many"}}, "plan")


@given(st.text(max_size=20))
def test_other_text_is_left_to_the_reader(text: str) -> None:
    found = amount(text, {"": 1.0, "k": 1e3})
    assert isinstance(found, int | float) or found == text


def test_one_unit_a_line() -> None:
    assert hours(139.0) == "5.8 days"
    assert hours(24_000.0) == "1,000 days"
    assert hours(139.0, like=91.0) == "139 h"
    assert hours(61.0, like=100.0) == "2.5 days"
    assert hours(0.3, like=100.0) == "0.01 days"
    assert hours(0.0, like=100.0) == "0.0 days"


def test_memory_is_a_sentence_with_peak_phase_rest_and_chance() -> None:
    peak = {"bytes": 79e9, "capacity_bytes": 86e9, "phase": "generation"}
    assert memory_said({"memory": {"peak": peak, "fits_probability": 0.84}}) == (
        "A GPU holds at most 79 GB of 86 GB, in generation: 7.0 GB are left; it fits with a "
        "probability of 84 %."
    )
    over = {"peak": {**peak, "bytes": 94e9, "phase": "update"}, "fits_probability": 0.3}
    assert "94 GB of 86 GB, in the update: 8.0 GB are missing" in memory_said({"memory": over})
    assert not memory_said({})


# What the trainer could do otherwise


def test_where_the_trainer_bounds_its_settings_are_tried(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    slow = "{switch_fixed_s: 0.1, rest_s: 0.0, trainer: {backend: fsdp, recompute: full}}"
    path.write_text(
        SCENARIO.replace("batch_groups: 8", "batch_groups: 256").replace("512", "256")
        + f"cost: {{roofline: {slow}}}\n"
    )
    choose = {"gpus": [8], "placement": ["colocated"], "tensor_parallel": [1]}
    found = plan(path, {"run": {"steps": 100}, "choose": choose}, ["sync"], workers=1)
    assert found.recommended.measured.said["bound_by"] == "trainer"
    said = [sentence for sentence in found.changes if "if the stack has it" in sentence]
    assert said
    assert any("cost.roofline.trainer.kernels: fused would take" in sentence for sentence in said)
    assert all("cost.roofline" in sentence for sentence in said)
    assert not any("weights: lora" in sentence for sentence in said)  # that changes what is learned


def test_the_default_policies_hold_back_what_a_limit_of_staleness_forbids() -> None:
    free = question(RAW)
    assert {"april(over_sampling=2)", "partial_rollout", "colocate_async"} <= set(free.policies)
    strict = question(RAW, read(PlanSection, {"limits": {"staleness": 0}}, "plan"))
    assert not [policy for policy in strict.policies if "async" in policy or "off" in policy]


def test_what_a_launch_leaves_open_is_said_with_the_plan() -> None:
    path = Path(__file__).parents[2] / "examples" / "launch" / "run.sh"
    nothing, length = LaunchOptions(), LaunchOptions(mean_tokens=800.0, prompt_tokens=200)
    for options, keys in (
        (nothing, ["workload.prompt_tokens", "workload.lengths.mean_tokens"]),
        (length, []),
    ):
        raw, _, _ = scenario_or_launch(path, options, ["8xa100-40gb"], False)
        said = " ".join(assumptions(raw))
        assert all(key in said for key in keys)
        assert bool(said) is bool(keys)
        assert "cluster" not in said


def test_a_batch_that_grows_with_the_gpus_is_said_with_the_plan(tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples" / "launch"
    grows = tmp_path / "train.py"
    grows.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(per_device_train_batch_size=4, gradient_accumulation_steps=8,\n"
        "    num_generations=8, max_completion_length=256)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args, reward_funcs=[], train_dataset=[])\n"
    )
    options = LaunchOptions(gpu="h100-sxm")
    for path, counts, told in (
        (grows, [2, 8], "64 rollouts a step, the launch's batch with --gpus 2; with --gpus 8"),
        (grows, [8, 2], "256 rollouts a step, the launch's batch with --gpus 8; with --gpus 2"),
        (grows, [8], None),
        (examples / "run.sh", [8, 16], None),  # verl's batch is of all GPUs
    ):
        _, _, found = scenario_or_launch(path, options, counts, False)
        assert found is not None
        said = batch_note(found, counts)
        assert said is None if told is None else said is not None and told in said


def test_what_a_stack_refuses_is_impossible() -> None:
    """The reason is told, and the rest of the plan is as if these had not been listed."""

    def check(settings: Mapping[str, Any]) -> None:
        if settings["cluster.trainer_gpus"] % 2:
            raise ScenarioError("data.n", "cannot be dealt out to odd numbers")

    section = read(PlanSection, {"choose": {"gpus": [2, 3]}}, "plan")
    asked = question(RAW, section, ["sync"], False, check)
    found = answer(asked, workers=1)
    refused = [one for one in found.impossible if "odd numbers" in one.problem]
    assert refused
    assert all(row.setup.trainer_gpus % 2 == 0 for row in found.rows)


def test_an_assumption_is_told_whatever_its_form() -> None:
    """With a reason behind a colon, as of a mean length, or behind a semicolon, as of prompts."""
    sources = {
        "workload.prompt_tokens": "assumed; give --prompt-tokens",
        "workload.max_new_tokens": "assumed: not in the launch",
        "workload.group_size": "assumed",
        "workload.batch_groups": "b in run.sh, line 3",
    }
    raw = RawScenario({"workload": dict.fromkeys((k[9:] for k in sources), 7)}, overridden=sources)
    [text] = assumptions(raw)
    assert "workload.prompt_tokens is 7 (give --prompt-tokens)" in text
    assert "workload.max_new_tokens is 7 (not in the launch)" in text
    assert "group" not in text


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("workload.max_new_tokens", "16k", 16_384),
        ("workload.prompt_tokens", "1.5K", 1_536),
        ("engine.kv_tokens", "1m", 1_048_576),
        ("engine.kv_tokens", "4_096k", 4_194_304),
        ("cluster.poll_s", "2min", 120),
        ("workload.group_size", "8k", "8k"),  # no tokens: as it is, and refused
        ("workload.max_new_tokens", "16x", "16x"),
        ("workload.max_new_tokens", "\u0661k", "\u0661k"),
    ],
)
def test_tokens_and_seconds(key: str, text: str, value: object) -> None:
    """In a file, and by --set."""
    section, _, name = key.partition(".")
    raw = parse_scenario(f"{section}: {{{name}: {text}}}\n")
    assert raw.data[section][name] == value
    assert override(parse_scenario("steps: 1\n"), [f"{key}={text}"]).data[section][name] == value
    assert parse_choose([f"{key}={text},3"])[key] == [value, 3]
