"""Every published source: bad input, its arithmetic on small cases, and the committed results."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.validation import (
    async_lora,
    engine_grid,
    kernel_mixtures,
    kernel_tables,
    phases,
    rl_mixtures,
    rl_steps,
    serving_points,
    suite,
    throughput,
    trace,
    trainer_baselines,
    training_steps,
    weight_updates,
)
from benchmarks.validation.__main__ import OUT, main
from benchmarks.validation.architectures import PRESETS, architecture, typed_in
from benchmarks.validation.case import Case
from benchmarks.validation.draws import trainer_interval
from benchmarks.validation.files import PUBLISHED, columns
from benchmarks.validation.report import as_json, judged_in
from benchmarks.validation.rl_scenario import RUNAWAYS, SPREADS, built, scenario
from benchmarks.validation.serving import Request, Served
from rollcast.simulator.costs import Iteration, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.draws import trainer_spreads
from rollcast.simulator.costs.stacks import STACKS
from rollcast.simulator.costs.trainer.step_options import FUSED_SHARE
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import phase_of
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from tests.data.extract import FORECASTS, ROWS, SAMPLED, figures

SOURCES = suite.declarations()
GOOD = {
    "trace": "10,5,0.0,1.0,2.0",
    "throughput": "Mistral 7B,l40s,fp8,1,9,9,1",
    "serving_points": "trt,8,1,True,9,9,4,1",
    "async_lora": "1,2,2,128,one sequence,full,1.0",
}
WRONG = [
    ("trace", "new_tokens", "0", "line 2, new_tokens"),
    ("trace", "queued_s", "3.0", "line 2, first_token_s"),
    ("trace", "last_token_s", "0.5", "line 2, last_token_s"),
    ("trace", "last_token_s", "2.5", "gives makespan_s 2.5"),  # another run's file
    ("engine_grid", "hw", "TPU", "hw.*one of Nvidia H100"),
    ("engine_grid", "latency_s", "zero", "line 2, latency_s"),
    ("kernel_tables", "phase", "sleep", "phase"),
    ("kernel_tables", "system", "h9", "system"),
    ("kernel_mixtures", "precision", "fp3", "precision"),
    ("throughput", "model", "x", "line 2, model"),
    ("throughput", "precision", "fp4", "precision"),
    ("serving_points", "framework", "x", "framework"),
    ("serving_points", "dp_attention", "maybe", "dp_attention"),
    ("speculative", "method", "guess", "line 2, method"),
    ("trainer_baselines", "ac", "None", "ac.*Recompute, Offload"),
    ("training_steps", "precision", "fp4", "precision"),
    ("training_steps", "parallel", "2x2", "parallel"),
    ("async_lora", "microbatch", "8 rows", "line 2, microbatch"),
    ("phases", "generation_s", "0", "line 2, generation_s"),
    ("phases", "log_prob_role", "seen", "line 2, log_prob_role"),
    ("rl_steps", "mean_new_tokens", "0", "mean_new"),
    ("rl_steps", "role", "seen", "role"),
    ("rl_steps", "parallel", "4x0x1x1", "not like 4x1x1x4"),
    ("rl_steps", "against", "y", "no run 'y'"),
]


def good_row(key: str) -> dict[str, str]:
    """A row of a source's table: its own, or one of the data sets that are not here."""
    if key in GOOD:
        names = columns(import_module(f"benchmarks.validation.{key}").Row)
        return dict(zip(names, GOOD[key].split(","), strict=True))
    folder = PUBLISHED if SOURCES[key].published else ROWS
    head, row, *_ = (folder / SOURCES[key].table).read_text("utf-8").splitlines()
    return dict(zip(head.split(","), row.split(","), strict=False))


@pytest.mark.parametrize(("key", "column", "value", "message"), WRONG)
def test_a_wrong_cell_names_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, column: str, value: str, message: str
) -> None:
    cells = {**good_row(key), column: value}
    path = tmp_path / SOURCES[key].table
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    monkeypatch.setattr(suite, "PUBLISHED", tmp_path)
    with pytest.raises(ScenarioError, match=message):
        suite.read(key, tmp_path)


