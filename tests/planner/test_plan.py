"""Planning from a question to an answer, on problems small enough to look at."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import rollcast.simulator.planner.planner as planner
from rollcast import load
from rollcast.simulator.errors import RunError
from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Planned
from rollcast.simulator.planner.changes import what_would_change
from rollcast.simulator.planner.journal import journal_path
from rollcast.simulator.planner.measure import Failure, Measured, Task, run_task
from rollcast.simulator.planner.planner import answer, by_cause, plan, question
from rollcast.simulator.policies import APRIL
from rollcast.simulator.scenario.file import override, parse_scenario, read_scenario
from rollcast.simulator.scenario.plan_section import PlanSection
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.values import read
from tests.conftest import Cli
from tests.refusals import ran, refused
from tests.scenarios import COST
from tests.test_report import read as read_page

pytestmark = pytest.mark.usefixtures("quick_intervals")

SCENARIO = """
model: qwen3-8b
gpu: h100-sxm
cluster: {placement: colocated, replicas: 8, tensor_parallel: 1, trainer_gpus: 8}
workload:
  batch_groups: 8
  group_size: 4
  prompt_tokens: 64
  max_new_tokens: 512
  lengths: {family: lognormal, median_tokens: 100, between_sd: 0.5, within_sd: 0.4}
