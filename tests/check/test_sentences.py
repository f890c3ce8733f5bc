"""What is made of an answer's figures: sentences, oddities, intervals. Nothing is searched for."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from check.launches import VERL, asked, launched, short_ledger

from rollcast.simulator.check import answer as answers
from rollcast.simulator.check import forecast as forecasts
from rollcast.simulator.check import search, words
from rollcast.simulator.check.answer import Answer, Priced, answer, odd, untold_turns
from rollcast.simulator.check.forecast import Forecast, Seconds
from rollcast.simulator.check.layout import groups_of, memory_lines
from rollcast.simulator.check.question import Question, located, question
from rollcast.simulator.check.search import Change
from rollcast.simulator.check.words import effect, headline, sentences
from rollcast.simulator.check.write import write_check
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Unresolved
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place

pytestmark = pytest.mark.usefixtures("quick_intervals")

SUMMARY = {
    "warnings": [],
    "preemptions": 0,
    "truncated_share": 0.1,
    "rollouts": 800,
    "steps": 4,
    "generated_tokens": 1000,
    "reprefilled_tokens": 0,
    "bound_by": None,
    "step_s": 10.0,
}
STEP = Seconds(10.0, 8.0, 15.0)


@pytest.fixture(scope="module")
def small() -> Question:
    """A launch of few prompts whose lengths nobody says."""
    return question(launched({**VERL, "data.train_batch_size": 8}), asked(prompt_tokens=200))


def _found(small: Question, **more: Any) -> Forecast:
    result: Any = SimpleNamespace(summary={**SUMMARY, **more}, scenario=small.scenario)
    return Forecast(STEP, {"update": Seconds(2.0, 1.0, 3.0)}, result, 0.1, 100)


def _change(small: Question, over: float, estimate_s: float, **more: Any) -> Change:
    held = short_ledger(small, over)
    return Change({"a": 1}, {"a": 1}, ("a=1",), ("it",), small, held, estimate_s, **more)


def _answer(small: Question, over: float, **more: Any) -> Answer:
    return Answer(small, short_ledger(small, over), _found(small), **more)


def test_how_likely_is_told_where_it_is_not_sure(small: Question) -> None:
    sure, likely = _answer(small, 0.5), _answer(small, 0.97)
    assert headline(sure).startswith("Yes: at most ")
    assert 0.5 < likely.ledger.fits_probability < 0.95
    assert headline(likely).startswith(f"Yes ({likely.ledger.fits_probability:.0%} likely): ")
    unlikely, never = _answer(small, 1.02), _answer(small, 3.0)
    assert headline(unlikely).startswith(f"No ({1 - unlikely.ledger.fits_probability:.0%} likely)")
    assert headline(never).startswith("No: ")


def test_that_nothing_helps_is_told_only_after_a_search(small: Question) -> None:
    assert headline(_answer(small, 3.0)).endswith(words.NOTHING)
    assert words.NOTHING not in headline(_answer(small, 3.0, searched=False))


def test_an_engine_that_is_too_large_for_its_share(small: Question) -> None:
    ledger = small.scenario.ledger
    share = ledger.pools["engine_share"]
    pools = {**ledger.pools, "engine_share": replace(share, capacity_bytes=1e9)}
    text = headline(Answer(small, replace(ledger, pools=pools), _found(small)))
    assert "of the engine's 1.0 GB of a GPU" in text
    most = ledger.total("start", "engine_share") * 1.01
    pools = {**ledger.pools, "engine_share": replace(share, capacity_bytes=most)}
    text = headline(Answer(small, replace(ledger, pools=pools), _found(small)))
    assert re.fullmatch(r"Yes.*of a GPU, at the start, and [\d.]+ of all \d+ GB, in .*\.", text)


def test_what_a_change_does(small: Question) -> None:
    for seconds, text in ((12.0, "20% slower"), (8.0, "20% faster"), (10.01, "as fast")):
        change = _change(small, 0.5, seconds)
        priced = Priced(change, Seconds(seconds, 1.0, 99.0))
        assert effect(priced, STEP).endswith(f"GB, {text}")
        assert priced.plain()["step_s"] == seconds
    unsure = _change(small, 0.97, 10.0, trains_otherwise=True)
    text = effect(Priced(unsure, None), STEP)
    assert f"{unsure.ledger.fits_probability:.0%} likely to fit" in text
    assert text.endswith("and it changes what is learned")


def test_the_contract_of_what_fits(small: Question) -> None:
    """Intervals from low to high, what the launch leaves open, and all changes."""
    item = Unresolved("trainer.x", "$X", Place("run.sh", 3), "a variable")
    launch = replace(
        small.launch,
        unknown=(Given("b", 1, Place("run.sh")), Given("a", 1, Place("run.sh"))),
        unresolved=(item,),
    )
    priced = Priced(_change(small, 0.5, 9.0), Seconds(9.0, 8.0, 10.0))
    slower = Priced(_change(small, 0.5, 12.0), Seconds(12.0, 11.0, 13.0))
    full = replace(small, launch=launch)
    plain = _answer(full, 0.5, fixes=(slower,), faster=(priced,)).plain()
    assert plain["step_s"]["as_if_it_fit"] is False
    assert plain["hours_interval"] == pytest.approx([8 * 100 / 3600, 15 * 100 / 3600])
    rate = 8 * 2.5
    assert plain["usd_interval"] == pytest.approx([rate * x for x in plain["hours_interval"]])
    assert plain["unknown_keys"] == ["a", "b"]
    assert plain["unresolved"] == [
        {"key": "trainer.x", "text": "$X", "place": "run.sh, line 3", "why": "a variable"}
    ]
    assert [change["step_s"] for change in plain["changes"]] == [12.0, 9.0]
    assert {entry["key"] for entry in plain["assumed"]} == {"workload.lengths.mean_tokens"}


def test_what_is_searched_for(small: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes where it is unsure, faster ones where it fits, neither where nobody asked."""
    called: list[str] = []
    priced = _change(small, 0.5, 5.0)

    def noted(name: str, found: Any) -> Any:
        def call(*args: Any) -> Any:
            called.append(name)
            args[-1]()
            return found

        return call

    monkeypatch.setattr(answers, "forecast", lambda *_: _found(small))
    monkeypatch.setattr(answers, "odd", lambda *_: called.append("odd") or ())
    monkeypatch.setattr(answers, "_simulated", lambda *_: None)
    monkeypatch.setattr(search, "that_fit", noted("fit", [priced]))
    monkeypatch.setattr(search, "that_speed_up", noted("speed", [priced]))
    monkeypatch.setattr(search, "estimate_s", lambda _: 10.0)
    for over, changes, expected in (
        (0.5, True, ["speed", "odd"]),
        (0.97, True, ["fit", "speed", "odd"]),
        (3.0, True, ["fit", "odd"]),
        (3.0, False, []),
    ):
        called.clear()
        tried: list[object] = []
        scenario: Any = SimpleNamespace(ledger=short_ledger(small, over))
        base: list[object] = []
        asked_now: Any = SimpleNamespace(
            scenario=scenario,
            draft=SimpleNamespace(settings={}),
            parts=(),
            open_lengths=(),
            with_keys=base.append,
            as_if_it_fit=lambda: {"gpu": "large"},
        )
        found = answer(asked_now, changes, tried.append)
        assert called == expected
        assert found.searched is changes
        assert base == [{"gpu": "large"} if over > 1 else {}] * changes
        assert tried == [None] * len({"fit", "speed"} & set(expected))
        for one in (*found.fixes, *found.faster):
            assert one.step == STEP.times(0.5)


