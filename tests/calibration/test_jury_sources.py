"""Every source of the jury: bad input, its arithmetic on small cases, and the committed verdict."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.validation import (
    async_lora,
    engine_grid,
    kernel_mixtures,
    kernel_tables,
    peers,
    phases,
    rl_mixtures,
    rl_steps,
    serving_points,
    speculative,
    throughput,
    trace,
    trainer_baselines,
    weight_updates,
)
from benchmarks.validation.__main__ import OUT, SOURCES, judge, main
from benchmarks.validation.architectures import PRESETS, architecture, typed_in
from benchmarks.validation.files import PUBLISHED, AbsentError, columns, read_table
from benchmarks.validation.serving import Request, Served
from benchmarks.validation.verdict import Case
from benchmarks.validation.verdict_files import as_json, judged_in
from rollcast.simulator.costs import Iteration, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from tests.data.extract import JUDGED, ROWS, VERDICT, figures

HEADS = {
    trace.FILE: ",".join(trace.COLUMNS),
    engine_grid.FILE: ",".join(columns(engine_grid.Batch)),
    kernel_tables.FILE: ",".join(columns(kernel_tables.Step)),
    trainer_baselines.FILE: ",".join(trainer_baselines.COLUMNS),
    async_lora.FILE: ",".join(async_lora.COLUMNS),
    rl_steps.FILE: ",".join((*columns(rl_steps.RlRun), "source")),
    phases.FILE: ",".join(phases.COLUMNS),
    weight_updates.SYNCS: ",".join(weight_updates.SYNC_COLUMNS),
    throughput.FILE: ",".join(columns(throughput.Row)),
    serving_points.FILE: ",".join(columns(serving_points.Point)),
    kernel_mixtures.FILE: ",".join(kernel_mixtures.COLUMNS),
    speculative.FILE: ",".join(speculative.COLUMNS),
}
ROW = (
    "x,nemo,h100-sxm,llama-3.1-8b,on_policy,8,8,1,4,2,1,10,100,{split},full,{mean},0,0.8,2,1.0,{to},"
    "{role},s"
)
PHASES = (
    "x,nemo,h100-sxm,llama-3.1-8b,8,1,,none,4,2,1,,10,100,50,0,0.6,1,{generation},,,,,{role},"
    "{log_prob_role},s"
)
SYNC = "x,{mechanism},qwen3-8b,,8,8,{options},{low},{high},held out,s"


@pytest.mark.parametrize(
    ("read", "name", "row", "message"),
    [
        (trace.read_trace, trace.FILE, "10,0,0.0,1.0,2.0", "line 2, new_tokens"),
        (trace.read_trace, trace.FILE, "10,5,3.0,1.0,2.0", "line 2, first_token_s"),
        (trace.read_trace, trace.FILE, "10,5,0.0,1.0,0.5", "line 2, last_token_s"),
        (
            partial(read_table, row=engine_grid.Batch),
            engine_grid.FILE,
            "TPU,1,m,8,1,1.0",
            "hw.*one of Nvidia H100",
        ),
        (
            partial(read_table, row=throughput.Row),
            throughput.FILE,
            "x,l40s,fp8,1,9,9,1",
            "line 2, model",
        ),
        (
            partial(read_table, row=throughput.Row),
            throughput.FILE,
            "Mistral 7B,l40s,fp4,1,9,9,1",
            "precision",
        ),
        (
            partial(read_table, row=throughput.Row),
            throughput.FILE,
            "Mistral 7B,l40s,fp8,0,9,9,1",
            "tensor_parallel",
        ),
        (
            partial(read_table, row=throughput.Row),
            throughput.FILE,
            "Mistral 7B,l40s,fp8,1,9,9,0",
            "tokens_per_s",
        ),
        (
            partial(read_table, row=serving_points.Point),
            serving_points.FILE,
            "x,8,1,False,9,9,4,1",
            "framework",
        ),
        (
            partial(read_table, row=serving_points.Point),
            serving_points.FILE,
            "trt,8,1,maybe,9,9,4,1",
            "dp_attention",
        ),
        (
            partial(read_table, row=serving_points.Point),
            serving_points.FILE,
            "trt,8,1,True,9,9,0,1",
            "concurrency",
        ),
        (
            partial(read_table, row=engine_grid.Batch),
            engine_grid.FILE,
            "Nvidia H100 GPU,1,m,8,1,zero",
            "line 2, latency_s",
        ),
        (
            partial(read_table, row=kernel_tables.Step),
            kernel_tables.FILE,
            "m,h100_sxm,1,sleep,1,8,1.0",
            "phase",
        ),
        (
            partial(read_table, row=kernel_tables.Step),
            kernel_tables.FILE,
            "m,h9,1,decode,1,8,1.0",
            "system",
        ),
        (kernel_mixtures.read_table, kernel_mixtures.FILE, "m,fp3,g,1,b,decode,1,8,1", "precision"),
        (kernel_mixtures.read_table, kernel_mixtures.FILE, "m,bf16,g,1,b,decode,0,8,1", "batch"),
        (
            speculative.read_table,
            speculative.FILE,
            "x,vllm-0.8,m,g,1,guess,2,2.0,1,600,7,4,held out",
            "line 2, method",
        ),
        (
            speculative.read_table,
            speculative.FILE,
            "x,vllm-0.8,m,g,1,mtp,2,2.0,1,600,7,0,held out",
            "line 2, speculative_ms",
        ),
        (
            trainer_baselines.read_steps,
            trainer_baselines.FILE,
            "NVIDIA H200,8,m,rl,,16384,2,None,flash_attention_3,True,1.0",
            "ac.*Recompute, Offload",
        ),
        (async_lora.read_runs, async_lora.FILE, "1,2,2,128,8 rows,full,1.0", "line 2, microbatch"),
        (async_lora.read_runs, async_lora.FILE, "1,2,2,128,one sequence,full,0", "forward_backw"),
        (
            phases.read_steps,
            phases.FILE,
            PHASES.format(generation=0, role="held out", log_prob_role="held out"),
            "line 2, generation_s",
        ),
        (
            phases.read_steps,
            phases.FILE,
            PHASES.format(generation=1, role="held out", log_prob_role="seen"),
            "line 2, log_prob_role",
        ),
        (
            weight_updates.syncs,
            weight_updates.SYNCS,
            SYNC.format(mechanism="nccl", options="", low=1, high=2),
            "line 2, mechanism",
        ),
        (
            weight_updates.syncs,
            weight_updates.SYNCS,
            SYNC.format(mechanism="disk", options="share=2", low=1, high=2),
            "line 2, options.*share",
        ),
        (
            weight_updates.syncs,
            weight_updates.SYNCS,
            SYNC.format(mechanism="disk", options="", low=2, high=1),
            "line 2, high_s",
        ),
        (
            rl_steps.read_runs,
            rl_steps.FILE,
            ROW.format(split="", mean=0, to="", role="held out"),
            "mean_new",
        ),
        (
            rl_steps.read_runs,
            rl_steps.FILE,
            ROW.format(split="", mean=9, to="", role="seen"),
            "role",
        ),
        (
            rl_steps.read_runs,
            rl_steps.FILE,
            ROW.format(split="4x0x1x1", mean=9, to="", role="held out"),
            "not like 4x1x1x4",
        ),
        (
            rl_steps.read_runs,
            rl_steps.FILE,
            ROW.format(split="", mean=9, to="y", role="held out"),
            "no run 'y'",
        ),
    ],
)
def test_a_wrong_row_names_its_line(
    tmp_path: Path, read: Callable[[Path], object], name: str, row: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(f"{HEADS[name]}\n{row}\n")
    with pytest.raises(ScenarioError, match=message):
        read(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"prompt": 5, "out": []}', '{"prompt": 5, "out": [1.5]}', "nonsense"]
)
def test_a_wrong_workload_says_its_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / peers.FILE
    path.write_text(text)
    with pytest.raises(ScenarioError, match="is not"):
        peers.read_workload(path)


def test_absent_data_are_said_and_nothing_else_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["trace", "engine_grid", "kernel_tables", "trainer_baselines", "peers"]
    found = judge(tmp_path, [*keys, "weight_updates"])
    assert [bool(source.skipped) for source in found] == [True] * 5 + [False]
    with pytest.raises(AbsentError):
        SOURCES["trace"](tmp_path)
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--only"]
    assert main([*arguments, "weight_updates"]) == 0
    (tmp_path / trace.FILE).write_text("a,b\n1,2\n")
    assert main([*arguments, "trace"]) == 2
    assert "has no column" in capsys.readouterr().err


def test_a_verdict_is_not_lost_where_its_data_are_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path), "--out", str(out), "--only"]
    assert main([*arguments, "weight_updates"]) == 0
    assert judged_in(out) == {"weight_updates"}
    before = (out / "validation.json").read_bytes()
    assert main([*arguments, "peers"]) == 0  # its workload is not there
    assert "left as it is: it judges weight_updates" in capsys.readouterr().err
    assert (out / "validation.json").read_bytes() == before
    assert judged_in(tmp_path) == set()
    (out / "validation.json").write_text("{")
    assert judged_in(out) == set()


def test_a_trace_that_is_another_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / trace.FILE
    path.write_text(f"{HEADS[trace.FILE]}\n10,5,0.0,1.0,2.0\n")
    with pytest.raises(ScenarioError, match="makespan_s 2"):
        trace.source(tmp_path)


def test_three_figures_of_a_trace_by_hand() -> None:
    requests = [Request(10, 5, 0.0), Request(10, 1, 1.0), Request(10, 3, 2.0)]
    served = [Served(1.0, 5.0), Served(2.0, 2.0), Served(4.0, 7.0)]
    found = trace.summarise(requests, served)
    assert found.makespan_s == 7.0
    assert found.mean_latency_s == pytest.approx((5 + 1 + 5) / 3)
    assert found.mean_tpot_s == pytest.approx((1.0 + 1.5) / 2)
    with pytest.raises(ScenarioError, match="second token"):
        trace.summarise(requests[1:2], served[1:2])


def test_a_run_that_the_presets_made_is_judged_faultless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    requests = [
        Request(int(prompt), int(new), float(at))
        for prompt, new, at in zip(
            rng.integers(20, 2000, 60),
            rng.integers(2, 600, 60),
            np.cumsum(rng.exponential(0.1, 60)),
            strict=True,
        )
    ]
    lines = [
        f"{r.prompt_tokens},{r.new_tokens},{r.arrival_s},{s.first_token_s},{s.end_s}"
        for r, s in zip(requests, trace.forecast(requests, "vllm-0.19"), strict=True)
    ]
    (tmp_path / trace.FILE).write_text("\n".join([HEADS[trace.FILE], *lines]))
    monkeypatch.setattr(trace, "_check_known", lambda measured: None)
    source = trace.source(tmp_path)
    named = [c for c in source.cases if c.group.startswith("engine")]
    assert [c.role for c in named] == ["calibrated"] * 3 + ["held out"] * 3
    assert [c.error for c in named] == pytest.approx([0.0] * 6, abs=1e-9)
    assert len(source.checks) == 3
    first, later = trace.by_arrival(requests)
    assert max(requests[i].arrival_s for i in first) <= min(requests[i].arrival_s for i in later)


def test_work_like_the_peers_gives_forecasts_like_the_committed(tmp_path: Path) -> None:
    """Their 512 lengths were drawn once from this distribution; here are its quantiles."""
    shares = (np.arange(512) + 0.5) / 512
    lengths = np.minimum(np.ceil(3000 * np.exp(stats.norm.ppf(shares))), 16384).astype(int)
    workload = {"prompt": 512, "out": np.random.default_rng(0).permutation(lengths).tolist()}
    (tmp_path / peers.FILE).write_text(json.dumps(workload))
    found = {case.name + case.group: case for case in peers.source(tmp_path).cases}
    known = {case["name"] + case["group"]: case for case in committed()["peers"]["cases"]}
    assert set(found) == set(known)
    for name, case in found.items():
        assert case.low is not None
        assert case.high is not None
        assert case.low < case.forecast < case.high
        assert case.forecast == pytest.approx(known[name]["forecast"], rel=0.05)


def test_every_architecture_typed_in_is_whole() -> None:
    for name in [*PRESETS, *typed_in()]:
        assert architecture(name).parameters > 5e8
    # Published totals, in billions; non-gated MLPs entered as gated ones keep their weights.
    known = {
        "meta-llama/Llama-2-7b-hf": 6.74,
        "mistralai/Mixtral-8x7B-v0.1": 46.7,
        "facebook/opt-6.7b": 6.66 + 0.2,  # its embeddings are tied; here they are not
        "Qwen/Qwen3-235B-A22B-Instruct-2507": 235.1,
        "PrimeIntellect/INTELLECT-3": 106.9,
    }
    for name, billions in known.items():
        assert architecture(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)
    with pytest.raises(ScenarioError, match="not in architectures"):
        architecture("nobody/Nothing-1B")


BATCHES = [
    engine_grid.Batch("H100", 1, "Qwen/Qwen2-7B", length, batch, 1.0)
    for length in (32, 64)
    for batch in (1, 4, 16)
]


def test_host_overhead_of_a_known_engine_is_recovered() -> None:
    known = (2.1e-3, 45e-6)
    rows = [replace(row, latency_s=engine_grid.simulate_s(row, *known)) for row in BATCHES]
    assert engine_grid.fit_host(rows) == pytest.approx(known, rel=1e-6)
    cases, hosts = engine_grid.judge([*rows, *rows])
    assert [case.role for case in cases].count("held out") == len(rows)
    assert hosts["1 x H100"] == pytest.approx(known, rel=1e-6)
    assert max(abs(case.error) for case in cases) < 1e-6


def test_a_full_kv_pool_makes_a_batch_wait() -> None:
    """Llama-2-7B on the 40 GB board: 64 x 1,024 tokens need 34 GB of KV, 23 GB are there."""
    fits = engine_grid.Batch("A100", 1, "meta-llama/Llama-2-7b-hf", 256, 64, 1.0)
    waits = replace(fits, length=512)
    ratio = engine_grid.simulate_s(waits, 0, 0) / engine_grid.simulate_s(fits, 0, 0)
    assert ratio > 2.6  # twice the tokens, a little more context, and a second wave


def test_a_step_of_the_kernel_table_by_hand() -> None:
    step = kernel_tables.Step("Qwen/Qwen3-8B", "l40s", 2, "prefill", 3, 10, 1.0)
    assert step.work == Iteration(3, 30, 30, 165, 3, 30)
    assert replace(step, phase="decode").work == Iteration(3, 30)
    roles = [case.role for case in kernel_tables.judge([step, replace(step, gpu="b200"), step])]
    assert roles == ["calibrated", "calibrated", "held out"]  # every second of each GPU


def test_steps_of_mixtures_that_were_fitted_and_how_they_are_averaged() -> None:
    prefill = kernel_tables.Step("qwen3-30b-a3b", "b200", 1, "prefill", 3, 10, 1.0)
    row = kernel_mixtures.Row(prefill, "bf16", "vllm")
    assert (row.group, row.fitted) == ("b200, mixture, prefill", True)
    assert not replace(row, step=replace(prefill, tensor_parallel=2)).fitted
    assert not replace(row, backend="sglang").fitted
    assert replace(row, precision="nvfp4").group == "nvfp4, mixture, prefill"
    small = replace(prefill, model="qwen3-0.6b")
    assert replace(row, step=small).group == "small dense, prefill"
    decode = replace(row, step=replace(small, phase="decode"))
    assert (decode.group, decode.fitted) == ("b200, small dense, decode", True)
    quantised, sixteen = kernel_mixtures.judge([replace(row, precision="nvfp4"), row])
    assert quantised.forecast < sixteen.forecast


def test_the_traffic_of_a_known_trainer_is_recovered() -> None:
    """Steps of two GPUs that differ in their memory alone, timed by a trainer of known traffic."""
    step = trainer_baselines.Step(
        "H200", 8, "Qwen3-4B", "rl", False, 16384, 2, "Recompute", "flash_attention_3", 1.0
    )
    known = {
        "traffic_per_activation_byte": 3.0,
        "traffic_per_logit": 40.0,
        "traffic_per_adapted_byte": 2.0,
        "kernel_bytes_per_s": 2.5e12,
    }
    steps = []
    for gpu in trainer_baselines.SEEN:
        for model, length, lora in itertools.product(
            ("Qwen3-4B", "Qwen3-0.6B"), (8192, 32768), (True, False)
        ):
            one = replace(step, gpu=gpu, model=model, length=length, lora=lora)
            trainer = replace(trainer_baselines.trainer_of(one), **known)
            timed = replace(one, step_s=trainer_baselines.forecast_s(one, trainer))
            steps += [timed, one]  # the second, fourth, ... row is not looked at
    steps += [replace(steps[0], gpu="B200", step_s=1e6)]  # nor is another GPU
    found, error = trainer_baselines.fit_traffic(steps)
    del found[""]
    assert found == pytest.approx(known, rel=1e-3)
    assert error < 1e-6


def test_an_asynchronous_run_waits_for_the_slower_side() -> None:
    """The published configurations: one sequence a microbatch is bound by its kernels' launches;
    packed, recomputation and the number in flight decide."""
    alone = async_lora.Run(1, 2, 2, 128, False, "full", 21.9)
    packed = replace(alone, run=2, packed=True, forward_backward_s=5.6)
    kept = replace(packed, run=3, recompute="none", forward_backward_s=4.6)
    more = replace(kept, run=5, replicas=3, in_flight=384)
    runs = [alone, packed, kept, more]
    assert [run.bottleneck for run in runs] == ["training", "training", "generation", "training"]
    cases, wrong = async_lora.judge(runs)
    assert wrong == 0.0
    assert all(abs(case.error) < 0.2 for case in cases)
    (gain,) = async_lora.gains(runs)
    assert gain.measured == pytest.approx(21.9 / 5.6)
    assert async_lora.judge([replace(more, run=3)])[1] == 1.0


def test_a_mixture_adds_training_and_switches_to_its_generation() -> None:
    runs = read_table(PUBLISHED / rl_mixtures.FILE, rl_mixtures.MixtureRun)
    assert {run.model for run in runs} == {"deepseek-v3", "qwen3-235b-a22b"}
    for run in runs:
        assert run.cost.model.parameters == pytest.approx(
            671e9 if run.model == "deepseek-v3" else 235e9, rel=0.01
        )
        switches_s = run.cost.switch_to_train_s + run.cost.switch_to_rollout_s
        beside_s = run.forecast_s - run.overlapped_step_s - run.training_s
        assert beside_s == pytest.approx(switches_s + run.sync_more_s)
        # Handles of 16 bit weights inside a node against buckets between nodes: 20e9 and 32e9.
        sent = 2 * run.cost.model.parameters
        assert run.sync_more_s == pytest.approx(sent / 20e9 - sent / 32e9)
        # The one-step-off step is generation's: training alone is far shorter.
        assert run.training_s < 0.3 * run.overlapped_step_s


def test_a_step_with_the_next_batch_beside_it_is_what_counts() -> None:
    """Where generation is the longer, the last step is shorter: nothing is generated beside it."""
    runs = {run.name: run for run in rl_steps.read_runs(PUBLISHED / rl_steps.FILE)}
    keys = rl_steps.scenario(runs["verl-7b-h20-1off-fsdp"])
    keys["workload"]["batch_groups"] = 16
    run = simulate(from_raw(RawScenario(keys))).run
    generated_s = [p.end_s - p.start_s for p in run.phases if p.kind == "rollout"]
    assert rl_steps.forecast_s(keys) == run.steps[-2].step_s
    assert run.steps[-2].step_s >= 0.98 * generated_s[-1] > run.steps[-1].step_s


def test_phases_are_taken_from_the_simulation_by_name() -> None:
    """What the phases of a step sum up to is the step, and each part is in one of them."""
    (step, *_) = phases.read_steps(PUBLISHED / phases.FILE)
    keys = phases.keys_of(replace(step, run=replace(step.run, groups=8)))
    run = simulate(from_raw(RawScenario(keys))).run
    found = phases.forecast_s(keys)
    assert sum(found.values()) == pytest.approx(run.steps[0].step_s)
    assert found["rest"] == pytest.approx(2.5)
    assert {phase.kind for phase in run.phases} <= set(phases.PARTS)


def test_log_probs_may_be_fitted_to_where_nothing_else_of_a_step_is() -> None:
    (step, *_) = phases.read_steps(PUBLISHED / phases.FILE)
    small = replace(step.run, groups=2, group_size=4, role="held out")
    cases, scenarios = phases.judge([replace(step, run=small, log_prob_role="calibrated")])
    roles = {case.group: case.role for case in cases}
    assert roles.pop("log_prob") == "calibrated"
    assert set(roles.values()) == {"held out"}
    assert list(scenarios) == [step.run.name]
    assert all(case.low <= case.forecast <= case.high for case in cases)  # type: ignore[operator]


def test_a_total_is_met_only_where_its_phases_are() -> None:
    case = Case("generation", "a", "s", 80.0, 100.0)
    cases = [case, Case("update", "a", "s", 100.0, 80.0), Case("rest", "a", "s", 2.0, 6.0)]
    (said,) = phases.totals(cases)
    assert "sum of the judged phases +2%, not met: generation +25%" in said
    assert "update" not in said
    (said,) = phases.totals([replace(case, forecast=90.0), *cases[1:]])
    assert said.endswith("met in every phase")


def test_figures_of_stacks_are_those_of_the_phases_they_are_fitted_to() -> None:
    """One that a change elsewhere makes wrong must be fitted anew."""
    steps = [s for s in phases.read_steps(PUBLISHED / phases.FILE) if s.run.role == "calibrated"]
    assert {step.run.framework for step in steps} == {"nemo", "verl"}
    for step in steps:
        found = phases.forecast_s(phases.keys_of(step))
        assert found["generation"] == pytest.approx(step.phases_s["generation"], rel=0.05)
        if step.run.framework == "nemo":
            assert found["refit"] == pytest.approx(step.phases_s["refit"], rel=0.05)
            assert found["log_prob"] == pytest.approx(step.phases_s["log_prob"], rel=0.05)


def test_published_generation_is_met_on_what_was_held_out() -> None:
    """Llama-3.1-70B, Qwen3-30B-A3B, reruns and another stack; the smallest two of them here."""
    names = {"llama-8b-megatron-rerun", "7b-verl-async"}
    steps = [s for s in phases.read_steps(PUBLISHED / phases.FILE) if s.run.name in names]
    for step in steps:
        found = phases.forecast_s(phases.keys_of(step))
        assert found["generation"] == pytest.approx(step.phases_s["generation"], rel=0.1)
        assert step.run.role == "held out"
    assert len(steps) == 2


def test_rows_outside_an_interval_are_counted() -> None:
    case = Case("g", "n", "s", 1.0, 1.0, low=0.9, high=1.1)
    cases = [case, replace(case, measured=1.2), replace(case, measured=0.8), case]
    assert trainer_baselines.outside(cases) == 0.5


@given(st.floats(0.2, 1.2), st.floats(0.05, 0.95))
def test_the_median_gives_the_mean_at_the_cap(log_sd: float, share: float) -> None:
    cap = 4000.0
    median = rl_steps.median_for_mean(share * cap, log_sd, cap)
    assert rl_steps.capped_mean(median, log_sd, cap) == pytest.approx(share * cap, rel=1e-6)


def test_the_capped_mean_against_draws() -> None:
    draws = 900.0 * np.exp(0.8 * np.random.default_rng(1).standard_normal(400_000))
    expected = np.minimum(draws, 2000).mean()
    assert rl_steps.capped_mean(900.0, 0.8, 2000.0) == pytest.approx(expected, rel=5e-3)


def test_a_mean_at_or_beyond_the_cap_is_refused() -> None:
    for mean in (0.0, 100.0, 120.0, math.nan):
        with pytest.raises(ScenarioError, match="between 0 and the cap"):
            rl_steps.median_for_mean(mean, 0.5, 100.0)


def test_verl_lengths_are_what_the_report_says_they_are_calibrated_to() -> None:
    """The on-policy row's log-prob and update, seconds."""
    runs = {run.name: run for run in rl_steps.read_runs(PUBLISHED / rl_steps.FILE)}
    keys = {**rl_steps.scenario(runs["verl-7b-h20-sync-fsdp"]), "steps": 1}
    found = phases.forecast_s(keys)
    assert found["log_prob"] + found["update"] == pytest.approx(374, rel=0.02)


