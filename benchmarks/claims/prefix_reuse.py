"""Prefix reuse in the trainer (arXiv 2606.01143) and Prefix Grouper (arXiv 2506.05433)."""

import math

from benchmarks.claims.common import Row, Table, percent, relative
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.memory.training import (
    Recompute,
    kept_bytes_per_token,
    layer_bytes,
    shared_kv_bytes,
    shared_kv_bytes_per_token,
)
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.workload.halving import halved

TOTAL_TOKENS = 12_288
LONG = (10_240, 2_048)  # prompt and response
SIZES = (16, 32, 64, 128)
UPDATE_RATIO, LOG_PROB_RATIO = 10.18 / 5.98, 2.63 / 1.69  # of Prefix Grouper, 8K, groups of 4
FRONTIER_RATIO = 29_696 / 17_920


def trainer_on_h20(recompute: Recompute) -> RooflineTrainer:
    """Llama-3.1-8B on 16 H20, data parallel, states sharded."""
    return RooflineTrainer(load_model("llama-3.1-8b"), load_gpu("h20"), 16, recompute=recompute)


def speed_up(trainer: RooflineTrainer, prompt: int, response: int, size: int) -> float:
    """Dense over shared seconds of forward and backward, one group a GPU."""
    groups = [(prompt, [response] * size)] * trainer.gpus

    def passes_s(shared: bool) -> float:
        phases = dict(trainer.train(TrainLoad(groups, shared)).phases_s)
        return phases["forward"] + phases["backward"]

    return passes_s(False) / passes_s(True)


def bound(prompt: int, response: int, size: int) -> float:
    """N (P + S) / (P + N S)."""
    return size * (prompt + response) / (prompt + size * response)


def speed_up_table(trainer: RooflineTrainer) -> list[list[str]]:
    table = [["prompt + response", *(f"N = {size}" for size in SIZES)]]
    for prompt in (2_048, 4_096, 6_144, 8_192, 10_240):
        response = TOTAL_TOKENS - prompt
        row = [f"{prompt:,} + {response:,}"]
        for size in SIZES:
            shape = (prompt, response, size)
            row.append(f"{speed_up(trainer, *shape):.2f} of {bound(*shape):.2f}")
        table.append(row)
    return table


def activation_bytes_per_token(model: Model) -> float:
    """Peak of a dense microbatch, per token: what all layers keep, and the layer at work."""
    return kept_bytes_per_token(model, "none") + layer_bytes(model).whole


def saved_share(model: Model, prompt: int, response: int, fixed_bytes: float = 0.0) -> float:
    """Share of a dense rollout's peak that shared prefixes save in phase B, which holds K/V and
    gK/gV of the prompt and the response's activations. fixed_bytes: weights, states, in both."""
    per_token = activation_bytes_per_token(model)
    dense_bytes = fixed_bytes + per_token * (prompt + response)
    return 1 - (fixed_bytes + shared_kv_bytes(model, prompt) + per_token * response) / dense_bytes


def longest(model: Model, room_bytes: float, prompt_share: float) -> tuple[int, int]:
    """Largest P + S of one rollout whose activations fit: dense, and with a shared prefix, where
    the largest phase decides: A and C hold the prompt's activations and its gK/gV."""
    per_token = activation_bytes_per_token(model)
    shared = shared_kv_bytes_per_token(model)
    phase_b = shared * prompt_share + per_token * (1 - prompt_share)
    most = max((per_token + shared / 2) * prompt_share, phase_b)
    return math.floor(room_bytes / per_token), math.floor(room_bytes / most)


def memory_rows() -> list[Row]:
    trainer, model = trainer_on_h20("none"), load_model("llama-3.1-8b")
    states_bytes = trainer.peak_bytes(0)
    saving = saved_share(model, *LONG, states_bytes)
    room_bytes = trainer.gpu.memory_bytes * trainer.memory_utilization - states_bytes
    fits = {i / 100: longest(model, room_bytes, i / 100)[1] for i in range(101)}
    best = max(fits, key=lambda share: fits[share])
    dense, long = longest(model, room_bytes, LONG[0] / TOTAL_TOKENS)
    largest, at_long = fits[best] / dense, long / dense
    one = "one rollout a microbatch, no recomputation, states sharded over 16 GPUs"
    saved = (percent(-0.591), f"{percent(-saving)} at 10K + 2K", relative(saving, 0.591))
    frontier = (f"{dense:,} tokens", relative(dense, 17_920))
    gained = f"{largest:.2f}x at a prompt share of {best:.2f}; {at_long:.2f}x at 10K + 2K"
    error = f"{relative(largest, FRONTIER_RATIO)}; {relative(at_long, FRONTIER_RATIO)}"
    return [
        Row("phase-B peak memory, at most", *saved, one),
        Row(
            "capacity of Llama3-8B, dense", "17,920 tokens", *frontier, f"{one}; one GPU a rollout"
        ),
        Row(
            "capacity with reuse over dense",
            f"{FRONTIER_RATIO:.2f}x (29,696 tokens)",
            gained,
            error,
            f"{one}; the prompt's share; phases A and C hold what they compute",
        ),
    ]


def grouper_ratios(share: float) -> tuple[float, float]:
    """(update, log-prob pass), dense over shared, for a prompt of ``share`` of 8K."""
    gpu = load_gpu({"preset": "h100-sxm", "name": "h800", "interconnect_bytes_per_s": 2e11})
    trainer = RooflineTrainer(load_model("qwen3-4b"), gpu, 4)
    prompt = round(8192 * share)
    groups = [(prompt, [8192 - prompt] * 4)] * 32

    def seconds(shared: bool) -> tuple[float, float]:
        cost = trainer.train(TrainLoad(groups, shared))
        log_prob_s = dict(cost.phases_s)["log_prob"]
        return cost.total_s - log_prob_s, log_prob_s

    (dense_s, dense_log_s), (shared_s, shared_log_s) = seconds(False), seconds(True)
    return dense_s / shared_s, dense_log_s / shared_log_s


def grouper_row() -> Row:
    """The share that explains the update's speed-up says what the log-prob pass gains."""
    low, _ = halved(lambda share: grouper_ratios(share)[0] < UPDATE_RATIO, 0.0, 0.99, 20)
    log_prob = grouper_ratios(low)[1]
    return Row(
        "Prefix Grouper, Qwen3-4B on 4 H800, 8K, groups of 4: log-prob pass",
        f"{LOG_PROB_RATIO:.2f}x, where the update gains {UPDATE_RATIO:.2f}x (10.18 to 5.98 s)",
        f"{log_prob:.2f}x",
        relative(log_prob, LOG_PROB_RATIO),
        f"a prompt of {100 * low:.0f} %, solved from the update's gain; the batch is not known, so "
        "no seconds are forecast; H800 as an H100 with links of 200 GB/s",
    )


def fastest_row() -> Row:
    shape = (*LONG, SIZES[-1])
    ratio = speed_up(trainer_on_h20("full"), *shape)
    return Row(
        "largest speed-up of the passes",
        "4.395x (2.930x over a compiled baseline)",
        f"{ratio:.2f}x at 10K + 2K and N = 128 (bound {bound(*shape):.2f}x)",
        relative(ratio, 4.395),
        "that the largest is there; data parallel, full recomputation",
    )


def rows() -> list[Row]:
    return [fastest_row(), *memory_rows(), grouper_row()]


def tables() -> list[Table]:
    title = "Forecast speed-up of forward and backward, of its bound N (P + S) / (P + N S)"
    return [(title, speed_up_table(trainer_on_h20("full")))]
