"""Starting transformers' batch processor: its model, its cache and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import (
    PagedAttentionCache,
    group_layers_by_attn_type,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.initialization import (
    resolve_continuous_batching_config,
)

from rollcast.engine.engines import StartOptions
from rollcast.engine.errors import EngineError, require_calls, sentence
from rollcast.engine.hf import attention
from rollcast.engine.hf.blocks import Blocks
from rollcast.engine.hf.environment import transformers_version
from rollcast.engine.hf.scheduler import InOrder
from rollcast.engine.quiet import no_bars

CPU_CACHE_BYTES = 1 << 30
"""Of the KV cache on a CPU where ``kv_tokens`` does not say."""

_NEEDED = {
    "ContinuousBatchProcessor": (
        *("prepare_next_batch", "update_batch", "model_runner._sample"),
        *("inputs_and_outputs.get_model_kwargs", "inputs_and_outputs.output_ids"),
        *("scheduler.active_requests", "cache.layer_to_allocator", "cache.pool.count_free_blocks"),
    )
}


@dataclass(frozen=True, kw_only=True)
class HfOptions(StartOptions):
    """How a replica is started.

    kv_tokens: None: ``memory_fraction`` of a GPU without the weights, `CPU_CACHE_BYTES` on a CPU,
    at most what ``max_seqs`` rollouts can fill. shares: whether loaded weights on the same device
    are used where they are, without a copy; their owner must not change them before it loads them
    again.
    """

    device: str = "cpu"
    shares: bool = False


def load(path: str | Path, options: HfOptions) -> Any:
    """The model, with `attention`'s function. Raises EngineError where it cannot be loaded."""
    try:
        with no_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(torch, options.dtype),
                attn_implementation=attention.NAME,
                trust_remote_code=False,
            )
            group_layers_by_attn_type(model.config.get_text_config())
            model.to(options.device)
    except Exception as error:  # of several libraries, each with a base of its own
        raise EngineError(
            f"the transformers engine cannot use the model in {Path(path).name}: {sentence(error)}"
        ) from error
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def kv_blocks(model: Any, options: HfOptions, longest: int) -> int:
    """Blocks of the KV pool. longest: tokens of a rollout."""
    if options.kv_tokens is not None:
        return options.kv_tokens // options.block_tokens
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_block = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    per_block *= options.block_tokens
    room = CPU_CACHE_BYTES
    if model.device.type == "cuda":
        total = torch.cuda.get_device_properties(model.device).total_memory
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        room = int(total * options.memory_fraction) - weights
    most = options.max_seqs * -(-longest // options.block_tokens)
    return int(min(room // per_block, most))


def processor(model: Any, options: HfOptions, blocks: int) -> Any:
    """transformers' ``ContinuousBatchProcessor`` with our scheduler, and its `Blocks`. blocks: of
    the KV pool. Raises EngineError where it cannot be made."""
    sampling = options.sampling
    generation = GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature or 1.0,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
    )
    asked = ContinuousBatchingConfig(
        page_size=options.block_tokens,
        num_blocks=blocks,
        max_batch_tokens=options.max_batched_tokens,
        max_requests_per_batch=options.max_seqs,
        max_blocks_per_request=0,
        allow_block_sharing=options.prefix_caching,
        return_logprobs=True,
        use_async_batching=False,
        use_cuda_graph=False,
        # It reserves for a mask over the whole batch, which nobody makes here.
        max_memory_percent=1e6,
        seed=0,
    )
    text = model.config.get_text_config()
    processors = ContinuousBatchingLogitsProcessorList(model._get_logits_processor(generation))
    try:
        with torch.random.fork_rng(devices=[]):  # the processor seeds the global one
            config = resolve_continuous_batching_config(text, asked, None, processors.do_processing)
            helper = DistributedHelper(None, None)
            cache = PagedAttentionCache(
                text, config, model.device, helper, model.dtype, model._supports_logits_to_keep()
            )
            handed = Blocks(cache, options.prefix_caching)
            scheduler = InOrder(cache, handed, options.max_seqs)
            made = ContinuousBatchProcessor(
                cache=cache,
                config=text,
                generation_config=generation,
                continuous_batching_config=config,
                logit_processor=processors,
                input_queue=None,
                cancel_queue=None,
                output_router=_Collector(),
                background_thread_status=BackgroundThreadStatus(),
                model_device=model.device,
                model_dtype=model.dtype,
                scheduler=scheduler,
                distributed_helper=helper,
            )
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"transformers could not start: {sentence(error)}") from error
    needed, library = _NEEDED["ContinuousBatchProcessor"], f"transformers {transformers_version()}"
    require_calls(made, "ContinuousBatchProcessor", needed, library)
    return made


class _Collector:
    """Replaces transformers' router of outputs: they are taken after every iteration."""

    def __init__(self) -> None:
        self._outputs: SimpleQueue[Any] = SimpleQueue()

    def deliver_batch(self, outputs: list[Any]) -> None:
        for output in outputs:
            self._outputs.put(output)

    def take(self) -> list[Any]:
        taken = []
        while not self._outputs.empty():
            taken.append(self._outputs.get())
        return taken
