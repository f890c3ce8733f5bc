"""One Ray for the tests of a file that need it, on this machine, with this folder on its path."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from actor_threads import FOLDERS, Lent

HAVE_VLLM = importlib.util.find_spec("vllm") is not None
HAVE_RAY = importlib.util.find_spec("ray") is not None

if HAVE_VLLM:
    from rollcast.engine.vllm.environment import prepare

    prepare()


@pytest.fixture(scope="module")
def ray_transport() -> Iterator[Any]:
    if not HAVE_RAY:
        pytest.skip("Ray is not installed (rollcast[ray])")
    from rollcast.engine.actors.on_ray import RayTransport

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        transport = RayTransport()
        yield transport
        transport.close()


@pytest.fixture
def lent(ray_transport: Any) -> Lent:
    return Lent(ray_transport)
