"""Workers on a Ray cluster (extra ``rollcast[ray]``), one task at a time per core. Ray repeats a
task whose worker or node dies, up to `MOST_TRIES` times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.workers import MOST_TRIES, Died, Work

LOCAL = "local"  # starts a Ray here that ends with the plan
_AHEAD = 2  # tasks submitted per core


def _done(work: Work, task: Any) -> Any:
    """What a worker does."""
    return work(task)


class OnRay:
    """The cores of a Ray cluster. address: of its head, ``auto``, or `LOCAL`. cores: of a local
    one; default all.

    Raises ScenarioError (``--ray``) without Ray, or if no cluster answers.
    """

    def __init__(self, work: Work, address: str = LOCAL, cores: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise ScenarioError(
                "--ray", "Ray is not installed; install rollcast[ray], or leave it out"
            ) from None
        self._ray = ray
        self._work, self._address, self._cores = work, address, cores
        self._begun = False
        self.count = 1

    def __enter__(self) -> OnRay:
        ray = self._ray
        if not ray.is_initialized():
            try:
                if self._address == LOCAL:
                    ray.init(
                        num_cpus=self._cores,
                        include_dashboard=False,
                        log_to_driver=False,
                        configure_logging=False,
                    )
                else:
                    ray.init(address=self._address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise ScenarioError(
                    "--ray", f"no Ray cluster answers at {self._address}: {reason}"
                ) from None
            self._begun = True
        self.count = max(1, int(ray.cluster_resources().get("CPU", 1)))
        held = ray.put(self._work)

        remote: Any = ray.remote(_done).options(num_cpus=1, max_retries=MOST_TRIES - 1)
        self._submit = partial(remote.remote, held)
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun:
            with suppress(Exception):  # a cluster that is gone already
                self._ray.shutdown()
            self._begun = False

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number, result) as tasks complete. Raises errors of the work."""
        ray = self._ray
        waiting = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        while waiting or running:
            while waiting and len(running) < _AHEAD * self.count:
                number = waiting.popleft()
                running[self._submit(tasks[number])] = number
            [done], _ = ray.wait(list(running), num_returns=1)
            number = running.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause or error) from None
            except ray.exceptions.RayError as error:
                reason = str(error).splitlines()[0][:200]
                result = Died(f"its worker died {MOST_TRIES} times ({reason})")
            yield number, result
