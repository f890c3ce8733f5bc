"""Reading a scenario and building it: what a key means, and where it came from."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.cluster.routing import ROUTINGS
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Launch, StepPlan
from rollcast.simulator.core.policy import Policy, chain
from rollcast.simulator.costs import LinearCost, RooflineCost
from rollcast.simulator.costs.memory.kv_pool import workspace_bytes
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import APRIL, PODS
from rollcast.simulator.scenario.file import RawScenario, override, parse_scenario, read_scenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.scenario.sections import ClusterSection
from rollcast.simulator.studies.simulate import from_raw, load, simulate
from rollcast.simulator.values import Choice, declared
from tests.refusals import refuses
from tests.scenarios import LINEAR, MINIMAL


def built(*settings: str, **sections: Any) -> Scenario:
    return from_raw(RawScenario({**MINIMAL, **sections}), *settings)


def test_what_is_left_out_has_a_default() -> None:
    scenario = built()
    assert scenario.policy_name == "sync"
    assert (scenario.steps, scenario.seed) == (10, 0)
    assert scenario.shape.gpus == 1
    assert scenario.shape.colocated
    assert scenario.engine.max_seqs == 256
    assert isinstance(scenario.world(), SimulatedCluster)


def test_a_colocated_trainer_may_have_gpus_without_an_engine() -> None:
    """Rollouts as with its engines alone, updates as on all its GPUs, which the run holds."""
    gpus = {"model": "qwen3-8b", "gpu": "h100-sxm", "steps": 2}
    roofline = {"roofline": {"offload_optimizer": True}}

    def run(replicas: int, trainer: int) -> dict[str, Any]:
        cluster = {"replicas": replicas, "trainer_gpus": trainer}
        return dict(simulate(built(**gpus, cost=roofline, cluster=cluster)).summary)

    both, engines, trainer = run(3, 4), run(3, 3), run(4, 4)
    assert both["rollout_s"] == pytest.approx(engines["rollout_s"])
    assert both["train_s"] == pytest.approx(trainer["train_s"])
    assert both["train_s"] < engines["train_s"]
    assert both["gpus"] == 4
    assert both["gpu_hours"] == pytest.approx(4 * both["makespan_s"] / 3600)
    [warning] = [text for text in both["warnings"] if "cluster.trainer_gpus" in text]
    assert "1 of the trainer's 4 GPUs have no engine" in warning
    assert not any("no engine" in text for text in engines["warnings"] + trainer["warnings"])
    with pytest.raises(ScenarioError, match=r"of one kind"):
        built(**gpus, cost=roofline, cluster={"trainer_gpus": 2, "trainer_gpu": "a100-80gb"})


def test_prompts_come_again_where_their_number_is_given() -> None:
    assert built().plan.prompts.dataset is None
    scenario = built("workload.prompts=6", "steps=3")
    assert scenario.plan.prompts.dataset == 6
    groups = [prompt for _, prompt in simulate(scenario).run.decisions[1]["prompts"]]
    assert groups == [0, 1]  # after 4 and 5
    with pytest.raises(ScenarioError, match=r"workload\.prompts"):
        built("workload.prompts=0")


@pytest.mark.parametrize(
    "key",
    [
        "cluster",
        "policy",
        "steps",
        "seed",
        "cluster.trainer_gpus",
        "engine.max_seqs",
        "workload.rewards",
        "name",
    ],
)
def test_null_is_the_same_as_left_out(key: str) -> None:
    assert built(f"{key}=null").world().shape == built().world().shape


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("-007", -7),
        ("1_000", 1000),
        ("+0x1F", 31),
        ("0b11", 3),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("0o10", "0o10"),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, value: object) -> None:
    raw = parse_scenario(f"steps: {text}")
    assert [raw.data["steps"]] == [value] == [override(raw, [f"steps={text}"]).data["steps"]]
    assert type(raw.data["steps"]) is type(value)


def test_disaggregated_trainers_have_gpus_of_their_own() -> None:
    shape = built("cluster={replicas: 3, tensor_parallel: 2, placement: disaggregated}").shape
    assert (shape.gpus, shape.trainer_gpus, shape.colocated) == (12, 6, False)


def test_routing_names_are_those_of_the_routers() -> None:
    [routing] = [option for option in declared(ClusterSection) if option.key == "routing"]
    assert isinstance(routing.reader, Choice)
    assert set(routing.reader.valid) == set(ROUTINGS)


# Lines


def test_lines_follow_keys_into_lists_and_merges() -> None:
    raw = parse_scenario(
        "policy:\n- april: {over_sampling: 2}\n- sagc:\n    tau: 1.5\n"
        "engine:\n  <<: {max_seqs: 1}\n  kv_tokens: 2\n"
        "workload:\n  lengths:\n    components:\n    - weight: 1\n    - weight: 2\n"
    )
    assert raw.data["engine"] == {"max_seqs": 1, "kv_tokens": 2}
    for key, line in {
        "policy": 1,
        "policy.april": 2,
        "policy.april.over_sampling": 2,
        "policy[1]": 3,
        "policy.sagc.tau": 4,
        "engine.max_seqs": 6,
        "engine.kv_tokens": 7,
        "workload.lengths.components[1].weight": 12,
    }.items():
        assert raw.lines[key] == line, key


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("steps", "(x.yaml, line 2)"),
        ("workload.rewards.family", "(x.yaml, line 1)"),
        ("steps[3].a", "(x.yaml, line 2)"),
        ("engine.kv_tokens", "(from --set engine)"),
        ("elsewhere.", ""),
        ("", ""),
        ("..", ""),
    ],
)
def test_an_error_is_located_at_its_key_or_the_nearest_above(field: str, place: str) -> None:
    raw = override(
        parse_scenario("workload: {a: 1}\nsteps: 2\nengine: {b: 1}", "x.yaml"), ["engine={c: 2}"]
    )
    assert raw.locate(ScenarioError(field, "wrong")).message == f"wrong {place}".strip()


def test_an_anchor_is_a_copy() -> None:
    raw = parse_scenario("cluster: &c {replicas: 2}\nengine: *c\n")
    changed = override(raw, ["cluster.replicas=3"])
    assert changed.data == {"cluster": {"replicas": 3}, "engine": {"replicas": 2}}
    assert raw.data["cluster"] == {"replicas": 2}


# Paths, costs, policies


def test_paths_start_from_the_scenarios_folder(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text(json.dumps({"linear": {**LINEAR, "sync_s": 2.5}}))
    (tmp_path / "t.csv").write_text("prompt_tokens,new_tokens\n" + "10,20\n" * 16)
    data = {**MINIMAL, "cost": {"file": "fit.json"}}
    data["workload"] = {**MINIMAL["workload"], "prompt_tokens": None, "lengths": {"trace": "t.csv"}}
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(data))
    scenario = load(path)
    assert isinstance(scenario.cost, LinearCost)
    assert scenario.cost.sync_s == 2.5
    assert scenario.workload.draw(3, 4).new_tokens == [20] * 4
    assert scenario.name == "scenario"
    assert read_scenario(path).folder == tmp_path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a file of JSON"),
        ("[" * 100_000, "is not a file of JSON"),
        ("[]", "names no schema"),
        ('{"linear": {"sync_s": NaN}}', "iteration_s"),
        ("\udcff", "is not a file of JSON"),
    ],
)
def test_a_fitted_file_that_does_not_serve(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "fit.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ScenarioError, match=said):
        built(f"cost={{file: {tmp_path / 'fit.json'}}}")


def test_a_roofline_gives_the_pool_and_needs_model_and_gpu() -> None:
    roofline = {"cost": "roofline", "engine": {}, "cluster": {"replicas": 8}}
    scenario = built("model=qwen3-4b", "gpu=h100-sxm", **roofline)
    assert isinstance(scenario.cost, RooflineCost)
    assert scenario.engine.kv_tokens == scenario.cost.kv_pool_tokens
    with pytest.raises(ScenarioError, match="gpu: missing"):
        built("model=qwen3-8b", **roofline)
    with pytest.raises(ScenarioError, match=r"no room for KV.*tensor_parallel \d would fit"):
        built("model=llama-3.1-70b", "gpu=h100-sxm", **roofline).check_memory()


@pytest.mark.parametrize(("prompt", "room"), [(100, True), (900, False)])
def test_a_pool_that_holds_no_prompt_is_none(prompt: int, room: bool) -> None:
    """Of 500 tokens, where an engine takes the least for itself."""
    model, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm")
    taken = model.weight_bytes + workspace_bytes(model, 1, 2048, 64)
    share = (taken + 500 * model.kv_bytes_per_token) / gpu.memory_bytes
    scenario = built(
        f"workload.prompt_tokens={prompt}",
        f"model={model.name}",
        "gpu=h100-sxm",
        cost={"roofline": {"kv_memory_utilization": share}},
        engine={"max_batched_tokens": 2048, "max_seqs": 64},
    )
    assert (scenario.no_pool is None) == room


def test_a_clock_that_would_stand_still_is_refused() -> None:
    still = {**LINEAR, "iteration_s": 1e-300, "per_context_token_s": 0, "per_rollout_s": 0}
    with pytest.raises(ScenarioError, match="an iteration takes no time"):
        built(cost={"linear": still}).world()


def test_a_prompt_or_group_beyond_the_pool_names_the_key_to_change() -> None:
    with refuses("workload.prompt_tokens"):
        built("workload.prompt_tokens=1e30")
    with refuses("workload.group_size"):
        built("workload.group_size=100000", "workload.batch_groups=1")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("april", "april"),
        (" april ( over_sampling = 1.5 ) + sagc", "april(over_sampling=1.5)+sagc"),
        ("all of it = april+pods(keep=2)", "all of it"),
        ("all=april(over_sampling=1.5)", "all"),
        ("json = sync", "json"),
        ("a=b = c = sync", "a=b = c"),
        ("what (if) = april", "what (if)"),
        ("all of it: april+pods(keep=2)", "all of it"),  # the older sign of a label
        ("all: april+pods(keep=2)", "all"),
        ("all:april+pods(keep=2)", "all"),
        ("json: april", "json"),
        ("a-b:april", "a-b"),
        ("a: b: sync", "a: b"),
        ("x = y: sync", "x = y"),
        ("april = april", "april"),
        ("sagc(seed=5)", "sagc(seed=5)"),
    ],
)
def test_another_policy_has_its_name(text: str, name: str) -> None:
    assert built("seed=7").with_policy(text).policy_name == name


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("json:april", "policy.json:april", "json has no april"),  # a module's, not a label
        (" = april", "--policy", "empty label"),
        (" : april", "--policy", "empty label"),
        ("all = ", "policy", "cannot read"),
        ("all = aprill", "policy.aprill", "did you mean april?"),
        ("all = april = sagc(", "policy", "cannot read"),
        ("april(over_sampling=sagc", "policy", "cannot read"),
        ("all: nowhere:Mine", "policy.nowhere:Mine", "there is no module nowhere"),
        ("nowhere.Mine(share=1)", "policy.nowhere.Mine", "a class of your own is module:Class"),
        ("nowhere:", "policy", "cannot read"),
        ("a:b:c", "policy", "there is no module"),
        ("x" * 5000 + " = april", "policy", "names no policy"),
    ],
)
def test_a_wrong_label_or_chain_is_refused(text: str, field: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        built().with_policy(text)
    assert words in caught.value.message
    assert caught.value.field.startswith(field)


@dataclass(frozen=True)
class Own(Policy):
    share: float = 0.5


class Ahead(Policy):
    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        return replace(plan, launch=Launch(run_ahead=1))


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (chain(), "sync"),
        (APRIL(1.5), "april(over_sampling=1.5)"),
        (chain(Own(0.25), PODS(keep=2)), "Own(share=0.25)+pods(keep=2)"),
        (Policy(), "Policy"),
    ],
)
def test_a_policy_may_be_an_object_of_any_class(policy: Policy, name: str) -> None:
    under = built().with_policy(policy)
    assert (under.policy_name, under.policy) == (name, chain(policy))
    with refuses("policy.Ahead", "overlaps training"):
        built().with_policy(chain(policy, Ahead()))
