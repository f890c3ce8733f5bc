"""The one loop of reinforcement learning, and its books."""

from simulator.loop.loop import Loop, run

__all__ = ["Loop", "run"]
