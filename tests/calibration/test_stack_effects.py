"""Effects of stacks on phases: pooled over stacks, and blind to the source that they are for."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from benchmarks import run_tables
from benchmarks.runner import ROOT
from benchmarks.validation import run_phases
from benchmarks.validation.case import Case
from benchmarks.validation.published_runs import PublishedRun, put
from benchmarks.validation.run_phases import Forecast
from benchmarks.validation.runs import (
    ADDED,
    MEGATRON,
    Row,
    cases,
    group_of,
    left_out,
    measured_bound,
    observed,
    width_checks,
)
from benchmarks.validation.stack_effects import Effect, Observed, fit
from rollcast.simulator.costs import CostModel, TrainLoad
from rollcast.simulator.costs.phase_figures import PhaseFactors
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.stacks import FOLDERS, STACKS, told_of
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.chance import Levels

RESULTS = ROOT / "benchmarks" / "results" / "validation" / "validation.json"
STACK_SD, SOURCE_SD, RUN_SD, OWN_SD = 0.4, 0.15, 0.1, 0.1


def drawn(rng: np.random.Generator, stacks: int = 8) -> tuple[list[Observed], list[float]]:
    """Runs of stacks around a mean of 0, and the logarithms of the next source of each."""
    observed, following = [], []
    for stack in range(stacks):
        level = rng.normal(0.0, STACK_SD)
        for source in range(int(rng.integers(1, 5))):
            shared = level + rng.normal(0.0, SOURCE_SD)
            for _ in range(int(rng.integers(1, 5))):
                log = shared + rng.normal(0.0, RUN_SD) + rng.normal(0.0, OWN_SD)
                observed.append(
                    Observed(f"stack {stack}", f"{stack} {source}", math.exp(log), OWN_SD)
                )
        following.append(level + rng.normal(0.0, SOURCE_SD) + rng.normal(0.0, RUN_SD))
    return observed, following


def test_the_next_source_of_known_and_new_stacks_lies_where_the_effects_say() -> None:
    """Nine of ten inside the middle 90 %, within what 180 draws of it leave open."""
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        observed, following = drawn(rng)
        fitted = fit(observed)
        new = rng.normal(0.0, STACK_SD) + rng.normal(0.0, SOURCE_SD) + rng.normal(0.0, RUN_SD)
        for stack, log in [*enumerate(following), (-1, new)]:
            effect = fitted.of(f"stack {stack}")
            inside.append(abs(log - math.log(effect.factor)) < 1.645 * effect.sd)
    assert 0.84 < np.mean(inside) < 0.96


def test_a_stack_that_was_hardly_measured_is_drawn_towards_no_factor() -> None:
    many = [Observed("a", f"a{n}", 2.0 + 0.02 * (n % 3), 0.05) for n in range(12)]
    others = [Observed(name, name, 1.0 + 0.05 * n, 0.05) for n, name in enumerate("bcdef")]
    once = Observed("g", "g", 2.0, 0.5)
    fitted = fit([*many, *others, once])
    a, g, new = fitted.of("a"), fitted.of("g"), fitted.of("new")
    assert new.factor == 1.0
    assert g.factor == 1.0  # of one source
    assert a.factor == pytest.approx(2.02, rel=0.05)
    assert a.sd < g.sd == new.sd


def test_three_sources_of_a_stack_make_an_effect() -> None:
    others = [Observed(name, name, 1.0 + 0.05 * n, 0.05) for n, name in enumerate("bcdef")]
    own = [Observed("g", f"g{n}", 2.0, 0.1) for n in range(3)]
    assert fit([*others, *own[:2]]).of("g").factor == 1.0
    assert 1.3 < fit([*others, *own]).of("g").factor < 2.0


def test_few_stacks_that_differ_less_than_their_sources_have_a_spread_too() -> None:
    """Three stacks 20 % apart, four sources of each 30 % off: as likely without a spread, which is
    taken where nothing says that stacks differ."""
    observed = [
        Observed(stack, f"{stack}{n}", math.exp(level + 0.3 * (-1) ** n), 0.1)
        for stack, level in (("a", -0.2), ("b", 0.0), ("c", 0.2))
        for n in range(4)
    ]
    apart, alike = (fit(observed, differ=differ) for differ in (True, False))
    assert 1.05 < apart.of("c").factor < 1.2
    assert apart.of("b").factor == pytest.approx(1.0, abs=0.02)
    assert alike.of("c").factor == pytest.approx(1.0, abs=0.02)


def test_one_source_far_off_hardly_moves_its_stack_or_the_spread() -> None:
    near = [Observed(name, f"{name}{n}", 1.1, 0.05) for n in range(4) for name in "abcdef"]
    sds = [fit([*near, Observed("a", "far", ratio, 0.05)]).of("a").sd for ratio in (1.2, 3, 30)]
    far = fit([*near, Observed("a", "far", 30.0, 0.05)])
    assert far.of("a").factor < 1.3
    assert far.weights[-1] < 0.1 < min(far.weights[:-1])
    assert sds[2] < 2.0 * sds[1]


@pytest.mark.parametrize("kind", ["unusual", "assumed", "open"])
def test_intervals_of_heavy_tails_and_of_other_scales_hold_nine_of_ten(kind: str) -> None:
    """Sources far off more often than a normal's, those of one kind
    three times as far, some with several figures: counted, not taken to be of a law."""
    inside, widths = [], []
    for seed in range(3 * (kind == "open"), 3 + 3 * (kind == "open")):
        rng = np.random.default_rng(seed)

        def log(far: bool, rng: np.random.Generator = rng) -> float:
            return (3.0 if far else 1.0) * 0.1 * float(rng.standard_t(3))

        observed = []
        for source in range(40):
            far = source % 4 == 0
            ratio, of = math.exp(log(far)), f"stack {source % 7}"
            observed += [
                replace(Observed(of, str(source), ratio, 0.02), **{kind: far})
                for _ in range(1 + 2 * (source % 5 == 0))
            ]
        fitted = fit(observed)
        for far in (False, False, False, True) * 20:
            effect = fitted.of("new", **{kind: far})
            inside.append(abs(log(far)) < 1.645 * effect.sd)
        sds = [fitted.of("new", **{kind: far}).sd for far in (False, True)]
        widths.append(sds[1] / sds[0])
        more = math.hypot(sds[0], fitted.added(kind == "unusual", kind == "assumed"))
        assert more == pytest.approx(sds[0] if kind == "open" else sds[1])
    assert 0.84 < np.mean(inside) < 0.96
    assert 1.4 < np.median(widths) < 4.5
    usual = [one for one in observed if not getattr(one, kind)]
    alike = fit([replace(one, **{kind: int(one.source) % 4 == 2}) for one in usual])
    assert getattr(alike, kind) < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_no_single_source_decides_how_far_off_unusual_models_are(seed: int) -> None:
    """Where the forecasts' own draws explain what is left, nothing is known of it."""
    logs = np.random.default_rng(seed).normal(0.0, 0.3, 24)
    observed = [
        Observed("a", str(n), math.exp(log), 0.35, n % 4 == 0) for n, log in enumerate(logs)
    ]
    found = [fit([one for one in observed if one.source != left]).unusual for left in "048"]
    assert all(1.5 < unusual < 3.0 for unusual in found)


