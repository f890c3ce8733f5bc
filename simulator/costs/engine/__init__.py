"""What an engine's iteration takes: kernels, messages between GPUs, host, speculation."""