def test_a_change_is_priced_by_a_short_run(small: Question) -> None:
    """On the same draws as the launch; large batches, by estimates."""
    result = forecasts.simulate(small.scenario)
    found = replace(_found(small), result=result)
    half = small.with_settings({"workload.max_new_tokens": 1024})
    changes = [replace(_change(small, 0.5, 5.0), question=one) for one in (small, half)]
    same, shorter = (answers._simulated(change, found) for change in changes)
    assert same == pytest.approx(1.0)
    assert shorter is not None
    assert shorter < 0.9
    large = _found(small, rollouts=answers.MOST_SIMULATED + 1)
    assert answers._simulated(changes[0], large) is None
    [by_estimate] = answers._priced(changes[:1], large, 10.0)
    assert by_estimate.step == STEP.times(0.5)
    slower = [Priced(changes[0], STEP), Priced(changes[1], STEP.times(0.9))]
    fast = Priced(changes[1], STEP.times(0.5))
    assert answers._shorter([*slower, fast], found) == [fast, slower[1]]


def test_an_open_input_widens_both_ends() -> None:
    wide = forecasts._wider(STEP, [5.0, 20.0])
    assert wide.low == pytest.approx(10 * math.exp(-math.hypot(math.log(10 / 8), math.log(2))))
    assert wide.high == pytest.approx(10 * math.exp(math.hypot(math.log(1.5), math.log(2))))
    assert forecasts._wider(Seconds(0.0, 0.0, 1.0), [0.0, 2.0]) == Seconds(0.0, 0.0, 2.0)


