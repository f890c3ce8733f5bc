"""transformers' continuous batching as verl's rollout: a server actor that samples, an adapter in
the training worker that hands it weights, and the replica that verl's managers drive.

The engine is `rollcast.engine.hf.replica.HfReplica` in one thread, an iteration at a time; commands
are taken between two iterations. Memory is not shared with the trainer: sleeping frees nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from rollcast.engine.edges import EngineIteration, Response, Sampling

_CORE = "ROLLCAST_SERVER_CORE"
"""Environment variable: the core that the engine's thread is bound to, if any."""
WORK = "ROLLCAST_SERVER_WORK"
"""Environment variable: a file that a line is added to for each weights: the engine's iterations
since the last ones, their seconds, and the rollouts and tokens prefilled in them."""


class Pump(threading.Thread):
    """Runs an engine: commands first, then an iteration, as long as any rollout is left."""

    def __init__(self, start_engine: Callable[[], Any]) -> None:
        super().__init__(daemon=True, name="engine")
        self._start_engine = start_engine
        self._commands: SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = SimpleQueue()
        self._waiting: dict[str, Future[Response]] = {}
        self._work = Counter[str]()

    def call(self, command: Callable[[Any], Any]) -> Future[Any]:
        """The result of ``command(engine)``, between two iterations."""
        done: Future[Any] = Future()
        self._commands.put((command, done))
        return done

    def generate(self, request_id: str, prompt: list[int], **given: Any) -> Future[Response]:
        """The whole response, or what there is of it at an abort."""
        whole: Future[Response] = Future()

        def submit(engine: Any) -> None:
            try:
                engine.submit(request_id, prompt, **given)
                self._waiting[request_id] = whole
            except Exception as error:
                whole.set_exception(error)

        self.call(submit)
        return whole

    def abort(self) -> Future[int]:
        """How many rollouts were stopped."""

        def stop(engine: Any) -> int:
            responses = engine.abort()
            self._end(responses)
            return len(responses)

        return self.call(stop)

    def run(self) -> None:
        """The thread."""
        if core := os.environ.get(_CORE):
            os.sched_setaffinity(0, {int(core)})
        torch.set_num_threads(1)
        engine = self._start_engine()
        while True:
            self._take(engine)
            try:
                responses = engine.step()
                self._note(engine.last_iteration)
                self._end(responses)
            except Exception as error:
                for whole in self._waiting.values():
                    whole.set_exception(error)
                raise

    def _note(self, iteration: EngineIteration | None) -> None:
        if iteration is not None:
            self._work["iterations"] += 1
            self._work["busy_us"] += round(1e6 * iteration.seconds)
            self._work["rollouts"] += iteration.work.rollouts
            self._work["prefilled_tokens"] += sum(tokens for _, tokens in iteration.prefilled)

    def write_work(self, version: int) -> None:
        """Between two iterations: what was done under the weights before these, to `WORK`."""
        if path := os.environ.get(WORK):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"version": version, **self._work}) + "\n")
        self._work.clear()

    def _take(self, engine: Any) -> None:
        while True:
            try:
                command, done = self._commands.get(block=not engine.unfinished)
            except Empty:
                return
            try:
                done.set_result(command(engine))
            except Exception as error:
                done.set_exception(error)

    def _end(self, responses: list[Response]) -> None:
        for response in responses:
            self._waiting.pop(response.request_id).set_result(response)


class Server:
    """The actor. config: verl's of the rollout. seed: of its random streams."""

    def __init__(self, config: Any, model_path: str, seed: int) -> None:
        self._config, self._seed, self._asked = config, seed, 0
        self._open = asyncio.Event()
        self._open.set()
        self._pump = Pump(lambda: _engine(config, model_path))
        self._pump.start()

    async def ready(self) -> None:
        """Returns when the engine runs."""
        await asyncio.wrap_future(self._pump.call(lambda engine: None))

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """As verl's servers: tokens in, tokens out; waits while generation is paused."""
        await self._open.wait()
        limit = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        self._asked += 1
        response = await asyncio.wrap_future(
            self._pump.generate(
                request_id,
                list(prompt_ids),
                max_new_tokens=max(1, int(limit or self._config.response_length)),
                seed=self._seed * 1_000_003 + self._asked,
                ignore_eos=bool(self._config.ignore_eos),
            )
        )
        made = response.tokens_by_version
        return TokenOutput(
            token_ids=list(response.token_ids),
            log_probs=list(response.log_probs),
            stop_reason="aborted" if response.finish_reason is None else "completed",
            num_preempted=0,
            extra_fields={"global_steps": made[-1][0] if made else await self._version()},
        )

    async def _version(self) -> int:
        version: int = await asyncio.wrap_future(self._pump.call(lambda engine: engine.version))
        return version

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Stops everything, and lets nothing start until `resume_generation`."""
        self._open.clear()
        await asyncio.wrap_future(self._pump.abort())

    async def resume_generation(self) -> None:
        """Lets requests in again."""
        self._open.set()

    async def load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        """New weights; keys and values of the old ones are forgotten."""

        def load(engine: Any) -> None:
            engine.load_weights(weights, version)
            self._pump.write_work(version)

        await asyncio.wrap_future(self._pump.call(load))

    async def sleep(self, *_: Any, **__: Any) -> None:
        """Nothing: the engine has no memory that the trainer could use."""

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = sleep


def _engine(config: Any, model_path: str) -> Any:
    from rollcast.engine.hf.replica import HfReplica
    from rollcast.engine.hf.start import HfOptions

    top_k = int(config.top_k)
    options = HfOptions(
        max_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
        sampling=Sampling(config.temperature, config.top_p, max(top_k, 0)),
    )
    return HfReplica(model_path, options)


def _name(rank: int) -> str:
    return f"transformers_server_{rank}"


class Replica(RolloutReplica):  # type: ignore[misc]
    """One server."""

    async def launch_servers(self) -> None:
        """Starts the server's actor and waits for its engine."""
        rank = self.replica_rank
        actor = ray.remote(Server).options(
            name=_name(rank), max_concurrency=self.max_concurrency, num_cpus=0
        )
        path = self.model_config.get("path")
        server = actor.remote(self.config, path, self.config.get("seed", 0) + rank)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, _name(rank)


class Adapter(BaseRollout):  # type: ignore[misc]
    """In the training worker: hands the weights of its engine to its replica's server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server: Any = None

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Sends all of them at once. One training worker a replica, without tensor parallelism."""
        if self._server is None:
            self._server = ray.get_actor(_name(int(os.environ["RANK"])))
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        await self._server.load.remote(whole, global_steps or 0)

    async def resume(self, tags: list[str]) -> None:
        """Nothing: see `Server.sleep`."""

    async def release(self) -> None:
        """Nothing: see `Server.sleep`."""