@pytest.mark.parametrize(
    ("mechanism", "options", "low", "message"),
    [
        ("nccl", "", 1, "line 2, mechanism"),
        ("disk", "share=2", 1, "line 2, options.*share"),
        ("disk", "", 3, "line 2, high_s"),
    ],
)
def test_a_wrong_sync_names_its_place(
    tmp_path: Path, mechanism: str, options: str, low: int, message: str
) -> None:
    path = tmp_path / "syncs.csv"
    row = f"x,{mechanism},qwen3-8b,,8,8,{options},{low},2,held out"
    path.write_text(f"{','.join(columns(weight_updates.Sync))}\n{row}\n")
    with pytest.raises(ScenarioError, match=message):
        weight_updates.syncs(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"prompt": 5, "out": []}', '{"prompt": 5, "out": [1.5]}', "nonsense"]
)
def test_a_wrong_workload_tells_its_form(tmp_path: Path, text: str) -> None:
    (tmp_path / SOURCES["peers"].table).write_text(text)
    with pytest.raises(ScenarioError, match="is not"):
        suite.read("peers", tmp_path)


def test_absent_data_are_told_and_no_results_are_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["trace", "engine_grid", "peers", "weight_updates"]
    assert [bool(s.skipped) for s in suite.judge_all(tmp_path, keys)] == [True, True, True, False]
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path), "--out", str(out), "--only"]
    assert main([*arguments, "weight_updates"]) == 0
    assert judged_in(out) == {"weight_updates"}
    before = (out / "validation.json").read_bytes()
    assert main([*arguments, "peers"]) == 0  # its workload is not there
    assert "left as it is: it judges weight_updates" in capsys.readouterr().err
    assert (out / "validation.json").read_bytes() == before
    (tmp_path / SOURCES["trace"].table).write_text("a,b\n1,2\n")
    assert main([*arguments, "trace"]) == 2
    assert "has no column" in capsys.readouterr().err
    assert judged_in(tmp_path) == set()
    (out / "validation.json").write_text("{")
    assert judged_in(out) == set()


def test_three_figures_of_a_trace_by_hand() -> None:
    requests = [Request(10, 5, 0.0), Request(10, 1, 1.0), Request(10, 3, 2.0)]
    served = [Served(1.0, 5.0), Served(2.0, 2.0), Served(4.0, 7.0)]
    found = trace.summarise(requests, served)
    assert found.makespan_s == 7.0
    assert found.mean_latency_s == pytest.approx((5 + 1 + 5) / 3)
    assert found.mean_tpot_s == pytest.approx((1.0 + 1.5) / 2)
    with pytest.raises(ScenarioError, match="second token"):
        trace.summarise(requests[1:2], served[1:2])


def test_a_run_that_the_presets_made_is_judged_faultless() -> None:
    rng = np.random.default_rng(2)
    prompts, new = rng.integers(20, 2000, 60), rng.integers(2, 600, 60)
    arrivals = np.cumsum(rng.exponential(0.1, 60))
    given = zip(prompts, new, arrivals, strict=True)
    requests = [Request(int(p), int(n), float(at)) for p, n, at in given]
    rows = [
        trace.Row(r.prompt_tokens, r.new_tokens, r.arrival_s, s.first_token_s, s.end_s)
        for r, s in zip(requests, trace.forecast(requests), strict=True)
    ]
    found = trace.judge(rng.permutation(np.array(rows, dtype=object)).tolist())
    assert [c.role for c in found.cases] == ["calibrated"] * 3 + ["held out"] * 3
    assert [c.error for c in found.cases] == pytest.approx([0.0] * 6, abs=1e-9)
    assert len(found.checks) == 3
    assert found.cases[0].measured < found.cases[3].measured  # those that arrived first


