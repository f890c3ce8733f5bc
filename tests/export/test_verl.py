"""Inside a fake verl, the exported sampler decides as the simulator does."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.engine.export.planned import planned
from rollcast.simulator.errors import RunError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.stacks.exported import PLAN_FILE
from rollcast.simulator.stacks.verl.hooks import make_sampler, trainer_mode
from rollcast.simulator.stacks.verl.progress import shares
from rollcast.simulator.studies.simulate import simulate
from tests.export.fake_verl import FakeVerl, KVBatchMeta, genuine_source
from tests.export.scenarios import scenario, simulated
from tests.laws import examples

POLICIES = [
    "sync",
    "april",
    "april(over_sampling=1.5)",
    "april(over_sampling=2.5, surplus=drop)",
    "dynamic_sampling(refill_when=drained)",
    "dynamic_sampling(refill_when=drained, refill_groups=2)",
    "april+dynamic_sampling",
    "april(over_sampling=3)+dynamic_sampling(refill_groups=1)",
    "pods(keep=2)",
    "april+pods(keep=3, rule=percentile)",
]
# With as many warm-up batches as are exported: the trainer launches those, the sampler the rest.
RUNS = [
    *((policy, 0) for policy in POLICIES),
    ("april", 1),
    ("april(over_sampling=2.5, surplus=drop)", 1),
    ("april(over_sampling=3)+dynamic_sampling(refill_groups=1)", 2),
]


class Run:
    """A run of the exported sampler in a fake verl."""

    def __init__(
        self,
        checked: Scenario,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        genuine: Path | None = None,
        **given: Any,
    ) -> None:
        exported = planned(checked).exported
        (folder / PLAN_FILE).write_text(exported.text())
        batch = checked.plan.batch
        self.verl = FakeVerl(
            checked.workload,
            batch.groups,
            batch.group_size,
            trainer_mode(exported) != "sync",
            genuine,
        )
        self.verl.install(monkeypatch)
        self.verl.build(make_sampler(folder / PLAN_FILE), **given)
        self.decisions: list[dict[str, Any]] = []

    def step(self) -> KVBatchMeta:
        batch, self.metrics = self.verl.step()
        decision = self.verl.sampler.rollcast.driver.decision
        self.decisions.append(json.loads(json.dumps(decision)))
        return batch


def in_common(decision: dict[str, Any]) -> dict[str, Any]:
    """What verl lets anybody know: not how far an unfinished rollout got."""
    same = {
        name: decision[name]
        for name in ("step", "plan", "launched", "selected", "surplus", "rejected", "complete")
    }
    same["ready"] = decision["stop"]["ready"]
    same["unfinished"] = [group for group, _ in decision["unfinished"]]
    plain: dict[str, Any] = json.loads(json.dumps(same))
    return plain


@pytest.mark.parametrize("buffer", ["fake", "genuine"])
@pytest.mark.parametrize(("policy", "warmup"), RUNS)
def test_decides_as_the_simulator_does(
    policy: str, warmup: int, buffer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = genuine_source() if buffer == "genuine" else None
    if buffer == "genuine" and genuine is None:
        pytest.skip("verl is not installed")
    checked = scenario(policy)
    run = Run(checked, tmp_path, monkeypatch, genuine)
    run.verl.begin(warmup)
    batches = [run.step() for _ in range(checked.steps)]
    for ours, theirs in zip(run.decisions, simulated(checked), strict=True):
        assert in_common(ours) == in_common(theirs)
    for decision, batch in zip(run.decisions, batches, strict=True):
        numbers = [key.split("-")[1].split("_")[:2] for key in batch.keys]
        chosen = [[group, index] for group, each in decision["selected"] for index in each]
        assert [[int(group), int(index)] for group, index in numbers] == chosen
        assert len(batch.tags) == len(batch.keys)


@pytest.mark.parametrize("policy", ["april", "april+dynamic_sampling", "april+pods(keep=2)"])
def test_nothing_is_left_in_the_queue_but_what_is_kept(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(scenario(policy), tmp_path, monkeypatch)
    for _ in range(6):
        run.step()
        rollouts = run.verl.sampler.rollcast.driver.loop.rollouts
        kept = len(rollouts.buffer) + len(rollouts.ready)
        prompts = [key for key in run.verl.queue.tags["train"] if "_" not in key]
        assert len(prompts) == kept + len(run.verl.sampler.rollcast.world._unclaimed)
        whole = [key for key in run.verl.queue.tags["train"] if "_" in key]
        assert {key.split("_")[0] for key in whole} <= set(prompts)


def test_a_prompt_that_fails_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(scenario("april"), tmp_path, monkeypatch)
    run.verl.fails = {1, 3}
    batches = [run.step() for _ in range(4)]
    trained = {key.split("_")[0] for batch in batches for key in batch.keys}
    assert trained.isdisjoint({"uid-1", "uid-3"})
    assert all(len(batch.keys) == 16 for batch in batches)
    assert not {"uid-1", "uid-3"} & set(run.verl.queue.tags["train"])


def test_prompts_that_all_fail_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(scenario("april"), tmp_path, monkeypatch)

    def steps(count: int) -> None:
        for _ in range(count):
            run.step()

    steps(1)
    run.verl.fails = {*range(run.verl.launched, 1000)} - {20}  # one between them is no failure
    with pytest.raises(RunError, match="of the last 16 prompts failed"):
        steps(8)
    assert 20 + 16 <= run.verl.launched < 60


@pytest.mark.parametrize(
    ("given", "state", "said"),
    [
        ({"refill_fn": None}, {}, "gives its sampler no refill_fn"),
        (
            {"refill_fn": lambda count: 0},
            {},
            "launched 0 prompts of 4; data.gen_batch_size must be 1",
        ),
        ({}, {"own_rewards": False}, "no rm_scores"),
        ({}, {"size": 3}, "rollout.n must be 4"),
        ({}, {"groups": 5}, "data.train_batch_size is 5, and the plan was made for 4"),
        ({"trainer_mode": "sync"}, {}, "trainer_mode is sync, and the plan was made for colocate"),
    ],
)
def test_what_contradicts_the_plan_is_refused(
    given: dict[str, Any],
    state: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step() -> None:
        run = Run(scenario("april"), tmp_path, monkeypatch, **given)
        run.verl.__dict__.update(state)
        run.step()

    with pytest.raises(RunError, match=said):
        step()


@pytest.mark.parametrize("policy", ["april", "april(over_sampling=3)"])
def test_tokens_are_of_the_versions_that_the_simulator_says(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rollout in flight gains a token a second, so that seconds tell its tokens exactly."""
    checked = scenario(policy, steps=12)
    run = Run(checked, tmp_path, monkeypatch)
    before = 0.0
    for record in simulate(checked).run.steps:
        run.step()
        tokens = sum(record.staleness.values())
        aged = sum(age * count for age, count in record.staleness.items())
        assert run.metrics["rollcast/mean_staleness"] == pytest.approx(aged / tokens)
        assert run.metrics["rollcast/max_staleness"] == max(record.staleness)
        assert run.metrics["rollcast/resumed_groups"] == record.resumed_groups
        before += run.metrics["rollcast/resumed_tokens"]
    assert run.metrics["rollcast/resumed_groups"] > 0
    assert before > 0


