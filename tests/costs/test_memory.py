"""Memory is judged before the run, at the longest rollout that a scenario allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import from_raw, simulate

SPLIT = """
model: qwen3-32b
gpu: h100-sxm
cluster: {placement: disaggregated, replicas: 4, tensor_parallel: 4, trainer_gpus: 8}
workload:
  batch_groups: 16
  group_size: 8
  prompt_tokens: 512
  max_new_tokens: 16384
  lengths: {family: lognormal, median_tokens: 1500, between_sd: 0.6, within_sd: 0.3}
"""


def scenario(*settings: str) -> Scenario:
    return from_raw(parse_scenario(SPLIT), *settings)


def refused(*settings: str, policy: str = "sync") -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        scenario(*settings).with_policy(policy).check_memory()
    return caught.value


def test_it_hangs_neither_on_the_steps_nor_on_what_is_drawn_nor_on_the_policy() -> None:
    first = str(refused())
    assert "a microbatch of the longest rollout" in first
    assert "16,896 tokens" in first
    assert "16 trainer GPUs" in first
    for settings in (("steps=1",), ("steps=500",), ("seed=7",)):
        assert refused(*settings).message == refused().message
    for policy in ("april", "fully_async", "pods(keep=4)"):
        assert refused(policy=policy).message == refused().message


def test_a_run_is_refused_before_its_first_token() -> None:
    short = scenario("steps=1", "workload.lengths.median_tokens=50")  # what is drawn would fit
    with pytest.raises(ScenarioError, match="the trainer is out of memory") as caught:
        simulate(short)
    assert caught.value.field == "cluster.trainer_gpus"


def test_what_it_says_would_fit_does() -> None:
    said = str(refused())
    for setting in ("cluster.trainer_gpus=16", "cost.roofline.trainer.tensor_parallel=2"):
        key, value = setting.rsplit("=", 1)
        assert f"{value} trainer GPUs" in said or f"{key}: {value}" in said
        scenario(setting).check_memory()
    room = int(said.split("largest microbatch that fits is ")[1].split()[0].replace(",", ""))
    scenario(f"workload.max_new_tokens={room - 512}").check_memory()
    refused(f"workload.max_new_tokens={room - 511}")


def test_a_pool_holds_one_rollout_at_the_cap() -> None:
    caught = refused("cluster.trainer_gpus=16", "engine.kv_tokens=16000")
    assert caught.field == "engine.kv_tokens"
    assert "512 prompt and 16384 new tokens; it needs at least 16896" in caught.message


def test_a_trace_is_judged_at_its_own_longest(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "\n".join(f"{g},{i},512,{900 + 100 * g}" for g in range(4) for i in range(8))
    trace.write_text(f"group,index,prompt_tokens,new_tokens\n{rows}\n")
    given = ("workload.prompt_tokens=null", f"workload.lengths={{trace: {trace}}}")
    scenario(*given).check_memory()
    trace.write_text(trace.read_text().replace(",1200", ",16000"))
    found = scenario(*given)
    with pytest.raises(
        ScenarioError,
        match="longest rollout that the trace allows: 512 tokens of prompt and 16,000 new ones",
    ):
        found.check_memory()


def test_a_shared_prefix_is_judged_as_it_is_trained() -> None:
    wide = ("workload.prompt_tokens=3500", "workload.max_new_tokens=4096")
    refused(*wide)
    scenario(*wide).with_policy("prefix_reuse").check_memory()