def test_work_like_the_peers_gives_forecasts_like_the_committed(tmp_path: Path) -> None:
    """Their 512 lengths were drawn once from this distribution; here are its quantiles."""
    shares = (np.arange(512) + 0.5) / 512
    lengths = np.minimum(np.ceil(3000 * np.exp(stats.norm.ppf(shares))), 16384).astype(int)
    workload = {"prompt": 512, "out": np.random.default_rng(0).permutation(lengths).tolist()}
    (tmp_path / SOURCES["peers"].table).write_text(json.dumps(workload))
    found = {case.full_name: case for case in suite.judge("peers", tmp_path).cases}
    known = {f"{case['group']}: {case['name']}": case for case in committed()["peers"]["cases"]}
    assert set(found) == set(known)
    for name, case in found.items():
        assert (case.low or 0) < case.forecast < (case.high or 0)
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


def test_host_overhead_of_a_known_engine_is_recovered() -> None:
    known = (2.1e-3, 45e-6)
    rows = [
        engine_grid.Row("H100", 1, "Qwen/Qwen2-7B", length, batch, 1.0)
        for length in (32, 64)
        for batch in (1, 4, 16)
    ]
    rows = [replace(row, latency_s=engine_grid.simulate_s(row, *known)) for row in rows]
    assert engine_grid.fit_host(rows) == pytest.approx(known, rel=1e-6)
    found = engine_grid.judge([*rows, *rows])
    assert [case.role for case in found.cases].count("held out") == len(rows)
    assert found.facts["hosts"] == "1 x H100: 2.10 ms and 45 us"
    assert max(abs(case.error) for case in found.cases) < 1e-6


def test_a_full_kv_pool_makes_a_batch_wait() -> None:
    """Llama-2-7B on the 40 GB board: 64 x 1,024 tokens need 34 GB of KV, 23 GB are there."""
    fits = engine_grid.Row("A100", 1, "meta-llama/Llama-2-7b-hf", 256, 64, 1.0)
    waits = replace(fits, length=512)
    ratio = engine_grid.simulate_s(waits, 0, 0) / engine_grid.simulate_s(fits, 0, 0)
    assert ratio > 2.6  # twice the tokens, a little more context, and a second wave


def test_a_step_of_the_kernel_table_by_hand() -> None:
    row = kernel_tables.Row("Qwen/Qwen3-8B", "l40s", 2, "prefill", 3, 10, 1.0)
    assert row.work == Iteration(3, 30, 30, 165, 3, 30)
    assert replace(row, phase="decode").work == Iteration(3, 30)
    roles = [case.role for case in kernel_tables.cases([row, replace(row, gpu="b200"), row])]
    assert roles == ["calibrated", "calibrated", "held out"]  # every second of each GPU


def test_steps_of_mixtures_that_were_fitted_and_how_they_are_averaged() -> None:
    row = kernel_mixtures.Row("qwen3-30b-a3b", "bf16", "b200", 1, "vllm", "prefill", 3, 10, 1.0)
    small = replace(row, model="qwen3-0.6b")
    assert [(r.group, r.role) for r in (row, small, replace(small, phase="decode"))] == [
        ("b200, mixture, prefill", "calibrated"),
        ("small dense, prefill", "held out"),
        ("b200, small dense, decode", "calibrated"),
    ]
    for other in (replace(row, tensor_parallel=2), replace(row, backend="sglang")):
        assert other.role == "held out"
    quantised = replace(row, precision="nvfp4")
    assert quantised.group == "nvfp4, mixture, prefill"
    assert kernel_mixtures.case_of(quantised).forecast < kernel_mixtures.case_of(row).forecast


DENSE = [row for row in suite.read("training_steps", PUBLISHED) if row.kind == "dense"]


def off(rows: list[training_steps.Row], share: float = FUSED_SHARE) -> float:
    """Mean error of training steps whose fused kernels move that share of the default."""
    errors = []
    for row in rows:
        traffic = 5.74 * share / FUSED_SHARE
        trainer = replace(row.trainer, traffic_per_activation_byte=traffic)
        errors.append(trainer.train(row.load).total_s / row.step_s - 1)
    return float(np.abs(errors).mean())