def test_groups_of_one_look_come_in_the_order_in_which_they_became_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are whole when the trainer first looks; those that were first are trained on."""
    run = Run(scenario("april(over_sampling=3)"), tmp_path, monkeypatch)
    run.verl.begin(2)
    run.verl.add_prompts(4)
    order = []
    while run.verl.flying:
        before = set(run.verl.flying)
        run.verl.sleep(1.0)
        order += [uid for uid in before if uid not in run.verl.flying]
    monkeypatch.setattr(run.verl, "add_prompts", lambda count: count)
    batch = run.step()
    trained = {key.split("_")[0] for key in batch.keys}
    assert trained == set(order[:4]) != {"uid-0", "uid-1", "uid-2", "uid-3"}


def test_the_pause_between_two_looks_follows_their_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(scenario("april"), tmp_path, monkeypatch)
    world = run.verl.sampler.rollcast.world
    for look_s, pause_s in ((0.0, 0.05), (0.01, 0.19), (1.0, 2.0)):
        world._look_s = look_s
        assert world.pause_s == pytest.approx(pause_s)


@settings(max_examples=examples(100), deadline=None)
@given(tokens=st.integers(0, 50), weights=st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_shares_are_whole_and_add_up(tokens: int, weights: list[float]) -> None:
    parts = shares(tokens, weights)
    assert sum(parts) == tokens
    assert min(parts) >= 0
    if tokens > len(weights):
        assert parts[0] >= 1 <= parts[-1]
    total = sum(weights)
    if total > 0:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part - tokens * weight / total) < 3


def test_validation_is_verls_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(scenario("april"), tmp_path, monkeypatch)
    batch, metrics = run.verl.sampler.sample(global_steps=1, partition_id="val", batch_size=7)
    assert batch == "verl's own"
    assert metrics == {"of": (1, "val", 7)}


def test_a_resumed_run_goes_on_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(scenario("april"), tmp_path, monkeypatch)
    run.verl.begin(0, global_steps=7)
    run.step()
    run.step()
    assert [decision["step"] for decision in run.decisions] == [7, 8]


def test_policies_that_learn_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting_for_verl.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from rollcast.simulator.core.policy import Policy\n"
        "@dataclass(frozen=True)\n"
        "class Counting(Policy):\n"
        "    decides = frozenset({'surplus'})\n"
        "    def init(self):\n"
        "        return (0, 0)\n"
        "    def observe(self, state, outcome):\n"
        "        capped = sum(group.truncated for group in outcome.complete)\n"
        "        return (state[0] + len(outcome.complete), state[1] + capped)\n"
        "    def describe_state(self, state):\n"
        "        return {'seen': state[0], 'capped': state[1]}\n"
    )
    policy = "april+counting_for_verl:Counting"
    checked = scenario(policy, workload={"max_new_tokens": 20}, steps=4)
    states = tmp_path / "states"
    kwargs = {"sampler_kwargs": {"state_dir": str(states)}}
    first = Run(checked, tmp_path, monkeypatch, **kwargs)
    for _ in range(3):
        first.step()
    seen = sum(len(decision["complete"]) for decision in first.decisions)
    second = Run(checked, tmp_path, monkeypatch, **kwargs)
    second.verl.begin(0, global_steps=3)
    second.step()
    assert second.metrics["rollcast/seen"] == seen
    told = simulate(checked).run.steps
    assert told[2].policy["capped"] == first.metrics["rollcast/capped"] > 0
    assert told[3].policy["seen"] == seen
    (states / "rollcast_3.json").write_text("{}")
    third = Run(checked, tmp_path, monkeypatch, **kwargs)
    third.verl.begin(0, global_steps=3)
    with pytest.raises(RunError, match="cannot read"):
        third.step()
