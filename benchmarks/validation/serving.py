"""Requests with lengths and arrival times, through one simulated replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.rollout import Rollout, Segment
from rollcast.simulator.core.world import ClusterShape, Ended, Event
from rollcast.simulator.costs.base import AdjustedCost, CostModel, Iteration
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.workload.base import GroupDraw


@dataclass(frozen=True, slots=True)
class Request:
    """A request: its prompt, its response, and when it arrives (seconds since the start)."""

    prompt_tokens: int
    new_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """When a request's first token and its last came out, seconds since the start."""

    first_token_s: float
    end_s: float


class _Requests:
    """A workload whose group i is request i."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self.warnings: tuple[str, ...] = ()
        self.max_new_tokens = max(request.new_tokens for request in requests)
        self.max_prompt_tokens = max(request.prompt_tokens for request in requests)

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        request = self._requests[group]
        return GroupDraw(request.prompt_tokens, [request.new_tokens] * size, [0.0] * size)


class _Logged(AdjustedCost):
    """Notes each iteration with prefill: (start_s, seconds, tokens)."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost)
        self.world: SimulatedCluster | None = None
        self.prefills: list[tuple[float, float, int]] = []

    def mixed_iteration_s(self, work: Iteration) -> float:
        assert self.world is not None
        seconds = self.inner.mixed_iteration_s(work)
        self.prefills.append((self.world.now_s, seconds, work.prefill_tokens))
        return seconds

    @property
    def actors(self) -> None:
        """One replica, and nothing else."""


def serve(requests: Sequence[Request], engine: EngineSpec, cost: CostModel) -> list[Served]:
    """When each request is served by one replica, in the order given.

    Requests are submitted at their arrival, in order of it. Raises ScenarioError for no request or
    one that could never fit, RunError for lost requests.
    """
    if not requests:
        raise ScenarioError("requests", "there are none")
    logged = _Logged(cost)
    shape = ClusterShape(replicas=1, gpus_per_replica=1, trainer_gpus=1, colocated=False)
    world = logged.world = SimulatedCluster(shape, engine, logged, _Requests(requests))
    rollouts = [Rollout(number, 0) for number in range(len(requests))]
    events: list[Event] = []
    order = sorted(range(len(requests)), key=lambda number: requests[number].arrival_s)
    position = 0
    while position < len(order):
        due = requests[order[position]].arrival_s
        if due > world.now_s:
            while news := world.wait(due):
                events += news
        together = position + 1
        while together < len(order) and requests[order[together]].arrival_s <= due:
            together += 1
        world.submit([rollouts[number] for number in order[position:together]])
        position = together
    while len(events) < len(requests):
        events += world.wait()
    segments = {event.segment.group: event.segment for event in events if isinstance(event, Ended)}
    if len(segments) != len(requests):
        lost = len(requests) - len(segments)
        raise RunError(f"{lost} of {len(requests)} requests were lost")
    first = _first_tokens([segments[number] for number in order], logged.prefills)
    by_number = dict(zip(order, first, strict=True))
    return [Served(by_number[number], segments[number].end_s) for number in range(len(requests))]


def _first_tokens(
    segments: Sequence[Segment], prefills: Sequence[tuple[float, float, int]]
) -> list[float]:
    """The end of the iteration in which each prompt was computed to its end; segments in order of
    their submission.

    The engine admits and prefills in that order, so the tokens prefilled so far say whose prompt is
    through; one iteration early where a chunk left exactly one token of it, which the replica then
    computes as it decodes. A preempted rollout would break that order: then first tokens are not
    known, and the start of each rollout stands for its first token.
    """
    if any(segment.preemptions for segment in segments):
        return [segment.start_s for segment in segments]
    done = list(accumulate(tokens for _, _, tokens in prefills))
    first, wanted, iteration = [], 0, 0
    for segment in segments:
        wanted += segment.prefill_tokens
        while done[iteration] < wanted:
            iteration += 1
        start_s, seconds, _ = prefills[iteration]
        first.append(start_s + seconds)
    return first
