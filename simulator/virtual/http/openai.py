"""vLLM's OpenAI endpoints: completions and chat, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rollcast.simulator.virtual.ask import Answer, Ask, EngineError
from rollcast.simulator.virtual.engine import answer_of
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response, whole
from rollcast.simulator.virtual.wall import EPOCH_S

LOGPROB = -1.0
"""Of every token: a placeholder."""
COMPLETION_TOKENS = 16
"""OpenAI's default of ``max_tokens`` for completions."""


def extra(answer: Answer) -> dict[str, Any]:
    """What the simulation knows beyond the API, under the key ``rollcast``."""
    return {
        "versions": [[part.version, part.tokens] for part in answer.versions],
        "reward": answer.reward,
        "group": answer.group,
        "index": answer.index,
        "turns_left": answer.turns_left,
        "environment_s": answer.environment_s,
        "asked_s": answer.asked_s,
        "end_s": answer.end_s,
    }


class Sampling:
    """A completion (``chat`` False) or chat, asked of an engine. Raises BadRequestError."""

    def __init__(self, fleet: Fleet, replica: int | None, body: Mapping[str, Any], chat: bool):
        self.chat, self.body, self.fleet = chat, body, fleet
        self.count = whole(body, "n", 1) or 1
        if chat:
            most = whole(body, "max_completion_tokens", whole(body, "max_tokens", None))
            prompts = [self._messages(body)]
        else:
            most = whole(body, "max_tokens", COMPLETION_TOKENS)
            prompts = _prompts(body)
        name = body.get("request_id")
        self.asks: list[Ask] = []
        for prompt in prompts:
            for i in range(self.count):
                numbered = name if name is None or self.count == 1 else f"{i}_{name}"
                self.asks.append(fleet.ask(prompt, most, replica=replica, request_id=numbered))

    @staticmethod
    def _messages(body: Mapping[str, Any]) -> Any:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages must be a list of messages")
        return messages

    async def whole(self) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        try:
            answers = [await answer_of(self.fleet, ask) for ask in self.asks]
        except BaseException:
            self.fleet.abort([ask for ask in self.asks if not ask.pending.done])
            raise
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        prompt = sum(answer.prompt_tokens for answer in answers[:: self.count])
        new = sum(answer.new_tokens for answer in answers)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": sum(a.cached_tokens for a in answers)},
        }
        return self._frame(choices, usage=usage)

    def _frame(self, choices: Any, chunk: bool = False, **more: Any) -> dict[str, Any]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.asks[0].request_id}",
            "object": kind,
            "created": int(EPOCH_S + self.fleet.now_s),
            "model": self.body.get("model") or self.fleet.scenario.name,
            "choices": choices,
            **more,
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": answer.text}
        else:
            choice["text"] = answer.text
        wants = self.body.get("logprobs")
        choice["logprobs"] = None
        if wants is not None and wants is not False:
            choice["logprobs"] = self._logprobs(answer, int(wants))
        if self.body.get("return_token_ids"):
            choice["token_ids"] = answer.token_ids
            prompt = answer.ask.prompt
            if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
                choice["prompt_token_ids"] = prompt
        choice["rollcast"] = extra(answer)
        return choice

    def _logprobs(self, answer: Answer, wants: int) -> dict[str, Any]:
        ids = answer.token_ids
        tokens = [f"token_id:{token}" for token in ids]
        if self.chat:
            shape: dict[str, Any] = {"logprob": LOGPROB, "bytes": None, "top_logprobs": []}
            return {"content": [{"token": token, **shape} for token in tokens]}
        return {
            "tokens": tokens,
            "token_logprobs": [LOGPROB] * len(ids),
            "top_logprobs": [{token: LOGPROB} for token in tokens] if wants > 1 else None,
            "text_offset": list(range(len(ids))),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """The response of a request that is streamed: server-sent events. Who leaves aborts."""
        chunks: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._stream_one(index, ask, chunks))
            for index, ask in enumerate(self.asks)
        ]
        left = len(tasks)
        try:
            while left:
                chunk = await chunks.get()
                if chunk is None:
                    left -= 1
                    continue
                yield f"data: {json.dumps(chunk)}\n\n".encode()
            yield b"data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            self.fleet.abort([ask for ask in self.asks if not ask.pending.done])

    async def _stream_one(self, index: int, ask: Ask, chunks: asyncio.Queue[Any]) -> None:
        sent = 0
        try:
            while ask.placed < 0 and not ask.pending.done:
                await asyncio.sleep(0)
                await self.fleet.after(0.001, "a request's place")
            engine = self.fleet.engines[max(ask.placed, 0)]
            async for made in engine.stream(ask):
                chunks.put_nowait(self._chunk(index, made - sent, None, None))
                sent = made
            answer = await ask.pending
            chunks.put_nowait(self._chunk(index, answer.new_tokens - sent, answer.finish, answer))
        except EngineError as error:
            chunks.put_nowait({"error": {"message": str(error), "code": error.status}})
        finally:
            chunks.put_nowait(None)

    def _chunk(
        self, index: int, tokens: int, finish: str | None, answer: Answer | None
    ) -> dict[str, Any]:
        text = " ".join(["and"] * tokens)
        part = {"delta": {"content": text}} if self.chat else {"text": text}
        choice: dict[str, Any] = {"index": index, **part, "finish_reason": finish}
        if answer is not None:
            choice["rollcast"] = extra(answer)
        return self._frame([choice], chunk=True)


def _prompts(body: Mapping[str, Any]) -> list[Any]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, int) for part in prompt):
            return [prompt]
        if all(isinstance(part, str | list) for part in prompt):
            return prompt
    raise BadRequestError("prompt must be a text, token identifiers, or a list of either")


async def sample(fleet: Fleet, replica: int | None, request: Request, chat: bool) -> Response:
    """Answers ``/v1/completions`` or ``/v1/chat/completions``."""
    sampling = Sampling(fleet, replica, request.body, chat)
    if request.body.get("stream"):
        return Response(stream=sampling.events())
    return Response(await sampling.whole())
