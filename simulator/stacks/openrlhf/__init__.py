"""OpenRLHF: Ray actors with DeepSpeed and vLLM; command-line arguments alone."""
