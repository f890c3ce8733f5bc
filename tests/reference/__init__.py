"""Slow, plain implementations that the fast ones must agree with."""
