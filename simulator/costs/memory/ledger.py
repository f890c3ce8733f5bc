"""A ledger of memory: bytes of each part on one GPU, by phase of a step and by who holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

MemoryPhase = Literal[
    "start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"
]
MEMORY_PHASES: tuple[MemoryPhase, ...] = (
    *("start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"),
)
MemoryPart = Literal[
    "weights",  # as the engine or the passes read them, kept between phases
    "master_weights",  # of the optimiser, beside those
    "gradients",
    "optimizer",  # its states, and what its step needs for a while
    "gathered_weights",  # whole layers and the LM head, while they are at work
    "activations",
    "logits",
    "kv_pool",
    "graphs",  # captured CUDA graphs
    "reserve",  # the engine's workspace and activations
    "communication",  # buffers of collectives
    "context",  # CUDA's own, and libraries'
    "fragmentation",  # reserved by the allocator, in use by nobody
]


ENGINE_SHARE = "engine_share"
"""Name of the pool that is an engine's share of its GPUs' memory."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one role holds on each GPU of a pool in a phase. role: trainer, engine, critic,
    reference or reward. bytes: by `MemoryPart`, those at 0 left out."""

    phase: MemoryPhase
    role: str
    pool: str
    bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return math.fsum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs that hold the same. name: colocated, trainer, engine, critic, reference or reward; or
    engine_share, that of an engine's GPUs which it may use."""

    name: str
    gpu: str
    gpus: int
    capacity_bytes: float


class Peak(NamedTuple):
    """The phase and pool that come closest to their capacity. role: who holds most there beyond
    what it holds between phases. part: the largest part of that role."""

    phase: MemoryPhase
    role: str
    part: str
    pool: str
    bytes: float
    capacity_bytes: float

    @property
    def left_bytes(self) -> float:
        """What remains; negative where it does not fit."""
        return self.capacity_bytes - self.bytes


UNCERTAIN: frozenset[str] = frozenset(
    {*("activations", "logits", "graphs", "reserve", "communication", "context"), "fragmentation"}
)
"""The parts that no configuration fixes: their sum is taken to be log-normal."""

ALWAYS_ON_HOST = frozenset({"processes", "system"})
"""Parts of host memory that are there whatever waits in it."""

REFUSED_BELOW = 0.1
"""A run is refused where the chance that it fits is below this, and only forecast above."""

NEARLY = 0.975
"""Share of the highest chance to fit that is said, of one that is nearly sure."""


