"""Places that a run holds on a cluster: all or none, and for those that replace its actors, too."""

from __future__ import annotations

from typing import Any

import pytest

from rollcast.engine.actors.transport import Need
from rollcast.engine.errors import EngineError


class Placed:
    def group(self) -> str | None:
        import ray

        found = ray.util.get_current_placement_group()
        return None if found is None else str(found.id.hex())


def test_actors_have_places_and_so_have_those_that_replace_them(ray_transport: Any) -> None:
    ray = pytest.importorskip("ray")
    needs = [Need(2), Need(2), Need(1)]
    ray_transport.reserve(needs)
    [(name, table)] = ray.util.placement_group_table().items()
    assert (table["state"], table["strategy"]) == ("CREATED", "PACK")
    assert [place["CPU"] for place in table["bundles"].values()] == [2, 2, 1]
    # The small one comes first, and must not take the place of a large one.
    actors = [ray_transport.start(Placed, (), need, "placed") for need in reversed(needs)]
    calls = [actor.call("group") for actor in actors]
    for number in (2, 1, 0, 2):  # killed while they start, too
        ray_transport.kill(actors[number])
        need = needs[2 - number]
        actors[number] = ray_transport.start(Placed, (), need, "another")
        calls[number] = actors[number].call("group")
    for call in calls:
        assert ray_transport.wait([call], 60.0), "an actor found no place"
    assert {ray_transport.get(call) for call in calls} == {name}
    with pytest.raises(EngineError, match="no place for an actor of 0 GPUs and 1 CPUs is reserved"):
        ray_transport.start(Placed, (), Need(1), "one too many")
    # What is held is nobody else's: 64 CPUs are counted on this machine.
    with pytest.raises(EngineError, match=r"others hold some: after 0.2 s 0 GPUs and 59 CPUs"):
        ray_transport.reserve([Need(60)], within_s=0.2)
    assert len(ray.util.placement_group_table()) == 2  # the second is removed
    assert {each["state"] for each in ray.util.placement_group_table().values()} == {
        "CREATED",
        "REMOVED",
    }
