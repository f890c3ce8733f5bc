"""One Ray for the tests of a file that need it, on this machine, with this folder on its path."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from actor_threads import Lent, ray_started

HAVE_VLLM = importlib.util.find_spec("vllm") is not None
HAVE_RAY = importlib.util.find_spec("ray") is not None

if HAVE_VLLM:
    from rollcast.engine.vllm.environment import prepare

    prepare()


@pytest.fixture(scope="module")
def ray_transport() -> Iterator[Any]:
    if not HAVE_RAY:
        pytest.skip("Ray is not installed (rollcast[ray])")
    with ray_started() as transport:
        yield transport


@pytest.fixture
def lent(ray_transport: Any) -> Lent:
    return Lent(ray_transport)
