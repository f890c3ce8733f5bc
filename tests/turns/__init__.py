"""Rollouts of several turns in the real world, most of it without an engine."""
