"""Lengths by the figures that people know: what is solved for has them, by sums over the table of
probabilities and by draws, neither of which the solver uses."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import rankdata

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.explore.knobs import knobs
from rollcast.simulator.planner.changes import spread_by
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.redrawn import lengths_drawn, redrawn
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.studies.uncertainty import add_intervals
from rollcast.simulator.values import read
from rollcast.simulator.values.chance import Drawn, Levels
from rollcast.simulator.workload import length_problem
from rollcast.simulator.workload.known_lengths import PERCENTILES, KnownLengths, SolvedLengths
from rollcast.simulator.workload.length_specs import DrawnLengths
from rollcast.simulator.workload.lengths import LengthModel
from rollcast.simulator.workload.section import WorkloadSection
from tests.conftest import Cli
from tests.laws import examples
from tests.refusals import ran, refused

GROUPS, SIZE = 32, 8
COSTS = {
    "iteration_s": 0.01,
    "per_rollout_s": 1e-5,
    "per_context_token_s": 1e-8,
    "per_prefill_token_s": 1e-6,
    "train_per_token_s": 1e-6,
}


def section(lengths: dict[str, Any], cap: int, size: int = SIZE) -> WorkloadSection:
    given_keys = {"batch_groups": GROUPS, "group_size": size, "max_new_tokens": cap}
    workload = {**given_keys, "prompt_tokens": 100, "lengths": lengths}
    return read(WorkloadSection, workload, "workload")


def solved(lengths: dict[str, Any], cap: int, size: int = SIZE) -> SolvedLengths:
    given_section = section(lengths, cap, size)
    assert isinstance(given_section.lengths, KnownLengths)
    return length_problem.solved(given_section.lengths, given_section.sampled)


def raw_of(lengths: dict[str, Any], **more: Any) -> RawScenario:
    return RawScenario(
        {
            "cluster": {"placement": "colocated", "replicas": 2},
            "engine": {"max_seqs": 64, "kv_tokens": 400_000},
            "workload": {
                "batch_groups": 8,
                "group_size": 4,
                "prompt_tokens": 100,
                "max_new_tokens": 8192,
                "lengths": lengths,
            },
            "cost": {"linear": COSTS},
            "policy": "sync",
            "steps": 4,
            **more,
        }
    )


truths = st.builds(
    LengthModel.lognormal,
    st.floats(100.0, 6000.0),
    st.floats(0.1, 0.9),
    st.floats(0.05, 0.6),
    st.one_of(st.just(0.0), st.floats(0.001, 0.3)),
)
caps = st.integers(1000, 20_000)
KEYS = ("p10", "p50", "p90", "p99")
RANGE = re.compile(r"lies between ([\d,.]+) and ([\d,.]+)")


def figures_of(truth: LengthModel, cap: int) -> dict[str, float]:
    """All figures of lengths, from the table of probabilities."""
    table = truth.marginal(cap)
    figures = {"mean_tokens": table.mean(), "cut_share": float(table.sf(cap - 1))}
    return figures | {key: float(table.ppf(int(key[1:]) / 100)) for key in KEYS}


@settings(max_examples=examples(60), deadline=None)
@given(truth=truths, cap=caps, data=st.data())
def test_what_is_solved_for_has_the_figures(truth: LengthModel, cap: int, data: Any) -> None:
    """One to three figures of some lengths: those found have the same."""
    known = figures_of(truth, cap)
    assume(0.002 < known["cut_share"] < 0.9)
    free = [key for key in ("mean_tokens", *KEYS) if known[key] < 0.98 * cap]
    assume(free)
    first = data.draw(st.sampled_from(free))
    more = [key for key in ("mean_tokens", "cut_share") if key in (*free, "cut_share")]
    others = data.draw(st.lists(st.sampled_from([*more, *free]), max_size=2, unique=True))
    chosen = {key: known[key] for key in {first: 0, **dict.fromkeys(others)}}
    if "cut_share" not in chosen and len(chosen) == 3:
        assume(truth.runaway > 0)  # else the third is met only where it is met anyway
    try:
        found = solved(chosen, cap)
    except ScenarioError:
        # an assumed runaway share is not the truth's
        assert "cut_share" not in chosen or len(chosen) == 3
        assert len(chosen) > 1
        return
    table = found.lengths.model().marginal(cap)
    for key, value in chosen.items():
        if key == "mean_tokens":
            assert table.mean() == pytest.approx(value, rel=2e-3)
            assert found.mean_tokens == pytest.approx(value, rel=1e-4)
        elif key == "cut_share":
            assert table.sf(cap - 1) == pytest.approx(value, abs=1e-3)
            assert found.cut_share == pytest.approx(value, abs=1e-3)
        else:
            q = int(key[1:]) / 100
            assert abs(1.0 - table.sf(value) - q) < 2e-3


@st.composite
def mixtures(draw: st.DrawFn) -> LengthModel:
    """Lengths that no lognormal has: two kinds of prompt, and runaways."""
    parts = [draw(truths) for _ in range(2)]
    share = draw(st.floats(0.2, 0.8))
    kinds = tuple(part.components[0] for part in parts)
    return LengthModel(kinds, (share, 1.0 - share), parts[0].runaway)


@settings(max_examples=examples(40), deadline=None)
@given(truth=mixtures(), cap=caps, data=st.data())
def test_more_figures_than_a_lognormal_can_have_are_met_one_by_one(
    truth: LengthModel, cap: int, data: Any
) -> None:
    table = truth.marginal(cap)
    keys = ("p10", "p25", "p50", "p75", "p90", "p95", "p99")
    known = {key: float(table.ppf(int(key[1:]) / 100)) for key in keys}
    known = {key: value for key, value in known.items() if value < 0.98 * cap}
    assume(len(set(known.values())) == len(known) >= 4)
    cut = float(table.sf(cap - 1))
    more = {"mean_tokens": table.mean(), **({"cut_share": cut} if cut > 0.011 else {})}
    chosen = data.draw(st.lists(st.sampled_from(sorted(more)), unique=True))
    given_figures = known | {key: more[key] for key in chosen}
    try:
        found = solved(given_figures, cap)
    except ScenarioError as error:  # the mean depends on what is between the percentiles, too
        ends = RANGE.findall(error.message)[0]
    else:
        ends = None
    if ends is not None:
        low, high = (float(end.replace(",", "")) for end in ends)
        assert not low + 1 < table.mean() < high - 1
        return
    drawn = found.lengths.model().marginal(cap)
    assert found.mean_tokens == pytest.approx(drawn.mean())
    if "mean_tokens" in chosen:
        assert drawn.mean() == pytest.approx(table.mean(), rel=2e-3)
    if "cut_share" in chosen:
        assert drawn.sf(cap - 1) == pytest.approx(cut, abs=1e-3)
    for key, value in known.items():
        assert abs(1.0 - drawn.sf(value) - int(key[1:]) / 100) < 2e-3


def test_prompts_of_lengths_through_quantiles_differ_as_those_of_a_lognormal() -> None:
    figures = {"p10": 200, "p50": 900, "p90": 2500, "p99": 7900, "between_share": 0.6}
    workload = from_raw(raw_of({**figures, "runaway": 0.0})).workload
    drawn = np.array([workload.draw(group, 64).new_tokens for group in range(1000)])
    for key in ("p10", "p50", "p90"):
        assert np.mean(drawn <= figures[key]) == pytest.approx(int(key[1:]) / 100, abs=0.015)
    scores = ndtri(rankdata(drawn).reshape(drawn.shape) / (drawn.size + 1))
    assert scores.mean(axis=1).var() == pytest.approx(0.6, abs=0.06)


@settings(max_examples=examples(15), deadline=None)
@given(
    cap=st.integers(2000, 16_000),
    share=st.floats(0.1, 0.9),
    cut=st.one_of(st.none(), st.floats(0.01, 0.6)),
    seed=st.integers(0, 1000),
)
def test_a_run_samples_what_is_known(cap: int, share: float, cut: float | None, seed: int) -> None:
    """By draws of the workload, as a run meets them."""
    mean = share * cap if cut is None else cut * cap + (1 - cut) * share * cap * 0.6
    known = {"mean_tokens": mean, "runaway_correlation": 0.0, "between_share": 0.0}
    if cut is not None:
        known["cut_share"] = cut
    else:
        known["runaway"] = 0.0
    workload = from_raw(raw_of(known), f"workload.max_new_tokens={cap}", seed=seed).workload
    drawn = np.concatenate([workload.draw(group, 16).new_tokens for group in range(600)])
    error = drawn.std() / math.sqrt(len(drawn))
    assert abs(drawn.mean() - mean) < 5 * error
    if cut is not None:
        assert abs(np.mean(drawn == cap) - cut) < 5 * math.sqrt(cut / len(drawn))


def test_the_longest_of_a_step_is_the_one_that_is_known() -> None:
    """Half of the steps have a longer one, by draws, with groups of prompts that are alike."""
    known = {"mean_tokens": 1500, "max_tokens": 6000}
    found = solved(known, 16_000)
    rng = np.random.default_rng(0)
    lengths = found.lengths
    assert isinstance(lengths, DrawnLengths)
    prompt = rng.standard_normal((4000, GROUPS, 1)) * lengths.between_sd
    rollout = rng.standard_normal((4000, GROUPS, SIZE)) * lengths.within_sd
    longest = lengths.median_tokens * np.exp((prompt + rollout).max(axis=(1, 2)))
    assert np.mean(longest > 6000) == pytest.approx(0.5, abs=0.03)
    assert lengths.runaway == 0.0
    alone = solved({**known, "between_share": 0.0}, 16_000)
    assert alone.sd < found.sd  # more draws that are each their own reach as far with less


@pytest.mark.parametrize(
    ("mean", "sd"), [(200.0, 0.4), (547.7225575, 0.5), (1000.0, 0.6), (4000.0, 0.6)]
)
def test_the_spread_that_a_mean_leaves_open_is_in_the_interval(mean: float, sd: float) -> None:
    """A draw has the same mean, and spreads from half to one and a half times as much; the centre
    is as documented."""
    known = {"mean_tokens": mean}
    found = solved(known, 8192)
    assert found.sd == pytest.approx(sd)
    assert found.ranges["sd"] == pytest.approx((sd / 2, sd, 1.5 * sd))
    assert found.lengths.runaway == pytest.approx(0.002)
    given_section = section(known, 8192)
    assert isinstance(given_section.lengths, KnownLengths)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(300):
        other = length_problem.drawn(given_section.lengths, Drawn(rng), given_section.sampled)
        answer = length_problem.solved(other, given_section.sampled)
        assert answer.mean_tokens == pytest.approx(mean, rel=1e-4)
        assert not answer.ranges
        drawn.append((answer.sd, answer.lengths.runaway, answer.between_share))
    spreads, runaways, between = np.array(drawn).T
    assert (spreads.min(), spreads.max()) == (
        pytest.approx(sd / 2, abs=0.02),
        pytest.approx(1.5 * sd, abs=0.02),
    )
    assert np.median(spreads) == pytest.approx(sd, abs=0.04)
    assert runaways.min() >= 0.0
    assert runaways.max() == pytest.approx(0.004, rel=0.05)
    assert (np.quantile(between, 0.05), np.quantile(between, 0.95)) == (
        pytest.approx(0.55, abs=0.05),
        pytest.approx(0.94, abs=0.03),
    )


def test_a_mean_that_is_a_guess_is_drawn_between_its_ends() -> None:
    known = section({"mean_tokens": 900, "mean_low": 300, "mean_high": 1800}, 8192)
    assert isinstance(known.lengths, KnownLengths)
    for z, mean in ((-9, 300), (-1.645, 300), (-0.8225, 520), (0, 900), (0.8225, 1273), (9, 1800)):
        levels = Levels({"lengths/mean_tokens": z})
        other = length_problem.drawn(known.lengths, levels, known.sampled)
        assert other.mean_tokens == pytest.approx(mean, abs=1)


def test_what_is_said_is_not_drawn() -> None:
    known = {"mean_tokens": 900, "sd": 0.5, "between_share": 0.2, "runaway": 0.01}
    asked = Levels()
    lengths_drawn(raw_of(known), asked)
    assert not asked.names
    lengths_drawn(raw_of({"mean_tokens": 900}), asked)
    assert list(asked.names) == ["lengths/sd", "lengths/between_share", "lengths/runaway"]
    found = solved({**known, "drift_per_step": 0.01}, 8192)
    assert found.lengths.runaway == 0.01
    assert isinstance(found.lengths, DrawnLengths)
    assert math.hypot(found.lengths.between_sd, found.lengths.within_sd) == pytest.approx(0.5)
    assert found.lengths.between_sd**2 == pytest.approx(0.2 * 0.25)
    assert found.lengths.drift_per_step == 0.01


def test_a_cut_share_and_a_mean_leave_only_spreads_that_cut_no_more() -> None:
    found = solved({"mean_tokens": 4000, "cut_share": 0.02}, 8192)
    low, central, high = found.ranges["sd"]
    assert low < central == high < 0.6
    assert found.lengths.runaway == pytest.approx(0.0, abs=1e-3)
    assert solved({"mean_tokens": 1000, "cut_share": 0.0}, 8192).cut_share <= 5e-4


@pytest.mark.parametrize(
    "figures",
    [
        {"mean_tokens": 1000, "max_tokens": 1200},
        {"mean_tokens": 1000, "p99": 1100},
        {"p50": 900, "p90": 1000},
        {"mean_tokens": 3, "max_tokens": 5},
    ],
)
def test_lengths_may_hardly_spread(figures: dict[str, float]) -> None:
    found = solved(figures, 16_384)
    assert isinstance(found.lengths, DrawnLengths)
    assert found.sd < 0.3
    if "mean_tokens" in figures:
        assert found.mean_tokens == pytest.approx(figures["mean_tokens"], rel=1e-3)
    table = found.lengths.model().marginal(16_384)
    for key in figures.keys() & set(PERCENTILES):
        assert table.ppf(int(key[1:]) / 100) == pytest.approx(figures[key], abs=1)


@pytest.mark.parametrize(
    "figures", [{"mean_tokens": 1000, "p90": 300}, {"p50": 300, "mean_tokens": 5000}]
)
def test_a_mean_far_above_the_others_is_of_runaways(figures: dict[str, float]) -> None:
    """The spread is assumed in their place, and open in intervals."""
    found = solved(figures, 16_384)
    assert found.mean_tokens == pytest.approx(figures["mean_tokens"], rel=1e-4)
    [key] = figures.keys() - {"mean_tokens"}
    table = found.lengths.model().marginal(16_384)
    assert table.ppf(int(key[1:]) / 100) == pytest.approx(figures[key], abs=1)
    assert found.lengths.runaway > 0.05
    assert found.ranges["sd"] == (0.3, 0.6, 0.9)
    assert "runaway" not in found.ranges
    for sd in (0.3, 0.9):
        assert solved({**figures, "sd": sd}, 16_384).mean_tokens == pytest.approx(
            figures["mean_tokens"], rel=1e-4
        )


@pytest.mark.parametrize(
    "figures",
    [{"p50": p50, "mean_tokens": 900} for p50 in (870, 890, 899.5, 900, 901)]
    + [{"p25": 900, "mean_tokens": 900}, {"p50": 890, "mean_tokens": 900, "cut_share": 0}],
)
def test_a_mean_at_the_median_does_not_say_that_lengths_hardly_spread(
    figures: dict[str, float],
) -> None:
    """A lognormal of both would: responses of one length, or none at all."""
    table = (found := solved(figures, 4096)).lengths.model().marginal(4096)
    assert found.mean_tokens == pytest.approx(900, rel=1e-3)
    [key] = figures.keys() & set(PERCENTILES)
    assert table.ppf(int(key[1:]) / 100) == pytest.approx(figures[key], abs=1)
    assert table.ppf(0.75) / table.ppf(0.25) > 1.2
    assert solved({"p50": 850, "mean_tokens": 900}, 4096).sd > 0.3


@pytest.mark.parametrize("cap", [256, 32_768])
def test_responses_may_all_reach_the_cap(cap: int) -> None:
    with pytest.raises(ScenarioError, match=f"where all of them are cut, give {cap - 1}.5$"):
        solved({"mean_tokens": cap}, cap)
    assert solved({"mean_tokens": cap - 0.5}, cap).cut_share > 0.9


@pytest.mark.parametrize(
    "figures", [{"p50": 1200, "mean_tokens": 1000}, {"p25": 1000, "mean_tokens": 900}]
)
def test_a_percentile_above_the_mean_is_of_lengths_skewed_to_the_left(
    figures: dict[str, float],
) -> None:
    """Short ones are far shorter than a lognormal's, and above it the spread is a usual one."""
    table = (found := solved(figures, 2048)).lengths.model().marginal(2048)
    assert found.mean_tokens == pytest.approx(figures["mean_tokens"], rel=1e-3)
    [key] = figures.keys() - {"mean_tokens"}
    share = int(key[1:]) / 100
    assert table.ppf(share) == pytest.approx(figures[key], abs=1)
    assert table.ppf(share / 2) < 0.8 * figures[key]
    assert 0.0 < found.cut_share < 0.1
    with pytest.raises(ScenarioError, match=r"the mean lies between [\d,]+ and 1,[\d]+ tokens"):
        solved({**figures, "mean_tokens": 400}, 2048)


