"""The inference server that verl's workers feed: interrupted, given new weights, and resumed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.in_verl.run import write_model
from benchmarks.in_verl.server import Server
from rollcast.engine.tasks.model import build_model

LONG = 400
CONFIG = SimpleNamespace(
    max_num_seqs=8,
    max_num_batched_tokens=512,
    enable_prefix_caching=True,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    response_length=LONG,
    ignore_eos=True,
)


def test_a_response_goes_on_under_new_weights(tmp_path: Path) -> None:
    write_model(tmp_path)

    async def story() -> None:
        server = Server(CONFIG, str(tmp_path), seed=0)
        await server.ready()
        prompts = [[5 + n, 7, 9] for n in range(4)]

        async def ask(name: str, tokens: list[int], limit: int) -> Any:
            return await server.generate(name, tokens, {"max_tokens": limit})

        asked = [asyncio.ensure_future(ask(f"a{n}", p, LONG)) for n, p in enumerate(prompts)]
        await asyncio.sleep(0.3)
        await server.abort_all_requests()
        parts = await asyncio.gather(*asked)
        assert {part.stop_reason for part in parts} == {"aborted"}
        assert all(part.extra_fields["global_steps"] == 0 for part in parts)
        assert 0 < sum(len(part.token_ids) for part in parts) < 4 * LONG

        longer = [p + part.token_ids for p, part in zip(prompts, parts, strict=True)]
        again = [
            asyncio.ensure_future(ask(f"b{n}", tokens, LONG - len(tokens) + 3))
            for n, tokens in enumerate(longer)
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in again)  # nothing is let in
        new = {name: p.detach() for name, p in build_model(1).named_parameters()}
        await server.load(new, 7)
        await server.resume_generation()
        for tokens, part in zip(longer, await asyncio.gather(*again), strict=True):
            assert part.stop_reason == "completed"
            assert part.extra_fields["global_steps"] == 7
            assert len(tokens) - 3 + len(part.token_ids) == LONG
            whole = [*tokens, *part.token_ids]
            scores = await asyncio.wrap_future(
                server._pump.call(lambda engine, whole=whole: engine.log_probs([whole]))
            )
            own = torch.tensor(scores[0][len(tokens) - 1 :])
            assert torch.allclose(own, torch.tensor(part.log_probs), atol=1e-4)

    asyncio.run(asyncio.wait_for(story(), 600))


def test_what_the_engine_refuses_is_said(tmp_path: Path) -> None:
    write_model(tmp_path)

    async def story() -> None:
        server = Server(CONFIG, str(tmp_path), seed=0)
        with pytest.raises(Exception, match="empty prompt"):
            await server.generate("a", [], {})
        whole = await server.generate("b", [5, 6], {"max_tokens": 5})
        assert len(whole.token_ids) == 5

    asyncio.run(asyncio.wait_for(story(), 600))