def test_two_sources_say_nothing_about_a_spread() -> None:
    with pytest.raises(ScenarioError, match="fewer than three sources"):
        fit([Observed("a", "a", 1.0, 0.1), Observed("a", "b", 1.0, 0.1)])


def row(stack: str, source: str, measured_s: float) -> Row:
    scenario = {"model": "qwen3-8b", "gpu": "h100-sxm", "cost": {"roofline": {"stack": stack}}}
    return Row(source, f"{stack} {source}", PublishedRun(scenario, {"update": measured_s}))


def test_a_trainer_on_megatron_has_an_effect_of_its_own() -> None:
    """Its stack's other phases have those of all of its runs."""
    rows = [row("verl", f"page {n}", 10.0 + 0.1 * n) for n in range(4)]
    roofline = {"stack": "verl", "trainer": {"backend": "megatron"}}
    for n in range(4):
        one = row("verl", f"log {n}", 20.0 + 0.1 * n)
        scenario = {**one.run.scenario, "cost": {"roofline": roofline}}
        rows.append(replace(one, run=replace(one.run, scenario=scenario)))
    found = [Forecast({"update": 10.0}, ({"update": 10.0}, {"update": 11.0}))] * len(rows)
    effects = left_out(rows, found)
    assert effects[0]["update"].factor < 1.2 < 1.6 < effects[4]["update"].factor
    assert rows[4].pooled("update") != rows[0].pooled("update")
    assert rows[4].pooled("generation") == rows[0].pooled("generation")


