"""SGLang's HTTP interface as far as slime's rollout asks for it: one address that is the router and
its only server. A response takes its tokens' time, and ends early where it is aborted."""

import asyncio
import math
import random
import threading
import time
from typing import Any

from aiohttp import web

TOKENS_A_SECOND = 400.0
END = 1


class FakeSGLang:
    """Serves in a thread until `close`. served: tokens and ending of each request."""

    def __init__(self) -> None:
        self.served: list[tuple[int, str]] = []
        self.aborts = 0
        self._running = 0
        self._stop: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/workers", self._workers)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port: int = runner.addresses[0][1]
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _generate(self, request: web.Request) -> web.Response:
        asked: dict[str, Any] = await request.json()
        limit = asked["sampling_params"]["max_new_tokens"]
        rng = random.Random(len(self.served) + self._running)
        wanted = max(1, int(math.exp(rng.gauss(3.4, 0.7))))
        whole, stop = min(wanted, limit), self._stop
        assert stop is not None
        self._running += 1
        began = time.monotonic()
        try:
            await asyncio.wait_for(stop.wait(), whole / TOKENS_A_SECOND)
            made = min(whole - 1, int((time.monotonic() - began) * TOKENS_A_SECOND))
            ending = "abort"
        except TimeoutError:
            made, ending = whole, "stop" if wanted <= limit else "length"
        self._running -= 1
        self.served.append((made, ending))
        tokens = [[-1.0, rng.randrange(3, 90), None] for _ in range(made)]
        if ending == "stop":
            tokens[-1][1] = END
        meta = {
            "output_token_logprobs": tokens,
            "finish_reason": {"type": ending},
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": made,
            "cached_tokens": 0,
        }
        return web.json_response({"text": "x" * made, "meta_info": meta})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts += 1
        stop, self._stop = self._stop, asyncio.Event()
        stop.set()
        return web.json_response({})

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_reqs": self._running}]})

    async def _workers(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": f"http://127.0.0.1:{self.port}"}]})
