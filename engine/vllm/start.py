"""Starting vLLM: its arguments, and workarounds for what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollcast.engine.engines import StartOptions
from rollcast.engine.errors import EngineError, sentence
from rollcast.engine.heap import imported


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions(StartOptions):
    """How a replica of vLLM is started; ``kv_tokens`` None leaves the pool to vLLM.

    block_tokens: a multiple of 32 on a CPU.
    dtype: ``auto`` turns a float32 checkpoint into bfloat16.
    device: None or one without a number is the first.
    tensor_parallel: devices that the model is spread over, the first ones that this process sees,
        each with a worker process of its own.
    sleeps: whether `VllmReplica.sleep` frees the GPU's memory.
    transfer: vLLM's name of its weight transfer from a connected trainer, such as ``nccl``.
    async_scheduling: whether an iteration is scheduled while the one before runs; None: as vLLM
        has it, which is on a GPU.
    """

    seed: int = 0
    tensor_parallel: int = 1
    sleeps: bool = False
    transfer: str | None = None
    async_scheduling: bool | None = None

    def in_processes(self, on_cpu: bool) -> bool:
        """Whether its workers are processes of their own: where there are several, and on a CPU
        where one iteration is to run while the next one is scheduled."""
        return self.tensor_parallel > 1 or (on_cpu and bool(self.async_scheduling))

    def check(self, on_cpu: bool) -> None:
        """Raises EngineError for sizes with which no engine starts."""
        if self.block_tokens <= 0 or (on_cpu and self.block_tokens % 32):
            raise EngineError(
                f"block_tokens is {self.block_tokens}; it is positive, and a multiple of 32 on a "
                "CPU."
            )
        if not 0 < self.max_seqs <= self.max_batched_tokens:
            raise EngineError(
                f"max_batched_tokens ({self.max_batched_tokens}) is at least max_seqs "
                f"({self.max_seqs}), which is at least 1."
            )

    def arguments(self, model: str, on_cpu: bool) -> dict[str, Any]:
        """The arguments of vLLM's ``EngineArgs``."""
        arguments: dict[str, Any] = {
            "model": model,
            "trust_remote_code": False,
            "skip_tokenizer_init": True,
            "dtype": self.dtype,
            "seed": self.seed,
            "max_num_seqs": self.max_seqs,
            "max_num_batched_tokens": self.max_batched_tokens,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": self.prefix_caching,
            "block_size": self.block_tokens,
            "max_model_len": self.max_model_len,
            "enforce_eager": on_cpu,  # compiles on a GPU
            "gpu_memory_utilization": self.memory_fraction,
            "async_scheduling": self.async_scheduling,
            "disable_log_stats": True,
            "logprobs_mode": "processed_logprobs",
            "use_tqdm_on_load": False,
        }
        if self.tensor_parallel > 1:
            arguments["tensor_parallel_size"] = self.tensor_parallel
        if self.in_processes(on_cpu):  # of this one, which sees all GPUs
            arguments["distributed_executor_backend"] = "mp"
        if self.transfer is not None:
            arguments["weight_transfer_config"] = {"backend": self.transfer}
        if self.sleeps:
            arguments["enable_sleep_mode"] = True
        if self.kv_tokens is not None:
            blocks = self.kv_tokens // self.block_tokens
            arguments["num_gpu_blocks_override"] = blocks + 1  # one is a null block
            if on_cpu:  # the number of blocks decides; this only skips measuring the memory
                arguments["kv_cache_memory_bytes"] = 1 << 28
        return arguments


def start(options: Mapping[str, Any], device: str | None = None) -> Any:
    """A started ``LLMEngine``. options: `ReplicaOptions.arguments`. Raises EngineError where vLLM
    cannot be imported or start, or where the KV pool cannot hold one rollout."""
    try:
        with imported("vllm"):
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
        if options["async_scheduling"]:
            schedule_ahead(config)
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"vLLM could not start: {sentence(error)}") from error


def put_on(config: Any, device: str | None) -> None:
    """Puts vLLM on the GPU of that number, for which it has no argument in one process."""
    import torch

    wanted = None if device is None else torch.device(device)
    if wanted is not None and wanted.index is not None:
        config.device_config.device = wanted


def schedule_ahead(config: Any) -> None:
    """Has vLLM schedule asynchronously on a CPU, where it does not by itself."""
    if not config.scheduler_config.async_scheduling:
        config.scheduler_config.async_scheduling = True
        config.parallel_config.worker_cls = "rollcast.engine.vllm.cpu_worker.AheadCPUWorker"


def pack_experts(worker: Any) -> None:
    """Packs a mixture's experts for the CPU's kernel, in a worker: vLLM 0.32 does so when it starts
    and leaves it out when weights are reloaded, whose log-probabilities are then wrong."""
    for layer in worker.model_runner.get_model().modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        if experts is not None:
            experts.process_weights_after_loading(layer)


def hold_generators_back(core: Any) -> None:
    """Keeps vLLM's workers from rewinding a CPU random generator, which PyTorch does not support.

    After a chunk that does not complete a prefill, vLLM undoes the draw of a discarded token by the
    generator's offset, which raises on a CPU. Such rollouts hide their generator for the iteration
    instead, so that nothing is drawn.
    """
    core.model_executor.collective_rpc(_hold_back)


def _hold_back(worker: Any) -> None:
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


def _pool_too_small(pool_tokens: int, rollout_tokens: int) -> EngineError:
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