@dataclass(frozen=True)
class Ledger:
    """What every pool holds in every phase, and whether it fits.

    holdings: of every role by phase and pool. pools: by their names in ``holdings``. host_bytes:
    of a node's host memory, by part. host_capacity_bytes: what of it may be in use, and
    host_memory_bytes what the node has, None if unknown. host_spread: as ``spread``, of that.
    spread: standard deviation of the log of measured over forecast `UNCERTAIN` parts.
    configured_spread: that of the other parts, of which nobody knows every copy and buffer.
    unforeseen: chance that a run is out of memory by what no setting says.
    likely: chance that it fits, over what nobody said; None where that is this ledger's alone.
    """

    holdings: tuple[Holding, ...]
    pools: Mapping[str, Pool]
    host_bytes: Mapping[str, float]
    host_capacity_bytes: float | None
    spread: float
    configured_spread: float = 0.0
    unforeseen: float = 0.0
    host_spread: float = 0.0
    host_memory_bytes: float | None = None
    likely: float | None = None

    def of(self, phase: MemoryPhase, pool: str) -> tuple[Holding, ...]:
        """The holdings of a phase on a pool."""
        return tuple(h for h in self.holdings if h.phase == phase and h.pool == pool)

    def total(self, phase: MemoryPhase, pool: str) -> float:
        """Bytes on each GPU of a pool in a phase, by all roles."""
        return math.fsum(holding.total for holding in self.of(phase, pool))

    @cached_property
    def places(self) -> tuple[tuple[MemoryPhase, str], ...]:
        """The (phase, pool) in which anything is held, in order of the phases."""
        held = {(holding.phase, holding.pool) for holding in self.holdings}
        return tuple(
            (phase, pool) for phase in MEMORY_PHASES for pool in self.pools if (phase, pool) in held
        )

    @cached_property
    def peak(self) -> Peak:
        """Where a pool is fullest for its capacity; the first phase of several."""
        return self._fullest(self.places)

    @cached_property
    def fullest_gpu(self) -> Peak:
        """The same of what whole GPUs hold: `ENGINE_SHARE` is a part of one."""
        return self._fullest(tuple(at for at in self.places if at[1] != ENGINE_SHARE))

    def _fullest(self, places: Iterable[tuple[MemoryPhase, str]]) -> Peak:
        phase, pool = max(places, key=lambda at: self.total(*at) / self.pools[at[1]].capacity_bytes)
        between = dict.fromkeys({h.role for h in self.holdings if h.pool == pool}, math.inf)
        for holding in self.holdings:
            if holding.pool == pool:
                between[holding.role] = min(between[holding.role], holding.total)
        most = max(self.of(phase, pool), key=lambda h: (h.total - between[h.role], h.total))
        part = max(most.bytes, key=most.bytes.__getitem__)
        capacity = self.pools[pool].capacity_bytes
        return Peak(phase, most.role, part, pool, self.total(phase, pool), capacity)

    @property
    def fits(self) -> bool:
        """Whether the forecast is within every pool's capacity, and within host memory if that is
        known."""
        return self.peak.left_bytes >= 0 and self.host_left_bytes >= 0

    @property
    def host_left_bytes(self) -> float:
        """What a node's processes leave of its host memory; infinite where nobody says what it
        has."""
        if self.host_capacity_bytes is None:
            return math.inf
        return self.host_capacity_bytes - self.host_total

    @property
    def host_total(self) -> float:
        """Bytes of a node's host memory."""
        return math.fsum(self.host_bytes.values())

    @property
    def fits_probability(self) -> float:
        """Chance that the fullest place fits, and nothing unforeseen comes: `fits` is that it is at
        least one half."""
        if self.likely is not None:
            return self.likely
        return self.of_chances([*(self.chance(*at) for at in self.places), self.host_chance])

    @property
    def sure(self) -> bool:
        """Whether it fits but for what no setting says."""
        return self.fits_probability >= 1 - self.unforeseen - 1e-9

    @property
    def nearly_sure(self) -> bool:
        """Whether that is so but for little: other settings would hardly make it likelier."""
        return self.fits_probability >= NEARLY * (1 - self.unforeseen)

    def of_chances(self, chances: Iterable[float]) -> float:
        """Chance that several things go well of which the least likely decides."""
        return min(1 - self.unforeseen, *chances)

    @property
    def host_chance(self) -> float:
        """Chance that a node's host memory is enough; 1 where nobody says what it has."""
        if self.host_capacity_bytes is None:
            return 1.0
        return chance_of_room(
            self.host_total, self.host_capacity_bytes, self.host_spread or self.spread
        )

    @property
    def host_decides(self) -> bool:
        """Whether host memory is less likely to be enough than that of any GPU."""
        return self.host_chance < min([1.0, *(self.chance(*at) for at in self.places)])

    @property
    def host_matters(self) -> bool:
        """Whether that is so, or a node has too little."""
        return self.host_decides or self.host_left_bytes < 0

    @property
    def most_on_host(self) -> str:
        """The largest part of what waits in host memory; '' where nothing does."""
        waiting = {
            name: size for name, size in self.host_bytes.items() if name not in ALWAYS_ON_HOST
        }
        return max(waiting, key=waiting.__getitem__, default="")

    def chance(self, phase: MemoryPhase, pool: str) -> float:
        """Chance that a phase fits on a pool, as `chance_of` says."""
        held = [holding.bytes for holding in self.of(phase, pool)]
        capacity = self.pools[pool].capacity_bytes
        return chance_of(held, capacity, self.spread, self.configured_spread)

    def plain(self) -> dict[str, Any]:
        """All of it, ready for JSON: whole bytes."""
        peak = self.peak
        return {
            "fits": self.fits,
            "fits_probability": self.fits_probability,
            "peak": {
                **{name: getattr(peak, name) for name in ("phase", "role", "part", "pool")},
                "bytes": round(peak.bytes),
                "capacity_bytes": round(peak.capacity_bytes),
            },
            "phases": [
                {
                    "phase": holding.phase,
                    "role": holding.role,
                    "pool": holding.pool,
                    "gpus": self.pools[holding.pool].gpus,
                    "bytes": {part: round(size) for part, size in holding.bytes.items()},
                }
                for holding in self.holdings
            ],
            "host_bytes": {part: round(size) for part, size in self.host_bytes.items()},
            "host_capacity_bytes": None
            if self.host_capacity_bytes is None
            else round(self.host_capacity_bytes),
        }


def chance_of(
    held: Iterable[Mapping[str, float]],
    capacity_bytes: float,
    spread: float,
    configured_spread: float = 0.0,
) -> float:
    """Chance that parts fit together: the `UNCERTAIN` ones are log-normal with ``spread``, wider by
    a share ``configured_spread`` of all others."""
    sure = uncertain = 0.0
    for parts in held:
        for part, size in parts.items():
            if part in UNCERTAIN:
                uncertain += size
            else:
                sure += size
    if uncertain > 0:
        spread = math.hypot(spread, configured_spread * sure / uncertain)
    return chance_of_room(uncertain, capacity_bytes - sure, spread)


def chance_of_room(bytes_wanted: float, room_bytes: float, spread: float) -> float:
    """Chance that a log-normal size with median ``bytes_wanted`` is at most ``room_bytes``."""
    if room_bytes < 0:
        return 0.0
    if bytes_wanted <= 0:
        return 1.0
    if room_bytes == 0:
        return 0.0
    return NormalDist().cdf(math.log(room_bytes / bytes_wanted) / spread)
