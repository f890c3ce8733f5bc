"""One Ray for the tests that need it, on this machine, with this folder on its path."""

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


@pytest.fixture(scope="session")
def ray_transport() -> Iterator[Any]:
    """It counts four GPUs that are not there."""
    if not HAVE_RAY:
        pytest.skip("Ray is not installed (rollcast[ray])")
    with pytest.MonkeyPatch.context() as patch:
        # As where others have started Ray: it hides the GPUs from who has asked for none.
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        with ray_started(gpus=4) as transport:
            yield transport


@pytest.fixture
def lent(ray_transport: Any) -> Lent:
    return Lent(ray_transport)