def test_what_fused_kernels_move_is_fitted_to_every_second_dense_step() -> None:
    """The others, on GPUs of four kinds, in fp8 and split in every way, are met as well."""
    seen, held = DENSE[::2], DENSE[1::2]
    assert off(seen) < min(0.1, off(seen, 0.5 * FUSED_SHARE), off(seen, 2 * FUSED_SHARE))
    assert len({row.gpu for row in held}) == 4
    assert off(held) < 0.08
    first = DENSE[0]
    assert first.step_s == pytest.approx(128 * 8192 / (37_556 * 8))
    assert first.trainer.train(first.load).microbatches == 128 / 8 / 2
    last = DENSE[-1]
    low, high = trainer_interval(last.trainer, last.load, 20)
    fewer = trainer_interval(replace(last.trainer, kernels="eager"), last.load, 20)
    assert low < last.step_s < high < fewer[1]
    eager, fused = trainer_spreads("eager")[0], trainer_spreads("fused")[0]
    assert fused.names == eager.names
    assert fused.high / fused.low > eager.high / eager.low


def test_an_asynchronous_run_waits_for_the_slower_side() -> None:
    """The published configurations: one sequence a microbatch is bound by its kernels' launches;
    packed, recomputation and the number in flight decide."""
    alone = async_lora.Row(1, 2, 2, 128, False, "full", 21.9)
    packed = replace(alone, run=2, packed=True, forward_backward_s=5.6)
    kept = replace(packed, run=3, recompute="none", forward_backward_s=4.6)
    more = replace(kept, run=5, replicas=3, in_flight=384)
    rows = [alone, packed, kept, more]
    assert [row.bottleneck for row in rows] == ["training", "training", "generation", "training"]
    found = async_lora.judge(rows)
    assert found.checks[0].value == 0.0
    assert all(abs(case.error) < 0.2 for case in found.cases)
    (gain,) = (case for case in found.cases if case.group == "packing")
    assert gain.measured == pytest.approx(21.9 / 5.6)
    assert async_lora.judge([replace(more, run=3)]).checks[0].value == 1.0


def test_a_mixture_adds_training_and_switches_to_its_generation() -> None:
    billions = {"deepseek-v3": 671, "qwen3-235b-a22b": 235}
    rows: list[rl_mixtures.Row] = suite.read("rl_mixtures", PUBLISHED)
    assert {row.model for row in rows} == set(billions)
    for row in rows:
        parameters = row.cost.model.parameters
        assert parameters == pytest.approx(billions[row.model] * 1e9, rel=0.01)
        beside_s = row.forecast_s - row.overlapped_step_s - row.training_s
        assert beside_s == pytest.approx(row.switches_s + row.sync_more_s)
        # Handles of 16 bit weights inside a node against buckets between nodes: 32e9 and 85e9.
        more_s = 2 * parameters / 32e9 - 2 * parameters / 85e9
        assert row.sync_more_s == pytest.approx(row.cost.phase_factors.of("sync") * more_s)
        # The one-step-off step is generation's: training alone is far shorter.
        assert row.training_s < 0.5 * row.overlapped_step_s


RUNS: dict[str, rl_steps.Row] = {run.name: run for run in suite.read("rl_steps", PUBLISHED)}
STEPS: list[phases.Row] = suite.read("phases", PUBLISHED)


def test_a_step_with_the_next_batch_beside_it_is_what_counts() -> None:
    """Where generation is the longer, the last step is shorter: nothing is generated beside it."""
    keys = scenario(RUNS["verl-7b-h20-1off-fsdp"])
    keys["workload"]["batch_groups"] = 16
    run = simulate(from_raw(RawScenario(keys))).run
    generated_s = [p.end_s - p.start_s for p in run.phases if p.kind == "rollout"]
    assert rl_steps.forecast_s(keys) == run.steps[-2].step_s
    assert run.steps[-2].step_s >= 0.98 * generated_s[-1] > run.steps[-1].step_s