def test_effects_for_a_source_do_not_know_what_it_measured() -> None:
    """Of another stack as of its own."""
    rows = [row("verl", f"page {n}", 10.0 + n) for n in range(4)]
    rows += [row("slime", "log", 20.0), row("trl", "thread", 15.0)]
    found = [Forecast({"update": 10.0}, ({"update": 10.0}, {"update": 11.0}))] * len(rows)
    before = left_out(rows, found)
    rows[0] = replace(rows[0], run=replace(rows[0].run, measured={"update": 500.0}))
    after = left_out(rows, found)
    assert after[0] == before[0]
    assert all(x["update"].sd > y["update"].sd for x, y in zip(after[4:], before[4:], strict=True))
    assert all(x["update"] != y["update"] for x, y in zip(after[1:], before[1:], strict=True))


SCENARIO = """
model: qwen3-8b
gpu: h100-sxm
cluster: {replicas: 2, placement: colocated}
workload:
  {batch_groups: 4, group_size: 2, prompt_tokens: 100, max_new_tokens: 2048,
    lengths: {mean_tokens: 500}}
policy: []
cost: {roofline: {stack: verl}}
"""
SUMMARY = {"bound_by": "generation", "step_s": 1.0, "phases": {"generation": {"s": 1.0}}}


def preset_effect(factors: PhaseFactors, key: str) -> Effect:
    return Effect(factors.of(key), getattr(factors, f"{key}_sd"))


def times(cost: CostModel) -> tuple[float, float, float]:
    """Of decoding, an update, and a sync."""
    update = cost.train(TrainLoad([(100, [500] * 8)]))
    return cost.decode_curve(16).seconds(16_000), update.total_s, cost.sync_s


KEYS = {"generation": "decode", "log_prob": "log_prob", "update": "update", "sync": "sync"}


def test_presets_of_stacks_have_what_was_fitted_to_all_sources() -> None:
    """Within what other draws of the same runs move it."""
    (source,) = (s for s in json.loads(RESULTS.read_text("utf-8"))["sources"] if s["key"] == "runs")
    told = source["calibrated"].rpartition(": ")[2].split("; ")
    assert {text.split()[0] for text in told} >= {"unknown", "skyrl", "slime"}
    for text in told:
        stack, _, effects = text.partition(" ")
        presets = [preset for name, preset in STACKS.items() if FOLDERS[name].name == stack]
        for kind in (kind for kind, (words, _) in ADDED.items() if text.startswith(words)):
            added = read_presets("spreads.yaml")["unusual"][kind]
            for group, sd in re.findall(r"(\w+) ([\d.]+)", effects.rpartition("add ")[2]):
                assert added[KEYS[group]] == pytest.approx(float(sd), abs=0.1), text
        for group, factor, sd in re.findall(r"(\w+) ([\d.]+) \(sd ([\d.]+)\)", effects):
            for preset in presets:
                its = preset.factors_on("megatron" if effects.startswith(MEGATRON) else "fsdp")
                assert its.of(KEYS[group]) == pytest.approx(float(factor), rel=0.1), text
                assert getattr(its, f"{KEYS[group]}_sd") == pytest.approx(float(sd), rel=0.25), text


def test_users_draws_are_those_that_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a scenario whose stack has the figures of its preset: those of runs that leave nothing
    open are narrower, but for syncs."""
    its, drawn = STACKS["verl"].factors_on("fsdp"), []
    monkeypatch.setattr(run_phases, "simulated", lambda keys, *_: drawn.append(keys) or SUMMARY)
    widths = []
    for known in (True, False):
        keys = yaml.safe_load(SCENARIO)
        unknown = {} if known else {"workload.lengths.mean_tokens": [500]}
        run = PublishedRun(keys, {"update": 10.0}, unknown)
        effects = {
            group: Row("page", "run", run).effect(
                group, SimpleNamespace(of=lambda *_, key=key, **__: preset_effect(its, key))
            )
            for group, key in KEYS.items()
        }
        run_phases.forecast(run, effects, draws=1, seeds=1)
        put(keys, "cost.roofline.settings_known", known)
        judged, user = (from_raw(RawScenario(one)).cost for one in (drawn[-1], keys))
        asked = Levels()
        user.drawn(asked)
        logs = []
        for name in asked.names:
            mine, other = (times(cost.drawn(Levels({name: 1.0}))) for cost in (user, judged))
            assert mine == pytest.approx(other), name
            logs.append(np.log(np.array(mine) / times(user)))
        widths.append(np.sqrt(np.sum(np.square(logs), axis=0)))
    narrowed = read_presets("spreads.yaml")["settings_known"]
    *others, of_sync = widths[0] / widths[1]
    assert others == pytest.approx([narrowed] * 2, rel=0.08)
    assert of_sync == pytest.approx(1.0, abs=0.003)


def test_how_wide_intervals_of_what_is_known_should_be_is_counted() -> None:
    """Of ten sources the ninth needs 0.6 of its interval's log; what is open does not count."""
    rows = [row("verl", f"page {n}", 10.0) for n in range(11)]
    rows[10] = replace(rows[10], run=replace(rows[10].run, unknown={"gpu": ["h200"]}))
    rows = [replace(one, name=f"run {n}") for n, one in enumerate(rows)]
    needed = [0.1, -0.2, 0.3, 0.2, -0.1, 0.1, 0.5, -0.4, 0.6, 0.95, 3.0]
    judged = [
        Case("update", f"{one.name}, update", "s", 4.0**part, 1.0, low=0.25, high=4.0)
        for one, part in zip(rows, needed, strict=True)
    ]
    [check] = width_checks(rows, judged)
    assert (check.value, check.cases) == (pytest.approx(0.6 - 1), 10)
    assert not list(width_checks(rows[10:], judged[10:]))