def test_the_ends_of_lengths_that_nobody_says(small: Question) -> None:
    least, most = small.open_lengths
    assert 0 < least < 1024 < most < 2048
    said = replace(small, settings=("workload.lengths.mean_tokens=900",))
    parts = [replace(p, value=900) for p in small.parts if p.key == "workload.lengths.mean_tokens"]
    known = replace(said, draft=replace(small.draft, parts=(*parts, *small.parts)))
    assert known.open_lengths == [least, most]  # still nobody's in the launch
    told = question(
        launched({**VERL, "data.train_batch_size": 8}), asked(mean_tokens=900.0, prompt_tokens=200)
    )
    assert told.open_lengths == []


def test_what_the_assumed_length_adds_to_the_interval_is_said(small: Question) -> None:
    """The rest of the interval is that of the same lengths, if something else is open; where they
    are given nothing is, so that it is narrower, and nothing is said of lengths."""
    rough = forecasts.forecast(small, True)
    assumed = float(small.value(forecasts.MEAN_TOKENS))
    given = asked(mean_tokens=assumed, prompt_tokens=200)
    sure = forecasts.forecast(question(launched({**VERL, "data.train_batch_size": 8}), given), True)
    known, settings = rough.known_length, ("cost.roofline.settings_known=false",)
    launch = launched({**VERL, "data.train_batch_size": 8})
    assert known == forecasts.forecast(question(launch, given, settings), True).step
    assert sure.known_length is None
    assert (
        rough.step.low < known.low < sure.step.low < sure.step.high < known.high < rough.step.high
    )
    ledger = short_ledger(small, 0.5)
    texts = [" ".join(sentences(Answer(small, ledger, found))) for found in (rough, sure)]
    assert [f"assumed {assumed:,.0f} tokens" in text for text in texts] == [True, False]


def test_a_run_of_an_unknown_number_of_steps_has_no_hours(small: Question) -> None:
    known, ledger = _found(small), short_ledger(small, 0.5)
    open_ended = replace(known, steps=None)
    texts = [" ".join(sentences(Answer(small, ledger, one))) for one in (known, open_ended)]
    assert ["give --steps" in text for text in texts] == [False, True]


def test_the_wait_for_the_last(small: Question) -> None:
    """Of 100 responses 97 end within four seconds and the rest after ten; one is cut off."""
    ends = np.array([1.0] * 50 + [4.0] * 47 + [10.0] * 3 + [50.0])
    table = {"finished": np.array([1] * 100 + [0]), "step": np.zeros(101, dtype=int), "end_s": ends}
    phase = SimpleNamespace(kind="rollout", step=0, start_s=0.0, end_s=10.0)
    result: Any = SimpleNamespace(run=SimpleNamespace(segments=table, phases=[phase]))
    assert forecasts._last_share(result) == pytest.approx(0.58, abs=0.05)
    table["finished"][:] = 0
    assert forecasts._last_share(result) == 0.0