def test_phases_are_taken_from_the_simulation_by_name() -> None:
    """What the phases of a step sum up to is the step, and each part is in one of them."""
    keys = phases.keys_of(replace(STEPS[0], groups=8))
    run = simulate(from_raw(RawScenario(keys))).run
    found = phases.forecast_s(keys)
    assert sum(found.values()) == pytest.approx(run.steps[0].step_s)
    assert found["rest"] == pytest.approx(4.0)
    assert {phase_of(phase.kind) for phase in run.phases} <= set(phases.PUBLISHED)


def test_log_probs_and_the_rest_may_be_fitted_to_where_nothing_else_of_a_step_is() -> None:
    row = replace(STEPS[0], groups=2, group_size=4, role="held out", log_prob_role="calibrated")
    found = phases.judge([row])
    roles = {case.group: case.role for case in found.cases}
    assert {roles.pop("log_prob"), roles.pop("rest")} == {"calibrated"}
    assert set(roles.values()) == {"held out"}
    assert list(found.scenarios) == [row.name]
    assert all((case.low or 0) <= case.forecast <= (case.high or 0) for case in found.cases)


def test_a_total_is_met_only_where_its_phases_are() -> None:
    case = Case("generation", "a", "s", 80.0, 100.0)
    cases = [case, Case("update", "a", "s", 100.0, 80.0), Case("rest", "a", "s", 2.0, 6.0)]
    (text,) = phases.totals(cases)
    assert "sum of the judged phases +2%, not met: generation +25%" in text
    assert "update" not in text
    (text,) = phases.totals([replace(case, forecast=90.0), *cases[1:]])
    assert text.endswith("met in every phase")


def test_figures_of_stacks_are_those_of_the_phases_they_are_fitted_to() -> None:
    """One that a change elsewhere makes wrong must be fitted anew. Generation was fitted to none of
    them, and is met."""
    fitted = [row for row in STEPS if row.role == "calibrated"]
    assert {row.stack for row in fitted} == {"NeMo-RL", "verl"}
    held = [row for row in STEPS if row.name in ("llama-8b-megatron-rerun", "7b-verl-async")]
    assert [row.role for row in held] == ["held out"] * 2
    for row in [*fitted, *held]:
        found = phases.forecast_s(phases.keys_of(row))
        assert found["generation"] == pytest.approx(row.generation_s, rel=0.3)
        if row in fitted and row.stack == "NeMo-RL":
            backend = "megatron" if row.name.endswith("megatron") else "dtensor"
            factors = STACKS["nemo-rl-0.3"].factors_on(backend)
            own_s = found["refit"] / factors.sync
            assert own_s == pytest.approx(row.refit_s, rel=0.3)  # reruns take longer
            # What logits move is counted from the stack's code: nothing is fitted to this phase.
            assert found["log_prob"] / factors.log_prob == pytest.approx(row.log_prob_s, rel=0.25)


@pytest.mark.parametrize("runaways", RUNAWAYS)
@pytest.mark.parametrize("spread", SPREADS)
def test_a_runs_others_have_the_mean_that_is_published(spread: str, runaways: str) -> None:
    """At the cap, runaways apart, whatever is assumed of spread and runaways."""
    run = RUNS["verl-7b-h20-sync-fsdp"]
    lengths = built(scenario(run, spread, runaways)).workload.lengths
    cap = run.max_new_tokens
    assert lengths.runaway == RUNAWAYS[runaways] * run.runaway
    assert replace(lengths, runaway=0.0).marginal(cap).mean() == pytest.approx(885, rel=1e-4)
    [kind] = lengths.components
    assert (kind.between_sd, kind.within_sd) == (0.0, pytest.approx(SPREADS[spread]))


