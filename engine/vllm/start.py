"""Starting vLLM: what it is asked for, and what has to be mended in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.engine.errors import EngineError, sentence


def engine_options(
    model: str,
    *,
    on_cpu: bool,
    max_seqs: int,
    max_batched_tokens: int,
    kv_tokens: int | None,
    block_tokens: int,
    prefix_caching: bool,
    max_model_len: int | None,
    dtype: str,
    seed: int,
    enforce_eager: bool,
    memory_fraction: float,
    tensor_parallel: int = 1,
    sleeps: bool = False,
    transfer: str | None = None,
) -> dict[str, Any]:
    """The arguments of vLLM's ``EngineArgs``; see `engine.vllm.replica.VllmReplica`."""
    options: dict[str, Any] = {
        "model": model,
        "trust_remote_code": False,
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "seed": seed,
        "max_num_seqs": max_seqs,
        "max_num_batched_tokens": max_batched_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": prefix_caching,
        "block_size": block_tokens,
        "max_model_len": max_model_len,
        "enforce_eager": enforce_eager,
        "gpu_memory_utilization": memory_fraction,
        "async_scheduling": False,
        "disable_log_stats": True,
        "logprobs_mode": "processed_logprobs",
        "use_tqdm_on_load": False,
    }
    if tensor_parallel > 1:  # its workers are processes of this one, which has all of its devices
        options["tensor_parallel_size"] = tensor_parallel
        options["distributed_executor_backend"] = "mp"
    if transfer is not None:
        options["weight_transfer_config"] = {"backend": transfer}
    if sleeps:
        options["enable_sleep_mode"] = True
    if kv_tokens is not None:
        options["num_gpu_blocks_override"] = kv_tokens // block_tokens + 1  # one is a null block
        if on_cpu:  # the number of blocks decides; this only skips measuring the memory
            options["kv_cache_memory_bytes"] = 1 << 28
    return options


def start(options: Mapping[str, Any], device: str | None = None) -> Any:
    """A started ``LLMEngine`` with `engine_options`, on ``device``. Raises EngineError in one
    sentence where vLLM cannot be had or does not start, or where the KV pool cannot hold one
    rollout."""
    try:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except Exception as error:
        raise EngineError(f"vLLM cannot be imported: {sentence(error)}") from error
    blocks = options.get("num_gpu_blocks_override")
    pool_tokens = None if blocks is None else (blocks - 1) * options["block_size"]
    try:
        config = EngineArgs(**options).create_engine_config()
        if pool_tokens is not None and config.model_config.max_model_len > pool_tokens:
            if options["max_model_len"] is not None or pool_tokens == 0:
                raise _pool_too_small(pool_tokens, config.model_config.max_model_len)
            shorter = {**options, "max_model_len": pool_tokens}
            config = EngineArgs(**shorter).create_engine_config()
        put_on(config, device)
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"vLLM could not start: {sentence(error)}") from error


def put_on(config: Any, device: str | None) -> None:
    """Has vLLM take the GPU of that number: an engine in this process takes the number of its
    device for its rank among the GPUs, and has no argument for it."""
    import torch

    wanted = None if device is None else torch.device(device)
    if wanted is not None and wanted.index is not None:
        config.device_config.device = wanted


def hold_generators_back(core: Any) -> None:
    """Keep vLLM from winding back a CPU random generator, which PyTorch does not support, in every
    worker of an engine.

    A chunk that does not complete a prefill samples a token that is thrown away, and vLLM undoes
    the draw through the generator's offset; that raises on a CPU. Such rollouts hide their
    generator for the iteration instead: nothing is drawn, so nothing has to be undone.
    """
    core.model_executor.collective_rpc(_hold_back)


def _hold_back(worker: Any) -> None:
    """In the worker's own process."""
    runner = worker.model_runner
    sample_tokens = runner.sample_tokens

    def without_unfinished_prefills(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        unfinished = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        held = {i: batch.generators.pop(i) for i in unfinished if i in batch.generators}
        try:
            return sample_tokens(*args, **kwargs)
        finally:
            batch.generators.update(held)

    runner.sample_tokens = without_unfinished_prefills


def check_shape(max_seqs: int, max_batched_tokens: int, block_tokens: int, on_cpu: bool) -> None:
    """Raises EngineError for sizes with which no engine starts."""
    if block_tokens <= 0 or (on_cpu and block_tokens % 32):
        raise EngineError(
            f"block_tokens is {block_tokens}; it is positive, and a multiple of 32 on a CPU."
        )
    if not 0 < max_seqs <= max_batched_tokens:
        raise EngineError(
            f"max_batched_tokens ({max_batched_tokens}) is at least max_seqs ({max_seqs}), "
            "which is at least 1."
        )


def _pool_too_small(pool_tokens: int, rollout_tokens: int) -> EngineError:
    """The error for a KV pool that cannot hold one rollout."""
    return EngineError(
        f"The KV pool of {pool_tokens} tokens is too small for one rollout of {rollout_tokens} "
        "tokens: raise kv_tokens or lower max_model_len."
    )


def end_tokens(generation: Mapping[str, Any], config: object) -> list[int]:
    """A model's own end tokens, from its generation settings or else its configuration."""
    end = generation.get("eos_token_id")
    if end is None:
        end = getattr(config, "eos_token_id", None)
    if end is None:
        return []
    return [int(token) for token in ([end] if isinstance(end, int) else end)]
