"""An engine: its start, its iterations against the forecast, its weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import Any

from rollcast.engine.config import RunSpec
from rollcast.engine.doctor.findings import Finding, Verdict
from rollcast.engine.edges import Engine, EngineIteration
from rollcast.engine.start import start_replica, start_task
from rollcast.engine.sync_check import largest_difference
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.scenario.file import RawScenario, override

ROLLOUTS, PROMPT_TOKENS, NEW_TOKENS = 16, 24, 24
WRONG_BY = 1.3
"""Of an iteration against its forecast, above which costs want a calibration."""


def engine(spec: RunSpec) -> Iterator[Finding]:
    """Starts the scenario's engine and samples a few rollouts."""
    name = spec.engine.name
    _, path = start_task(spec)
    model = _model(spec, path)
    began = time.perf_counter()
    replica = start_replica(spec, path)
    try:
        limits, took = replica.limits, time.perf_counter() - began
        says = f"started in {took:.1f} s; {limits.kv_tokens:,} tokens of KV cache, at most "
        says += f"{limits.max_model_len:,} in a rollout"
        yield Finding(name, "ok", says, {"start_s": took, "kv_tokens": limits.kv_tokens})
        yield from _runner(replica)
        yield from _scheduling(replica)
        yield from _weights(name, replica, model)
        measured = [step for _ in range(2) for step in burst(replica, spec)]
        yield from _iterations(name, priced(spec, path), measured[len(measured) // 2 :])
    finally:
        replica.shutdown()


def burst(replica: Engine, spec: RunSpec) -> list[EngineIteration]:
    """The iterations of some made-up rollouts, submitted at once."""
    rng, limits = Random(0), replica.limits
    count = min(ROLLOUTS, limits.max_seqs, limits.kv_tokens // (PROMPT_TOKENS + NEW_TOKENS) or 1)
    for index in range(count):
        prompt = [rng.randrange(limits.vocab_size) for _ in range(PROMPT_TOKENS)]
        cap = min(NEW_TOKENS, limits.max_model_len - PROMPT_TOKENS)
        replica.submit(f"{index}", prompt, max_new_tokens=cap, seed=index, ignore_eos=True)
    iterations = []
    while replica.unfinished:
        replica.step()
        assert replica.last_iteration is not None
        iterations.append(replica.last_iteration)
    return iterations


def _model(spec: RunSpec, path: Any) -> Any:
    """The model by transformers alone, on the CPU, to compare log-probabilities with."""
    import torch
    from transformers import AutoModelForCausalLM

    from rollcast.engine.quiet import no_bars

    with no_bars():
        dtype = getattr(torch, spec.engine.dtype)
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=False)


def _runner(replica: Engine) -> Iterator[Finding]:
    """Which of vLLM's two model runners it has."""
    inner = getattr(replica, "_engine", None)
    if inner is None:
        return
    names = inner.collective_rpc(_runner_of)
    second = any("gpu.model_runner" in name or ".v2" in name for name in names)
    says = (
        "its second model runner; sampling, preemption and reloading were tested with the first "
        "(VLLM_USE_V2_MODEL_RUNNER=0 chooses it)"
        if second
        else "its first model runner, with which everything was tested"
    )
    says = f"{says}: {names[0].rpartition('.')[2]}"
    yield Finding("vLLM's runner", "warning" if second else "ok", says)


def _runner_of(worker: Any) -> str:
    kind = type(worker.model_runner)
    return f"{kind.__module__}.{kind.__name__}"


def _scheduling(replica: Engine) -> Iterator[Finding]:
    """How vLLM schedules."""
    ahead = getattr(replica, "ahead", None)
    if ahead is None:
        return
    says = (
        "asynchronous: it schedules an iteration while the one before runs"
        if ahead
        else "synchronous: it schedules an iteration when the one before has ended"
    )
    yield Finding("vLLM's scheduling", "ok", f"{says} (engine.async_scheduling)", {"async": ahead})


def _weights(name: str, replica: Engine, model: Any) -> Iterator[Finding]:
    """Loading them, and whether the engine then computes with them."""
    import torch

    tensors = {key: value.to(replica_device(replica)) for key, value in model.state_dict().items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    replica.load_weights(tensors)
    began = time.perf_counter()
    replica.load_weights(tensors)
    seconds = time.perf_counter() - began
    says = f"{size / 1e6:.1f} MB in {seconds * 1e3:.0f} ms"
    says += f", {size / seconds / 1e9:.2f} GB/s"
    figures = {"gb_per_s": size / seconds / 1e9, "bytes": size}
    yield Finding(f"{name}: new weights", "ok", says, figures)
    rng, longest = Random(1), min(48, replica.limits.max_model_len - 1)
    sample = [[rng.randrange(replica.limits.vocab_size) for _ in range(longest)] for _ in range(2)]
    theirs = replica.log_probs(sample)
    ours = []
    with torch.no_grad():
        for tokens in sample:
            table = model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
            ours.append(table.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist())
    worst, allowed = largest_difference(theirs, ours), replica.log_prob_tolerance
    says = f"differ from the model's own by {worst:.2g} nats at most; {allowed:g} is expected"
    verdict: Verdict = "ok" if worst <= allowed else "warning"
    yield Finding(f"{name}: log-probabilities", verdict, says, {"worst_nats": worst})


def replica_device(replica: Engine) -> Any:
    """Where its weights are; the CPU where it does not say."""
    import torch

    model = getattr(replica, "_model", None)
    return torch.device("cpu") if model is None else model.device


def priced(spec: RunSpec, path: Any) -> RawScenario:
    """With the engine's model and the GPU that is here, where the scenario has no costs."""
    from rollcast.engine.trainer.flops import gpu_here

    gpu = gpu_here()
    if gpu is None or spec.raw.data.keys() & {"cost", "model", "gpu"}:
        return spec.raw
    ours = ("cost.roofline.stack=rollcast", "cost.roofline.trainer.sharding=none")
    return override(spec.raw, [f"model={path}", f"gpu={gpu}", *ours], None)


def _iterations(name: str, raw: RawScenario, measured: list[EngineIteration]) -> Iterator[Finding]:
    """Decode iterations, against the scenario's costs."""
    decoding = [one for one in measured if not one.work.prefill_tokens]
    if not decoding:
        return
    typical = median(one.seconds for one in decoding)
    rollouts = decoding[0].work.rollouts
    says = f"{typical * 1e3:.2f} ms with {rollouts} rollouts"
    figures = {"iteration_s": typical, "rollouts": rollouts}
    try:
        from rollcast.simulator.studies.simulate import from_raw

        cost = from_raw(raw).cost
        forecast = median(
            cost.decode_curve(one.work.rollouts).seconds(one.work.context_tokens)
            for one in decoding
        )
    except RollcastError as error:
        yield Finding(f"{name}: an iteration", "note", f"{says}; no forecast: {error}", figures)
        return
    ratio = typical / forecast
    says += f"; the scenario's costs say {forecast * 1e3:.2f} ms"
    far = max(ratio, 1 / ratio) > WRONG_BY
    says += "; rollcast calibrate fits them to this machine" if far else ""
    figures |= {"forecast_s": forecast}
    yield Finding(f"{name}: an iteration", "warning" if far else "ok", says, figures)