def test_what_is_odd(small: Question) -> None:
    assert not list(odd(small, _found(small)))
    full = _found(small, preemptions=40, reprefilled_tokens=500)
    [sentence] = [one.sentence for one in odd(small, full)]
    assert "preempt responses 10 times a step" in sentence
    assert "prefill again 50% as many tokens as they sample" in sentence
    [sentence] = [one.sentence for one in odd(small, _found(small, truncated_share=0.3))]
    assert "30% of the responses are cut" in sentence
    seqs = small.scenario.engine.max_seqs
    many = 4 * small.scenario.shape.replicas * seqs
    assert not list(odd(small, _found(small, rollouts=1.9 * many)))
    [sentence] = [one.sentence for one in odd(small, _found(small, rollouts=2.1 * many))]
    assert f"runs at most {seqs:,} at once of the" in sentence


def test_no_wait_is_told_of_a_policy_that_does_not_wait(small: Question) -> None:
    long = replace(_found(small), last_share=0.5)
    parts = (Part("policy", ["april"], "the launch"), *small.parts)
    april = replace(small, draft=replace(small.draft, parts=parts))
    assert not list(odd(april, long))


def test_the_lines_of_a_ledger(small: Question) -> None:
    """An engine's own share only where it is nearly full; shares of each pool's capacity."""
    ledger = small.scenario.ledger
    lines = memory_lines(ledger)
    assert lines
    assert {line.pool for line in lines} == {"colocated"}
    for line in lines:
        assert line.share == line.total / ledger.pools[line.pool].capacity_bytes
    held = ledger.total("start", "engine_share")
    for room, shown in ((0.95, True), (0.85, False)):
        share = replace(ledger.pools["engine_share"], capacity_bytes=held / room)
        near = replace(ledger, pools={**ledger.pools, "engine_share": share})
        assert ("engine_share" in {line.pool for line in memory_lines(near)}) is shown
    without = [line for line in lines if not line.parts.get("logits")]
    assert "logits" in groups_of(lines)
    assert "logits" not in groups_of(without)


def test_as_if_it_fit_keeps_the_pool(small: Question) -> None:
    keys = small.as_if_it_fit()
    large = small.with_keys(keys)
    assert large.ledger.sure
    assert large.engine.kv_tokens == small.scenario.engine.kv_tokens
    assert small.with_keys({"steps": 7}).steps == 7


def test_an_error_is_told_at_the_place_that_says_the_value() -> None:
    parts = [
        Part("workload.lengths", 1, "data.x in run.sh, line 2"),
        Part("workload.max_new_tokens", 5, "nobody", True),
    ]
    assert located(ScenarioError("workload.lengths.mean", "is 0"), parts).field == (
        "data.x in run.sh, line 2"
    )
    assumed = ScenarioError("workload.max_new_tokens", "is 0")
    assert located(assumed, parts) is assumed


def test_what_is_unresolved_and_of_use(small: Question) -> None:
    """A file of prompts is not; a setting that a forecast reads is."""
    items = tuple(
        Unresolved(key, "$X", Place("run.sh"), "a variable")
        for key in ("data.train_files", "actor_rollout_ref.rollout.temperature", "nobody.s")
    )
    open_keys = replace(small, launch=replace(small.launch, unresolved=items)).unresolved
    assert [item.key for item in open_keys] == ["actor_rollout_ref.rollout.temperature"]


def test_gpus_that_are_set_are_not_asked_for() -> None:
    said = {"model": "Qwen/Qwen2.5-3B-Instruct", "use_vllm": True, "vllm_mode": "colocate"}
    with pytest.raises(ScenarioError, match="--gpus"):
        question(launched(said, "trl", "0.21"), asked())
    sets = ("cluster.replicas=4", "cluster.trainer_gpus=4")
    assert question(launched(said, "trl", "0.21"), asked(), sets).scenario.shape.replicas == 4
    with pytest.raises(ScenarioError, match="which GPU"):
        question(launched(), asked(None))
    assert question(launched(), asked(None), ("gpu=h100-sxm",)).scenario.gpu is not None


