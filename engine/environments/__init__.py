"""Environments of the real world: what answers a rollout's turns, and how it is called."""

from rollcast.engine.environments.base import Answer, CallError, Environment, Episode, Said, Turn

__all__ = ["Answer", "CallError", "Environment", "Episode", "Said", "Turn"]
