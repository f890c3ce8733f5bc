"""The strategies of `simulator.testing.strategies`."""

from rollcast.simulator.testing.strategies import *  # noqa: F403
from rollcast.simulator.testing.strategies import __all__ as __all__
