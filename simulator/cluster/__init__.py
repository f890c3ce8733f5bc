"""The simulated world: replicas with continuous batching, a trainer, weight sync, on SimPy."""