def test_figures_at_another_cap_say_what_this_one_cuts() -> None:
    known = {"mean_tokens": 3000, "cut_share": 0.2, "cap_tokens": 8192}
    short, long = (solved(known, cap).lengths.model() for cap in (4096, 16_384))
    assert short == long
    assert short.marginal(4096).mean() < 3000 < long.marginal(16_384).mean()
    figures = section(known, 16_384).lengths
    assert isinstance(figures, KnownLengths)
    assert "20 % reach the cap of 8,192 tokens at" in solved(known, 16_384).note(figures)


def test_lengths_of_turns_leave_their_own_spread_out() -> None:
    turns = {
        "family": "lognormal",
        "median": 3,
        "between_sd": 0,
        "within_sd": 0.3,
        "max_turns": 8,
        "observation_tokens": 50,
        "length_sd": 0.4,
    }
    keys = raw_of({"mean_tokens": 1000, "runaway": 0.0})
    raw = RawScenario({**keys.data, "workload": {**keys.data["workload"], "turns": turns}})
    workload = from_raw(raw).workload
    drawn = [workload.draw(group, 8).trajectories or [] for group in range(1500)]
    tokens = [turn.new_tokens for group in drawn for made in group for turn in made.turns]
    assert np.mean(tokens) == pytest.approx(1000, rel=0.04)
    assert np.std(np.log(tokens)) == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize("draws", [None, 10])