def test_what_is_said_elsewhere_is_not_asked_for() -> None:
    """A variable without a value, whose setting another line says, and one that no line does."""
    key = "actor_rollout_ref.rollout.n"
    item = Unresolved(key, "$N", Place("run.sh", 3), "a variable")
    open_too = replace(launched(), unresolved=(item,))
    assert question(open_too, asked()).value("workload.group_size") == 8
    said = {ours: value for ours, value in VERL.items() if ours != key}
    with pytest.raises(ScenarioError, match="--env NAME=VALUE"):
        question(replace(launched(said), unresolved=(item,)), asked())


def test_the_scenario_begins_with_the_answer(small: Question, tmp_path: Path) -> None:
    found = _answer(small, 0.5)
    write_check(tmp_path, found, "page")
    head = (tmp_path / "scenario.yaml").read_text("utf-8").splitlines()[:3]
    assert head[0] == "# run.sh, as rollcast check read it."
    assert headline(found)[:30] in head[1]
    assert (tmp_path / "report.html").read_text("utf-8") == "page"


def test_the_sentences_of_what_does_not_fit(small: Question) -> None:
    said = " ".join(sentences(_answer(small, 3.0)))
    assert "A step takes 10 s (8 to 15 s) if it fit, on 8 GPUs." in said
    assert "100 steps take" in said
    assert "if it fit" not in " ".join(sentences(_answer(small, 0.5)))


def test_ends_of_lengths_of_a_part_of_a_run_are_those_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To some percent: fewer responses end in another longest one. So are steps of changes."""
    said = {**VERL, "data.train_batch_size": 512, "data.max_response_length": 512}
    asks = question(launched(said), asked(), ("steps=1",))
    monkeypatch.setattr(forecasts, "_MANY", 16_384)
    whole = forecasts.forecast(asks, True)
    monkeypatch.setattr(forecasts, "_MANY", 4_000)
    monkeypatch.setattr(forecasts, "_ENOUGH", 1_024)
    part = forecasts.forecast(asks, True)
    assert part.step.median == whole.step.median
    assert part.known_length == whole.known_length
    for end in ("low", "high"):
        assert getattr(part.step, end) == pytest.approx(getattr(whole.step, end), rel=0.05)
        assert getattr(part.step, end) != getattr(whole.step, end)
        for name in ("log_prob", "update"):
            ours, theirs = (getattr(one.phases[name], end) for one in (part, whole))
            assert ours == pytest.approx(theirs, rel=0.045), name
    assert whole.part is None
    assert part.part is not None
    its, batch = forecasts._part_keys(asks.scenario, part.part.fewer), asks.scenario.plan.batch
    assert its["workload.batch_groups"] < batch.groups
    each = batch.groups / asks.scenario.shape.replicas
    assert its["workload.batch_groups"] == each * its["cluster.replicas"]
    for keys in ({"engine.max_seqs": 16}, {"engine.max_seqs": 32, "run.enforce_eager": True}):
        change = replace(_change(asks, 1.0, 1.0), question=asks.with_settings(keys))
        ours, theirs = (answers._simulated(change, found) for found in (part, whole))
        assert ours == pytest.approx(theirs, rel=0.05)
        assert abs(theirs - 1) > 0.02
    three = asks.with_keys({"cluster.replicas": 3, "cluster.trainer_gpus": 6})
    with pytest.raises(ScenarioError, match=r"cluster\.replicas"):
        forecasts._part_keys(three, 2)


def test_a_part_of_a_run_that_overlaps_training_has_less_of_its_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the trainer would be sooner done with the part's batch. A policy that counts groups is
    not divided."""
    said = {**VERL, "data.train_batch_size": 128, "data.max_response_length": 256}
    apart = {"cluster.placement": "disaggregated", "cluster.replicas": 2, "cluster.trainer_gpus": 4}
    asks = question(launched(said), asked())

    def under(policy: str, *settings: str) -> forecasts.Forecast:
        keys = [Part(key, its, "") for key, its in {**apart, "policy": [policy]}.items()]
        draft = replace(asks.draft, parts=tuple(replaced(asks.parts, keys)))
        return forecasts.forecast(replace(asks, draft=draft, settings=("steps=2", *settings)), True)

    whole = under("one_step_off")
    monkeypatch.setattr(forecasts, "_MANY", 1_000)
    monkeypatch.setattr(forecasts, "_ENOUGH", 1_000)
    part = under("one_step_off")
    assert whole.part is None
    assert part.part is not None
    assert part.part.part.shape.trainer_gpus == 2
    assert part.step.median == whole.step.median
    for end in ("low", "high"):
        assert getattr(part.step, end) == pytest.approx(getattr(whole.step, end), rel=0.1)
        assert getattr(part.step, end) != getattr(whole.step, end)
    assert under("streaming").part is None
    assert under("one_step_off", "cluster.trainer_gpus=4").part is None