steps: 2
"""
CHOOSE = {
    "gpus": [4, 8],
    "placement": ["colocated", "disaggregated"],
    "tensor_parallel": [1, 2],
    "policy": ["sync", "april(over_sampling=1.5)", "one_step_off"],
}


def asked(**section: Any) -> dict[str, Any]:
    return {"run": {"steps": 100}, "choose": CHOOSE, "objective": "usd", **section}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path / "s.yaml"


def test_policies_that_take_the_same_decisions_are_shown_once(path: Path) -> None:
    """Both stop at a batch of twice as many and resume the rest."""
    choose = {"gpus": [4, 8], "placement": ["colocated"], "tensor_parallel": [1]}
    names = ["sync", "colocate_async", "april(over_sampling=2)"]
    found = plan(path, {"run": {"steps": 100}, "choose": choose}, names, workers=1)
    alike = [(a, b) for a in found.rows for b in found.rows if a.alike(b)]
    pairs = {(names[1], names[2]), (names[2], names[1])}
    assert {(a.choice.policy, b.choice.policy) for a, b in alike} == pairs
    shown = found.notable(len(found.rows))
    assert not [(a, b) for a in shown for b in shown if a.alike(b)]
    assert len(shown) == len(found.rows) - len(alike) // 2
    rows = {(row.setup.gpus, row.choice.policy): row for row in found.rows}
    one, other = rows[8, names[1]], rows[8, names[2]]
    kept = [row for row in found.rows if row.choice.policy != names[2]]
    assert words.alike(found.rows, kept) == [
        f"{names[2]} took the same decisions as {names[1]}, and is left out."
    ]
    # Where the list has it in another set-up, the one that is left out is said.
    assert words.alike([one, other], [one, rows[4, names[2]]]) == [
        f"{words.choice(other)} took the same decisions as {names[1]}, and is left out."
    ]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    path = tmp_path_factory.mktemp("plan") / "s.yaml"
    path.write_text(SCENARIO)
    return plan(load(path), asked(), workers=1)


def whole_run_s(found: Measured) -> float:
    """Of 100 updates."""
    return found.startup_s + (100 - found.startup_steps) * found.step_s


def test_what_it_recommends_is_the_best_of_all(planned: Planned, path: Path) -> None:
    question_ = question(load(path).raw, None, ["sync"])
    best = planned.recommended
    for row in planned.unrun[::4]:
        setup = row.setup
        found = run_task(load(path).raw, Task(row.choice, question_.rungs.last))
        assert isinstance(found, Measured)
        hours = whole_run_s(found) / 3600
        assert best.run_cost.usd <= 1.02 * hours * setup.gpus * 2.5  # type: ignore[operator]
    costs = [row.run_cost.usd or 0.0 for row in planned.rows if row.exact]
    assert best.run_cost.usd == min(costs)
    assert planned.simulated_steps < planned.brute_force_steps


def test_what_it_reports_is_what_simulate_says(planned: Planned, path: Path) -> None:
    for row in planned.rows[:3]:
        assert row.exact
        scenario = row.choice.scenario(load(path).raw)
        summary = simulate(replace(scenario, steps=row.measured.steps)).summary
        assert row.measured.step_s == summary["step_s"]
        assert row.measured.bubble_fraction == summary["bubble_fraction"]
        assert row.setup.gpus == summary["gpus"]
        assert row.run_cost.hours == pytest.approx(whole_run_s(row.measured) / 3600)


def test_the_answer_says_what_the_issue_asks(planned: Planned) -> None:
    best = planned.recommended
    first, second, *_ = planned.sentences
    assert best.choice.policy in first
    assert str(best.setup.gpus) in first
    assert "100 steps of 32 rollouts" in second
    assert f"bound by {best.measured.said['bound_by']}" in second
    assert "assumed" not in second
    assert best.hours.low <= best.run_cost.hours <= best.hours.high
    made = best.measured.said["phases"]["generation"]
    assert made["low_s"] < made["s"] < made["high_s"]
    assert sum(best.measured.said["bound_by_share"].values()) == pytest.approx(1.0)
    assert planned.front
    hours = [row.run_cost.hours for row in planned.front]
    costs = [row.run_cost.cost for row in planned.front]
    assert hours == sorted(hours)
    assert costs == sorted(costs, reverse=True)
    assert planned.baseline.exact
    assert planned.scenario["plan"] == {"run": {"steps": 100}}
    table = planned.table()
    assert table["policy"].iloc[0] == best.choice.policy
    assert len(table) == len(planned.rows)


def test_a_winner_over_what_cannot_be_run_wins_by_no_figure(planned: Planned, path: Path) -> None:
    class Failing:
        """Simulates all but the first."""

        def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
            return [Failure("no memory"), *(row.measured for row in planned.rows[1 : len(tasks)])]

    best, *others = (row for row in planned.rows if row.exact)
    said = what_would_change(Failing(), question(read_scenario(path)), best, others, [best])
    assert any(
        "would be best, because the recommended choice could not be run." in text for text in said
    )
    assert not any("inf%" in text for text in said)


def test_break_even_is_where_the_bills_are_equal(planned: Planned) -> None:
    base = planned.baseline
    for row in planned.rows:
        if row.choice.policy == "sync":
            assert row.break_even is None
            continue
        assert row.break_even is not None
        assert base.run_cost.usd == pytest.approx(row.break_even * row.run_cost.usd, rel=1e-9)


def test_policies_may_be_objects(path: Path) -> None:
    found = plan(
        load(path), {"choose": {"gpus": [8]}}, ["sync", APRIL(1.5)], workers=1, intervals=False
    )
    assert {row.choice.policy for row in found.rows} == {"sync", "april(over_sampling=1.5)"}


def test_without_a_question_it_chooses_by_itself(path: Path) -> None:
    found = question(load(path).raw)
    assert found.work.assumed
    assert found.objective.name == "balanced"
    assert found.choose["gpus"][0] < 8
    assert list(found.choose["gpus"]) == [
        found.choose["gpus"][0] * 2**i for i in range(len(found.choose["gpus"]))
    ]
    assert found.choose["placement"] == ["colocated", "disaggregated"]
    assert "sync" in found.policies
    assert any(policy.startswith("fully_async") for policy in found.policies)


def test_its_own_chain_keeps_what_does_not_schedule(path: Path) -> None:
    scenario = load(path, "policy=[april, {pods: {keep: 2}}]")
    found = question(scenario.raw).policies
    assert found[0] == "april(over_sampling=2)+pods(keep=2)"
    assert "pods(keep=2)" in found
    assert "one_step_off+pods(keep=2)" in found
    assert "sync" not in found


def test_its_own_policy_is_told_by_what_matters(path: Path) -> None:
    scenario = load(
        path, "cluster.placement=disaggregated", "policy=[{fully_async: {exceeded: capacity}}]"
    )
    assert question(scenario.raw).policies[0] == "fully_async(max_staleness=4, exceeded=capacity)"
    own = load(path, "policy=[{april: {over_sampling: 1.5}}]")
    assert question(own.raw).policies.count("april(over_sampling=1.5)") == 1


def test_no_staleness_leaves_synchronous_schedules(path: Path) -> None:
    raw = parse_scenario(SCENARIO + "plan: {limits: {staleness: 0}}\n")
    assert not any("async" in policy or "off" in policy for policy in question(raw).policies)


def test_linear_costs_hold_for_their_own_cluster() -> None:
    text = SCENARIO.replace("model: qwen3-8b\ngpu: h100-sxm\n", "") + (
        f"engine: {{kv_tokens: 100000}}\n{COST}"
    )
    found = question(parse_scenario(text))
    assert "gpus" not in found.choose
    assert len(found.policies) > 2
    planned = answer(replace(found, intervals=False), 1)
    assert planned.recommended.run_cost.usd is None
    assert "GPU-hours" in planned.sentences[1]


def test_objectives_by_limits() -> None:
    for limits, objective in (
        ("{hours: 5}", "usd"),
        ("{usd: 100}", "hours"),
        ("{gpus: 8}", "hours"),
        ("{staleness: 1}", "balanced"),
    ):
        found = question(parse_scenario(f"{SCENARIO}plan: {{limits: {limits}}}\n"))
        assert found.objective.name == objective


# Limits


def test_limits_are_kept(path: Path) -> None:
    def limited(limits: dict[str, float], **choose: Any) -> Planned:
        section = asked(objective="hours", limits=limits, choose={**CHOOSE, **choose})
        return plan(load(path), section, workers=1, intervals=False)

    two = {"policy": ["sync", "one_step_off"], "tensor_parallel": [1]}
    free = limited({}, **two)
    dear = free.recommended.run_cost.usd
    assert dear is not None
    limit = (min(row.run_cost.usd for row in free.rows if row.run_cost.usd is not None) + dear) / 2
    found = limited({"usd": limit}, **two)
    assert found.recommended.run_cost.usd is not None
    assert found.recommended.run_cost.usd <= limit < dear
    fresh = limited({"staleness": 0}, **two)
    assert fresh.recommended.measured.staleness_max == 0
    few = limited({"gpus": 4}, **two)
    assert few.recommended.setup.gpus == 4
    assert any(row.beyond for row in few.rows) or few.unrun


def test_causes_are_grouped() -> None:
    full = "the trainer is out of memory: {} GB of each {} do not fit"
    found = by_cause(
        [(full.format(90, "h100-sxm"), "a"), ("other", "b"), (full.format(91.5, "h200-sxm"), "c")]
    )
    assert [each.choices for each in found] == [("a", "c"), ("b",)]
    assert "90 GB" in found[0].problem


def test_nothing_can_be_run(path: Path) -> None:
    raw = override(read_scenario(path), ["model=llama-3.1-405b"])
    section = read(PlanSection, asked(choose={**CHOOSE, "gpus": [1]}), "plan")
    with pytest.raises(RunError, match=r"none of \d+ choices can be run"):
        answer(question(raw, section), 1)


def test_a_scenario_that_does_not_fit_as_it_is_can_be_planned(tmp_path: Path) -> None:
    """Nobody who asks which GPUs to take has to say first which."""
    text = SCENARIO.replace(
        "cluster: {placement: colocated, replicas: 8, tensor_parallel: 1, trainer_gpus: 8}\n", ""
    ).replace("qwen3-8b", "qwen3-32b")
    path = tmp_path / "s.yaml"
    path.write_text(text)
    choose = {"gpus": [8, 16], "placement": ["colocated"]}
    found = plan(path, {"choose": choose}, ["sync"], workers=1, intervals=False)
    assert found.recommended.setup.gpus >= 8


@pytest.mark.parametrize(
    ("gpus", "setting"),
    [
        (2, {"cost.roofline.offload_optimizer": True}),
        (1, {"cost.roofline.trainer.states_on_host": True}),
    ],
)
def test_what_it_recommends_fits_by_a_setting_that_nobody_chose(
    gpus: int, setting: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    stack = "cost: {roofline: {stack: verl-0.9}}\n"
    path.write_text(SCENARIO.replace("qwen3-8b", "qwen2.5-7b") + stack)
    choose = {"gpus": [gpus], "placement": ["colocated"], "tensor_parallel": [1]}
    found = plan(path, {"choose": choose}, ["sync"], workers=1, intervals=False)
    best, scenario = found.recommended, found.scenario
    assert scenario is not None
    assert best.measured.memory["fits_probability"] > 0.5
    assert dict(best.choice.unasked) == setting
    [(key, value)] = setting.items()
    assert f"{key}: true, without which it would not fit" in found.sentences[0]
    place = scenario
    for part in key.split("."):
        place = place[part]
    assert place is value  # in recommended.yaml, too


# An interrupted plan


def test_an_interrupted_plan_goes_on(planned: Planned, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    class EnoughError(Exception):
        pass

    def stop(what: str, done: int, of: int) -> None:
        if what == "simulations" and done == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        answer(question(load(path).raw, _section(asked())), 1, out=out, on_progress=stop)
    kept = journal_path(out)
    before = len(kept.read_text().splitlines()) - 1
    assert before >= 1
    simulated: list[str] = []
    again = answer(
        question(load(path).raw, _section(asked())),
        2,
        out=out,
        on_progress=lambda what, done, of: simulated.append(what),
    )
    assert again.rows == planned.rows
    assert again.sentences == planned.sentences
    keys = [json.loads(line)["key"] for line in kept.read_text().splitlines()[1:]]
    assert len(keys) == len(set(keys))
    done = sum(what != "estimates" for what in simulated)
    assert done == len(keys) - before
    planner.forget(out)
    assert not kept.exists()


def _section(plain: dict[str, Any]) -> Any:
    return read(PlanSection, plain, "plan")


# The command


KEYS = ("batch_groups", "group_size", "prompt_tokens", "max_new_tokens")
LONG = ", ".join(map(str, range(20, 32)))
FLAGS = ("--choose=gpus=4,8", "--policy=sync", "--policy=april", "--run=steps=100")
FLAGS += ("--workers=1", "--no-intervals")
NARROW = (*FLAGS, "--choose=placement=colocated", "--choose=tensor_parallel=1")


def test_the_command(cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = tmp_path / "out"
    said = ran(cli("plan", path, *FLAGS, "--objective", "usd", "--out", out))
    narrowed, first = said.split(". ".strip() + "\n", 1)
    assert " ".join(narrowed.split()).startswith("The search is narrowed by gpus, policy; open are")
    assert first.startswith("Run ")
    assert max(map(len, said.splitlines())) <= 60
    names = {each.name for each in out.iterdir()}
    assert {"plan.json", "plan.csv", "recommended.yaml"} <= names
    assert not journal_path(out).exists()
    found = json.loads((out / "plan.json").read_text())
    best = found["recommended"]
    assert {"settings", "policy", "placement", "gpus", "hours", "usd", "scenario"} <= set(best)
    with (out / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["policy"] == best["policy"]
    summary = simulate(load(out / best["scenario"])).summary
    assert summary["step_s"] == best["step_s"]
    assert float(rows[0]["step_s"]) == best["step_s"]
    for name, phase in best["phases"].items():
        assert phase["s"] == summary["phases"][name]["s"] == float(rows[0][f"phases_{name}_s"])
    assert "seconds of a step by phase" in said
    code, _, problem = cli("plan", path, *FLAGS, "--out", out)
    assert (code, "--force" in problem) == (2, True)
    page = (out / "report.html").read_text("utf-8")
    read_page(page)
    assert "rollcast plan scenario.yaml --policy sync --policy april --out plan" in page
    assert "gpus:" in page.rpartition("<pre")[2]


def test_a_plan_has_a_tornado(cli: Cli, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = ran(cli("plan", path, *NARROW, "--tornado", "--json", "--out", out))
    bars = json.loads(said)["tornado"]
    assert bars
    assert (out / "tornado.csv").exists()
    best = json.loads(said)["recommended"]
    assert bars[0]["step_s"] == pytest.approx(best["step_s"])


def test_the_scenario_of_what_is_recommended_finds_its_files(
    cli: Cli, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(
        "group,index,prompt_tokens,new_tokens\n"
        + "".join(f"{g},{i},64,{50 + 7 * g + 31 * i}\n" for g in range(12) for i in range(4))
    )
    data = yaml.safe_load(SCENARIO)
    data["workload"]["lengths"] = {"trace": "t.csv", "repeat": True}
    del data["workload"]["prompt_tokens"]
    path.write_text(yaml.safe_dump(data))
    out = tmp_path / "deep" / "out"
    out.parent.mkdir()
    assert cli("plan", path, *NARROW, "--out", out)[0] == 0
    best = json.loads((out / "plan.json").read_text())["recommended"]
    assert simulate(load(out / "recommended.yaml")).summary["step_s"] == best["step_s"]


def test_a_policy_of_one_s_own_is_found_again(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_scenario.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from rollcast import Policy\n\n\n"
        "@dataclass(frozen=True)\n"
        "class More(Policy):\n"
        "    decides = frozenset({'launch.over_sampling'})\n"
        "    share: float = 0.5\n\n"
        "    def plan(self, plan, state):\n"
        "        more = replace(plan.launch, over_sampling=1 + self.share)\n"
        "        return replace(plan, launch=more)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = tmp_path / "deep" / "out"
    own = ("--policy", "beside_the_scenario:More(share=0.25)")
    quick = ["--run", "steps=100", "--workers", "1", "--no-intervals"]
    ran(cli("plan", path, *own, *quick, "--out", out))
    best = json.loads((out / "plan.json").read_text())["recommended"]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "beside_the_scenario")
    found = load(out / "recommended.yaml", trust_modules=True)
    assert found.policy_name == "beside_the_scenario:More(share=0.25)"
    assert simulate(found).summary["step_s"] == best["step_s"]


def test_nothing_meets_the_limits_is_exit_code_3(cli: Cli, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, _ = cli("plan", path, *NARROW, "--limit", "hours=0.0001", "--out", out)
    assert code == 3
    said = " ".join(said.split())
    assert "No choice meets the limits. The nearest is" in said
    assert "Without the limit of hours" in said
    page = (out / "report.html").read_text("utf-8")
    assert "nearest to the limits" in page
    read_page(page)
    found = json.loads((out / "plan.json").read_text())
    assert found["recommended"] is None
    assert found["nearest"]["hours"] == min(row["hours"] for row in found["rows"])
    assert not (out / "recommended.yaml").exists()


def test_the_section_asks_and_flags_go_before_it(cli: Cli, path: Path) -> None:
    path.write_text(
        SCENARIO + "plan: {run: {prompts: 800}, choose: {gpus: [4], policy: [sync, april]}}\n"
    )
    said = ran(cli("plan", path, "--json", "--no-intervals", "--workers", 1))
    found = json.loads(said)
    assert found["work"] == "800 prompts"
    assert {row["gpus"] for row in found["rows"]} == {4}
    more = ["--workers", "1", "--choose", "gpus=8", "--steps", "7", "--policy", "sync"]
    said = ran(cli("plan", path, "--json", "--no-intervals", *more))
    found = json.loads(said)
    assert found["work"].startswith("7 steps")
    assert {(row["gpus"], row["policy"]) for row in found["rows"]} == {(8, "sync")}


def test_simulate_and_compare_do_not_mind_the_section(cli: Cli, path: Path) -> None:
    path.write_text(SCENARIO + "plan: {limits: {hours: 3}}\n")
    assert cli("simulate", path, "--json")[0] == 0


WRONG = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        *WRONG,
        (f"choose: {{{', '.join(f'workload.{k}: [{LONG}]' for k in KEYS)}}}", "20000 choices are"),
    ],
)
def test_what_a_section_gets_wrong(cli: Cli, path: Path, section: str, said: str) -> None:
    path.write_text(f"{SCENARIO}plan: {{{section}}}\n")
    problem = refused(cli("plan", path, "--workers", 1, "--no-intervals"))
    assert said in problem


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--limit", "hours"), "--limit"),
        (("--limit", "hours=5y"), "(from --limit)"),
        (("--run", "steps"), "--run"),
        (("--choose", "nothing"), "--choose"),
        (("--choose", "a="), "no values"),
        (("--choose", "policy=sync,april"), "with a --policy of its own"),
        (("--choose", "stepz=1,2"), "plan.choose.stepz"),
        (("--policy", "aprill"), "april"),
        (("--quality", "april=fast"), "plan.quality.april"),
        (("--workers", "0"), "--workers"),
        (("--workers", "100000"), "give 1 to 1,024"),
        (("--limit", "hours="), "--limit: hours has no value"),
        (("--limit", "hours=1", "--limit", "hours=2"), "--limit: hours is given twice"),
        (("--limit", "hours={"), "--limit: cannot read"),
        (("--run", ""), "--run"),
        (("--run", "steps=5,steps=6"), "--run: steps is given twice"),
        (("--steps", "5", "--run", "steps=6"), "--steps: says how long the run is, as --run"),
        (("--choose", "gpus=8,,16"), "--choose: cannot read"),
        (("--choose", "gpus=8", "--choose", "gpus=16"), "--choose: gpus is given twice"),
        (("--policy", ""), "--policy: policy: '' names no policy"),
        (("--policy", "x = "), "--policy"),
        (("--policy", "x = sync", "--policy", "x = april"), "the same as 'x = sync'"),
        (("--set", "plan=5"), "(from --set plan)"),
        (("--out", "s.yaml"), "--out"),
        (("--out", "s.yaml/x"), "--out"),
        (("--out", "\x1b[31mred" * 60), "cannot use"),
    ],
)
def test_what_a_user_gets_wrong(
    cli: Cli, path: Path, flags: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    problem = refused(cli("plan", path, *flags))
    assert said in problem
    assert "\x1b" not in problem
    assert [each.name for each in path.parent.iterdir()] == ["s.yaml"]  # nothing half-written


def test_a_folder_of_another_kind_is_left_alone(cli: Cli, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    for more in ((), ("--force",)):
        code, _, problem = cli("plan", path, *FLAGS, "--out", out, *more)
        assert (code, "holds files that no run wrote" in problem) == (2, True)
    assert (out / "letter.txt").read_text() == "dear"


def test_a_price_that_is_missing(cli: Cli, path: Path) -> None:
    path.write_text(SCENARIO.replace("gpu: h100-sxm", "gpu: {preset: h100-sxm, usd_per_hour: 0}"))
    for flags, said in (
        (("--objective", "usd"), "plan.objective: usd needs the price"),
        (("--limit", "usd=100", "--objective", "hours"), "plan.limits.usd: needs the price"),
    ):
        code, _, problem = cli("plan", path, *NARROW, *flags)
        assert (code, said in problem) == (2, True), problem
    assert cli("plan", path, *NARROW)[0] == 0
