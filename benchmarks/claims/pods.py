"""PODS (arXiv 2504.13818): step times on one L40S, inference per token, memory of the update."""

from typing import Any

from benchmarks.claims.common import Row, relative
from benchmarks.runner import simulated
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.workload.length_specs import length_presets

PUBLISHED_S = {16: 7.56, 32: 7.95, 64: 10.12}
PROMPT_TOKENS = 128
RESIDENT: dict[str, Any] = {
    "offload_optimizer": False,
    "switch_fixed_s": 0.0,
    "sync_fixed_s": 0.0,
    "kv_memory_utilization": 0.5,
    # Their trainer pads before it selects (trainer/randomgrpo_trainer.py, _prepare_inputs).
    "trainer": {"weights": "lora", "batching": "padded_to_batch"},
}
# The engine's host work as fitted to vLLM of mid-2024 (simulator/costs/presets/engines.yaml).
OLD_HOST = (
    {"host_s": 1.2e-3, "host_per_rollout_s": 6.4e-5},
    {"host_s": 2.5e-3, "host_per_rollout_s": 1.26e-4},
)

ASSUMED = "prompt 128, spread of lengths; 4-bit weights priced as 16-bit; L40S trainer attention"


def workload(size: int) -> dict[str, Any]:
    return {
        "batch_groups": 1,
        "group_size": size,
        "prompt_tokens": PROMPT_TOKENS,
        "max_new_tokens": 512,
        "lengths": {"preset": "pods-qwen2.5-3b-gsm8k"},
    }


def step_s(size: int, **host: float) -> float:
    """Mean step on one L40S that trains on 16 of ``size`` rollouts."""
    summary = simulated(
        model="qwen2.5-3b",
        gpu="l40s",
        workload=workload(size),
        policy=[{"pods": {"keep": 16}}],
        cost={"roofline": {**RESIDENT, **host}},
        steps=20,
    ).summary
    return float(summary["step_s"])


def inference_per_token_s(rollouts: int) -> float:
    """Rollout seconds per token of one A100 with that many rollouts at once."""
    summary = simulated(
        model="qwen2.5-3b",
        gpu="a100-80gb",
        engine={"max_seqs": 512},
        workload=workload(rollouts),
        steps=5,
    ).summary
    return float(summary["rollout_s"] / summary["generated_tokens"])


def update_bytes(rollouts: int, one_prompt: bool = False) -> float:
    """Peak of one of 8 A100 that updates on ``rollouts`` at once, padded to the (median) longest of
    them, which are of one prompt or each of another."""
    model = length_presets()["pods-qwen2.5-3b-gsm8k"].model
    lengths = model.given(0.0, 1024) if one_prompt else model.marginal(1024)
    longest = int(lengths.ppf(0.5 ** (1 / rollouts)))
    gpu, logits = load_gpu("a100-80gb"), rollouts * longest
    trainer = RooflineTrainer(load_model("qwen2.5-3b"), gpu, 8, logits_chunk_tokens=logits)
    return trainer.peak_bytes(rollouts * (PROMPT_TOKENS + longest))


def step_rows() -> list[Row]:
    sizes = (*PUBLISHED_S, 128)
    forecast = {n: step_s(n) for n in sizes}
    older = [{n: step_s(n, **host) for n in sizes} for host in OLD_HOST]
    rows = []
    for n, published in PUBLISHED_S.items():
        text = f"{forecast[n]:.2f} s ({older[0][n]:.2f} to {older[1][n]:.2f})"
        shown = (f"{published:.2f} s", text, relative(forecast[n], published))
        rows.append(Row(f"step, n = {n}, m = 16, one L40S", *shown, ASSUMED))
    extra, *others = ((times[128] - times[64]) / 64 for times in (forecast, *older))
    text = f"{extra:.3f} s ({others[0]:.3f} to {others[1]:.3f})"
    shown = ("0.059 s", text, relative(extra, 0.059))
    return [*rows, Row("one more rollout, from n = 64 up", *shown, ASSUMED)]


def memory_row() -> Row:
    room = load_gpu("a100-80gb").memory_bytes
    fits = max(n for n in (8, 16, 32, 64, 128, 256) if update_bytes(n) <= room)
    above = [f"{update_bytes(2 * fits, one) / 1e9:.0f}" for one in (False, True)]
    need = f"{above[0]} of {room / 1e9:.0f} GB; of one prompt {above[1]}"
    return Row(
        "rollouts per A100 above which the update is out of memory",
        "32",
        f"{fits} ({2 * fits} need {need})",
        "agrees" if fits == 32 else relative(fits, 32),
        "powers of two; one microbatch, all its logits at once; prompt 128, spread of lengths",
    )


def inference_row() -> Row:
    fall = inference_per_token_s(8) / inference_per_token_s(512)
    shown = ("21x", f"{fall:.1f}x", relative(fall, 21))
    assumed = "vLLM with room for 512 (the published recipe turns vLLM off); prompt, spread"
    return Row("inference per token, 8 over 512 rollouts per A100", *shown, assumed)


def rows() -> list[Row]:
    return [*step_rows(), inference_row(), memory_row()]
