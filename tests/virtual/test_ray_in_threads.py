"""Ray's actors on threads of the virtual run: code that imports ``ray``, unchanged."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from rollcast.simulator.virtual.clock import clock
from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.ray_in_threads import RayActorError, ray_in_threads
from rollcast.virtual import Fleet, Prompt, try_control
from tests.virtual.test_laws import scenario as small


def in_run(code: Callable[[Any], Any], seed: int = 0) -> tuple[Any, float]:
    """What code of ``ray`` returns, and the virtual seconds that it takes."""
    with clock(seed=seed) as running, ray_in_threads() as ray:
        return code(ray), running.now_s


def test_async_methods_run_side_by_side_and_plain_ones_one_at_a_time() -> None:
    def code(ray: Any) -> Any:
        @ray.remote(num_gpus=1)
        class Worker:
            def __init__(self, first: int) -> None:
                self.count = first

            async def beside(self, seconds: float) -> float:
                await asyncio.sleep(seconds)
                return seconds

            def alone(self, by: int) -> int:
                time.sleep(1.0)
                self.count += by
                return self.count

        worker = Worker.options(name="w").remote(first=10)
        assert ray.get([worker.beside.remote(s) for s in (3.0, 1.0, 2.0)]) == [3.0, 1.0, 2.0]
        assert time.monotonic() == 3.0
        again = ray.get_actor("w")
        assert ray.get([again.alone.options(x=1).remote(by) for by in (1, 2, 3)]) == [11, 13, 16]
        with pytest.raises(AttributeError, match="Worker has no method nothing"):
            worker.nothing.remote()

    assert {in_run(code, seed)[1] for seed in range(4)} == {6.0}


def test_references_are_awaited_waited_for_and_handed_on() -> None:
    def code(ray: Any) -> Any:
        @ray.remote
        def later(seconds: float, value: Any) -> Any:
            time.sleep(seconds)
            return value

        async def awaited() -> Any:
            return await asyncio.gather(later.remote(2.0, "a"), later.remote(1.0, ray.put("b")))

        assert asyncio.run(awaited()) == ["a", "b"]
        refs = [later.remote(seconds, seconds) for seconds in (5.0, 1.0, 3.0)]
        done, left = ray.wait(refs, num_returns=2)
        assert (ray.get(done), left) == ([1.0, 3.0], [refs[0]])
        assert ray.wait(refs[:1], timeout=0.5) == ([], refs[:1])
        with pytest.raises(ray.exceptions.GetTimeoutError, match=r"1 of 1 calls took over 0\.5 s"):
            ray.get(refs[0], timeout=0.5)
        return ray.get(refs[0])

    assert in_run(code) == (5.0, 7.0)


def test_errors_and_deaths_reach_the_caller() -> None:
    def code(ray: Any) -> None:
        @ray.remote
        class Worker:
            def __init__(self, fails: bool) -> None:
                if fails:
                    raise OSError("no GPU")

            async def work(self) -> None:
                await asyncio.sleep(100.0)

            def breaks(self) -> None:
                raise ValueError("broken")

        with pytest.raises(OSError, match="no GPU"):
            ray.get(Worker.remote(True).breaks.remote())
        worker = Worker.remote(False)
        with pytest.raises(ValueError, match="broken"):
            ray.get(worker.breaks.remote())
        running = worker.work.remote()
        ray.kill(worker)
        for call in (running, worker.work.remote()):
            with pytest.raises(RayActorError, match="killed"):
                ray.get(call)

    assert in_run(code)[1] == 0.0


def test_a_controller_of_actors_runs_on_simulated_engines() -> None:
    def main(fleet: Fleet) -> list[int]:
        with ray_in_threads():
            import ray

            @ray.remote
            class Server:
                def __init__(self, replica: int) -> None:
                    self.engine = fleet.engines[replica]

                async def generate(self, number: int) -> Any:
                    return await self.engine.generate(Prompt(number))

            servers = [Server.remote(replica) for replica in range(len(fleet.engines))]
            asks = [servers[n % len(servers)].generate.remote(n) for n in range(8)]
            return [answer.new_tokens for answer in ray.get(asks)]

    def bare(fleet: Fleet) -> list[int]:
        async def answers() -> list[Any]:
            engines = fleet.engines
            asks = (engines[n % len(engines)].generate(Prompt(n)) for n in range(8))
            return await asyncio.gather(*asks)

        return [answer.new_tokens for answer in asyncio.run(answers())]

    of_actors, without = try_control(main, small()), try_control(bare, small())
    assert of_actors.value == without.value
    assert of_actors.end_s == pytest.approx(without.end_s, abs=1e-6)


def test_what_is_not_modelled_is_refused_with_the_line() -> None:
    def code(ray: Any) -> None:
        with pytest.raises(RefusedError, match=r"ray\.nodes is not modelled.*test_ray_in_threads"):
            ray.nodes()
        with pytest.raises(ValueError, match="no actor named x"):
            ray.get_actor("x")

    before = sys.modules.get("ray")
    in_run(code)
    assert sys.modules.get("ray") is before