def test_a_ratio_is_taken_to_its_own_on_policy_run() -> None:
    runs = rl_steps.read_runs(PUBLISHED / rl_steps.FILE)
    tiny = [replace(run, groups=2, group_size=4) for run in runs[:2]]
    tiny = [replace(tiny[0], step_s=8.0), replace(tiny[1], step_s=6.0)]
    cases, scenarios = rl_steps.judge(tiny)
    assert [case.unit for case in cases] == ["s", "s", ""]
    assert cases[2].measured == 0.75
    assert cases[2].forecast == pytest.approx(cases[1].forecast / cases[0].forecast)
    slower = replace(cases[2], measured=1.2)
    assert rl_steps.wrong_signs([cases[2], slower, cases[2], cases[2]]) == 0.25
    assert set(scenarios) == {run.name for run in tiny}


def row(model: str, gpu: str, precision: str, parallel: int, *tokens: int) -> throughput.Row:
    return throughput.Row(model, gpu, precision, parallel, tokens[0], tokens[1], 1.0)


def test_an_offline_run_by_hand() -> None:
    """Llama 3.1 8B on an H100, 1,500 requests of 2,048 in and out: the pool holds 117 to their last
    token, so they come in 13 waves, each of 2,048 iterations that decode, and the prompts'."""
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    pool = (gpu.memory_bytes * 0.95 - 2e9 - model.weight_bytes) / 131_072
    running = int(pool // 4096)
    waves = -(-1500 // running)
    found = throughput.offline(row("LLaMA v3.1 8B", gpu.name, "16 bit", 1, 2048, 2048))
    assert found.tokens == found.rollouts == 1500 * 2048
    assert waves * 2048 * 0.9 < found.iterations < waves * (2048 + running * 2048 / 8192 + 2)
    cost = RooflineCost(model, gpu, host_s=0.0, host_per_rollout_s=0.0)
    decoding = 1500 / running * 2048 * cost.decode_curve(running).seconds(running * 3072)
    prompts = 1500 * 2048 * model.linear_flop_per_token / (9.894e14 * 0.684)
    assert found.gpu_s == pytest.approx(decoding + prompts, rel=0.1)


def test_the_host_of_a_known_engine_is_recovered_from_its_throughput() -> None:
    rows = []
    for model in ("LLaMA v3.1 8B", "Mixtral 8x7B"):
        for tokens in ((128, 4096), (1000, 1000), (2048, 2048), (20_000, 2000)):
            made = row(model, "h100-sxm", "fp8", 4, *tokens)
            run = throughput.offline(made)
            took = run.gpu_s + 2e-3 * run.iterations + 4e-6 * run.rollouts
            rows.append(replace(made, tokens_per_s=run.tokens / took))
    cases, host_s, per_rollout_s = throughput.judge(rows)
    assert (host_s, per_rollout_s) == pytest.approx((2e-3, 4e-6), rel=1e-3)
    assert max(abs(case.error) for case in cases) < 1e-3
    assert [case.role for case in cases[:3]] == ["calibrated", "held out", "calibrated"]


def test_rows_of_the_throughput_table_are_grouped_by_what_they_are() -> None:
    groups = [
        row("LLaMA v3.1 8B", "l40s", "fp8", 1, 1, 1).group,
        row("LLaMA v3.1 70B", "l40s", "fp8", 4, 1, 1).group,
        row("Mixtral 8x7B", "h100-sxm", "16 bit", 4, 1, 1).group,
    ]
    assert groups == [
        "l40s, fp8, dense",
        "l40s, fp8, dense, over PCIe",
        "h100-sxm, 16 bit, mixture",
    ]


def _token_s(point: serving_points.Point) -> float:
    return serving_points.token_s(point, serving_points.cost_of(point))


def test_a_serving_point_is_decoding_and_the_prompts_of_the_others() -> None:
    alone = serving_points.Point("sglang", 8, 1, False, 8192, 1024, 1, 10.0)
    cost = RooflineCost(load_model("deepseek-r1"), load_gpu("h200-sxm"), 8, engine="sglang")
    assert _token_s(alone) == cost.decode_curve(1).seconds(8192 + 512)
    busy = replace(alone, concurrency=9)
    decode_s = cost.decode_curve(9).seconds(9 * (8192 + 512))
    assert _token_s(busy) > decode_s
    longer = replace(busy, output_tokens=10**6, input_tokens=8192)
    context = 9 * (8192 + 5 * 10**5)
    assert _token_s(longer) == pytest.approx(cost.decode_curve(9).seconds(context), rel=1e-3)
    whole = replace(busy, expert_parallel=8)
    assert _token_s(whole) > _token_s(busy)


def test_a_weight_update_is_fixed_time_and_bytes() -> None:
    small, large = weight_updates.forecast_s(1e9), weight_updates.forecast_s(74e9)
    assert large - small == pytest.approx(1.0, rel=1e-6)


# --- the committed verdict ---


def committed() -> dict[str, dict[str, Any]]:
    found = json.loads((OUT / "validation.json").read_text("utf-8"))
    return {source["key"]: source for source in found["sources"]}


def test_every_source_is_in_the_committed_verdict() -> None:
    assert list(committed()) == list(SOURCES)
    assert not any(source["skipped"] for source in committed().values())
    assert "engine_grid" in committed()


def test_the_committed_verdict_is_what_comes_out() -> None:
    """Of the source whose figures are all here; `make evidence` makes the others anew."""
    (fresh,) = as_json(judge(ROWS, ["weight_updates"]))["sources"]
    known = committed()["weight_updates"]
    for part, fields in (("checks", ("value",)), ("cases", ("measured", "forecast"))):
        assert [x["name"] for x in fresh[part]] == [x["name"] for x in known[part]]
        for ours, theirs in zip(fresh[part], known[part], strict=True):
            for field in fields:
                assert ours[field] == pytest.approx(theirs[field], rel=1e-4), ours["name"]


@pytest.mark.parametrize("key", JUDGED)
def test_forecasts_of_published_rows_are_those_known(key: str) -> None:
    """What is said of a sample of each table stays what it was, case by case."""
    known = json.loads(VERDICT.read_text("utf-8"))[key]
    (source,) = judge(ROWS, [key])
    fresh = figures(source)
    assert fresh["checks"] == pytest.approx(known["checks"], rel=1e-4)
    assert fresh["forecasts"] == pytest.approx(known["forecasts"], rel=1e-4)


def test_a_committed_scenario_gives_the_committed_forecast() -> None:
    """One of them from its file; all of them are remade in a minute by the command."""
    cases = {case["name"]: case for case in committed()["rl_steps"]["cases"] if case["unit"] == "s"}
    names = {
        case["scenario"] for key in ("rl_steps", "phases") for case in committed()[key]["cases"]
    }
    assert sorted(names) == sorted(path.stem for path in (OUT / "scenarios").iterdir())
    name = "llama-8b-h100-1off-v0.5"
    result = simulate(from_raw(read_scenario(OUT / "scenarios" / f"{name}.yaml")))
    assert result.run.steps[-2].step_s == pytest.approx(cases[name]["forecast"], rel=1e-4)


def test_committed_files_are_small_and_hold_no_bulk() -> None:
    sizes = {path.name: path.stat().st_size for path in OUT.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 500_000
    for key in ("engine_grid", "kernel_tables", "trainer_baselines"):
        assert committed()[key]["cases"] == []
