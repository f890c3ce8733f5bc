"""The one loop of reinforcement learning, and its token accounting."""

from rollcast.simulator.loop.loop import Loop as Loop