def test_verl_lengths_are_what_the_report_tells_that_they_are_calibrated_to() -> None:
    """The on-policy row's log-prob and update, seconds, as the trainer was when they were: without
    the stack's factors, which were fitted afterwards."""
    keys = scenario(RUNS["verl-7b-h20-sync-fsdp"])
    found, own = phases.forecast_s({**keys, "steps": 1}), STACKS["verl-0.5"].phase_factors
    own_s = found["log_prob"] / own.log_prob + found["update"] / own.update
    assert own_s == pytest.approx(374, rel=0.05)


def test_a_ratio_is_taken_to_its_own_on_policy_run() -> None:
    sync, ahead = (replace(run, groups=2, group_size=4) for run in list(RUNS.values())[:2])
    runs = [replace(sync, step_s=8.0), replace(ahead, step_s=6.0)]
    cases = rl_steps.cases(runs, {run.name: [1.0, 2.0] for run in runs})
    assert [case.unit for case in cases] == ["s", "s", ""]
    assert cases[2].measured == 0.75
    assert cases[2].forecast == pytest.approx(cases[1].forecast / cases[0].forecast)
    assert (cases[2].low, cases[2].high) == (1.0, 1.0)  # draws of both are alike
    slower = replace(cases[2], measured=1.2)
    assert rl_steps.wrong_signs([cases[2], slower, cases[2], cases[2]]) == 0.25


def row(model: str, gpu: str, precision: str, gpus: int, *tokens: int) -> throughput.Row:
    return throughput.Row(model, gpu, precision, gpus, *tokens, 1.0)  # type: ignore[arg-type]


def test_an_offline_run_by_hand() -> None:
    """Llama 3.1 8B on an H100, 1,500 requests of 2,048 in and out: the pool holds 117 to their last
    token, so they come in 13 waves, each of 2,048 iterations that decode, and the prompts'."""
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    pool = (gpu.memory_bytes * 0.95 - 2e9 - model.weight_bytes) / 131_072
    running = int(pool // 4096)
    waves = -(-1500 // running)
    found = throughput.offline(row("LLaMA v3.1 8B", gpu.name, "16 bit", 1, 2048, 2048))
    assert found.tokens == 1500 * 2048
    assert waves * 2048 * 0.9 < found.iterations < waves * (2048 + running * 2048 / 8192 + 2)
    cost = RooflineCost(model, gpu, host_s=0.0, host_per_rollout_s=0.0)
    decoding = 1500 / running * 2048 * cost.decode_curve(running).seconds(running * 3072)
    prompts = 1500 * 2048 * model.linear_flop_per_token / (9.894e14 * 0.684)
    assert found.gpu_s == pytest.approx(decoding + prompts, rel=0.1)


def test_the_host_of_a_known_engine_is_recovered_from_its_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throughput, "REQUESTS", {})
    monkeypatch.setattr(throughput, "DEFAULT_REQUESTS", 200)
    rows = []
    for model in ("LLaMA v3.1 8B", "Mixtral 8x7B"):
        for tokens in ((128, 4096), (1000, 1000), (2048, 2048), (20_000, 2000)):
            made = row(model, "h100-sxm", "fp8", 4, *tokens)
            run = throughput.offline(made)
            took = run.gpu_s + 2e-3 * run.iterations + 4e-6 * run.tokens
            rows.append(replace(made, tokens_per_s=run.tokens / took))
    found = throughput.judge(rows)
    assert found.facts == {"host": "2.0 ms", "per_rollout": "4.0 us"}
    assert max(abs(case.error) for case in found.cases) < 1e-3
    assert [case.role for case in found.cases[:3]] == ["calibrated", "held out", "calibrated"]
    assert [rows[0].group, rows[4].group] == ["h100-sxm, fp8, dense", "h100-sxm, fp8, mixture"]
    assert replace(rows[0], gpu="l40s").group == "l40s, fp8, dense, over PCIe"


def test_a_serving_point_is_decoding_and_the_prompts_of_the_others() -> None:
    def token_s(point: serving_points.Row) -> float:
        return serving_points.row_s(point, serving_points.cost_of(point))

    alone = serving_points.Row("sglang", 8, 1, False, 8192, 1024, 1, 10.0)
    cost = RooflineCost(load_model("deepseek-r1"), load_gpu("h200-sxm"), 8, engine="sglang")
    assert token_s(alone) == cost.decode_curve(1).seconds(8192 + 512)
    busy = replace(alone, concurrency=9)
    assert token_s(busy) > cost.decode_curve(9).seconds(9 * (8192 + 512))
    longer = replace(busy, output_tokens=10**6, input_tokens=8192)
    context = 9 * (8192 + 5 * 10**5)
    assert token_s(longer) == pytest.approx(cost.decode_curve(9).seconds(context), rel=1e-3)
    assert token_s(replace(busy, expert_parallel=8)) > token_s(busy)


def test_a_weight_update_is_fixed_time_and_bytes() -> None:
    small, large = weight_updates.forecast_s(1e9), weight_updates.forecast_s(74e9)
    assert large - small == pytest.approx(1.0, rel=1e-6)


# The committed results


def committed() -> dict[str, dict[str, Any]]:
    found = json.loads((OUT / "validation.json").read_text("utf-8"))
    return {source["key"]: source for source in found["sources"]}


def test_every_source_is_in_the_committed_results_and_none_in_bulk() -> None:
    assert list(committed()) == list(SOURCES)
    assert not any(source["skipped"] for source in committed().values())
    for key in ("engine_grid", "kernel_tables", "trainer_baselines"):
        assert committed()[key]["cases"] == []
    assert sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file()) < 900_000


