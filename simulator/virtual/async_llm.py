"""vLLM's `AsyncLLM` as RL stacks call it, on a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.engine import Engine, PauseMode, answer_of
from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.report import caller

_LOGPROB = -1.0


@dataclass
class CompletionOutput:
    """`vllm.outputs.CompletionOutput`."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None
    stop_reason: str | None = None


@dataclass
class RequestOutput:
    """`vllm.outputs.RequestOutput`. answer: the simulated engine's."""

    request_id: str
    prompt: Any
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    answer: Answer | None = field(default=None, repr=False)


class AsyncLLM:
    """The methods of `vllm.v1.engine.async_llm.AsyncLLM` that take time: ``generate`` and
    ``abort``, and the orders of RL. Any other is refused by name."""

    def __init__(self, fleet: Fleet, replica: int = 0) -> None:
        self._fleet, self._engine = fleet, fleet.engines[replica]

    @property
    def engine(self) -> Engine:
        """The simulated engine."""
        return self._engine

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yields the finished output. A caller that leaves aborts the request."""
        if isinstance(prompt, dict):
            prompt = prompt.get("prompt_token_ids") or prompt.get("prompt")
        most = getattr(sampling_params, "max_tokens", None)
        ask = self._fleet.ask(prompt, most, replica=self._engine.number, request_id=request_id)
        try:
            answer = await answer_of(self._fleet, ask)
        except GeneratorExit:
            self._fleet.abort([ask])
            raise
        ids = answer.token_ids
        wants = getattr(sampling_params, "logprobs", None) is not None
        output = CompletionOutput(
            0,
            answer.text,
            ids,
            _LOGPROB * len(ids),
            [{token: _LOGPROB} for token in ids] if wants else None,
            answer.finish,
        )
        sent = prompt if isinstance(prompt, list) else []
        cached = answer.cached_tokens
        yield RequestOutput(request_id, prompt, sent, [output], True, cached, answer)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests by name."""
        self._engine.abort([request_id] if isinstance(request_id, str) else list(request_id))

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True, **_: Any
    ) -> None:
        """Stops, in the modes abort, wait and keep."""
        await self._engine.pause(mode)
        if clear_cache and mode != "keep":
            self._engine.flush_cache()

    async def resume_generation(self) -> None:
        """Goes on."""
        await self._engine.resume()

    async def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._engine.paused

    async def sleep(self, level: int = 1, **_: Any) -> None:
        """Gives its memory away."""
        await self._engine.sleep(level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Takes its memory back."""
        await self._engine.wake_up()

    async def is_sleeping(self) -> bool:
        """Whether it sleeps."""
        return self._engine.sleeping

    async def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        """Empties the prefix cache, if nothing is in flight."""
        return self._engine.flush_cache()

    async def update_weights(self, *_: Any, **__: Any) -> None:
        """Takes the trainer's weights."""
        await self._engine.update_weights()

    async def collective_rpc(self, method: str, *_: Any, **__: Any) -> list[Any]:
        """A call of the workers: one whose name says that it updates weights takes as long."""
        if "weight" in method and any(word in method for word in ("update", "load", "receive")):
            await self._engine.update_weights()
        return [None]

    async def check_health(self) -> None:
        """Raises EngineError of a dead engine."""
        self._engine._alive()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RefusedError(f"AsyncLLM.{name} is not modelled; at {caller()}")
