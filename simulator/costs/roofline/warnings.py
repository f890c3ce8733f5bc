"""What a roofline says of a run that it priced: figures that nobody measured, settings unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollcast.simulator.costs.base import CostModel, Extremes
from rollcast.simulator.costs.presets.gpus import EFFICIENCIES, TRAINER_EFFICIENCIES, Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer


def of_gpus(gpu: Gpu, trainer_gpu: Gpu) -> list[str]:
    """Efficiencies that are assumed, and products of 16 bit without bfloat16."""
    sentences = [
        f"{its.name}: {use} efficiencies are assumed; no kernel or step of this GPU was measured"
        for names, use, its in (
            (EFFICIENCIES, "engine", gpu),
            (TRAINER_EFFICIENCIES, "trainer", trainer_gpu),
        )
        if not its.measured(names)
    ]
    peaks = {its.name: its.bf16_flop_per_s for its in (gpu, trainer_gpu) if not its.has_bf16}
    return sentences + [
        f"{name}: has no bfloat16; 16 bit products are taken to be in float16, at "
        f"{peak / 1e12:.0f} TFLOP/s. Engines refuse bfloat16 on it (set float16), and trainers "
        "emulate it, which takes much longer than forecast"
        for name, peak in peaks.items()
    ]


def of_ranges(reached: Sequence[tuple[int, int, str]]) -> list[str]:
    """Ranges left: (what a run reached, what the fits saw, of what)."""
    return [
        f"{most:,} {what}: the efficiencies were fitted up to {limit:,}"
        for most, limit, what in reached
        if most > limit
    ]


def of_model(model: Model, gpu: Gpu, reserve_bytes: float) -> list[str]:
    """Products of 4 bit weights, and the KV pool of a large model."""
    sentences = []
    if "mxfp4" in model.formats or ("nvfp4" in model.formats and not gpu.fp4_flop_per_s):
        four = ", ".join(sorted(model.formats & {"mxfp4", "nvfp4"}))
        sentences.append(
            f"{model.name}: products of {four} weights are taken at the 16 bit peak, as with 16 "
            "bit activations; kernels that multiply 4 bit floats are faster"
        )
    least = figures("kv_pool").large_parameters
    if model.parameters >= least:
        sentences.append(
            f"KV pools of models of {least / 1e9:.0f}B and more are known from three logs: vLLM "
            "kept 9.2e9 and 10.5e9 bytes of a GPU beside weights and KV, SGLang 2.8e9; "
            f"{reserve_bytes:.2g} is taken. Give engine.kv_tokens where the engine's log says it"
        )
    return sentences


def of_images(trainer: RooflineTrainer) -> list[str]:
    """What is taken of images, and what of them is not counted."""
    model, known = trainer.model, figures("images")
    if model.vision is None:
        return []
    if not model.image_share:
        return [
            "images: no token of a prompt is taken to be one; where they are, give "
            f"model.image_share ({known.share:g} in published runs) and image_tokens "
            f"({known.tokens})"
        ]
    sentences = [
        "images: opening and cutting them on the host is not counted: published steps with images "
        f"took {known.least_measured:g} to {known.most_measured:g} times the forecast"
    ]
    if not trainer.patch_launch_s:
        each_s = known.slow_patch_s * model.vision.patches_per_token * model.image_tokens
        sentences.append(
            f"images: with PyTorch 2.9 and cuDNN before 9.15 each adds some {each_s:.1f} s to "
            f"every pass of the trainer; give trainer.patch_launch_s: {known.slow_patch_s:g}"
        )
    if model.experts and trainer.backend in ("fsdp", "fsdp2", "deepspeed"):
        sentences.append(
            f"{model.name}: transformers before 5.0 computes every expert for every token in "
            "passes for log-probabilities, and makes gradients of all experts for each in the "
            "update; in the one run published they took 4 and 39 times the forecast"
        )
    return sentences


def of_delta_nets(trainer: RooflineTrainer) -> list[str]:
    """What gated delta nets take in a trainer of modules whose fast kernels are not installed."""
    if trainer.backend == "megatron" or trainer.linear_attention == "torch":
        return []
    loop = replace(trainer, linear_attention="torch").delta_loop
    if loop is None:
        return []
    row = 8192
    forward_s, more_s = loop.forward_s(row, row**2 / 2), loop.backward_s(row, row**2 / 2)
    return [
        f"{trainer.model.name}: linear attention is taken to have the kernels of "
        f"flash-linear-attention; without it a row of {row:,} tokens takes {forward_s:.1f} s more "
        f"forward and {2 * forward_s + more_s:.1f} s behind. Give trainer.linear_attention: torch "
        "where transformers says that it falls back"
    ]


def of_lengths(trainer: RooflineTrainer) -> list[str]:
    """What rows of many lengths may take of a trainer on Megatron that does not pack them."""
    packs = trainer.batching not in ("one_sequence", "padded")
    if trainer.backend != "megatron" or packs or trainer.attention_build_s:
        return []
    return [
        "trainer: where cuDNN computes attention of rows that are not packed, the host builds it "
        "for each new length; two runs on H100 and H200 took some 1 s a microbatch for it, one on "
        "B200 0.1 to 0.3 s. Give trainer.attention_build_s"
    ]


def over_pcie(gpu: Gpu) -> str:
    """What is taken of the links of GPUs that talk over PCIe."""
    said = "taken" if gpu.interconnect_shared is None else "said"
    how = "share one link" if gpu.interconnect_shared else "have a link each"
    hosts = figures("pcie")
    return (
        f"{gpu.name}: over PCIe more than two GPUs are {said} to {how}. Hosts reached "
        f"{hosts.least_share:.0%} to {hosts.most_share:.0%} of it in all-reduces, and "
        f"{1e6 * hosts.least_floor_s:.0f} to {1e6 * hosts.most_floor_s:.0f} us for small ones: "
        "intervals hold both; a measured host goes into gpu.interconnect_shared, "
        "interconnect_efficiency and all_reduce_floor_s"
    )


def of_graphs(graphs: CostModel, eager: CostModel, taken: bool, extremes: Extremes) -> str:
    """What CUDA graphs would change in a run, of which nobody says whether it has them. taken:
    whether the forecast has them."""
    most = max(extremes.rollouts, 1)
    longest = max(extremes.rollout_tokens, 1)
    loads = {1: longest, most: max(extremes.context_tokens, most)}
    parts = []
    for rollouts, context in loads.items():
        with_s, without_s = (c.decode_curve(rollouts).seconds(context) for c in (graphs, eager))
        parts.append(
            f"{without_s / with_s:.2g} times as long without them at {rollouts:,} rollout"
            f"{'s' * (rollouts > 1)} ({1e3 * without_s:.3g} for {1e3 * with_s:.3g} ms)"
        )
    how = "with" if taken else "without"
    return (
        "whether the engine replays CUDA graphs is unknown: the forecast is of one "
        f"{how} them, intervals hold both. A decode iteration takes {' and '.join(parts)}. Set "
        "cost.roofline.cuda_graphs (false: enforce_eager)"
    )