def test_far_off_phases_are_those_of_the_results() -> None:
    written = (ROOT / "simulator" / "costs" / "presets" / "far_off.yaml").read_text("utf-8")
    assert written == "\n".join(run_tables.lines(run_tables.far_off(RESULTS.parents[1]))) + "\n"
    cases = yaml.safe_load(written)["cases"]
    assert cases
    for case in cases:
        name = next(name for name, folder in FOLDERS.items() if folder.name == case["stack"])
        assert any(f"{case['low']} to {case['high']} times" in text for text in told_of(name))


def test_figures_that_mix_groups_have_no_effect() -> None:
    assert group_of("log_prob+reference") == "log_prob"
    assert group_of("sync+switch") == "sync"
    assert group_of("log_prob+update") is None
    assert group_of("step") is None


@pytest.mark.parametrize(
    ("measured", "policy", "said", "bound"),
    [
        (
            {"generation": 100, "reference": 90, "update": 40, "step": 235},
            (),
            "generation",
            "trainer",
        ),
        ({"generation": 9, "reference": 8, "update": 4, "step": 21}, (), "generation", "trainer"),
        ({"generation": 100, "update": 80, "step": 185}, (), None, "generation"),
        ({"generation": 100, "update": 80, "step": 200}, (), None, None),  # whose are the others?
        ({"generation": 100, "update": 80}, (), None, None),
        ({"generation": 100, "update": 80, "sync+switch": 5}, (), None, "generation"),
        ({"generation": 100, "update": 95, "sync": 1}, (), None, None),
        ({"generation": 100, "update": 95, "sync": 1}, (), "update", "trainer"),
        ({"wait": 1, "update": 95}, ("one_step_off",), "generation", "generation"),
        ({"generation": 50, "update": 95, "step": 150}, ("one_step_off",), None, None),
        ({"generation": 50, "update": 95, "step": 150}, ("april",), None, "trainer"),
        ({"generation": 100, "step": 120}, (), "generation", "generation"),
    ],
)
def test_a_published_step_is_bound_by_its_longest_side(
    measured: dict[str, float], policy: tuple[str, ...], said: str | None, bound: str | None
) -> None:
    """The source's word counts where the phases do not tell."""
    placement = "disaggregated" if "one_step_off" in policy else "colocated"
    scenario = {"policy": policy, "cluster": {"placement": placement}}
    run = PublishedRun(scenario, measured, bound=said)
    assert measured_bound(run) == bound


def test_of_a_first_step_no_phase_of_the_trainer_counts() -> None:
    """They enter no fit, are not judged, and do not tell what bounds a step."""
    measured = {"generation": 10.0, "log_prob+reference": 90.0, "update": 80.0, "step": 200.0}
    one = row("verl", "page", 0.0)
    run = replace(one.run, scenario={**one.run.scenario, "policy": ()}, measured=measured)
    found = Forecast(dict.fromkeys(("generation", "log_prob", "update", "step"), 9.0), ())
    both = replace(found, draws=(found.seconds, found.seconds))
    trainer = {"log_prob", "update"}
    for first, left in ((False, trainer), (True, set())):
        judged = replace(one, run=replace(run, first_step=first))
        assert {group for group, _ in observed(judged, both)} == {"generation"} | left
        groups = {case.group for case in cases(judged, both)}
        assert groups == {"generation"} | left | ({"step"} if left else set())
        assert measured_bound(judged.run) == ("trainer" if left else None)