def test_nine_of_ten_held_out_figures_lie_inside_their_intervals() -> None:
    """As committed; who moves a forecast or a spread makes it anew."""
    text = (OUT / "forecasts.md").read_text("utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| all |")]
    inside, rows = row.split(" | ")[1:3]
    assert 85 <= float(inside.rstrip("%")) <= 95
    assert int(rows) > 1000


@pytest.mark.parametrize("key", ["weight_updates", "speculative", "rl_mixtures"])
def test_the_committed_results_are_what_comes_out(key: str) -> None:
    """Of sources whose figures are all here; `make evidence` makes the others anew."""
    (fresh,) = as_json([suite.judge(key, ROWS)])["sources"]
    known = committed()[key]
    for part, fields in (("checks", ("value",)), ("cases", ("measured", "forecast"))):
        assert [x["name"] for x in fresh[part]] == [x["name"] for x in known[part]]
        for ours, theirs in zip(fresh[part], known[part], strict=True):
            for field in fields:
                assert ours[field] == pytest.approx(theirs[field], rel=1e-4), ours["name"]


@pytest.mark.parametrize("key", SAMPLED)
def test_forecasts_of_published_rows_are_those_known(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forecasts of a sample of each table stay what they were, case by case; of the draws hangs
    only whether a row is inside its interval."""
    monkeypatch.setattr(trainer_baselines, "DRAWS", 40)
    known = json.loads(FORECASTS.read_text("utf-8"))[key]
    fresh = figures(suite.judge(key, ROWS))
    assert fresh["checks"] == pytest.approx(known["checks"], rel=1e-4)
    assert fresh["forecasts"] == pytest.approx(known["forecasts"], rel=1e-4)


def test_a_committed_scenario_gives_the_committed_forecast() -> None:
    """One of them from its file; all of them are remade in a minute by the command."""
    cases = {case["name"]: case for case in committed()["rl_steps"]["cases"] if case["unit"] == "s"}
    judged = [case for key in ("rl_steps", "phases") for case in committed()[key]["cases"]]
    names = {case["scenario"] for case in judged}
    assert sorted(names) == sorted(path.stem for path in (OUT / "scenarios").iterdir())
    name = "llama-8b-h100-1off-v0.5"
    result = simulate(from_raw(read_scenario(OUT / "scenarios" / f"{name}.yaml")))
    assert result.run.steps[-2].step_s == pytest.approx(cases[name]["forecast"], rel=1e-4)