OPENRLHF = {
    "pretrain": "Qwen/Qwen3-4B",
    "remote_rm_url": "reward.py",
    "colocate_all_models": True,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 8,
    "vllm_num_engines": 8,
    "rollout_batch_size": 32,
    "n_samples_per_prompt": 8,
    "generate_max_len": 1024,
}
TOOLS = "actor_rollout_ref.rollout.multi_turn"
_AGENT = "actor_rollout_ref.rollout.agent"


@pytest.mark.parametrize(
    ("stack", "said", "told"),
    [
        ("verl", {**VERL, f"{TOOLS}.tool_config_path": "tools.yaml"}, "tool_config_path in run.sh"),
        ("verl", {**VERL, f"{TOOLS}.max_assistant_turns": 5}, "max_assistant_turns in run.sh"),
        ("verl", {**VERL, f"{TOOLS}.enable": False, f"{TOOLS}.tool_config_path": None}, None),
        ("verl", {**VERL, f"{TOOLS}.max_assistant_turns": 1}, None),
        ("verl", {**VERL, f"{_AGENT}.default_agent_loop": "single_turn_agent"}, None),
        ("verl", {**VERL, f"{_AGENT}.default_agent_loop": "tool_agent"}, "default_agent_loop in"),
        ("verl", {**VERL, "actor_rollout_ref.agent.enable_agent": False}, None),
        ("verl", {**VERL, "actor_rollout_ref.agent.enable_agent": True}, "enable_agent in"),
        ("verl", {**VERL, "actor_rollout_ref.agentgym.env_addr": "http://x"}, "env_addr in"),
        ("verl", VERL, None),
        ("openrlhf", {**OPENRLHF, "agent_func_path": "agent.py"}, "agent_func_path in run.sh"),
        ("openrlhf", OPENRLHF, None),
    ],
)
def test_turns_of_which_a_launch_says_nothing_more_are_told(
    stack: str, said: dict[str, Any], told: str | None
) -> None:
    found = [one.sentence for one in untold_turns(question(launched(said, stack), asked()))]
    assert bool(found) == (told is not None)
    assert all((told or "") in sentence and "--turns" in sentence for sentence in found)


def test_a_preset_of_turns_stands_for_what_a_launch_does_not_say() -> None:
    said = launched({**VERL, f"{TOOLS}.tool_config_path": "tools.yaml"})
    found = question(said, asked(turns="search"))
    assert not list(untold_turns(found))
    scenario = found.scenario
    assert found.value("workload.max_context_tokens") == 1024 + 2048
    assert found.value("workload.turns.preset") == "search"
    assert scenario.raw.data["environment"] == {"turn_s": {"preset": "search"}, "timeout_s": 60}
    assert "lengths" not in scenario.raw.data["workload"]
    of_mean = question(said, asked(turns="search", mean_tokens=300))
    assert of_mean.value("workload.lengths.mean_tokens") == 300
    with pytest.raises(ScenarioError, match="'chess'; give one of swe, search"):
        question(said, asked(turns="chess"))


def test_tools_that_cannot_be_read_are_tools() -> None:
    opened = Unresolved(f"{TOOLS}.tool_config_path", "$TOOLS", Place("run.sh", 3), "is not set")
    said = replace(launched(), unresolved=(opened,))
    [one] = untold_turns(question(said, asked()))
    assert "tool_config_path in run.sh, line 3" in one.sentence