def test_the_interval_of_a_run_holds_other_spreads(draws: int | None) -> None:
    """Costs are exact here: what makes an interval wide is the lengths and sampling."""
    open_spread = simulate(from_raw(raw_of({"mean_tokens": 2000})))
    told = {"mean_tokens": 2000, "sd": 0.6, "between_share": 0.82, "runaway": 0.002}
    known = simulate(from_raw(raw_of(told)))
    for result in (open_spread, known):
        add_intervals(result, draws)
    low, high = open_spread.summary["intervals"]["step_s"]
    assert open_spread.summary["interval_shares"]["lengths"] > 0.2
    assert "lengths" not in known.summary["interval_shares"]
    assert "not known of the lengths" in open_spread.summary["interval_note"]
    if draws is None:
        alone = known.summary["intervals"]["step_s"]
        assert high / low > 1.2 * alone[1] / alone[0]
    assert redrawn(open_spread.scenario, 1).workload.draw(0, 4) != redrawn(
        open_spread.scenario, 2
    ).workload.draw(0, 4)


def test_the_command_line_says_what_was_solved_for(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(yaml.safe_dump(raw_of({"mean_tokens": 4585, "cut_share": 0.33}).data))
    out = ran(cli("simulate", str(path), "--json"))
    lengths = json.loads(out)["lengths"]
    assert lengths["known"] == {"mean_tokens": 4585, "cut_share": 0.33}
    assert lengths["mean_tokens"] == pytest.approx(4585)
    assert lengths["cut_share"] == pytest.approx(0.33)
    assert lengths["open"]["sd"] == [0.3, 0.6, 0.9]
    said = "33 % reach the cap; solved for mean_tokens 4585, cut_share 0.33; assumed: sd 0.6"
    assert said in lengths["note"]
    out = ran(cli("simulate", str(path), "--draws", "0"))
    assert lengths["note"][:40] in " ".join(out.split())
    err = refused(cli("simulate", str(path), "--set", "workload.lengths.mean_tokens=9000"))
    assert "mean_tokens: is 9000" in err
    preset = "workload.lengths.preset=deepseek-r1-0528"
    err = refused(cli("simulate", str(path), "--set", preset))
    assert "lengths.preset: does not go with mean_tokens; set one of them to null" in err
    nulls = [f"workload.lengths.{key}=null" for key in ("mean_tokens", "cut_share")]
    ran(cli("simulate", str(path), "--draws=0", *(f"--set={one}" for one in (preset, *nulls))))
    out = ran(cli("explain", "workload.lengths.sd"))
    assert "0.3 to 0.9" in " ".join(out.split())


def test_the_page_with_sliders_and_the_plan_change_what_is_known() -> None:
    """A slider of the mean, and another spread of the log at the same mean."""
    scenario = from_raw(raw_of({"mean_tokens": 2000}))
    found = {knob.name: knob for knob in knobs(scenario)}
    assert 2800.0 in found["workload.lengths.mean_tokens"].values
    assert max(found["workload.lengths.mean_tokens"].values) < 8192
    assert "workload.lengths.mean_tokens" not in {
        knob.name for knob in knobs(from_raw(raw_of({"mean_tokens": 4000, "cut_share": 0.1})))
    }
    assert spread_by(scenario.raw, 1.4) == {"workload.lengths.sd": pytest.approx(0.84)}
    assert spread_by(raw_of({"mean_tokens": 900, "sd": 0.5}), 1.4) is None


def test_the_share_that_reaches_the_cap_is_told_without_runaways_too() -> None:
    figures = {"p90": 300, "mean_tokens": 1000, "cut_share": 0.09}
    known = section(figures, 8192).lengths
    assert isinstance(known, KnownLengths)
    assert ", 9 % reach the cap; solved for" in solved(figures, 8192).note(known)
