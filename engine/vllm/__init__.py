"""vLLM as an engine of `engine.edges`. Nothing else in the project knows vLLM's own API."""
