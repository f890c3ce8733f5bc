"""transformers' continuous batching as a rollout engine; see docs/engines.md."""
