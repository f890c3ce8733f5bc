"""Unit tests for policies; see `simulator.testing`, whose names these are. ``strategies`` are for
Hypothesis, and imported by name."""

from rollcast.simulator.testing import *  # noqa: F403
from rollcast.simulator.testing import __all__ as __all__
