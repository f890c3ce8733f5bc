"""GPUs that replicas share with the trainer's ranks, on Ray, which counts them without there being
any: who sees which."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")

from actor_threads import FOLDERS

from rollcast.engine.actors.on_ray import RayTransport
from rollcast.engine.actors.transport import Need, Sharing
from rollcast.engine.errors import EngineError
from rollcast.engine.start import shared
from rollcast.simulator.world import ClusterShape


class Seeing:
    def devices(self) -> list[str]:
        return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


@pytest.fixture(scope="module")
def four_gpus() -> Iterator[RayTransport]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        # As where others have started Ray: it hides the GPUs from who has asked for none.
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        transport = RayTransport(gpus=4)
        yield transport
        transport.close()


def test_each_rank_sees_a_gpu_of_its_replica(four_gpus: RayTransport) -> None:
    shape = ClusterShape(2, 2, 3, colocated=True)
    needs = shared([Need(2, 2), Need(2, 2), *[Need(1, 1)] * 3], shape)
    four_gpus.require(needs)  # seven actors' worth of GPUs are four
    four_gpus.reserve(needs)
    actors = [four_gpus.start(Seeing, (), need, "seeing") for need in needs]
    four_gpus.kill(actors[0])  # and what replaces it sees what it saw
    actors[0] = four_gpus.start(Seeing, (), needs[0], "another")
    first, second, *ranks = (four_gpus.get(actor.call("devices")) for actor in actors)
    assert len(first) == len(second) == 2
    assert sorted(first + second) == ["0", "1", "2", "3"]
    assert ranks == [[first[0]], [first[1]], [second[0]]]
    with pytest.raises(EngineError, match="no place for an actor of 1 GPUs"):
        four_gpus.start(Seeing, (), Need(1, 1, sharing=Sharing(7, (0,))), "elsewhere")


def test_more_shared_gpus_than_there_are(four_gpus: RayTransport) -> None:
    shape = ClusterShape(5, 1, 5, colocated=True)
    with pytest.raises(EngineError, match="asks for 5 GPUs, but Ray has 4"):
        four_gpus.require(shared([Need(1, 1)] * 10, shape))
